package shim

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
)

func TestStopSignalsOnceAndKillsAtTheSoonerDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		b.up(false)
		p := b.run("a", true)
		begin := time.Now()
		stop := func(grace time.Duration) {
			t.Helper()
			// The caller leaves at once; the stop goes on.
			ctx, cancel := context.WithCancel(t.Context())
			if err := b.Stop(ctx, "a", "SIGINT", grace); err != nil {
				t.Fatal(err)
			}
			cancel()
		}
		stop(60 * time.Second)
		time.Sleep(5 * time.Second)
		stop(90 * time.Second) // later: no effect
		stop(10 * time.Second) // sooner: wins
		synctest.Wait()
		if signals, kills, _ := p.got(); !slices.Equal(signals, []int{2}) || kills != 0 {
			t.Errorf("signals %v, kills %d; want one SIGINT and no kill", signals, kills)
		}
		if _, err := b.Wait(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		if d := time.Since(begin); d != 15*time.Second {
			t.Errorf("killed after %v, want 15s", d)
		}
		if s := b.state("a"); s.Code != 137 || s.Signal != 9 {
			t.Errorf("exit: %+v", s)
		}
		if err := b.Stop(t.Context(), "a", "", 0); err != nil {
			t.Errorf("stop of an exited container: %v", err)
		}
	})
}

func TestStopOfCreatedKillsAtOnce(t *testing.T) {
	b := newBench(t)
	defer b.close()
	s := b.spec("a", true)
	s.Stock = &StockSpec{}
	if _, err := b.Create(t.Context(), s); err != nil {
		t.Fatal(err)
	}
	if err := b.Stop(t.Context(), "a", "", time.Hour); err != nil {
		t.Fatal(err)
	}
	if st, err := b.Wait(t.Context(), "a", ""); err != nil || st.Code != 137 {
		t.Errorf("exit: %+v, %v", st, err)
	}
	if _, err := b.Start(t.Context(), "a", ""); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("start after the exit: %v, want FailedPrecondition", err)
	}
}

func TestLateGuest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		b.up(false)
		out := newOutput()
		b.host.made = func(p *fakeProc) {
			p.stdout, p.notFound = out, true
			// The guest holds back the answer of its wait until its streams close.
			go func() {
				<-out.cut
				p.end(host.Exit{Code: 5})
			}()
		}
		p := b.run("a", true)
		begin := time.Now()
		if err := b.Stop(t.Context(), "a", "", time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(DefaultDrain - time.Millisecond)
		synctest.Wait()
		select {
		case <-out.cut:
			t.Fatal("closed before the grace was over")
		default:
		}
		if _, err := b.Wait(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
		if s := b.state("a"); s.Code != 5 {
			t.Errorf("exit: %+v, want the guest's own 5", s)
		}
		if d := time.Since(begin); d < DefaultDrain || d > DefaultDrain+time.Second {
			t.Errorf("exit after %v, want about %v", d, DefaultDrain)
		}
		if _, kills, _ := p.got(); kills != 0 {
			t.Errorf("%d kills", kills)
		}
	})
}

func TestGuestThatDrainsIsNotClosedEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		b.up(false)
		out := newOutput()
		b.host.made = func(p *fakeProc) { p.stdout = out }
		p := b.run("a", true)
		if err := b.Stop(t.Context(), "a", "", time.Hour); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		select {
		case <-out.cut:
			t.Error("streams of a process that took its signal were closed")
		default:
		}
		p.end(host.Exit{Code: 0})
		out.finish()
		if _, err := b.Wait(t.Context(), "a", ""); err != nil {
			t.Fatal(err)
		}
	})
}

func TestStuckIsReportedAndDeleteGoesOnLater(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newBench(t)
		defer b.close()
		b.up(false)
		thaw := make(chan struct{})
		b.host.made = func(p *fakeProc) {
			p.onKill = func(p *fakeProc, ctx context.Context) error {
				select {
				case <-thaw:
					p.end(host.Exit{Code: 137, Signal: 9})
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
		}
		b.run("a", true)
		other := b.run("b", true)
		other.onKill = nil
		if _, err := b.Delete(t.Context(), "a", true); !errdefs.IsUnavailable(err) {
			t.Fatalf("delete of a stuck container: %v, want Unavailable", err)
		}
		if s := b.state("a"); s.State != Running || s.Reason == "" {
			t.Errorf("stuck container: %+v, want running with a reason", s)
		}
		if s, err := b.Delete(t.Context(), "b", true); err != nil || s.Code != 137 {
			t.Errorf("its neighbour: %+v, %v", s, err)
		}
		close(thaw)
		if s, err := b.Delete(t.Context(), "a", true); err != nil || s.Code != 137 || s.Reason != "" {
			t.Errorf("after the thaw: %+v, %v", s, err)
		}
	})
}

func TestParseSignal(t *testing.T) {
	for s, want := range map[string]int{
		"": 15, "SIGTERM": 15, "term": 15, "9": 9, "SIGRTMIN": 34, "RTMIN+3": 37, "SIGRTMAX-1": 63, "SIGWINCH": 28, "SIGIOT": 6,
	} {
		if got, err := ParseSignal(s); err != nil || got != want {
			t.Errorf("%q: %d, %v; want %d", s, got, err, want)
		}
	}
	for _, s := range []string{"0", "65", "SIG", "SIGFOO", "RTMIN+31", "RTMAX+1", "RTMIN-1", "-1"} {
		if got, err := ParseSignal(s); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %d, %v; want InvalidArgument", s, got, err)
		}
	}
}
