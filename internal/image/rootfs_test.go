package image

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// checkFiles compares files below dir; an empty text means absent.
func checkFiles(t *testing.T, dir string, want map[string]string) {
	t.Helper()
	for name, text := range want {
		data, err := os.ReadFile(filepath.Join(dir, name))
		if text == "" {
			if !os.IsNotExist(err) {
				t.Errorf("%s: %q, %v; want it absent", name, data, err)
			}
			continue
		}
		if err != nil || string(data) != text {
			t.Errorf("%s: %d bytes, %v; want %d bytes", name, len(data), err, len(text))
		}
	}
}

// mountsBelow lists the mount points below dir.
func mountsBelow(t testing.TB, dir string) (list []string) {
	t.Helper()
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if fields := strings.Fields(sc.Text()); strings.HasPrefix(fields[4], dir) {
			list = append(list, sc.Text())
		}
	}
	return list
}

func pulled(t testing.TB, s *Service, salt string) *Image {
	t.Helper()
	reg := startRegistry(t)
	img, err := s.Pull(t.Context(), reg.push(t, "app:1", small(t, salt)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return img
}

func TestRootfs(t *testing.T) {
	for _, snapshotter := range []string{Overlay, Native} {
		t.Run(snapshotter, func(t *testing.T) {
			s := open(t, Config{Snapshotter: snapshotter, State: t.TempDir()})
			img := pulled(t, s, "a")
			mounts, err := s.PrepareRootfs(t.Context(), "c1", img.ID, nil)
			if err != nil {
				t.Fatal(err)
			}
			again, err := s.PrepareRootfs(t.Context(), "c1", img.Tags[0], nil)
			if err != nil || fmt.Sprint(again) != fmt.Sprint(mounts) {
				t.Errorf("prepared again: %v, %v; first %v", again, err, mounts)
			}
			target := filepath.Join(t.TempDir(), "deep", "rootfs")
			for range 2 { // the second finds it mounted
				if err := s.Mount(t.Context(), mounts, target); err != nil {
					t.Fatal(err)
				}
			}
			defer s.Unmount(t.Context(), target)
			if n := len(mountsBelow(t, target)); n != 1 {
				t.Errorf("%d mounts on the target", n)
			}
			checkFiles(t, target, map[string]string{"bin/hello": "hello a", "etc/motd": "welcome a", "etc/gone": ""})
			if err := os.WriteFile(filepath.Join(target, "new"), make([]byte, 8192), 0o644); err != nil {
				t.Fatal(err)
			}
			bytes, inodes, err := s.RootfsUsage(t.Context(), "c1")
			if err != nil || bytes < 8192 || inodes < 2 {
				t.Errorf("usage %d bytes, %d inodes, %v", bytes, inodes, err)
			}
			for range 2 {
				if err := s.Unmount(t.Context(), target); err != nil {
					t.Fatal(err)
				}
			}
			if list := mountsBelow(t, target); len(list) != 0 {
				t.Errorf("still mounted: %v", list)
			}
			// A layer that was mounted (volatile) can be mounted again.
			if err := s.Mount(t.Context(), mounts, target); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(target, "new")); err != nil {
				t.Error(err)
			}
			if err := s.Unmount(t.Context(), target); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := s.RemoveRootfs(t.Context(), "c1"); err != nil {
					t.Fatal(err)
				}
			}
			if _, _, err := s.RootfsUsage(t.Context(), "c1"); !errdefs.IsNotFound(err) {
				t.Errorf("usage after removal: %v", err)
			}
			if err := s.Unmount(t.Context(), filepath.Join(target, "no", "such")); err != nil {
				t.Errorf("unmount of nothing: %v", err)
			}
		})
	}
}

func TestRootfsView(t *testing.T) {
	s := open(t, Config{})
	img := pulled(t, s, "a")
	one, err := s.Pull(t.Context(), func() string {
		return startRegistry(t).push(t, "one:1", imageOf(t, "", layerOf(t, file{name: "data", data: "one"})))
	}(), nil)
	if err != nil {
		t.Fatal(err)
	}
	for key, c := range map[string]struct {
		img  *Image
		want map[string]string
	}{
		"two": {img, map[string]string{"etc/motd": "welcome a", "etc/gone": ""}},
		"one": {one, map[string]string{"data": "one"}},
	} {
		mounts, err := s.PrepareView(t.Context(), key, c.img.ID, nil)
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(t.TempDir(), "TestRootfs")
		if err := s.Mount(t.Context(), mounts, target); err != nil {
			t.Fatal(err)
		}
		checkFiles(t, target, c.want)
		if err := os.WriteFile(filepath.Join(target, "x"), nil, 0o644); err == nil {
			t.Error("written to a read-only mount")
		}
		if _, err := s.PrepareRootfs(t.Context(), key, c.img.ID, nil); !errdefs.IsAlreadyExists(err) {
			t.Errorf("writable with the key of a view: %v", err)
		}
		if err := s.Unmount(t.Context(), target); err != nil {
			t.Error(err)
		}
		if err := s.RemoveRootfs(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
}

// An image without layers has an empty root.
func TestRootfsEmptyImage(t *testing.T) {
	s := open(t, Config{})
	img, err := s.Pull(t.Context(), startRegistry(t).push(t, "empty:1", imageOf(t, "")), nil)
	if err != nil {
		t.Fatal(err)
	}
	checkTree(t, s, img, map[string]string{"etc": ""})
}

func TestRootfsBadArguments(t *testing.T) {
	s := open(t, Config{})
	for _, key := range []string{"", "../x", ".new-1", "a/b", strings.Repeat("x", 300)} {
		if _, err := s.PrepareRootfs(t.Context(), key, "busybox", nil); !errdefs.IsInvalidArgument(err) {
			t.Errorf("key %q: %v", key, err)
		}
		if err := s.RemoveRootfs(t.Context(), key); !errdefs.IsInvalidArgument(err) {
			t.Errorf("remove key %q: %v", key, err)
		}
	}
	if _, err := s.PrepareRootfs(t.Context(), "c", "busybox", nil); !errdefs.IsNotFound(err) {
		t.Errorf("no image: %v", err)
	}
}

// A busy mount is detached in bounded time, and its user keeps what it has.
func TestRootfsBusyUnmount(t *testing.T) {
	s := open(t, Config{})
	img := pulled(t, s, "a")
	mounts, err := s.PrepareRootfs(t.Context(), "c", img.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "TestRootfs")
	if err := s.Mount(t.Context(), mounts, target); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(filepath.Join(target, "etc/motd"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	begin := time.Now()
	if err := s.Unmount(t.Context(), target); err != nil {
		t.Fatal(err)
	}
	if d := time.Since(begin); d > 3*time.Second {
		t.Errorf("took %s", d)
	}
	if list := mountsBelow(t, target); len(list) != 0 {
		t.Errorf("still mounted: %v", list)
	}
	if _, err := f.Read(make([]byte, 4)); err != nil {
		t.Errorf("open file: %v", err)
	}
	if err := s.RemoveRootfs(t.Context(), "c"); err != nil {
		t.Error(err)
	}
}

func TestRootfsParallel(t *testing.T) {
	s := open(t, Config{})
	img := pulled(t, s, "a")
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 50 {
		wg.Go(func() {
			key, target := fmt.Sprintf("c%d", i/2), filepath.Join(dir, fmt.Sprintf("TestRootfs%d", i))
			mounts, err := s.PrepareRootfs(t.Context(), key, img.ID, nil)
			if err != nil {
				t.Error(err)
				return
			}
			if i%2 == 1 {
				return // the same key at the same time
			}
			if err := s.Mount(t.Context(), mounts, target); err != nil {
				t.Error(err)
				return
			}
			if data, err := os.ReadFile(filepath.Join(target, "etc/motd")); err != nil || string(data) != "welcome a" {
				t.Errorf("%q, %v", data, err)
			}
			if err := s.Unmount(t.Context(), target); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range 25 {
		if err := s.RemoveRootfs(t.Context(), fmt.Sprintf("c%d", i)); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "all is deleted", func() bool {
		roots, _ := os.ReadDir(filepath.Join(s.cfg.Root, "rootfs"))
		trash, _ := os.ReadDir(filepath.Join(s.cfg.Root, "trash"))
		return len(roots)+len(trash) == 0
	})
}

// An image that is deleted while a container stands on it keeps its layers until
// the container goes, also through a restart.
func TestRootfsOutlivesImage(t *testing.T) {
	root := t.TempDir()
	s := open(t, Config{Root: root})
	img := pulled(t, s, "a")
	mounts, err := s.PrepareRootfs(t.Context(), "c", img.ID, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), img.ID); err != nil {
		t.Fatal(err)
	}
	if err := s.collectNow(s.ctx); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Get(t.Context(), img.ID); !errdefs.IsNotFound(err) {
		t.Errorf("removed image: %v", err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, Config{Root: root})
	if err := s.collectNow(s.ctx); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "TestRootfs")
	if err := s.Mount(t.Context(), mounts, target); err != nil {
		t.Fatal(err)
	}
	checkFiles(t, target, map[string]string{"etc/motd": "welcome a"})
	if err := s.Unmount(t.Context(), target); err != nil {
		t.Error(err)
	}
	if err := s.RemoveRootfs(t.Context(), "c"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the layers are collected", func() bool { return len(snapshotNames(t, s)) == 0 })
}

func snapshotNames(t testing.TB, s *Service) (names []string) {
	t.Helper()
	err := s.sn.Walk(s.ctx, func(_ context.Context, info snapshots.Info) error {
		names = append(names, info.Name)
		return nil
	})
	if err != nil && !errdefs.IsNotFound(err) {
		t.Fatal(err)
	}
	return names
}

// A folder that cannot be deleted keeps no other from being deleted.
func TestRootfsUndeletable(t *testing.T) {
	s := open(t, Config{})
	img := pulled(t, s, "a")
	for i := range 50 {
		if _, err := s.PrepareRootfs(t.Context(), fmt.Sprintf("c%d", i), img.ID, nil); err != nil {
			t.Fatal(err)
		}
	}
	stuck := filepath.Join(s.cfg.Root, "rootfs", "c7", "fs", "stuck")
	if err := os.WriteFile(stuck, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(stuck)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	flags, err := unix.IoctlGetInt(int(f.Fd()), unix.FS_IOC_GETFLAGS)
	if err != nil {
		t.Fatal(err)
	}
	const immutable = 0x10
	if err := unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags|immutable); err != nil {
		t.Fatal(err)
	}
	defer unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
	for i := range 50 {
		if err := s.RemoveRootfs(t.Context(), fmt.Sprintf("c%d", i)); err != nil {
			t.Error(err)
		}
	}
	eventually(t, "49 are deleted", func() bool {
		trash, _ := os.ReadDir(filepath.Join(s.cfg.Root, "trash"))
		return len(trash) == 1
	})
}
