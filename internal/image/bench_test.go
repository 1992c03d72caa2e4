package image

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func BenchmarkRootfs(b *testing.B) {
	ids := []specs.LinuxIDMapping{{HostID: 200000, Size: 65536}}
	for _, c := range []struct {
		name string
		cfg  Config
		o    *RootfsOptions
	}{{"volatile", Config{}, nil}, {"durable", Config{DurableRootfs: true}, nil}, {"userns", Config{}, &RootfsOptions{UIDs: ids, GIDs: ids}}} {
		b.Run(c.name, func(b *testing.B) {
			s := open(b, c.cfg)
			img := pulled(b, s, "bench")
			target := filepath.Join(b.TempDir(), "TestRootfs")
			var prepare, mount, unmount, remove time.Duration
			for i := 0; b.Loop(); i++ {
				key := fmt.Sprintf("c%d", i)
				t0 := time.Now()
				mounts, err := s.PrepareRootfs(b.Context(), key, img.ID, c.o)
				t1 := time.Now()
				if err == nil {
					err = s.Mount(b.Context(), mounts, target)
				}
				t2 := time.Now()
				if err != nil {
					b.Fatal(err)
				}
				if err := os.WriteFile(filepath.Join(target, "x"), make([]byte, 1<<16), 0o644); err != nil {
					b.Fatal(err)
				}
				t3 := time.Now()
				err = s.Unmount(b.Context(), target)
				t4 := time.Now()
				if err == nil {
					err = s.RemoveRootfs(b.Context(), key)
				}
				if err != nil {
					b.Fatal(err)
				}
				prepare, mount, unmount, remove = prepare+t1.Sub(t0), mount+t2.Sub(t1), unmount+t4.Sub(t3), remove+time.Since(t4)
			}
			for name, d := range map[string]time.Duration{"prepare": prepare, "mount": mount, "unmount": unmount, "remove": remove} {
				b.ReportMetric(float64(d.Microseconds())/float64(b.N), name+"-µs")
			}
		})
	}
	b.Run("containerd-snapshot", func(b *testing.B) {
		s := open(b, Config{})
		img := pulled(b, s, "bench")
		long := &snapshotRoots{s: s}
		var prepare, remove time.Duration
		for i := 0; b.Loop(); i++ {
			key := fmt.Sprintf("c%d", i)
			t0 := time.Now()
			if _, err := long.prepare(s.ctx, key, img, &RootfsOptions{}); err != nil {
				b.Fatal(err)
			}
			t1 := time.Now()
			if err := long.remove(s.ctx, key); err != nil {
				b.Fatal(err)
			}
			prepare, remove = prepare+t1.Sub(t0), remove+time.Since(t1)
		}
		b.ReportMetric(float64(prepare.Microseconds())/float64(b.N), "prepare-µs")
		b.ReportMetric(float64(remove.Microseconds())/float64(b.N), "remove-µs")
	})
}

// BenchmarkOpen is the start of the daemon with 50 images and 300 root file systems.
func BenchmarkOpen(b *testing.B) {
	reg := startRegistry(b)
	root := b.TempDir()
	s := open(b, Config{Root: root})
	var img *Image
	for i := range 50 {
		var err error
		if img, err = s.Pull(b.Context(), reg.push(b, fmt.Sprintf("app:%d", i), small(b, fmt.Sprint(i))), nil); err != nil {
			b.Fatal(err)
		}
	}
	for i := range 300 {
		if _, err := s.PrepareRootfs(b.Context(), fmt.Sprintf("c%d", i), img.ID, nil); err != nil {
			b.Fatal(err)
		}
	}
	s.Close()
	for b.Loop() {
		s, err := New(b.Context(), &Config{Root: root})
		if err != nil {
			b.Fatal(err)
		}
		b.StopTimer()
		if n := len(s.List(b.Context())); n != 50 {
			b.Fatalf("%d images", n)
		}
		s.Close()
		b.StartTimer()
	}
}
