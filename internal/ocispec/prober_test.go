package ocispec

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// hangingDir is a directory on a file system that never answers, until the
// test ends.
func hangingDir(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	fd, err := unix.Open("/dev/fuse", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("fuse", dir, "fuse", 0, fmt.Sprintf("fd=%d,rootmode=40000,user_id=0,group_id=0", fd)); err != nil {
		unix.Close(fd)
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(unix.Close(fd), unix.Unmount(dir, unix.MNT_DETACH)); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func testProber(t *testing.T, deadline time.Duration) *Prober {
	p := NewProber(deadline)
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
		p.mu.Lock()
		defer p.mu.Unlock()
		if len(p.idle)+len(p.stuck) > 0 {
			t.Errorf("left over: %d idle, stuck on %v", len(p.idle), p.stuck)
		}
	})
	return p
}

// pid of the only idle helper.
func (p *Prober) idlePID(t *testing.T) int {
	t.Helper()
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) != 1 {
		t.Fatalf("%d idle helpers, want 1", len(p.idle))
	}
	return p.idle[0].cmd.Process.Pid
}

func TestProberKeepsItsHelper(t *testing.T) {
	p := testProber(t, 10*time.Second)
	list := []HostPath{{Path: t.TempDir(), Use: UseMount}}
	var pid int
	for i := range 3 {
		infos, err := p.Prepare(t.Context(), list)
		if err != nil || len(infos) != 1 || infos[0].Source != list[0].Path {
			t.Fatalf("%v, %v", infos, err)
		}
		if now := p.idlePID(t); i > 0 && now != pid {
			t.Errorf("helper %d after %d", now, pid)
		} else {
			pid = now
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if err := unix.Kill(pid, 0); !errors.Is(err, unix.ESRCH) {
		t.Errorf("helper %d after Close: %v", pid, err)
	}
}

func TestHangingPath(t *testing.T) {
	p := testProber(t, 2*time.Second)
	dir := hangingDir(t)
	r := testRequest(t)
	r.Paths = p
	r.Container.Mounts = []*runtime.Mount{
		{ContainerPath: "/fine", HostPath: t.TempDir()},
		{ContainerPath: "/hung", HostPath: dir + "/below"},
	}
	_, err := Build(t.Context(), r)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "mounts[1].host_path") || !strings.Contains(err.Error(), dir+"/below") {
		t.Errorf("hanging path: %v", err)
	}
	// Others are not held up.
	r.Container.Mounts = r.Container.Mounts[:1]
	if _, err := Build(t.Context(), r); err != nil {
		t.Error(err)
	}
	// Nor is a caller longer than it likes.
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r.Container.Mounts[0].HostPath = dir
	p.deadline = time.Hour
	if _, err := Build(ctx, r); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
		t.Errorf("caller's deadline: %v", err)
	}
}

// frozenDir is a directory on a file system on which writers wait and cannot
// be killed, until thaw is called or the test ends.
func frozenDir(t *testing.T) (dir string, thaw func()) {
	t.Helper()
	dir = t.TempDir()
	image := filepath.Join(t.TempDir(), "image")
	if err := os.WriteFile(image, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(image, 8<<20); err != nil {
		t.Fatal(err)
	}
	for _, cmd := range [][]string{{"mkfs.ext4", "-q", image}, {"mount", "-o", "loop", image, dir}} {
		if out, err := exec.Command(cmd[0], cmd[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", cmd, err, out)
		}
	}
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	const freeze, unfreeze = 0xc0045877, 0xc0045878 // FIFREEZE, FITHAW
	if err := unix.IoctlSetInt(int(f.Fd()), freeze, 0); err != nil {
		t.Fatal(err)
	}
	thaw = sync.OnceFunc(func() {
		if err := errors.Join(unix.IoctlSetInt(int(f.Fd()), unfreeze, 0), f.Close()); err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(func() {
		thaw()
		for range 100 { // the helper may be on its way out
			if err = unix.Unmount(dir, 0); err == nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
		t.Error(err)
	})
	return dir, thaw
}

// A helper that SIGKILL does not end is given up: its path fails at once, no
// second helper gets stuck on it, and nothing else is held up.
func TestStuckPath(t *testing.T) {
	p := testProber(t, 2*time.Second)
	dir, thaw := frozenDir(t)
	bad := []HostPath{{Field: "mounts[0].host_path", Path: dir + "/new", Use: UseMount}}
	if _, err := p.Prepare(t.Context(), bad); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), dir) {
		t.Errorf("frozen file system: %v", err)
	}
	start := time.Now()
	if _, err := p.Prepare(t.Context(), bad); !errdefs.IsUnavailable(err) || !strings.Contains(err.Error(), dir) {
		t.Errorf("again: %v", err)
	}
	if d := time.Since(start); d > time.Second {
		t.Errorf("again took %v", d)
	}
	if _, err := p.Prepare(t.Context(), []HostPath{{Path: "/", Use: UseMount}}); err != nil {
		t.Errorf("another path: %v", err)
	}
	thaw()
	for p.stuckOn(bad[0].Path) > 0 {
		if time.Since(start) > 20*time.Second {
			t.Fatal("the helper is still stuck after the thaw")
		}
		time.Sleep(10 * time.Millisecond)
	}
	if _, err := p.Prepare(t.Context(), bad); err != nil {
		t.Errorf("after the thaw: %v", err)
	}
}

func (p *Prober) stuckOn(path string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.stuck[path]
}

func TestTooManyStuckHelpers(t *testing.T) {
	p := NewProber(time.Minute)
	p.stuck["/hung"] = maxStuck
	if _, err := p.Prepare(t.Context(), []HostPath{{Path: "/", Use: UseMount}}); !errdefs.IsUnavailable(err) {
		t.Errorf("%d helpers hang: %v", maxStuck, err)
	}
}

func TestHelperThatDiedIdle(t *testing.T) {
	p := testProber(t, 10*time.Second)
	list := []HostPath{{Path: "/", Use: UseMount}}
	if _, err := p.Prepare(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	pid := p.idlePID(t)
	if err := unix.Kill(pid, unix.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Prepare(t.Context(), list); err != nil {
		t.Fatal(err)
	}
	if p.idlePID(t) == pid {
		t.Error("the dead helper was kept")
	}
}

func TestProberErrorsLeaveTheHelper(t *testing.T) {
	p := testProber(t, 10*time.Second)
	file := writeFile(t, filepath.Join(t.TempDir(), "file"), "content")
	if _, err := p.Prepare(t.Context(), []HostPath{{Path: "/", Use: UseMount}, {Field: "f", Path: file + "/x", Use: UseMount}, {Path: "/", Use: UseMount}}); !errdefs.IsInvalidArgument(err) {
		t.Fatalf("below a file: %v", err)
	}
	pid := p.idlePID(t)
	infos, err := p.Prepare(t.Context(), []HostPath{{Path: file, Use: UseFile, MaxSize: 7}})
	if err != nil || string(infos[0].Data) != "content" || p.idlePID(t) != pid {
		t.Errorf("%v, %v, helper %d after %d", infos, err, p.idlePID(t), pid)
	}
	if _, err := p.Prepare(t.Context(), []HostPath{{Path: file, Use: UseFile, MaxSize: 6}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("file above its limit: %v", err)
	}
}

// A caller that leaves costs the helper, and nothing else.
func TestCallerLeaves(t *testing.T) {
	p := testProber(t, 10*time.Second)
	dir := hangingDir(t)
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(2*time.Second, cancel) // by then the helper hangs in dir, on a busy machine too
	_, err := p.Prepare(ctx, []HostPath{{Path: "/", Use: UseMount}, {Field: "f", Path: dir, Use: UseMount}})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), dir) {
		t.Errorf("caller left: %v", err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for range 5 { // the answer may or may not be there before the end is noticed
		if _, err := p.Prepare(gone, []HostPath{{Path: "/", Use: UseMount}}); !errors.Is(err, context.Canceled) {
			t.Fatalf("caller had left: %v", err)
		}
		if _, err := p.Prepare(t.Context(), []HostPath{{Path: "/", Use: UseMount}}); err != nil {
			t.Fatalf("after a caller that left: %v", err)
		}
	}
}

func TestProberInParallel(t *testing.T) {
	p := testProber(t, 30*time.Second)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 40 {
		wg.Go(func() {
			path := filepath.Join(dir, fmt.Sprint(i))
			infos, err := p.Prepare(t.Context(), []HostPath{{Path: path, Use: UseMount}})
			if err != nil || infos[0].Source != path {
				t.Errorf("%v, %v", infos, err)
			}
		})
	}
	wg.Wait()
	if e, err := os.ReadDir(dir); err != nil || len(e) != 40 {
		t.Errorf("%d paths made, %v", len(e), err)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.idle) > idleHelpers {
		t.Errorf("%d idle helpers", len(p.idle))
	}
}

func BenchmarkBuild(b *testing.B) {
	plain := testRequest(b)
	writeFile(b, plain.Rootfs+"/etc/passwd", testPasswd)
	writeFile(b, plain.Rootfs+"/etc/group", testGroup)
	plain.context().Seccomp = &runtime.SecurityProfile{}
	plain.Files = Files{Hostname: "/p/hostname", Hosts: "/p/hosts", ResolvConf: "/p/resolv", Shm: "/p/shm"}
	mounts := testRequest(b)
	for i := range 4 {
		mounts.Container.Mounts = append(mounts.Container.Mounts, &runtime.Mount{ContainerPath: fmt.Sprint("/m", i), HostPath: b.TempDir()})
	}
	for name, r := range map[string]*Request{"plain": plain, "mounts": mounts} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if _, err := Build(b.Context(), r); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
	b.Run("helper", func(b *testing.B) {
		for b.Loop() {
			p := NewProber(time.Minute)
			if _, err := p.Prepare(b.Context(), []HostPath{{Path: "/", Use: UseMount}}); err != nil {
				b.Fatal(err)
			}
			p.Close()
		}
	})
}
