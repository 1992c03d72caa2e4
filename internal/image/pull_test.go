package image

import (
	"context"
	"errors"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestPull(t *testing.T) {
	reg := startRegistry(t)
	img := small(t, "a")
	ref := reg.push(t, "team/app:1", img)
	s := open(t, Config{SyncFS: true, Pinned: []string{reg.host + "/team/*"}})

	got, err := s.Pull(t.Context(), ref, &PullOptions{Labels: map[string]string{"who": "me"}})
	if err != nil {
		t.Fatal(err)
	}
	if want := configDigest(t, img); got.ID != want {
		t.Errorf("id %s, want %s", got.ID, want)
	}
	digest, _ := img.Digest()
	size, _ := img.Size()
	layers, _ := img.Layers()
	manifest, _ := img.Manifest()
	size += manifest.Config.Size
	for _, l := range layers {
		n, _ := l.Size()
		size += n
	}
	if got.Size != size {
		t.Errorf("size %d, want %d", got.Size, size)
	}
	if len(got.Tags) != 1 || got.Tags[0] != ref {
		t.Errorf("tags %v, want %s", got.Tags, ref)
	}
	byDigest := reg.host + "/team/app@" + digest.String()
	if len(got.Digests) != 1 || got.Digests[0] != byDigest {
		t.Errorf("digests %v, want %s", got.Digests, byDigest)
	}
	if got.UID == nil || *got.UID != 1000 || got.Username != "" {
		t.Errorf("user %v %q, want uid 1000", got.UID, got.Username)
	}
	if !got.Pinned || got.Labels["who"] != "me" || got.Config.Config.Cmd[0] != "/bin/hello" {
		t.Errorf("pinned %v, labels %v, config %v", got.Pinned, got.Labels, got.Config.Config)
	}
	for _, by := range []string{ref, byDigest, got.ID, got.ID[7:], got.ID[7:19], got.ID[:20]} {
		found, err := s.Get(t.Context(), by)
		if err != nil || found.ID != got.ID {
			t.Errorf("get %s: %v, %v", by, found, err)
		}
	}
	if _, err := s.Get(t.Context(), reg.host+"/team/app:2"); !errdefs.IsNotFound(err) {
		t.Errorf("get of another tag: %v", err)
	}
	if n := len(s.List(t.Context())); n != 1 {
		t.Errorf("list has %d images", n)
	}

	// Pulled again, nothing is fetched but the answer to what the tag means.
	reg.hook(nil)
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if n := reg.requests("GET "); n != 0 {
		t.Errorf("second pull fetched: %v", reg.seen)
	}

	// A tag that moves leaves the old image with its digest.
	reg.push(t, "team/app:1", small(t, "b"))
	moved, err := s.Pull(t.Context(), ref, nil)
	if err != nil {
		t.Fatal(err)
	}
	old, err := s.Get(t.Context(), byDigest)
	if err != nil || len(old.Tags) != 0 || moved.Tags[0] != ref || old.ID == moved.ID {
		t.Errorf("after the tag moved: old %v (%v), new %v", old, err, moved)
	}
}

func TestPullNotFound(t *testing.T) {
	reg := startRegistry(t)
	s := open(t, Config{})
	_, err := s.Pull(t.Context(), reg.host+"/no/such:1", nil)
	if !errdefs.IsNotFound(err) {
		t.Fatalf("not NotFound: %v", err)
	}
	for _, part := range []string{reg.host + "/no/such:1", "resolve", reg.host + " resolve: 404"} {
		if !strings.Contains(err.Error(), part) {
			t.Errorf("error does not say %q: %v", part, err)
		}
	}
	if _, err := s.Pull(t.Context(), "UPPER CASE", nil); !errdefs.IsInvalidArgument(err) {
		t.Errorf("bad reference: %v", err)
	}
	if _, err := s.Pull(t.Context(), "127.0.0.1:1/x:1", nil); !errdefs.IsUnavailable(err) {
		t.Errorf("refused connection: %v", err)
	}
}

func TestPullCallerDeadline(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, "app:1", small(t, "a"))
	s := open(t, Config{})
	ctx, cancel := context.WithDeadline(t.Context(), time.Now().Add(-time.Second))
	defer cancel()
	reg.hook(nil)
	if _, err := s.Pull(ctx, ref, nil); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("expired deadline: %v", err)
	}
	if n := reg.requests(""); n != 0 {
		t.Errorf("%d requests for a caller that had no time", n)
	}

	// A deadline that passes meanwhile ends the wait, and the pull with it.
	hang := make(chan struct{})
	reg.hook(func(_ http.ResponseWriter, r *http.Request) bool {
		select {
		case <-hang:
		case <-r.Context().Done():
		}
		return true
	})
	ctx, cancel = context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := s.Pull(ctx, ref, nil)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "resolve") {
		t.Fatalf("deadline during the pull: %v", err)
	}
	eventually(t, "the pull ends", func() bool { return len(s.Progress()) == 0 })
	close(hang)
}

func TestPullSingleFlight(t *testing.T) {
	reg := startRegistry(t)
	img := big(t, 1<<18)
	ref := reg.push(t, "app:1", img)
	s := open(t, Config{})
	gate := make(chan struct{})
	reg.hook(func(_ http.ResponseWriter, r *http.Request) bool {
		if strings.Contains(r.URL.Path, "/blobs/") {
			<-gate
		}
		return false
	})
	var wg sync.WaitGroup
	ids := make([]string, 4)
	for i := range ids {
		wg.Go(func() {
			img, err := s.Pull(t.Context(), ref, nil)
			if err != nil {
				t.Error(err)
				return
			}
			ids[i] = img.ID
		})
	}
	eventually(t, "all wait for one pull that fetches", func() bool {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, f := range s.flights {
			return f.waiters == 4 && f.progress.report().Stage == StageFetch
		}
		return false
	})
	// One who leaves takes nothing from the others.
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan error)
	go func() { _, err := s.Pull(ctx, ref, nil); left <- err }()
	time.Sleep(20 * time.Millisecond)
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Errorf("who left got %v", err)
	}
	p := s.Progress()
	if len(p) != 1 || p[0].Host != reg.host || p[0].Ref != ref {
		t.Errorf("progress %+v", p)
	}
	close(gate)
	wg.Wait()
	for _, id := range ids {
		if id != configDigest(t, img) {
			t.Errorf("ids %v", ids)
		}
	}
	if n := reg.requests("GET /v2/app/blobs/" + layerDigest(t, img, 0)); n != 1 {
		t.Errorf("layer was fetched %d times", n)
	}
	if n := len(s.Progress()); n != 0 {
		t.Errorf("%d pulls under way", n)
	}
}

// Two pulls of different images that share a layer fetch and unpack it once.
func TestPullSharedLayer(t *testing.T) {
	reg := startRegistry(t)
	base := layerOf(t, file{name: "base", data: noise(1 << 18)})
	a := imageOf(t, "", base, layerOf(t, file{name: "a"}))
	b := imageOf(t, "", base, layerOf(t, file{name: "b"}))
	refA, refB := reg.push(t, "app-a:1", a), reg.push(t, "app-b:1", b)
	s := open(t, Config{})
	reg.hook(nil)
	var wg sync.WaitGroup
	for _, ref := range []string{refA, refB} {
		wg.Go(func() {
			if _, err := s.Pull(t.Context(), ref, nil); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	digest := layerDigest(t, a, 0)
	if n := reg.requests("GET /v2/app-a/blobs/"+digest) + reg.requests("GET /v2/app-b/blobs/"+digest); n != 1 {
		t.Errorf("shared layer was fetched %d times", n)
	}
}

// Garbage collection all the time takes nothing from a pull that trickles.
func TestPullUnderCollection(t *testing.T) {
	reg := startRegistry(t)
	img := big(t, 1<<19)
	ref := reg.push(t, "app:1", img)
	s := open(t, Config{StallTimeout: time.Second})
	reg.hook(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, "/blobs/") || r.Method != http.MethodGet {
			return false
		}
		rec := &recorder{header: http.Header{}}
		reg.handler.ServeHTTP(rec, r)
		for len(rec.data) > 0 {
			n := min(len(rec.data), 1<<15)
			w.Write(rec.data[:n])
			w.(http.Flusher).Flush()
			rec.data = rec.data[n:]
			time.Sleep(20 * time.Millisecond)
		}
		return true
	})
	stop, done := make(chan struct{}), make(chan struct{})
	runs := 0
	go func() {
		defer close(done)
		for ; ; runs++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
			}
			if err := s.collectNow(s.ctx); err != nil {
				t.Errorf("collect: %v", err)
			}
		}
	}()
	got, err := s.Pull(t.Context(), ref, nil)
	close(stop)
	<-done
	if err != nil || runs < 10 {
		t.Fatalf("%v after %d collections", err, runs)
	}
	checkTree(t, s, got, map[string]string{"blob": noise(1 << 19)})
}

// checkTree mounts an image and compares files.
func checkTree(t *testing.T, s *Service, img *Image, want map[string]string) {
	t.Helper()
	mounts, err := s.PrepareRootfs(t.Context(), "check", img.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "TestRootfs-check")
	if err := s.Mount(t.Context(), mounts, target); err != nil {
		t.Fatal(err)
	}
	checkFiles(t, target, want)
	if err := s.Unmount(t.Context(), target); err != nil {
		t.Error(err)
	}
	if err := s.RemoveRootfs(t.Context(), "check"); err != nil {
		t.Error(err)
	}
}
