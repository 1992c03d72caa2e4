package image

import (
	"archive/tar"
	"bytes"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"time"

	clog "github.com/containerd/log"
	"github.com/containerd/platforms"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	"github.com/google/go-containerregistry/pkg/name"
)

// TestMain fails a run that leaves goroutines or mounts behind.
func TestMain(m *testing.M) {
	clog.L.Logger.SetOutput(io.Discard)
	before := runtime.NumGoroutine()
	code := m.Run()
	deadline := time.Now().Add(5 * time.Second)
	for runtime.NumGoroutine() > before && time.Now().Before(deadline) {
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
		time.Sleep(20 * time.Millisecond)
	}
	if n := runtime.NumGoroutine(); code == 0 && n > before {
		fmt.Printf("%d goroutines before the tests, %d after\n", before, n)
		pprof.Lookup("goroutine").WriteTo(os.Stdout, 1)
		code = 1
	}
	if table, _ := os.ReadFile("/proc/self/mountinfo"); bytes.Contains(table, []byte("/TestRootfs")) {
		fmt.Println("mounts are left")
		code = 1
	}
	os.Exit(code)
}

// open opens a service and closes it with the test.
func open(t testing.TB, cfg Config) *Service {
	t.Helper()
	if cfg.Root == "" {
		cfg.Root = t.TempDir()
	}
	if cfg.CollectDelay == 0 {
		cfg.CollectDelay = 20 * time.Millisecond
	}
	s, err := New(t.Context(), &cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.Close(); err != nil {
			t.Errorf("close: %v", err)
		}
	})
	return s
}

// file is one entry of a layer. A name that ends in / is a folder.
type file struct {
	name, data string
	mode       int64
	uid        int
}

func layerOf(t testing.TB, files ...file) v1.Layer {
	t.Helper()
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	for _, f := range files {
		h := &tar.Header{Name: f.name, Mode: f.mode, Uid: f.uid, Gid: f.uid, Size: int64(len(f.data)), Typeflag: tar.TypeReg}
		if strings.HasSuffix(f.name, "/") {
			h.Typeflag = tar.TypeDir
		}
		if h.Mode == 0 {
			h.Mode = 0o755
		}
		if err := tw.WriteHeader(h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(tw, f.data); err != nil {
			t.Fatal(err)
		}
	}
	if err := tw.Close(); err != nil {
		t.Fatal(err)
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		return io.NopCloser(bytes.NewReader(buf.Bytes())), nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// imageOf makes an image for this platform.
func imageOf(t testing.TB, user string, layers ...v1.Layer) v1.Image {
	t.Helper()
	img, err := mutate.AppendLayers(empty.Image, layers...)
	if err != nil {
		t.Fatal(err)
	}
	cfg, err := img.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	cfg = cfg.DeepCopy()
	p := platforms.DefaultSpec()
	cfg.OS, cfg.Architecture, cfg.Variant = p.OS, p.Architecture, p.Variant
	cfg.Config.User = user
	cfg.Config.Cmd = []string{"/bin/hello"}
	img, err = mutate.ConfigFile(img, cfg)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

// small is an image of two layers; salt makes it another image.
func small(t testing.TB, salt string) v1.Image {
	return imageOf(t, "1000:50",
		layerOf(t, file{name: "bin/"}, file{name: "bin/hello", data: "hello " + salt}, file{name: "etc/"}, file{name: "etc/gone", data: "x"}),
		layerOf(t, file{name: "etc/"}, file{name: "etc/motd", data: "welcome " + salt}, file{name: "etc/.wh.gone"}),
	)
}

// noise is data that does not compress.
func noise(n int) string {
	b := make([]byte, n)
	x := uint64(88172645463325252)
	for i := range b {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		b[i] = byte(x)
	}
	return string(b)
}

// big is an image with one layer of about n bytes compressed.
func big(t testing.TB, n int) v1.Image {
	return imageOf(t, "", layerOf(t, file{name: "blob", data: noise(n)}))
}

// fakeRegistry is a registry on loopback. before may answer a request itself.
type fakeRegistry struct {
	*httptest.Server
	host    string
	mu      sync.Mutex
	seen    []string // "METHOD path" of each request
	auth    []string // Authorization of each request
	before  func(w http.ResponseWriter, r *http.Request) (done bool)
	handler http.Handler
}

func startRegistry(t testing.TB) *fakeRegistry {
	t.Helper()
	f := &fakeRegistry{handler: registry.New(registry.Logger(log.New(io.Discard, "", 0)))}
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		f.seen = append(f.seen, r.Method+" "+r.URL.Path)
		f.auth = append(f.auth, r.Header.Get("Authorization"))
		before := f.before
		f.mu.Unlock()
		if before == nil || !before(w, r) {
			f.handler.ServeHTTP(w, r)
		}
	}))
	f.host = strings.TrimPrefix(f.URL, "http://")
	t.Cleanup(func() {
		f.CloseClientConnections()
		f.Close()
	})
	return f
}

func (f *fakeRegistry) hook(fn func(w http.ResponseWriter, r *http.Request) bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.before = fn
	f.seen, f.auth = nil, nil
}

func (f *fakeRegistry) requests(part string) (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, s := range f.seen {
		if strings.Contains(s, part) {
			n++
		}
	}
	return n
}

// push puts an image into the registry and gives the reference to pull.
func (f *fakeRegistry) push(t testing.TB, repo string, img v1.Image) string {
	t.Helper()
	tag, err := name.NewTag(f.host+"/"+repo, name.Insecure)
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(tag, img); err != nil {
		t.Fatal(err)
	}
	http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	return tag.String()
}

// mirrored writes a hosts.toml for refHost that names hosts, and gives the
// folder to configure.
func mirrored(t testing.TB, refHost, server string, mirrors ...string) string {
	t.Helper()
	dir := t.TempDir()
	var b strings.Builder
	fmt.Fprintf(&b, "server = %q\n", server)
	for _, m := range mirrors {
		fmt.Fprintf(&b, "[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", m)
	}
	host := strings.Replace(refHost, ":", "_", 1)
	if host != refHost {
		host += "_"
	}
	if err := os.MkdirAll(filepath.Join(dir, host), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, host, "hosts.toml"), []byte(b.String()), 0o644); err != nil {
		t.Fatal(err)
	}
	return dir
}

// eventually waits until cond holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !cond() {
		if time.Now().After(deadline) {
			t.Fatalf("not in time: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func configDigest(t testing.TB, img v1.Image) string {
	t.Helper()
	h, err := img.ConfigName()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}

func layerDigest(t testing.TB, img v1.Image, i int) string {
	t.Helper()
	layers, err := img.Layers()
	if err != nil {
		t.Fatal(err)
	}
	h, err := layers[i].Digest()
	if err != nil {
		t.Fatal(err)
	}
	return h.String()
}
