package image

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// The first folder of the list that knows the registry decides.
func TestMirrorsFromList(t *testing.T) {
	mirror, unused := startRegistry(t), startRegistry(t)
	img := small(t, "mirrored")
	mirror.push(t, "team/app:1", img)
	const refHost = "registry.test:5000"
	other := mirrored(t, "another.test", "http://another.test")
	first := mirrored(t, refHost, unused.URL, mirror.URL)
	second := mirrored(t, refHost, unused.URL, unused.URL)
	s := open(t, Config{RegistryDirs: []string{filepath.Join(t.TempDir(), "missing"), other, first, second}})
	got, err := s.Pull(t.Context(), refHost+"/team/app:1", nil)
	if err != nil {
		t.Fatal(err)
	}
	if got.ID != configDigest(t, img) || got.Tags[0] != refHost+"/team/app:1" {
		t.Errorf("image %+v", got)
	}
	if n := unused.requests(""); n != 0 {
		t.Errorf("the registry behind the mirror was asked %d times", n)
	}
}

func TestMirrorFallsBack(t *testing.T) {
	hang := make(chan struct{})
	defer close(hang)
	for _, c := range []struct {
		name   string
		mirror func(w http.ResponseWriter, r *http.Request) bool
	}{
		{"404", func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusNotFound); return true }},
		{"500", func(w http.ResponseWriter, _ *http.Request) bool {
			w.WriteHeader(http.StatusInternalServerError)
			return true
		}},
		{"silent", func(_ http.ResponseWriter, r *http.Request) bool {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return true
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			origin, mirror := startRegistry(t), startRegistry(t)
			ref := origin.push(t, "app:1", small(t, "x"))
			mirror.hook(c.mirror)
			s := open(t, Config{StallTimeout: 300 * time.Millisecond, RegistryDirs: []string{mirrored(t, origin.host, origin.URL, mirror.URL)}})
			begin := time.Now()
			if _, err := s.Pull(t.Context(), ref, nil); err != nil {
				t.Fatal(err)
			}
			if d := time.Since(begin); d > 5*time.Second {
				t.Errorf("took %s", d)
			}
			if mirror.requests("") == 0 {
				t.Error("the mirror was not asked")
			}

			// What neither has is the registry's own answer, with both named.
			_, err := s.Pull(t.Context(), origin.host+"/none:1", nil)
			if !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), mirror.host) || !strings.Contains(err.Error(), origin.host) {
				t.Errorf("missing image: %v", err)
			}
		})
	}

	// A mirror that takes no connection costs one wait, not one for each layer.
	t.Run("unreachable", func(t *testing.T) {
		origin := startRegistry(t)
		ref := origin.push(t, "app:1", small(t, "y"))
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		mirror := l.Addr().String()
		l.Close()
		s := open(t, Config{RegistryDirs: []string{mirrored(t, origin.host, origin.URL, "http://"+mirror)}})
		if _, err := s.Pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
		if s.down.reason(mirror) == nil {
			t.Error("the mirror's failure was not remembered")
		}
	})

	// A mirror that stalls within a layer is left for the registry, which
	// serves the rest.
	t.Run("stalls in a layer", func(t *testing.T) {
		origin, mirror := startRegistry(t), startRegistry(t)
		img := big(t, 1<<20)
		ref := origin.push(t, "app:1", img)
		mirror.push(t, "app:1", img)
		stop := make(chan struct{})
		defer close(stop)
		stallAt(mirror, "/blobs/"+layerDigest(t, img, 0), 0.5, stop)
		s := open(t, Config{StallTimeout: 300 * time.Millisecond, RegistryDirs: []string{mirrored(t, origin.host, origin.URL, mirror.URL)}})
		if _, err := s.Pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
	})
}

func TestBadHostsFile(t *testing.T) {
	origin := startRegistry(t)
	ref := origin.push(t, "app:1", small(t, "x"))
	dir := mirrored(t, origin.host, origin.URL)
	paths, _ := filepath.Glob(filepath.Join(dir, "*", "hosts.toml"))
	if err := os.WriteFile(paths[0], []byte("server = \n[[["), 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{RegistryDirs: []string{dir}})
	origin.hook(nil)
	if _, err := s.Pull(t.Context(), ref, nil); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), paths[0]) {
		t.Errorf("broken hosts.toml: %v", err)
	}
	if origin.requests("") != 0 {
		t.Error("the registry was asked in spite of it")
	}
}

// withBasic lets only user:secret in.
func withBasic(reg *fakeRegistry) {
	reg.hook(func(w http.ResponseWriter, r *http.Request) bool {
		user, pass, _ := r.BasicAuth()
		if user == "user" && pass == "secret" {
			return false
		}
		w.Header().Set("WWW-Authenticate", `Basic realm="test"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
}

func TestBasicAuth(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, "app:1", small(t, "x"))
	withBasic(reg)
	for _, c := range []struct {
		name string
		auth *Auth
		ok   bool
	}{
		{"none", nil, false},
		{"wrong", &Auth{Username: "user", Password: "guess"}, false},
		{"for another server", &Auth{Username: "user", Password: "secret", ServerAddress: "https://another.test/v1/"}, false},
		{"broken", &Auth{Auth: "%%%"}, false},
		{"password", &Auth{Username: "user", Password: "secret"}, true},
		{"base64", &Auth{Auth: base64.StdEncoding.EncodeToString([]byte("user:secret")), ServerAddress: reg.host}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, Config{})
			_, err := s.Pull(t.Context(), ref, c.auth.options())
			if c.ok {
				if err != nil {
					t.Fatal(err)
				}
				return
			}
			if !errdefs.IsUnauthorized(err) && !errdefs.IsInvalidArgument(err) {
				t.Fatalf("no refusal: %v", err)
			}
			if strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "guess") {
				t.Errorf("the error tells the password: %v", err)
			}
		})
	}
}

func (a *Auth) options() *PullOptions { return &PullOptions{Auth: a} }

// Credentials reach the registry they were given for, and neither a mirror nor
// where a redirect leads.
func TestCredentialsStay(t *testing.T) {
	origin, mirror, elsewhere := startRegistry(t), startRegistry(t), startRegistry(t)
	img := small(t, "x")
	ref := origin.push(t, "app:1", img)
	elsewhere.push(t, "app:1", img)
	mirror.hook(func(w http.ResponseWriter, _ *http.Request) bool {
		// A curious mirror asks for a login.
		w.Header().Set("WWW-Authenticate", `Basic realm="mirror"`)
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	withBasic(origin)
	inner := origin.before
	origin.hook(func(w http.ResponseWriter, r *http.Request) bool {
		if inner(w, r) {
			return true
		}
		if strings.Contains(r.URL.Path, "/blobs/") {
			http.Redirect(w, r, elsewhere.URL+r.URL.Path+"?signature=hidden", http.StatusTemporaryRedirect)
			return true
		}
		return false
	})
	elsewhere.hook(func(_ http.ResponseWriter, r *http.Request) bool {
		if private := r.Header.Get("X-Private"); private != "" {
			t.Errorf("header for the origin went astray: %q", private)
		}
		return false
	})
	dir := mirrored(t, origin.host, origin.URL, mirror.URL)
	paths, _ := filepath.Glob(filepath.Join(dir, "*", "hosts.toml"))
	hosts, err := os.ReadFile(paths[0])
	if err != nil {
		t.Fatal(err)
	}
	hosts = append([]byte("server = \""+origin.URL+"\"\n[header]\n  X-Private = \"for origin\"\n"), hosts[strings.Index(string(hosts), "[host"):]...)
	if err := os.WriteFile(paths[0], hosts, 0o644); err != nil {
		t.Fatal(err)
	}
	s := open(t, Config{RegistryDirs: []string{dir}})
	auth := &Auth{Username: "user", Password: "secret"}
	if _, err := s.Pull(t.Context(), ref, auth.options()); err != nil {
		t.Fatal(err)
	}
	if len(mirror.auth) == 0 || len(elsewhere.auth) == 0 {
		t.Fatal("mirror or redirect target was not asked")
	}
	for _, a := range append(mirror.auth, elsewhere.auth...) {
		if a != "" {
			t.Errorf("credentials went astray: %q", a)
		}
	}

	// An error after a redirect does not tell the signed address.
	elsewhere.hook(func(w http.ResponseWriter, _ *http.Request) bool { w.WriteHeader(http.StatusForbidden); return true })
	s = open(t, Config{})
	_, err = s.Pull(t.Context(), ref, auth.options())
	if !errdefs.IsPermissionDenied(err) || strings.Contains(err.Error(), "hidden") {
		t.Errorf("refused after a redirect: %v", err)
	}
}

// A token server gives tokens for the password or identity token; a registry
// token is sent as it is.
func TestTokens(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, "app:1", small(t, "x"))
	const good = "token-for-app"
	hang := make(chan struct{})
	silent := false
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent {
			select {
			case <-hang:
			case <-r.Context().Done():
			}
			return
		}
		r.ParseForm()
		user, pass, _ := r.BasicAuth()
		if r.Form.Get("refresh_token") == "identity" || r.Form.Get("password") == "secret" || user == "user" && pass == "secret" {
			json.NewEncoder(w).Encode(map[string]string{"token": good, "access_token": good})
			return
		}
		w.WriteHeader(http.StatusUnauthorized)
	}))
	defer tokens.Close()
	defer close(hang)
	reg.hook(func(w http.ResponseWriter, r *http.Request) bool {
		if r.Header.Get("Authorization") == "Bearer "+good {
			return false
		}
		w.Header().Set("WWW-Authenticate", fmt.Sprintf(`Bearer realm=%q,service="test",scope="repository:app:pull"`, tokens.URL+"/token"))
		w.WriteHeader(http.StatusUnauthorized)
		return true
	})
	for name, auth := range map[string]*Auth{
		"password": {Username: "user", Password: "secret"},
		"identity": {IdentityToken: "identity"},
		"registry": {RegistryToken: good},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{})
			if _, err := s.Pull(t.Context(), ref, auth.options()); err != nil {
				t.Fatal(err)
			}
		})
	}
	for name, auth := range map[string]*Auth{
		"wrong password": {Username: "user", Password: "no"},
		"wrong registry": {RegistryToken: "no"},
	} {
		t.Run(name, func(t *testing.T) {
			s := open(t, Config{})
			if _, err := s.Pull(t.Context(), ref, auth.options()); !errdefs.IsUnauthorized(err) {
				t.Fatalf("no refusal: %v", err)
			}
		})
	}
	t.Run("silent", func(t *testing.T) {
		silent = true
		s := open(t, Config{StallTimeout: 200 * time.Millisecond})
		_, err := s.Pull(t.Context(), ref, (&Auth{Username: "user", Password: "secret"}).options())
		var stall *StallError
		if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &stall) || stall.Step != "token" {
			t.Fatalf("token server that says nothing: %v", err)
		}
	})
}

func TestWithoutSecrets(t *testing.T) {
	for in, want := range map[string]string{
		`Get "https://cdn.test/blob?X-Sig=abc&y=1": EOF`: `Get "https://cdn.test/blob?…": EOF`,
		"https://user:pw@reg.test/v2/ failed":            "https://…@reg.test/v2/ failed",
		"nothing here?":                                  "nothing here?",
	} {
		if got := withoutSecrets(in); got != want {
			t.Errorf("%s\nbecame %s\nwant   %s", in, got, want)
		}
	}
}

func TestCredentialsHost(t *testing.T) {
	for _, c := range []struct {
		server, ref, host string
		ok                bool
	}{
		{"", "reg.test:5000", "reg.test:5000", true},
		{"", "reg.test:5000", "REG.test:5000", true},
		{"", "reg.test:5000", "reg.test:5001", false},
		{"", "reg.test:5000", "mirror", false},
		{"", "docker.io", "registry-1.docker.io", true},
		{"", "docker.io", "mirror", false},
		{"https://index.docker.io/v1/", "docker.io", "registry-1.docker.io", true},
		{"reg.test", "reg.test", "reg.test", true},
		{"https://reg.test/v2", "reg.test", "reg.test", true},
		{"other.test", "reg.test", "reg.test", false},
	} {
		creds, err := bind(&Auth{Username: "user", Password: "secret", ServerAddress: c.server}, c.ref)
		if err != nil {
			t.Fatal(err)
		}
		if got := creds.allowed(c.host); got != c.ok {
			t.Errorf("credentials for %q, image at %s: shown to %s: %v", c.server, c.ref, c.host, got)
		}
	}
	if creds, _ := bind(nil, "reg.test"); creds.allowed("") || creds.allowed("reg.test") {
		t.Error("no credentials are shown to somebody")
	}
}
