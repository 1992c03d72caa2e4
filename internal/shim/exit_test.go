package shim

import (
	"context"
	"os"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/host"
	"berth/internal/shim/exits"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestExitIsRecordedFirstAndGatedByDrainOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		b.up(false)
		out := newOutput() // a child of the init holds it for ever
		b.host.made = func(p *fakeProc) { p.stdout = out }
		p := b.run("a", true)
		begin := time.Now()
		p.end(host.Exit{Code: 3, OOM: true})
		synctest.Wait()
		r, err := exits.Read(exits.Path(b.exits, "", "a"))
		if err != nil || r.Code != 3 || !r.OOM || r.Pid != p.pid {
			t.Errorf("record before the announcement: %+v, %v", r, err)
		}
		if s := b.state("a"); s.State != Running {
			t.Errorf("announced before the drain: %v", s.State)
		}
		if _, err := b.Wait(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d < DefaultDrain || d > DefaultDrain+time.Second {
			t.Errorf("announced after %v, want the drain of %v", d, DefaultDrain)
		}
		if s := b.state("a"); s.Code != 3 || !s.OOM || !s.ExitedAt.Equal(r.At) {
			t.Errorf("exit %+v differs from record %+v", s, r)
		}
		if _, err := b.Delete(t.Context(), "a", false); err != nil {
			t.Fatal(err)
		}
		if _, err := exits.Read(exits.Path(b.exits, "", "a")); !errdefs.IsNotFound(err) {
			t.Errorf("record after the acknowledgement: %v", err)
		}
	})
}

func TestEventsInOrderInitLast(t *testing.T) {
	b := newBench(t)
	defer b.close()
	p := b.stock("a", false) // shares its pid namespace
	for _, e := range []string{"e1", "e2"} {
		if err := b.AddExec(t.Context(), "a", &ExecSpec{ID: e, Process: &specs.Process{}}); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Start(t.Context(), "a", e); err != nil {
			t.Fatal(err)
		}
	}
	// Killing what the init left ends the execs.
	p.onKill = func(*fakeProc, context.Context) error {
		b.host.proc("e1").end(host.Exit{Code: 137, Signal: 9})
		b.host.proc("e2").end(host.Exit{Code: 137, Signal: 9})
		return nil
	}
	p.end(host.Exit{Code: 1, OOM: true})
	if _, err := b.Wait(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	if _, kills, _ := p.got(); kills != 1 {
		t.Errorf("what the init left was killed %d times", kills)
	}
	if _, err := b.DeleteExec(t.Context(), "a", "e1"); err != nil {
		t.Error(err)
	}
	if _, err := b.Delete(t.Context(), "a", false); err != nil {
		t.Fatal(err)
	}
	got := b.events.list()
	want := []string{
		"/tasks/create", "/tasks/start",
		"/tasks/exec-added e1", "/tasks/exec-started e1", "/tasks/exec-added e2", "/tasks/exec-started e2",
		"/tasks/exit e1", "/tasks/exit e2", "/tasks/oom", "/tasks/exit a", "/tasks/delete ",
	}
	if len(got) == len(want) && got[6] > got[7] {
		got[6], got[7] = got[7], got[6] // the execs ended at once
	}
	if !slices.Equal(got, want) {
		t.Errorf("events:\n%q\nwant\n%q", got, want)
	}
}

func TestExecAfterTheEndIsKilled(t *testing.T) {
	b := newBench(t)
	defer b.close()
	p := b.stock("a", false)
	p.onKill = func(*fakeProc, context.Context) error { return nil }
	if err := b.AddExec(t.Context(), "a", &ExecSpec{ID: "e", Process: &specs.Process{}}); err != nil {
		t.Fatal(err)
	}
	gate := make(chan struct{})
	b.host.gate = gate
	started := make(chan error, 1)
	go func() {
		_, err := b.Start(t.Context(), "a", "e")
		started <- err
	}()
	time.Sleep(10 * time.Millisecond)
	p.end(host.Exit{})
	if _, err := b.Wait(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	close(gate)
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	if _, kills, _ := b.host.proc("e").got(); kills == 0 {
		t.Error("an exec that came after its container's end lives on")
	}
	if err := b.AddExec(t.Context(), "a", &ExecSpec{ID: "e2", Process: &specs.Process{}}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("exec in an exited container: %v, want FailedPrecondition", err)
	}
}

func TestHolderLost(t *testing.T) {
	b := newBench(t)
	defer b.close()
	b.up(true)
	shared, private := b.run("shared", false), b.run("private", true)
	close(b.holder.done)
	if _, err := b.Wait(t.Context(), "shared", ""); err != nil {
		t.Fatal(err)
	}
	if s := b.state("shared"); s.Reason != exits.ReasonSandboxLost || s.Code != 137 {
		t.Errorf("container of the lost namespace: %+v", s)
	}
	if s := b.state("private"); s.State != Running {
		t.Errorf("container beside it: %+v", s)
	}
	_, _ = shared, private
	if _, err := b.Run(t.Context(), b.spec("new", false)); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("run in a lost sandbox: %v, want FailedPrecondition", err)
	}
	if s, err := b.WaitSandbox(t.Context(), "pod"); err != nil || s.State != Exited {
		t.Errorf("sandbox: %+v, %v", s, err)
	}
}

func TestRecordFollowsAfterFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		// A file is where the directory should be.
		if err := os.WriteFile(b.exits, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		b.up(false)
		p := b.run("a", true)
		p.end(host.Exit{Code: 6})
		if s, err := b.Wait(t.Context(), "a", ""); err != nil || s.Code != 6 {
			t.Fatalf("an exit that cannot be written was held back: %+v, %v", s, err)
		}
		if err := os.Remove(b.exits); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if r, err := exits.Read(exits.Path(b.exits, "", "a")); err != nil || r.Code != 6 {
			t.Errorf("record after the disk healed: %+v, %v", r, err)
		}
	})
}
