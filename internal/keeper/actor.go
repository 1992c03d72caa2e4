package keeper

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/journal"
	"berth/internal/pod"
)

// errRemoved answers requests to a pod that is no more.
var errRemoved = fmt.Errorf("the pod was removed: %w", errdefs.ErrNotFound)

// actor owns one pod's machine and journal. Everything but the channels and the
// atomics belongs to the goroutine in run; others send it closures.
type actor struct {
	k        *Keeper
	id       string
	log      *slog.Logger
	inbox    chan func()
	updating chan struct{}          // holds one token while a container is updated
	done     chan struct{}          // closed when run returned
	view     atomic.Pointer[Pod]    // what the world sees; nil before the first facts
	stage    atomic.Pointer[string] // what is under way, for the error of a caller who gave up

	behind atomic.Pointer[progress]

	st       *pod.State
	j        *journal.Journal
	unsaved  []*pod.Fact          // folded, but refused by the disk: written before anything else
	orders   []*pod.Fact          // what Recover wants noted first
	unsynced bool                 // an exit was noted that a power cut may still take
	inflight map[string]*work     // by Effect.Key
	retries  map[string]*retry    // failed effects, by Effect.Key
	accepted map[string]time.Time // stops that the shim has accepted: container → deadline
	exits    map[string]*Exit     // ends reported before the start was
	watching context.CancelFunc   // ends the watch of the shim; nil when there is none
	waiters  []*waiter
	seenStop bool
	// unanswered holds what was made for a caller who had left: "" for the
	// pod, else container ids. The same request, made again, gets it.
	unanswered map[string]bool
	// cause holds the errors of failed takes: "" for the pod, else container ids.
	cause map[string]error
}

// work is an effect under way.
type work struct {
	effect *pod.Effect
	since  time.Time
}

// retry is a failed effect that waits for its next try.
type retry struct {
	effect *pod.Effect
	n      int
	since  time.Time // of the first failure
	at     time.Time // of the next try
	err    error
	// hurried: somebody asked since the last try. What that one said is not yet
	// an answer: the cause may have been mended.
	hurried bool
}

// what names what the effect works on, for people.
func (r *retry) what() string {
	if r.effect.Container == "" {
		return string(r.effect.Res)
	}
	return string(r.effect.Res) + " of container " + short(r.effect.Container)
}

func newActor(k *Keeper, id string, st *pod.State) *actor {
	if st == nil {
		st = pod.Fold(nil)
	}
	st.ID = id
	return &actor{
		k: k, id: id, log: k.log.With("pod", short(id)), inbox: make(chan func()), updating: make(chan struct{}, 1), done: make(chan struct{}), st: st,
		inflight: map[string]*work{}, retries: map[string]*retry{}, accepted: map[string]time.Time{},
		exits: map[string]*Exit{}, unanswered: map[string]bool{},
	}
}

func short(id string) string { return id[:min(12, len(id))] }

// run is the actor. It ends when the pod was removed, or the keeper closes.
func (a *actor) run() {
	defer a.k.wg.Done()
	defer close(a.done)
	defer a.leave()
	if len(a.orders) > 0 {
		a.record(lasting, a.orders...)
	}
	for {
		next := a.advance()
		if a.st.Removed {
			a.forget()
			return
		}
		var timer <-chan time.Time
		if !next.IsZero() {
			timer = time.After(time.Until(next))
		}
		select {
		case f := <-a.inbox:
			f()
		case <-timer:
		case <-a.k.ctx.Done():
			return
		}
	}
}

// leave ends what hangs on the actor.
func (a *actor) leave() {
	if a.watching != nil {
		a.watching()
	}
	for _, w := range a.waiters {
		if a.st.Removed {
			w.settle()
			continue
		}
		w.answer <- fmt.Errorf("the daemon stops; the work goes on when it is back: %w", errdefs.ErrUnavailable)
	}
	a.waiters = nil
	if a.j != nil {
		a.j.Close()
	}
}

// forget drops a removed pod from the indexes, and its journal.
func (a *actor) forget() {
	a.publish()
	if a.j != nil {
		m := &moment{when: "before", verb: "remove", what: "journal", pod: a}
		err := a.k.at(m)
		if err == nil {
			err = a.j.Remove()
		}
		if m.when = "after"; err == nil {
			err = a.k.at(m)
		}
		if err != nil {
			a.log.Error("a removed pod's journal stays; it will be read again after a restart", "err", err)
		}
		facts, syncs := a.j.Counts()
		a.log.Debug("pod removed", "facts", facts, "syncs", syncs)
	}
	a.k.mu.Lock()
	delete(a.k.pods, a.id)
	if a.k.names[a.st.Name] == a.id {
		delete(a.k.names, a.st.Name)
	}
	a.k.mu.Unlock()
	a.k.events.publish(&Event{At: time.Now(), Type: EventDeleted, ContainerID: a.id})
}

// send hands f to the actor and returns when the actor has it.
func (a *actor) send(ctx context.Context, f func()) error {
	select {
	case a.inbox <- f:
		return nil
	case <-a.done:
		return errRemoved
	case <-ctx.Done():
		return fmt.Errorf("pod %s is busy: %w", short(a.id), ctx.Err())
	}
}

// hurry makes failed effects try again now: somebody asks.
func (a *actor) hurry() {
	for _, r := range a.retries {
		r.at, r.hurried = time.Now(), true
	}
}

// advance brings the pod as far as it goes without news: it settles, starts
// what is planned, publishes, and answers who waits. It returns when to look
// again (zero: when something happens).
func (a *actor) advance() (next time.Time) {
	for {
		fs := append(a.lateExits(), pod.Settle(a.st, time.Now())...)
		if len(fs) == 0 {
			break
		}
		a.record(happened, fs...)
	}
	if !a.seenStop && a.st.Stopped() {
		a.seenStop = true
		a.publish()
		a.k.events.publish(&Event{At: time.Now(), Type: EventStopped, ContainerID: a.id, Pod: a.view.Load()})
	}
	if len(a.unsaved) > 0 {
		if a.record(lasting); len(a.unsaved) > 0 {
			next = time.Now().Add(time.Second)
		}
	}
	if !a.st.Removed {
		next = earlier(next, a.start())
		a.watch()
	}
	a.publish()
	a.answer()
	return next
}

// publish shows the state to the world. Callers who read it wait for nothing.
func (a *actor) publish() {
	trouble := a.trouble()
	if old := a.view.Load(); old != nil && old.State == a.st && old.Trouble == trouble {
		return
	}
	a.view.Store(a.k.published(a.view.Load(), a.st, trouble))
}

func (a *actor) trouble() string {
	var errs []error
	for _, r := range a.retries {
		errs = append(errs, fmt.Errorf("cannot %s %s (try %d since %s): %w", r.effect.Verb, r.what(), r.n, r.since.Format(time.TimeOnly), r.err))
	}
	if len(errs) == 0 {
		return ""
	}
	return errors.Join(errs...).Error()
}

func (a *actor) doing() string {
	if s := a.stage.Load(); s != nil && *s != "" {
		return *s
	}
	return "waiting"
}

func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}
