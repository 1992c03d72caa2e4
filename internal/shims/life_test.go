//go:build linux

package shims

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/stdio"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// contextOf outlives the test's own context, for clean-up.
func contextOf(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// exited waits until a container is reported as exited.
func exited(t *testing.T, s *Shim, id string) Status {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	var got *Status
	done := errors.New("done")
	err := s.Watch(ctx, 0, func(_ int64, changes []Status) error {
		for _, c := range changes {
			if c.ID == id && c.State == StateExited {
				got = &c
				return done
			}
		}
		return nil
	})
	if !errors.Is(err, done) {
		t.Fatalf("container %s did not exit: %v", id, err)
	}
	return *got
}

func (p *pod) task(script string, opts ...func(*specs.Spec)) *Task {
	id, dir := p.bundle(script, opts...)
	return &Task{ID: id, Bundle: dir, Log: stdio.LogOptions{Path: filepath.Join(p.req.Dir, id+".log")}}
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestLife(t *testing.T) {
	p := newPod(t)
	s := p.start()
	task := p.task("echo one; echo two >&2; trap 'echo bye; exit 7' TERM; while :; do sleep 0.05; done")
	st, err := s.Run(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	if st.State != StateRunning || st.Pid == 0 || st.StartedAt.IsZero() {
		t.Fatalf("after run: %+v", st)
	}
	again, err := s.Run(t.Context(), task)
	if err != nil || again.Pid != st.Pid {
		t.Fatalf("second run: %+v, %v; want the first one's answer", again, err)
	}

	// A session beside it.
	proc, _ := json.Marshal(&specs.Process{Args: []string{"/bin/sh", "-c", "cat; echo err >&2; exit 3"}, Env: []string{"PATH=/bin"}, Cwd: "/"})
	session, err := stdio.DialSession(t.Context(), s.SessionSocket(), &stdio.SessionRequest{
		Op: stdio.OpExec, Container: task.ID, Exec: "e1", Process: proc, Stdin: true, Stdout: true, Stderr: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	exit, err := session.Run(t.Context(), strings.NewReader("through"), &stdout, &stderr, nil)
	if err != nil {
		t.Fatal(err)
	}
	if exit.Code != 3 || stdout.String() != "through" || stderr.String() != "err\n" {
		t.Errorf("exec: code %d, stdout %q, stderr %q", exit.Code, &stdout, &stderr)
	}

	pids, err := s.Pids(t.Context(), task.ID)
	if err != nil || len(pids) == 0 {
		t.Errorf("pids: %v, %v", pids, err)
	}
	if err := s.Stop(t.Context(), task.ID, "SIGTERM", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	end := exited(t, s, task.ID)
	if end.ExitCode != 7 || end.Signal != 0 || end.ExitedAt.Before(end.StartedAt) {
		t.Errorf("exit: %+v, want code 7", end)
	}
	log := read(t, task.Log.Path)
	for _, want := range []string{"stdout F one\n", "stderr F two\n", "stdout F bye\n"} {
		if !strings.Contains(log, want) {
			t.Errorf("log lacks %q:\n%s", want, log)
		}
	}
	records, err := Exits(p.req.ExitDir)
	if err != nil || records[task.ID].ExitCode != 7 {
		t.Errorf("records before the acknowledgement: %+v, %v", records, err)
	}
	if err := s.Stop(t.Context(), task.ID, "", 0); err != nil {
		t.Errorf("stop of an exited container: %v", err)
	}
	del, err := s.Delete(t.Context(), task.ID)
	if err != nil || del == nil || del.ExitCode != 7 {
		t.Fatalf("delete: %+v, %v", del, err)
	}
	if del, err := s.Delete(t.Context(), task.ID); err != nil || del != nil {
		t.Errorf("second delete: %+v, %v; want success without a status", del, err)
	}
	if records, err := Exits(p.req.ExitDir); err != nil || len(records) != 0 {
		t.Errorf("records after the acknowledgement: %+v, %v", records, err)
	}
	if err := s.Stop(t.Context(), task.ID, "", 0); !errdefs.IsNotFound(err) {
		t.Errorf("stop of a deleted container: %v, want NotFound", err)
	}
}

func TestFinishLeavesNothing(t *testing.T) {
	p := newPod(t)
	s := p.start()
	a := s.addr
	task := p.task("sleep 1000")
	st, err := s.Run(t.Context(), task)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.m.Finish(t.Context(), p.id, p.req.Dir, &a); err != nil {
		t.Fatal(err)
	}
	p.gone(&a, st.Pid)
	if err := p.m.Finish(t.Context(), p.id, p.req.Dir, &a); err != nil {
		t.Errorf("second finish: %v", err)
	}
}

// gone checks that nothing of a shim is left.
func (p *pod) gone(a *Address, pids ...int) {
	p.t.Helper()
	for _, pid := range append(pids, a.Pid) {
		if _, state, err := readStat(pid); err == nil && state != 'Z' {
			p.t.Errorf("process %d is alive", pid)
		}
	}
	for _, path := range []string{a.Socket, a.Sessions, filepath.Join(p.req.Dir, podFile)} {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			p.t.Errorf("%s is left: %v", path, err)
		}
	}
	mounts := read(p.t.(*testing.T), "/proc/self/mountinfo")
	if strings.Contains(mounts, p.req.Dir) {
		p.t.Errorf("a mount is left below %s", p.req.Dir)
	}
	if found, ok, err := p.m.Probe(context.WithoutCancel(p.t.Context()), p.id, p.req.Dir); ok || err != nil {
		p.t.Errorf("probe: %+v, %v, %v; want nothing", found, ok, err)
	}
	entries, err := os.ReadDir(p.req.RuntimeRoot)
	if err != nil || len(entries) > 0 {
		p.t.Errorf("runtime state is left: %v, %v", entries, err)
	}
}

func TestKilledShim(t *testing.T) {
	p := newPod(t)
	s := p.start()
	a := s.addr
	ended, runs := p.task("exit 42"), p.task("sleep 1000")
	var pids []int
	for _, task := range []*Task{ended, runs} {
		st, err := s.Run(t.Context(), task)
		if err != nil {
			t.Fatal(err)
		}
		pids = append(pids, st.Pid)
	}
	exited(t, s, ended.ID)

	watch := make(chan error, 1)
	go func() { watch <- s.Watch(t.Context(), 0, func(int64, []Status) error { return nil }) }()
	time.Sleep(50 * time.Millisecond)
	if err := syscall.Kill(a.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-watch:
		if !errors.Is(err, ErrGone) {
			t.Errorf("watch: %v, want ErrGone", err)
		}
	case <-time.After(5 * time.Second):
		t.Error("watch did not notice the death of the shim")
	}
	if _, state, err := readStat(pids[1]); err != nil || state == 'Z' {
		t.Errorf("the container died with its shim: %c, %v", state, err)
	}
	if err := p.m.Finish(t.Context(), p.id, p.req.Dir, &a); err != nil {
		t.Fatal(err)
	}
	p.gone(&a, pids...)
	records, err := Exits(p.req.ExitDir)
	if err != nil {
		t.Fatal(err)
	}
	if r := records[ended.ID]; r.ExitCode != 42 || r.Reason != "" {
		t.Errorf("exit before the shim died: %+v, want code 42", r)
	}
	if r := records[runs.ID]; r.ExitCode != 137 || r.Reason != "shim lost" {
		t.Errorf("container that ran: %+v, want 137, ShimLost", r)
	}
}

func TestStoppedShimIsKilled(t *testing.T) {
	p := newPod(t)
	s := p.start()
	a := s.addr
	if err := syscall.Kill(a.Pid, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	_, ok, err := p.m.Probe(ctx, p.id, p.req.Dir)
	cancel()
	if ok || err == nil {
		t.Errorf("probe of a stopped shim: %v, %v; want an error, it is not dead", ok, err)
	}
	start := time.Now()
	short, cancel := context.WithTimeout(t.Context(), finishWait+10*time.Second)
	defer cancel()
	if err := p.m.Finish(short, p.id, p.req.Dir, &a); err != nil {
		t.Fatal(err)
	}
	t.Logf("finished after %v", time.Since(start))
	p.gone(&a)
}

func TestStartTwiceIsOne(t *testing.T) {
	p := newPod(t)
	s := p.start()
	a, err := p.m.Start(t.Context(), p.req)
	if err != nil {
		t.Fatal(err)
	}
	if *a != s.addr {
		t.Errorf("second start: %+v, want %+v", a, s.addr)
	}
	// Another berthd, after a crash.
	m := NewManager(&p.m.opts)
	found, ok, err := m.Probe(t.Context(), p.id, p.req.Dir)
	if err != nil || !ok || *found != s.addr {
		t.Errorf("probe: %+v, %v, %v; want %+v", found, ok, err, s.addr)
	}
}

func TestSharedPID(t *testing.T) {
	p := newPod(t)
	p.req.SharePID, p.req.PIDNS = true, filepath.Join(p.req.Dir, "ns", "pid")
	s := p.start()
	a := s.addr
	if a.HolderPid == 0 {
		t.Fatal("there is no holder")
	}
	comm := ""
	for deadline := time.Now().Add(5 * time.Second); comm != "berth-holder"; time.Sleep(time.Millisecond) {
		if comm = strings.TrimSpace(read(t, "/proc/"+strconv.Itoa(a.HolderPid)+"/comm")); time.Now().After(deadline) {
			t.Fatalf("holder is called %q", comm)
		}
	}
	join := func(s *specs.Spec) { s.Linux.Namespaces[0].Path = p.req.PIDNS }
	// It leaves an orphan behind, which the shim has to end.
	task := p.task("sleep 1000 & echo $!; ps; sleep 0.2; exit 5", join)
	if _, err := s.Run(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	end := exited(t, s, task.ID)
	if end.ExitCode != 5 {
		t.Errorf("exit: %+v, want 5", end)
	}
	if log := read(t, task.Log.Path); !strings.Contains(log, "berth-holder") {
		t.Errorf("PID 1 is not the holder:\n%s", log)
	}
	if _, err := s.Delete(t.Context(), task.ID); err != nil {
		t.Error(err)
	}
	other := p.task("sleep 1000", join)
	if _, err := s.Run(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(a.HolderPid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	end = exited(t, s, other.ID)
	if end.ExitCode != 137 || end.Reason != "SandboxLost" {
		t.Errorf("after the holder's death: %+v, want 137, SandboxLost", end)
	}
	if err := p.m.Finish(t.Context(), p.id, p.req.Dir, &a); err != nil {
		t.Fatal(err)
	}
	p.gone(&a, a.HolderPid)
}
