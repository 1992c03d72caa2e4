package image

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/errdefs"
	digest "github.com/opencontainers/go-digest"
)

// stallAt makes requests whose path contains part send share of the answer and
// then nothing.
func stallAt(reg *fakeRegistry, part string, share float64, stop <-chan struct{}) {
	reg.hook(func(w http.ResponseWriter, r *http.Request) bool {
		if !strings.Contains(r.URL.Path, part) || r.Method != http.MethodGet && part != "/manifests/" {
			return false
		}
		if share >= 0 {
			rec := &recorder{header: http.Header{}}
			reg.handler.ServeHTTP(rec, r)
			for k, v := range rec.header {
				w.Header()[k] = v
			}
			w.Header().Set("Content-Length", strconv.Itoa(len(rec.data)))
			w.WriteHeader(rec.status)
			w.Write(rec.data[:int(float64(len(rec.data))*share)])
			w.(http.Flusher).Flush()
		}
		select {
		case <-stop:
		case <-r.Context().Done():
		}
		return true
	})
}

type recorder struct {
	header http.Header
	status int
	data   []byte
}

func (r *recorder) Header() http.Header { return r.header }
func (r *recorder) WriteHeader(n int)   { r.status = n }
func (r *recorder) Write(p []byte) (int, error) {
	if r.status == 0 {
		r.status = http.StatusOK
	}
	r.data = append(r.data, p...)
	return len(p), nil
}

func TestPullStall(t *testing.T) {
	img := big(t, 1<<20)
	for _, c := range []struct {
		name, part, step string
		share            float64
	}{
		{"no answer to the first question", "/manifests/", "resolve", -1},
		{"no answer for a layer", "/blobs/" + layerDigest(t, img, 0), "blob " + layerDigest(t, img, 0), -1},
		{"layer at 0 %", "/blobs/" + layerDigest(t, img, 0), "blob " + layerDigest(t, img, 0), 0},
		{"layer at 50 %", "/blobs/" + layerDigest(t, img, 0), "blob " + layerDigest(t, img, 0), 0.5},
	} {
		t.Run(c.name, func(t *testing.T) {
			reg := startRegistry(t)
			ref := reg.push(t, "app:1", img)
			s := open(t, Config{StallTimeout: 300 * time.Millisecond})
			stop := make(chan struct{})
			defer close(stop)
			stallAt(reg, c.part, c.share, stop)
			begin := time.Now()
			_, err := s.Pull(t.Context(), ref, nil)
			var stall *StallError
			if !errors.Is(err, context.DeadlineExceeded) || !errors.As(err, &stall) {
				t.Fatalf("not a stall: %v", err)
			}
			if stall.Host != reg.host || stall.Step != c.step || !strings.Contains(err.Error(), c.step) {
				t.Errorf("stall of %s at %s: %v", stall.Host, stall.Step, err)
			}
			if d := time.Since(begin); d > 5*time.Second {
				t.Errorf("took %s", d)
			}

			// Healed, the next pull goes on where this one was.
			var served atomic.Int64
			reg.hook(func(w http.ResponseWriter, r *http.Request) bool {
				if strings.Contains(r.URL.Path, layerDigest(t, img, 0)) {
					serveRange(reg, w, r, &served)
					return true
				}
				return false
			})
			if _, err := s.Pull(t.Context(), ref, nil); err != nil {
				t.Fatalf("after it healed: %v", err)
			}
			if c.share == 0.5 && served.Load() > 600<<10 {
				t.Errorf("half was here, %d bytes were fetched again", served.Load())
			}
		})
	}
}

// serveRange serves a blob with ranges, which the test registry does not.
func serveRange(reg *fakeRegistry, w http.ResponseWriter, r *http.Request, served *atomic.Int64) {
	rec := &recorder{header: http.Header{}}
	plain := r.Clone(r.Context())
	plain.Header.Del("Range")
	reg.handler.ServeHTTP(rec, plain)
	data, from := rec.data, 0
	if spec, ok := strings.CutPrefix(r.Header.Get("Range"), "bytes="); ok {
		from, _ = strconv.Atoi(strings.TrimSuffix(spec, "-"))
		w.Header().Set("Content-Range", "bytes "+strconv.Itoa(from)+"-"+strconv.Itoa(len(data)-1)+"/"+strconv.Itoa(len(data)))
	}
	w.Header().Set("Content-Length", strconv.Itoa(len(data)-from))
	if from > 0 {
		w.WriteHeader(http.StatusPartialContent)
	}
	if r.Method == http.MethodHead {
		return
	}
	n, _ := w.Write(data[from:])
	served.Add(int64(n))
}

// A connection that breaks again and again is taken up again, and little is
// fetched twice. The same without ranges at the registry.
func TestPullCut(t *testing.T) {
	img := big(t, 4<<20)
	digest := layerDigest(t, img, 0)
	for _, ranges := range []bool{true, false} {
		t.Run("ranges="+strconv.FormatBool(ranges), func(t *testing.T) {
			reg := startRegistry(t)
			ref := reg.push(t, "app:1", img)
			s := open(t, Config{})
			var served, cuts atomic.Int64
			reg.hook(func(w http.ResponseWriter, r *http.Request) bool {
				if !strings.Contains(r.URL.Path, digest) || r.Method != http.MethodGet {
					return false
				}
				limit := int64(1 << 20)
				if !ranges {
					limit = (cuts.Load() + 1) << 20
				}
				cw := &cutting{ResponseWriter: w, left: limit}
				if ranges {
					serveRange(reg, cw, r, &served)
				} else {
					r.Header.Del("Range")
					reg.handler.ServeHTTP(cw, r)
				}
				if cw.left < 0 {
					cuts.Add(1)
					conn, _, err := w.(http.Hijacker).Hijack()
					if err == nil {
						if !ranges {
							conn.(*net.TCPConn).SetLinger(0) // a reset, not an end
						}
						conn.Close()
					}
				}
				return true
			})
			got, err := s.Pull(t.Context(), ref, nil)
			if err != nil {
				t.Fatal(err)
			}
			if got.ID != configDigest(t, img) || cuts.Load() < 3 {
				t.Errorf("image %s after %d cuts", got.ID, cuts.Load())
			}
			if ranges && served.Load() > 5<<20 {
				t.Errorf("%d bytes served for 4 MiB", served.Load())
			}
		})
	}
}

// cutting passes so many bytes on and then fails.
type cutting struct {
	http.ResponseWriter
	left int64
}

func (c *cutting) Write(p []byte) (int, error) {
	if c.left < 0 {
		return 0, io.ErrClosedPipe
	}
	n := min(int64(len(p)), c.left)
	c.ResponseWriter.Write(p[:n])
	c.left -= int64(len(p))
	if c.left < 0 {
		c.ResponseWriter.(http.Flusher).Flush()
		return int(n), io.ErrClosedPipe
	}
	return len(p), nil
}

func TestPullWrongBytes(t *testing.T) {
	reg := startRegistry(t)
	img := big(t, 1<<16)
	ref := reg.push(t, "app:1", img)
	digest := layerDigest(t, img, 0)
	s := open(t, Config{})
	lie := func(times int64) {
		var n atomic.Int64
		reg.hook(func(w http.ResponseWriter, r *http.Request) bool {
			if !strings.Contains(r.URL.Path, digest) || r.Method != http.MethodGet || n.Add(1) > times {
				return false
			}
			rec := &recorder{header: http.Header{}}
			reg.handler.ServeHTTP(rec, r)
			rec.data[100] ^= 1
			w.Write(rec.data)
			return true
		})
	}
	lie(100)
	if _, err := s.Pull(t.Context(), ref, nil); !errdefs.IsDataLoss(err) {
		t.Fatalf("wrong bytes: %v", err)
	}
	lie(1)
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Fatalf("right at the second try: %v", err)
	}
}

// slowStore is a content store on a disk that takes long for each write.
type slowStore struct {
	content.Store
	pause time.Duration
}

type slowWriter struct {
	content.Writer
	pause time.Duration
}

func (s *slowStore) Writer(ctx context.Context, opts ...content.WriterOpt) (content.Writer, error) {
	w, err := s.Store.Writer(ctx, opts...)
	if err != nil {
		return nil, err
	}
	return &slowWriter{w, s.pause}, nil
}

func (w *slowWriter) Write(p []byte) (int, error) {
	time.Sleep(w.pause)
	return w.Writer.Write(p)
}

func (w *slowWriter) Commit(ctx context.Context, size int64, expected digest.Digest, opts ...content.Opt) error {
	time.Sleep(2 * w.pause)
	return w.Writer.Commit(ctx, size, expected, opts...)
}

// A slow disk is not a stalled registry, and nothing is fetched twice for it.
func TestPullSlowDisk(t *testing.T) {
	reg := startRegistry(t)
	img := big(t, 4<<20)
	ref := reg.push(t, "app:1", img)
	s := open(t, Config{StallTimeout: 100 * time.Millisecond})
	s.cs = &slowStore{s.cs, 150 * time.Millisecond}
	reg.hook(nil)
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	if n := reg.requests("GET /v2/app/blobs/" + layerDigest(t, img, 0)); n != 1 {
		t.Errorf("layer was fetched %d times", n)
	}
}
