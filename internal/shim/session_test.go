package shim

import (
	"net"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"berth/internal/host"
	"berth/internal/stdio"
)

// serveSessions gives the socket on which a core serves sessions.
func (b *bench) serveSessions() string {
	b.t.Helper()
	path := filepath.Join(b.t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		b.t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- b.ServeSessions(l) }()
	b.t.Cleanup(func() {
		b.close()
		l.Close()
		if err := <-served; err != nil {
			b.t.Error(err)
		}
	})
	return path
}

func within(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for until := time.Now().Add(5 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("not in time: %s", what)
		}
	}
}

// An exec whose client is gone is hung up, then killed when the grace is over;
// one that is detached is left alone.
func TestExecClientGone(t *testing.T) {
	for name, tc := range map[string]struct {
		detached, obeys, vanishes bool
		signals                   []int
		kills                     int
	}{
		"it ignores the hangup": {signals: []int{sighup}, kills: 1},
		"it ends at the hangup": {obeys: true, signals: []int{sighup}},
		"it is detached":        {detached: true},
		"its client detaches":   {vanishes: true},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t)
			b.up(false)
			b.sandbox.drain = 100 * time.Millisecond
			b.run("a", true)
			socket := b.serveSessions()
			s, err := stdio.DialSession(t.Context(), socket, &stdio.SessionRequest{
				Op: stdio.OpExec, Container: "a", Exec: "e", Process: []byte(`{}`), Detached: tc.detached,
			})
			if err != nil {
				t.Fatal(err)
			}
			p := b.host.proc("e")
			begin := time.Now()
			if tc.vanishes {
				err = s.Detach()
			} else {
				err = s.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
			if tc.obeys {
				within(t, "it is hung up", func() bool { signals, _, _ := p.got(); return len(signals) > 0 })
				p.end(host.Exit{Code: 129, Signal: sighup})
			}
			if tc.detached || tc.vanishes {
				time.Sleep(300 * time.Millisecond) // longer than the grace
				if p.Exit() != nil {
					t.Error("it was ended")
				}
				p.end(host.Exit{})
			}
			<-p.done
			within(t, "the exec is given back", func() bool { _, _, deletes := p.got(); return deletes > 0 })
			signals, kills, _ := p.got()
			if !slices.Equal(signals, tc.signals) || kills != tc.kills {
				t.Errorf("signals %v, %d kills; want %v, %d", signals, kills, tc.signals, tc.kills)
			}
			if took := time.Since(begin); tc.kills > 0 && took < 100*time.Millisecond {
				t.Errorf("it was killed after %v, the grace is 100 ms", took)
			}
		})
	}
}
