package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	dockerconfig "github.com/containerd/containerd/v2/core/remotes/docker/config"
	"github.com/containerd/errdefs"
	"github.com/pelletier/go-toml/v2"
)

// downFor is how long a mirror that could not be reached is passed over.
const downFor = 30 * time.Second

// downHosts remembers hosts that could not be reached, so that an unreachable
// mirror costs one wait and not one for every layer.
type downHosts struct {
	mu    sync.Mutex
	until map[string]time.Time
	why   map[string]error
}

func (d *downHosts) mark(host string, why error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.until == nil {
		d.until, d.why = map[string]time.Time{}, map[string]error{}
	}
	d.until[host], d.why[host] = time.Now().Add(downFor), why
}

func (d *downHosts) clear(host string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.until, host)
	delete(d.why, host)
}

// reason says why a host is passed over, nil if it is not.
func (d *downHosts) reason(host string) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Now().Before(d.until[host]) {
		return d.why[host]
	}
	return nil
}

// hostDir finds the folder of hosts.toml and certificates for a registry: the
// first of the configured folders that has one decides alone.
func (s *Service) hostDir(host string) (string, error) {
	for _, root := range s.cfg.RegistryDirs {
		dir, err := dockerconfig.HostDirFromRoot(root)(host)
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("registry configuration of %s: %w", host, err)
		}
		// containerd goes on without a hosts.toml that it cannot parse. Asking
		// the registry itself when a mirror was meant is a surprise, so do not.
		path := filepath.Join(dir, "hosts.toml")
		data, err := os.ReadFile(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return "", fmt.Errorf("registry configuration of %s: %w", host, err)
		}
		var tree map[string]any
		if err := toml.Unmarshal(data, &tree); err != nil {
			return "", fmt.Errorf("%s cannot be parsed: %w: %w", path, err, errdefs.ErrFailedPrecondition)
		}
		return dir, nil
	}
	return "", errdefs.ErrNotFound
}

// registries gives the resolver the hosts to ask for a registry, in order. The
// same clients and tokens serve the whole pull.
func (p *pull) registries(ctx context.Context) docker.RegistryHosts {
	var (
		mu    sync.Mutex
		known = map[string][]docker.RegistryHost{}
	)
	return func(host string) ([]docker.RegistryHost, error) {
		mu.Lock()
		defer mu.Unlock()
		if hosts, ok := known[host]; ok {
			return slices.Clone(hosts), nil
		}
		hosts, err := dockerconfig.ConfigureHosts(ctx, dockerconfig.HostOptions{
			HostDir: p.s.hostDir,
			UpdateClient: func(c *http.Client) error {
				if t, ok := c.Transport.(*http.Transport); ok {
					t.ResponseHeaderTimeout = 0 // ours, see transport.go
					p.connections = append(p.connections, t)
				}
				return nil
			},
		})(host)
		if err != nil {
			return nil, err
		}
		for i := range hosts {
			h := &hosts[i]
			t := &transport{pull: p, base: h.Client.Transport, host: h.Host, last: i == len(hosts)-1, secure: new(atomic.Bool), private: h.Header}
			tokens := *t
			tokens.token = true
			h.Client = &http.Client{Transport: t}
			h.Authorizer = p.creds.authorizer(*h, &http.Client{Transport: &tokens, CheckRedirect: sameHostOnly})
		}
		known[host] = hosts
		return slices.Clone(hosts), nil
	}
}

// closeConnections drops the idle connections of a pull that is over.
func (p *pull) closeConnections() {
	for _, t := range p.connections {
		t.CloseIdleConnections()
	}
}

// sameHostOnly refuses redirects of a token server to another host: the request
// carries a password.
func sameHostOnly(req *http.Request, via []*http.Request) error {
	if len(via) >= 10 {
		return errors.New("stopped after 10 redirects")
	}
	if first := via[0].URL; req.URL.Host != first.Host || req.URL.Scheme != first.Scheme {
		return fmt.Errorf("token server redirects to %s, which may not see the credentials", req.URL.Host)
	}
	return nil
}
