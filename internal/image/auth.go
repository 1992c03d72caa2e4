package image

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"strings"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
)

// Auth is CRI's AuthConfig. Of what is set, the first of registry token,
// username and password, identity token, auth is used.
type Auth struct {
	Username, Password string
	// Auth is base64 of "username:password".
	Auth string
	// ServerAddress, a host or URL, limits the credentials to that host.
	// Empty, they are for the registry that the image reference names.
	ServerAddress string
	// IdentityToken is exchanged for access tokens at the registry's token server.
	IdentityToken string
	// RegistryToken is sent to the registry as it is.
	RegistryToken string
}

// key tells pulls with different credentials apart, in memory only.
func (a *Auth) key() string {
	if a == nil {
		return ""
	}
	data, _ := json.Marshal(a) // strings always marshal
	sum := sha256.Sum256(data)
	return string(sum[:])
}

// secret gives username and secret as containerd's authorizer wants them: a
// secret without a username is an identity token.
func (a *Auth) secret() (user, secret string, err error) {
	switch {
	case a.Username != "":
		return a.Username, a.Password, nil
	case a.IdentityToken != "":
		return "", a.IdentityToken, nil
	case a.Auth != "":
		data, err := base64.StdEncoding.DecodeString(a.Auth)
		if err != nil {
			return "", "", fmt.Errorf("credentials: field auth is not base64: %w", errdefs.ErrInvalidArgument)
		}
		user, secret, ok := strings.Cut(strings.TrimRight(string(data), "\x00"), ":")
		if !ok {
			return "", "", fmt.Errorf("credentials: field auth is not user:password: %w", errdefs.ErrInvalidArgument)
		}
		return user, secret, nil
	}
	return "", "", nil
}

// credentials are an Auth bound to the one host that may see it.
type credentials struct {
	host          string
	user, secret  string
	registryToken string
}

func bind(a *Auth, refHost string) (*credentials, error) {
	if a == nil {
		return &credentials{}, nil
	}
	user, secret, err := a.secret()
	if err != nil {
		return nil, err
	}
	host := refHost
	if a.ServerAddress != "" {
		address := a.ServerAddress
		if !strings.Contains(address, "://") {
			address = "//" + address
		}
		u, err := url.Parse(address)
		if err != nil || u.Host == "" {
			return nil, fmt.Errorf("credentials: server address is not a host: %w", errdefs.ErrInvalidArgument)
		}
		host = u.Host
	}
	return &credentials{host: canonicalHost(host), user: user, secret: secret, registryToken: a.RegistryToken}, nil
}

// canonicalHost maps the names of the default registry to the one it is asked at.
func canonicalHost(host string) string {
	host = strings.ToLower(host)
	// A bare word is no registry in a reference, but may be a mirror's host.
	if strings.ContainsAny(host, ".:") {
		if named, err := reference.ParseNormalizedNamed(host + "/any/name"); err == nil {
			host = reference.Domain(named)
		}
	}
	if at, err := docker.DefaultHost(host); err == nil {
		return at
	}
	return host
}

func (c *credentials) allowed(host string) bool {
	return c.host != "" && c.host == canonicalHost(host)
}

// authorizer makes the authorizer for one registry host. Only the host the
// credentials are bound to gets one that knows them.
func (c *credentials) authorizer(h docker.RegistryHost, tokens *http.Client) docker.Authorizer {
	if c.registryToken != "" && c.allowed(h.Host) {
		return &tokenAuthorizer{host: h.Host, token: c.registryToken}
	}
	opts := []docker.AuthorizerOpt{docker.WithAuthClient(tokens)}
	if len(h.Header) > 0 {
		opts = append(opts, docker.WithAuthHeader(h.Header))
	}
	if c.secret != "" && c.allowed(h.Host) {
		opts = append(opts, docker.WithAuthCreds(func(host string) (string, string, error) {
			// A redirect may have led elsewhere: host is who asked.
			if !strings.EqualFold(host, h.Host) {
				return "", "", nil
			}
			return c.user, c.secret, nil
		}))
	}
	return docker.NewDockerAuthorizer(opts...)
}

// tokenAuthorizer sends a registry token to one host.
type tokenAuthorizer struct{ host, token string }

func (t *tokenAuthorizer) Authorize(_ context.Context, req *http.Request) error {
	if strings.EqualFold(req.URL.Host, t.host) {
		req.Header.Set("Authorization", "Bearer "+t.token)
	}
	return nil
}

func (t *tokenAuthorizer) AddResponses(context.Context, []*http.Response) error {
	return fmt.Errorf("registry token was refused: %w", docker.ErrInvalidAuthorization)
}
