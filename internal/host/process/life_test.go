package process

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

func TestLife(t *testing.T) {
	h := newHost(t, Options{})
	id, dir := bundle(t, sh("read line; echo got $line; echo err >&2; exit 42"))
	p, err := h.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir, Streams: allStreams})
	if err != nil {
		t.Fatal(err)
	}
	closeStreams(t, p)
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("second start: %v", err)
	}
	if _, err := h.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir}); !errdefs.IsAlreadyExists(err) {
		t.Errorf("second create: %v", err)
	}
	if pids, err := h.Pids(t.Context(), id); err != nil || len(pids) != 1 || pids[0] != p.Pid() {
		t.Errorf("pids %v, %v, want %d", pids, err, p.Pid())
	}
	s := p.Streams()
	if _, err := s.Stdin.Write([]byte("word\n")); err != nil {
		t.Fatal(err)
	}
	before := time.Now()
	e := wait(t, p, 5*time.Second)
	if e.Code != 42 || e.Signal != 0 || e.OOM || e.At.Before(before.Add(-time.Second)) || e.At.After(time.Now()) {
		t.Errorf("exit %+v, want code 42 at about %v", e, before)
	}
	if out, errs := read(t, s.Stdout), read(t, s.Stderr); out != "got word\n" || errs != "err\n" {
		t.Errorf("stdout %q, stderr %q", out, errs)
	}
	if err := p.Signal(t.Context(), int(unix.SIGTERM), false); !errdefs.IsNotFound(err) {
		t.Errorf("signal after exit: %v", err)
	}
	for range 2 {
		if err := p.Delete(t.Context()); err != nil {
			t.Errorf("delete: %v", err)
		}
	}
	if _, err := h.Pids(t.Context(), id); !errdefs.IsNotFound(err) {
		t.Errorf("pids after delete: %v", err)
	}
}

func TestExitCodes(t *testing.T) {
	h := newHost(t, Options{})
	for _, c := range []struct {
		script string
		code   int32
		signal int32
	}{
		{"exit 0", 0, 0},
		{"exit 42", 42, 0},
		{"exit 130", 130, 0},
		{"exit 255", 255, 0},
		// The shell is pid 1 of its namespace, which no signal of its own kills.
		{"sh -c 'kill -9 $$'; exit $?", 137, 0},
	} {
		_, p := run(t, h, host.StreamSpec{}, sh(c.script))
		if e := wait(t, p, 5*time.Second); e.Code != c.code || e.Signal != c.signal {
			t.Errorf("%s: exit %+v, want %d", c.script, e, c.code)
		}
		id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
		x := execIn(t, h, id, host.StreamSpec{}, sh(c.script)...)
		if e := wait(t, x, 5*time.Second); e.Code != c.code {
			t.Errorf("exec of %s: exit %+v, want %d", c.script, e, c.code)
		}
		if err := p.Kill(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for sig, self := range map[unix.Signal]string{unix.SIGKILL: "kill -9 $$", unix.SIGTERM: "kill -15 $$", unix.SIGSEGV: "kill -11 $$"} {
		want := 128 + int32(sig)
		_, p := run(t, h, host.StreamSpec{}, sh(self), hostPID)
		if e := wait(t, p, 5*time.Second); e.Code != want || e.Signal != int32(sig) {
			t.Errorf("%s as init: exit %+v, want %d", self, e, want)
		}
		id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
		x := execIn(t, h, id, host.StreamSpec{}, "sleep", "1000")
		if err := x.Signal(t.Context(), int(sig), false); err != nil {
			t.Error(err)
		}
		if e := wait(t, x, 5*time.Second); e.Code != want || e.Signal != int32(sig) {
			t.Errorf("exec with signal %d: exit %+v, want %d", sig, e, want)
		}
		if err := p.Signal(t.Context(), int(unix.SIGKILL), false); err != nil {
			t.Error(err)
		}
		if e := wait(t, p, 5*time.Second); e.Code != 137 || e.Signal != 9 {
			t.Errorf("killed init: exit %+v", e)
		}
	}
}

func TestShortLives(t *testing.T) {
	h := newHost(t, Options{})
	for i := range rounds(30) {
		_, p := run(t, h, host.StreamSpec{Stdout: true}, sh(fmt.Sprintf("echo %d; exit %d", i, i)))
		if e := wait(t, p, 5*time.Second); e.Code != int32(i) {
			t.Fatalf("exit %+v, want %d", e, i)
		}
		if out := read(t, p.Streams().Stdout); out != fmt.Sprintln(i) {
			t.Fatalf("output %q of %d", out, i)
		}
		if err := p.Delete(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
}

func TestStartErrors(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	for cmd, want := range map[string]struct {
		code int32
		text string
	}{
		"nothing":    {127, `exec: "nothing": executable file not found in $PATH`},
		"/nothing":   {127, "no such file or directory"},
		"/bin/lost":  {127, "no such file or directory"},
		"/bin/plain": {126, "permission denied"},
		"/bin/junk":  {126, "exec format error"},
		"/bin":       {126, "is a directory"},
	} {
		check := func(how string, err error) {
			t.Helper()
			var s *host.StartError
			if !errors.As(err, &s) || s.Code != want.code || !strings.Contains(s.Message, want.text) || strings.Contains(s.Message, "failed: ") {
				t.Errorf("%s of %s: %v, want %d and %q", how, cmd, err, want.code, want.text)
			}
		}
		for _, streams := range []host.StreamSpec{allStreams, {Terminal: true, Stdout: true}} {
			c, dir := bundle(t, []string{cmd}, func(s *specs.Spec) { s.Process.Terminal = streams.Terminal })
			_, err := h.Create(t.Context(), &host.CreateSpec{ID: c, Bundle: dir, Start: true, Streams: streams})
			check("run", err)
			if left := cgroupDirs(group + "/" + c); len(left) > 0 {
				t.Errorf("run of %s left %v", cmd, left)
			}
			_, err = h.Exec(t.Context(), &host.ExecSpec{ContainerID: id, ID: "x", Process: process(cmd), Streams: streams})
			check("exec", err)
		}
		c, dir := bundle(t, []string{cmd})
		p, err := h.Create(t.Context(), &host.CreateSpec{ID: c, Bundle: dir})
		if err == nil {
			if err = p.Start(t.Context()); err == nil {
				t.Errorf("start of %s worked", cmd)
			}
			wait(t, p, 5*time.Second)
			if err := p.Delete(t.Context()); err != nil {
				t.Error(err)
			}
			continue
		}
		check("create", err)
	}
	if _, err := h.Exec(t.Context(), &host.ExecSpec{ContainerID: "nobody", Process: process("true")}); !errdefs.IsNotFound(err) {
		t.Errorf("exec in no container: %v", err)
	}
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if _, err := h.Exec(t.Context(), &host.ExecSpec{ContainerID: id, Process: process("true")}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("exec in an exited container: %v", err)
	}
}

// What a dead owner left under the same id does not stand in the way.
func TestCreateOverRemains(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	forgetful := newForgetful(t, h)
	dir := filepath.Dir(p.(*container).temp(""))
	again, err := forgetful.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir, Start: true})
	if err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p, 5*time.Second); e.Code != 137 {
		t.Errorf("the old one ended with %+v", e)
	}
	if err := os.MkdirAll(filepath.Join(h.root, "half"), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := again.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	for range 2 {
		if err := forgetful.Clean(t.Context(), "half", ""); err != nil {
			t.Errorf("clean of half a container: %v", err)
		}
	}
	if err := forgetful.Clean(t.Context(), "never", "/nowhere"); err != nil {
		t.Errorf("clean of what never was: %v", err)
	}
}

// newForgetful is a host on the same root that knows none of the containers,
// as after the death of the shim.
func newForgetful(t *testing.T, h *Host) *Host {
	t.Helper()
	f, err := New(&Options{Runtime: h.runtime, Root: h.root, CallTimeout: h.timeout})
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func TestClean(t *testing.T) {
	h := newHost(t, Options{})
	f := newForgetful(t, h)
	for name, edits := range map[string][]func(*specs.Spec){"own pid namespace": nil, "host's": {hostPID}} {
		for _, start := range []bool{true, false} {
			id, dir := bundle(t, sh("setsid sleep 1000 & sleep 1000"), edits...)
			p, err := h.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir, Start: start})
			if err != nil {
				t.Fatal(err)
			}
			for range 2 {
				if err := f.Clean(t.Context(), id, dir); err != nil {
					t.Errorf("clean, %s, started %v: %v", name, start, err)
				}
				if left := cgroupDirs(group + "/" + id); len(left) > 0 {
					t.Errorf("clean, %s, started %v, left %v", name, start, left)
				}
			}
			wait(t, p, time.Second)
			if err := p.Delete(t.Context()); err != nil {
				t.Errorf("delete of what was cleaned: %v", err)
			}
		}
	}
}

func TestUpdatePauseResume(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"}, memory(64<<20))
	limit := int64(96 << 20)
	if err := h.Update(t.Context(), id, &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit, Swap: &limit}}); err != nil {
		t.Fatal(err)
	}
	cg := &p.(*container).rec.cg
	file := filepath.Join(cg.unified, "memory.max")
	if d := cg.v1["memory"]; d != "" {
		file = filepath.Join(d, "memory.limit_in_bytes")
	}
	if b, err := os.ReadFile(file); err != nil || strings.TrimSpace(string(b)) != fmt.Sprint(limit) {
		t.Errorf("limit is %q, %v", b, err)
	}
	if err := h.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	_, err := h.Exec(t.Context(), &host.ExecSpec{ContainerID: id, Process: process("true")})
	if !errdefs.IsFailedPrecondition(err) {
		t.Errorf("exec in a paused container: %v", err)
	}
	if err := h.Resume(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	if x := execIn(t, h, id, host.StreamSpec{}, "true"); wait(t, x, 5*time.Second).Code != 0 {
		t.Error("exec after resume failed")
	}
	if err := h.Pause(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	// A paused container dies all the same.
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	if e := wait(t, p, time.Second); e.Code != 137 {
		t.Errorf("exit %+v", e)
	}
	if err := h.Update(t.Context(), id, &specs.LinuxResources{}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("update after exit: %v", err)
	}
}

// Children of an init without a pid namespace of its own die with it, before
// its exit is told, and so do those that its execs left.
func TestSharedPIDNamespace(t *testing.T) {
	h := newHost(t, Options{})
	// Long enough for an exec to begin.
	script := fmt.Sprintf("setsid sleep 1000 & sleep 1000 & sleep %g", bound(time.Second).Seconds())
	for range rounds(5) {
		id, p := run(t, h, host.StreamSpec{Stdout: true}, sh(script), hostPID)
		x := execIn(t, h, id, host.StreamSpec{}, sh("setsid sleep 1000 & sleep 1000")...)
		cg := p.(*container).rec.cg
		if e := wait(t, p, 10*time.Second); e.Code != 0 {
			t.Errorf("exit %+v", e)
		}
		if pids := cg.pids(); len(pids) > 0 {
			t.Errorf("after the exit there are still %v", pids)
		}
		select {
		case <-x.Done():
			if x.Exit().Code != 137 {
				t.Errorf("exec's exit %+v", x.Exit())
			}
		default:
			t.Error("init's exit came before its exec's")
		}
		if out := read(t, p.Streams().Stdout); out != "" {
			t.Errorf("output %q", out)
		}
		if err := p.Delete(t.Context()); err != nil {
			t.Error(err)
		}
		if left := cgroupDirs(group + "/" + id); len(left) > 0 {
			t.Errorf("cgroups left: %v", left)
		}
	}
}

func TestParallel(t *testing.T) {
	h := newHost(t, Options{})
	var wg sync.WaitGroup
	slots := make(chan struct{}, rounds(20))
	for i := range rounds(100) {
		id, dir := bundle(t, sh(fmt.Sprintf("exit %d", i)))
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			p, err := h.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir, Start: i%2 == 0, Streams: allStreams})
			if err != nil {
				t.Errorf("create %d: %v", i, err)
				return
			}
			defer closeNow(p)
			if i%2 == 1 {
				if err := p.Start(t.Context()); err != nil {
					t.Errorf("start %d: %v", i, err)
				}
			}
			select {
			case <-p.Done():
				if e := p.Exit(); e.Code != int32(i) {
					t.Errorf("exit %+v, want %d", e, i)
				}
			case <-time.After(20 * time.Second):
				t.Errorf("%d did not end", i)
			}
			if err := p.Delete(t.Context()); err != nil {
				t.Errorf("delete %d: %v", i, err)
			}
		})
	}
	wg.Wait()
	if left, err := os.ReadDir(h.root); err != nil || len(left) > 0 {
		t.Errorf("runtime state left: %v, %v", left, err)
	}
}
