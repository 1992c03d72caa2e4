package shim

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/host"
	"berth/internal/shim/exits"

	"github.com/containerd/errdefs"
)

func TestDeletesJoin(t *testing.T) {
	b := newBench(t)
	defer b.close()
	b.up(false)
	p := b.run("a", true)
	if _, err := b.Delete(t.Context(), "a", false); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("delete of a running container: %v, want FailedPrecondition", err)
	}
	p.end(host.Exit{Code: 4})
	if _, err := b.Wait(t.Context(), "a", ""); err != nil {
		t.Fatal(err)
	}
	p.mu.Lock()
	p.delErr = errors.New("runtime is ill")
	p.mu.Unlock()
	if _, err := b.Delete(t.Context(), "a", false); err == nil {
		t.Fatal("the runtime's failure was swallowed")
	}
	if _, err := exits.Read(exits.Path(b.exits, "", "a")); err != nil {
		t.Errorf("a failed delete lost the record: %v", err)
	}
	p.mu.Lock()
	p.delErr = nil
	before := p.deletes
	p.mu.Unlock()
	var wg sync.WaitGroup
	var mu sync.Mutex
	found := 0
	for range 16 {
		wg.Go(func() {
			s, err := b.Delete(t.Context(), "a", false)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil && s.Code == 4:
				found++
			case !errdefs.IsNotFound(err): // came after the end of it
				t.Errorf("delete: %+v, %v", s, err)
			}
		})
	}
	wg.Wait()
	if _, _, deletes := p.got(); deletes != before+1 || found == 0 {
		t.Errorf("the host was asked %d times, %d callers got the exit", deletes-before, found)
	}
}

func TestRunJoinsAndFailsClean(t *testing.T) {
	b := newBench(t)
	defer b.close()
	spec := b.spec("a", true)
	if _, err := b.Run(t.Context(), spec); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("run without a sandbox: %v, want FailedPrecondition", err)
	}
	b.up(false)
	b.host.create = &host.StartError{Code: 127, Message: "no such file"}
	_, err := b.Run(t.Context(), spec)
	if e, ok := errors.AsType[*host.StartError](err); !ok || e.Code != 127 {
		t.Fatalf("run: %v, want the start error", err)
	}
	if _, err := b.Task(t.Context(), "a"); !errdefs.IsNotFound(err) {
		t.Errorf("a failed run left a task: %v", err)
	}
	b.host.mu.Lock()
	b.host.create, b.host.creates = nil, 0
	b.host.mu.Unlock()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			if s, err := b.Run(t.Context(), spec); err != nil || s.State != Running {
				t.Errorf("run: %+v, %v", s, err)
			}
		})
	}
	wg.Wait()
	if b.host.creates != 1 {
		t.Errorf("created %d times", b.host.creates)
	}
	other := *spec
	other.Bundle = t.TempDir()
	if _, err := b.Run(t.Context(), &other); !errdefs.IsAlreadyExists(err) {
		t.Errorf("same id, other bundle: %v, want AlreadyExists", err)
	}
	for _, id := range []string{"", "../x", "-x", "a/b"} {
		bad := *spec
		bad.ID = id
		if _, err := b.Run(t.Context(), &bad); !errdefs.IsInvalidArgument(err) {
			t.Errorf("id %q: %v, want InvalidArgument", id, err)
		}
	}
}

func TestShutdownIsRememberedAndLeaseEnds(t *testing.T) {
	ended := func(c *Core) bool {
		select {
		case <-c.Done():
			return true
		default:
			return false
		}
	}
	t.Run("with tasks left", func(t *testing.T) {
		b := newBench(t)
		p := b.stock("a", true)
		b.Shutdown(false)
		if ended(b.Core) {
			t.Fatal("ended with a task left")
		}
		p.end(host.Exit{})
		if _, err := b.Wait(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := b.Delete(t.Context(), "a", false); err != nil {
			t.Fatal(err)
		}
		if !ended(b.Core) {
			t.Error("the last delete did not end the shim")
		}
		if _, err := b.Create(t.Context(), b.spec("b", true)); !errdefs.IsFailedPrecondition(err) {
			t.Errorf("create in a shim that ends: %v", err)
		}
	})
	t.Run("lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			time.Sleep(DefaultLease - time.Second)
			b.Touch()
			time.Sleep(DefaultLease - time.Second)
			if synctest.Wait(); ended(b.Core) {
				t.Fatal("ended though somebody came")
			}
			time.Sleep(2 * time.Second)
			if synctest.Wait(); !ended(b.Core) {
				t.Error("nobody came, nothing to keep, and it stays")
			}
		})
	})
	t.Run("a sandbox keeps it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			b := newBench(t)
			b.up(false)
			time.Sleep(time.Hour)
			if synctest.Wait(); ended(b.Core) {
				t.Fatal("ended with a sandbox")
			}
			p := b.run("a", true)
			if err := b.Finish(t.Context()); err != nil {
				t.Fatal(err)
			}
			if !ended(b.Core) || b.host.closes != 1 {
				t.Errorf("after finish: ended %t, host closed %d times", ended(b.Core), b.host.closes)
			}
			if _, _, deletes := p.got(); deletes != 1 {
				t.Errorf("container deleted %d times", deletes)
			}
			// Nobody acknowledged this exit.
			if r, err := exits.Read(exits.Path(b.exits, "", "a")); err != nil || r.Code != 137 {
				t.Errorf("record after finish: %+v, %v", r, err)
			}
		})
	})
}

func TestChanges(t *testing.T) {
	b := newBench(t)
	defer b.close()
	b.up(false)
	seq, snapshot, tasks, err := b.Changes(t.Context(), 0)
	if err != nil || !snapshot || len(tasks) != 0 || seq < 1 {
		t.Fatalf("first snapshot: %d, %t, %v, %v", seq, snapshot, tasks, err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	if _, _, _, err := b.Changes(ctx, seq); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("nothing changed, yet: %v", err)
	}
	cancel()
	p := b.run("a", true)
	seq, snapshot, tasks, err = b.Changes(t.Context(), seq)
	if err != nil || snapshot || len(tasks) != 1 || tasks[0].State != Running {
		t.Fatalf("after run: %t, %+v, %v", snapshot, tasks, err)
	}
	p.end(host.Exit{Code: 9})
	next, _, tasks, err := b.Changes(t.Context(), seq)
	if err != nil || len(tasks) != 1 || tasks[0].State != Exited || tasks[0].Code != 9 || next <= seq {
		t.Fatalf("after exit: %d, %+v, %v", next, tasks, err)
	}
	if _, snapshot, tasks, _ := b.Changes(t.Context(), next+1000); !snapshot || len(tasks) != 1 {
		t.Errorf("a number that is not ours: %t, %+v; want a snapshot", snapshot, tasks)
	}
}
