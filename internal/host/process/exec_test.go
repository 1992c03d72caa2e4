package process

import (
	"bufio"
	"context"
	"errors"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestExec(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	x := execIn(t, h, id, allStreams, sh("cat; env >&2; exit 9")...)
	s := x.Streams()
	if _, err := io.WriteString(s.Stdin, "through"); err != nil {
		t.Fatal(err)
	}
	_ = s.Stdin.Close()
	if e := wait(t, x, 5*time.Second); e.Code != 9 {
		t.Errorf("exit %+v", e)
	}
	if out := read(t, s.Stdout); out != "through" {
		t.Errorf("stdout %q", out)
	}
	if env := read(t, s.Stderr); strings.Contains(env, "BERTH") {
		t.Errorf("the environment was changed: %q", env)
	}
	if err := x.Start(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("start of an exec: %v", err)
	}
	for range 2 {
		if err := x.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	left, err := os.ReadDir(p.(*container).bundle)
	if err != nil || len(left) != 1 {
		t.Errorf("files of calls are left in the bundle: %v, %v", left, err)
	}
}

// An exec ends with its process, whoever holds its streams.
func TestExecBackgroundChild(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	for _, streams := range []host.StreamSpec{allStreams, {Terminal: true, Stdin: true, Stdout: true}} {
		x := execIn(t, h, id, streams, sh("trap '' HUP; sleep 1000 & echo ok")...)
		if e := wait(t, x, time.Second); e.Code != 0 {
			t.Errorf("exit %+v", e)
		}
		line, err := bufio.NewReader(x.Streams().Stdout).ReadString('\n')
		if err != nil || strings.TrimSpace(line) != "ok" {
			t.Errorf("output %q, %v", line, err)
		}
		// The pipe is open, and a reader can be cut.
		_ = x.Streams().Stdout.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
		if n, err := x.Streams().Stdout.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("read of a held stream: %d, %v", n, err)
		}
		// The background child is the container's.
		if err := x.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if pids, _ := h.Pids(t.Context(), id); len(pids) != 3 {
		t.Errorf("processes %v, want three", pids)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
}

// Killing an exec ends all that came from it and nothing else.
func TestExecKillsTree(t *testing.T) {
	for name, own := range map[string]bool{"own cgroup": true, "tag": false} {
		t.Run(name, func(t *testing.T) {
			h := newHost(t, Options{})
			h.subgroups.Store(own)
			id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"}, hostPID)
			other := execIn(t, h, id, host.StreamSpec{}, "sleep", "1000")
			for range rounds(20) {
				x := execIn(t, h, id, allStreams, sh("setsid sleep 1000 & sleep 1000")...)
				if own != (x.(*execution).group != nil) {
					t.Fatal("the exec is not where this test wants it")
				}
				time.Sleep(5 * time.Millisecond)
				if err := x.Kill(t.Context()); err != nil {
					t.Fatal(err)
				}
				if e := wait(t, x, time.Second); e.Code != 137 {
					t.Errorf("exit %+v", e)
				}
				if err := x.Delete(t.Context()); err != nil {
					t.Error(err)
				}
				closeNow(x)
			}
			if pids, err := h.Pids(t.Context(), id); err != nil || len(pids) != 2 {
				t.Errorf("processes %v, %v, want init and the other exec", pids, err)
			}
			if err := other.Signal(t.Context(), int(unix.SIGTERM), true); err != nil {
				t.Error(err)
			}
			if e := wait(t, other, time.Second); e.Code != 143 {
				t.Errorf("exit %+v", e)
			}
			if err := other.Signal(t.Context(), int(unix.SIGTERM), true); !errdefs.IsNotFound(err) {
				t.Errorf("signal after exit: %v", err)
			}
			if err := p.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Cgroups of execs do not pile up while their background children live.
func TestExecLeftoverGroups(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"}, hostPID)
	c := p.(*container)
	count := func() int { return len(subdirs(c.rec.cg.dir())) - 1 }
	for range 3 {
		x := execIn(t, h, id, host.StreamSpec{}, sh("sleep 0.3 &")...)
		wait(t, x, 5*time.Second)
		if err := x.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if n := count(); n == 0 {
		t.Error("no cgroup of a background child: this test sees nothing")
	}
	eventually(t, "background children end", func() bool { pids, _ := h.Pids(t.Context(), id); return len(pids) == 1 })
	x := execIn(t, h, id, host.StreamSpec{}, "true")
	wait(t, x, 5*time.Second)
	if err := x.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	if n := count(); n != 0 {
		t.Errorf("%d cgroups of execs are left: %v", n, subdirs(c.rec.cg.dir()))
	}
	if err := p.Delete(t.Context()); err != nil {
		t.Error(err)
	}
}

func subdirs(dir string) (all []string) {
	walk(dir, func(d string) { all = append(all, d) })
	return all
}

// An init that ends under many execs is told at once, and after them.
func TestInitEndsUnderExecs(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	var mu sync.Mutex
	var all []host.Process
	var wg sync.WaitGroup
	slots := make(chan struct{}, 8)
	for range rounds(60) {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			x, err := h.Exec(t.Context(), &host.ExecSpec{ContainerID: id, ID: "x", Process: process("sleep", "1000")})
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				all = append(all, x)
			case !errdefs.IsFailedPrecondition(err):
				t.Errorf("exec: %v", err)
			}
		})
	}
	eventually(t, "half of the execs run", func() bool { mu.Lock(); defer mu.Unlock(); return len(all) >= rounds(60)/2 })
	start := time.Now()
	if err := p.Signal(t.Context(), int(unix.SIGKILL), false); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p, 2*time.Second); e.Code != 137 {
		t.Errorf("exit %+v", e)
	}
	t.Logf("exit of init after %v", time.Since(start))
	wg.Wait()
	for _, x := range all {
		wait(t, x, time.Second)
		if err := x.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestTerminal(t *testing.T) {
	h := newHost(t, Options{})
	tty := host.StreamSpec{Terminal: true, Stdin: true, Stdout: true}
	script := sh("stty size; read x; stty size; echo got $x; exit 5")
	id, p := run(t, h, tty, script, func(s *specs.Spec) {
		s.Process.Terminal = true
		s.Process.ConsoleSize = &specs.Box{Width: 91, Height: 17}
	})
	check := func(p host.Process, first string) {
		t.Helper()
		s := p.Streams()
		if s.Stderr != nil {
			t.Error("a terminal has no stderr")
		}
		r := bufio.NewReader(s.Stdout)
		if line, err := r.ReadString('\n'); err != nil || strings.TrimSpace(line) != first {
			t.Errorf("size %q, %v, want %s", line, err, first)
		}
		if err := p.Resize(120, 40); err != nil {
			t.Error(err)
		}
		if _, err := io.WriteString(s.Stdin, "word\n"); err != nil {
			t.Error(err)
		}
		_ = s.Stdin.Close()
		_ = s.Stdout.SetReadDeadline(time.Now().Add(5 * time.Second))
		rest, err := io.ReadAll(r)
		if err != nil || !strings.Contains(string(rest), "40 120") || !strings.Contains(string(rest), "got word") {
			t.Errorf("output %q, %v", rest, err)
		}
		if e := wait(t, p, 5*time.Second); e.Code != 5 {
			t.Errorf("exit %+v", e)
		}
		closeNow(p)
		if err := p.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	sized := process(script...)
	sized.ConsoleSize = &specs.Box{Width: 92, Height: 18}
	x, err := h.Exec(t.Context(), &host.ExecSpec{ContainerID: id, ID: "x", Process: sized, Streams: tty})
	if err != nil {
		t.Fatal(err)
	}
	check(x, "18 92")
	check(p, "17 91")
	_, plain := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	if err := plain.Resize(1, 1); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("resize without a terminal: %v", err)
	}
	if err := plain.Delete(t.Context()); err != nil {
		t.Error(err)
	}
}

// Pipes belong to the container's user, who can open /dev/stderr again.
func TestStreamOwner(t *testing.T) {
	h := newHost(t, Options{})
	_, p := run(t, h, host.StreamSpec{Stdout: true, UID: 1234, GID: 1234}, sh("echo again > /proc/self/fd/1"),
		func(s *specs.Spec) { s.Process.User = specs.User{UID: 1234, GID: 1234} })
	if e := wait(t, p, 5*time.Second); e.Code != 0 {
		t.Errorf("exit %+v", e)
	}
	if out := read(t, p.Streams().Stdout); out != "again\n" {
		t.Errorf("output %q", out)
	}
}

func TestExecOutlivesCaller(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	ctx, cancel := context.WithCancel(t.Context())
	x, err := h.Exec(ctx, &host.ExecSpec{ContainerID: id, ID: "x", Process: process("sleep", "1000")})
	cancel()
	if err != nil {
		t.Fatal(err)
	}
	select {
	case <-x.Done():
		t.Errorf("the exec ended with its caller: %+v", x.Exit())
	case <-time.After(100 * time.Millisecond):
	}
	if err := p.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	if e := wait(t, x, time.Second); e.Code != 137 {
		t.Errorf("exit %+v", e)
	}
}
