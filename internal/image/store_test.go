package image

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func blobPath(s *Service, digest string) string {
	return filepath.Join(s.cfg.Root, "content", "blobs", "sha256", strings.TrimPrefix(digest, "sha256:"))
}

func TestRestart(t *testing.T) {
	root := t.TempDir()
	s := open(t, Config{Root: root})
	img := pulled(t, s, "a")
	if _, err := New(t.Context(), &Config{Root: root}); !errdefs.IsUnavailable(err) {
		t.Errorf("second service on the same root: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Pull(t.Context(), "busybox", nil); !errdefs.IsUnavailable(err) {
		t.Errorf("pull after close: %v", err)
	}
	s = open(t, Config{Root: root})
	got, err := s.Get(t.Context(), img.Tags[0])
	if err != nil || got.ID != img.ID || got.Size != img.Size || got.ChainID != img.ChainID || len(got.Digests) != 1 {
		t.Fatalf("after a restart: %+v, %v", got, err)
	}
	checkTree(t, s, got, map[string]string{"etc/motd": "welcome a"})
}

// A damaged image is left out, the others are there, and pulling it again mends it.
func TestDamagedContent(t *testing.T) {
	reg := startRegistry(t)
	good, bad := small(t, "good"), small(t, "bad")
	refGood, refBad := reg.push(t, "good:1", good), reg.push(t, "bad:1", bad)
	manifest, _ := bad.Digest()
	for _, c := range []struct {
		name, digest string
		damage       func(path string) error
		usable       bool
	}{
		{"manifest empty", manifest.String(), func(p string) error { return rewrite(p, nil) }, false},
		{"config changed", configDigest(t, bad), flip, false},
		{"config missing", configDigest(t, bad), os.Remove, false},
		{"layer short but unpacked", layerDigest(t, bad, 1), func(p string) error { return rewrite(p, []byte("x")) }, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			root := t.TempDir()
			s := open(t, Config{Root: root})
			for _, ref := range []string{refGood, refBad} {
				if _, err := s.Pull(t.Context(), ref, nil); err != nil {
					t.Fatal(err)
				}
			}
			s.Close()
			if err := c.damage(blobPath(s, c.digest)); err != nil {
				t.Fatal(err)
			}
			s = open(t, Config{Root: root})
			if _, err := s.Get(t.Context(), refGood); err != nil {
				t.Errorf("the other image: %v", err)
			}
			if _, err := s.Get(t.Context(), refBad); (err == nil) != c.usable {
				t.Errorf("the damaged image: %v", err)
			}
			if !c.usable {
				if err := s.Remove(t.Context(), refBad); err != nil {
					t.Errorf("an image that cannot be used cannot be removed: %v", err)
				}
			}
			img, err := s.Pull(t.Context(), refBad, nil)
			if err != nil {
				t.Fatal(err)
			}
			checkTree(t, s, img, map[string]string{"etc/motd": "welcome bad"})
		})
	}
}

func rewrite(path string, data []byte) error {
	if err := os.Remove(path); err != nil {
		return err
	}
	return os.WriteFile(path, data, 0o444)
}

func flip(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	data[len(data)/2] ^= 1
	return rewrite(path, data)
}

// Layers that were lost are unpacked again when they are used; if their content
// is damaged, too, a pull fetches it.
func TestLostSnapshots(t *testing.T) {
	for _, damaged := range []bool{false, true} {
		t.Run(fmt.Sprintf("damaged=%v", damaged), func(t *testing.T) {
			reg := startRegistry(t)
			built := small(t, "a")
			ref := reg.push(t, "app:1", built)
			root := t.TempDir()
			s := open(t, Config{Root: root})
			if _, err := s.Pull(t.Context(), ref, nil); err != nil {
				t.Fatal(err)
			}
			s.Close()
			db := filepath.Join(root, "snapshots", Overlay, "metadata.db")
			if err := os.WriteFile(db, bytes.Repeat([]byte("damage"), 10000), 0o600); err != nil {
				t.Fatal(err)
			}
			if damaged {
				if err := flip(blobPath(s, layerDigest(t, built, 0))); err != nil {
					t.Fatal(err)
				}
			}
			s = open(t, Config{Root: root})
			img, err := s.Get(t.Context(), ref)
			if err != nil {
				t.Fatal(err)
			}
			if damaged {
				if _, err := s.PrepareRootfs(t.Context(), "c", img.ID, nil); err == nil {
					t.Fatal("a damaged layer was unpacked")
				}
				if img, err = s.Pull(t.Context(), ref, nil); err != nil {
					t.Fatal(err)
				}
			}
			checkTree(t, s, img, map[string]string{"etc/motd": "welcome a", "bin/hello": "hello a"})
			if aside, _ := filepath.Glob(filepath.Join(root, "snapshots", "*.damaged-*")); len(aside) != 1 {
				t.Errorf("set aside: %v", aside)
			}
		})
	}
}

// Whatever happens to meta.db, the service opens and can pull.
func TestDamagedMetadata(t *testing.T) {
	reg := startRegistry(t)
	ref := reg.push(t, "app:1", small(t, "a"))
	base := t.TempDir()
	s := open(t, Config{Root: base})
	if _, err := s.Pull(t.Context(), ref, nil); err != nil {
		t.Fatal(err)
	}
	s.Close()
	whole, err := os.ReadFile(filepath.Join(base, "meta.db"))
	if err != nil {
		t.Fatal(err)
	}
	for i := range 10 {
		for _, cut := range []bool{true, false} {
			data := bytes.Clone(whole)
			at := len(data) * i / 10
			if cut {
				data = data[:at]
			} else {
				copy(data[at:], bytes.Repeat([]byte{0xff}, min(4096, len(data)-at)))
			}
			if err := os.WriteFile(filepath.Join(base, "meta.db"), data, 0o600); err != nil {
				t.Fatal(err)
			}
			s, err := New(t.Context(), &Config{Root: base})
			if err != nil {
				t.Fatalf("cut=%v at %d: %v", cut, at, err)
			}
			if _, err := s.Pull(t.Context(), ref, nil); err != nil {
				t.Errorf("cut=%v at %d: %v", cut, at, err)
			}
			if err := s.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// What a pull left unfinished before the machine went down is not trusted.
func TestAfterReboot(t *testing.T) {
	reg := startRegistry(t)
	img := big(t, 1<<20)
	ref := reg.push(t, "app:1", img)
	root := t.TempDir()
	stop := make(chan struct{})
	defer close(stop)
	stallAt(reg, "/blobs/"+layerDigest(t, img, 0), 0.5, stop)
	s := open(t, Config{Root: root, StallTimeout: 100 * time.Millisecond})
	if _, err := s.Pull(t.Context(), ref, nil); err == nil {
		t.Fatal("the pull did not stall")
	}
	partial := func() int {
		entries, _ := os.ReadDir(filepath.Join(root, "content", "ingest"))
		return len(entries)
	}
	if err := s.collectNow(s.ctx); err != nil || partial() != 1 {
		t.Fatalf("%d partial after a failed pull and a collection (%v)", partial(), err)
	}
	s.Close()
	s = open(t, Config{Root: root})
	if partial() != 1 {
		t.Error("a restart lost the partial content")
	}
	s.Close()
	if err := os.WriteFile(filepath.Join(root, "boot_id"), []byte("another"), 0o600); err != nil {
		t.Fatal(err)
	}
	open(t, Config{Root: root})
	if partial() != 0 {
		t.Error("partial content outlived a reboot")
	}
}

func TestRemove(t *testing.T) {
	reg := startRegistry(t)
	img := small(t, "a")
	s := open(t, Config{})
	refs := []string{reg.push(t, "app:1", img), reg.push(t, "app:2", img)}
	for _, ref := range refs {
		if _, err := s.Pull(t.Context(), ref, nil); err != nil {
			t.Fatal(err)
		}
	}
	keep, err := s.Pull(t.Context(), reg.push(t, "keep:1", small(t, "keep")), nil)
	if err != nil {
		t.Fatal(err)
	}
	if got := s.List(t.Context()); len(got) != 2 {
		t.Fatalf("%d images", len(got))
	}
	if err := s.Remove(t.Context(), refs[0]); err != nil {
		t.Fatal(err)
	}
	for _, ref := range refs {
		if _, err := s.Get(t.Context(), ref); !errdefs.IsNotFound(err) {
			t.Errorf("%s after removal: %v", ref, err)
		}
	}
	if err := s.Remove(t.Context(), refs[0]); !errdefs.IsNotFound(err) {
		t.Errorf("removed twice: %v", err)
	}
	gone := blobPath(s, layerDigest(t, img, 0))
	eventually(t, "content and layers are collected", func() bool {
		_, err := os.Stat(gone)
		return os.IsNotExist(err) && len(snapshotNames(t, s)) == 3
	})
	dirs := func() int {
		entries, _ := os.ReadDir(filepath.Join(s.snRoot, "snapshots"))
		return len(entries)
	}
	eventually(t, "folders are deleted", func() bool { return dirs() == 3 })
	checkTree(t, s, keep, map[string]string{"etc/motd": "welcome keep"})
}

// Fifty images go at once, and nothing of them is left.
func TestCollectMany(t *testing.T) {
	reg := startRegistry(t)
	s := open(t, Config{})
	var list []*Image
	for i := range 50 {
		img, err := s.Pull(t.Context(), reg.push(t, fmt.Sprintf("app:%d", i), imageOf(t, "", layerOf(t, file{name: fmt.Sprint(i)}))), nil)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, img)
	}
	if n := len(snapshotNames(t, s)); n != 100 {
		t.Errorf("%d snapshots", n)
	}
	for _, img := range list {
		if err := s.Remove(t.Context(), img.ID); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "all is collected", func() bool {
		blobs, _ := os.ReadDir(filepath.Join(s.cfg.Root, "content", "blobs", "sha256"))
		dirs, _ := os.ReadDir(filepath.Join(s.snRoot, "snapshots"))
		return len(blobs)+len(dirs)+len(snapshotNames(t, s)) == 0
	})
}

func TestUsage(t *testing.T) {
	s := open(t, Config{UsageInterval: 10 * time.Millisecond})
	u, err := s.Usage(t.Context())
	if err != nil || u.Mountpoint == "" {
		t.Fatalf("%+v, %v", u, err)
	}
	img, err := s.Pull(t.Context(), startRegistry(t).push(t, "app:1", big(t, 1<<20)), nil)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "content and layer are counted", func() bool {
		u, _ := s.Usage(t.Context())
		return u.Bytes > 2<<20 && u.Inodes >= 5
	})
	if _, err := s.PrepareRootfs(t.Context(), "c", img.ID, nil); err != nil {
		t.Fatal(err)
	}
	defer s.RemoveRootfs(t.Context(), "c")
	if err := os.WriteFile(filepath.Join(s.cfg.Root, "rootfs", "c", "fs", "x"), make([]byte, 1<<20), 0o644); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the writable layer is counted", func() bool {
		u, _ := s.Usage(t.Context())
		own, _, err := s.RootfsUsage(t.Context(), "c")
		return err == nil && u.Bytes > 3<<20 && own >= 1<<20
	})
}

func TestParseUser(t *testing.T) {
	for in, want := range map[string]string{"": "-", "0": "0", "1000:50": "1000", "app": "app", "app:staff": "app", ":50": "-"} {
		uid, name := parseUser(in)
		got := name
		if uid != nil {
			got = fmt.Sprint(*uid)
		}
		if got == "" {
			got = "-"
		}
		if got != want {
			t.Errorf("user %q: %s, want %s", in, got, want)
		}
	}
}
