package keeper

import (
	"context"
	"encoding/json"
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
	k     *Keeper
	id    string
	log   *slog.Logger
	inbox chan func()
	done  chan struct{}          // closed when run returned
	view  atomic.Pointer[Pod]    // what the world sees; nil before the first facts
	stage atomic.Pointer[string] // what is under way, for the error of a caller who gave up

	st       *pod.State
	j        *journal.Journal
	unsaved  [][]byte             // folded, but refused by the disk: written before anything else
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
}

// waiter waits for a condition on the state. check runs after every change.
type waiter struct {
	check  func() (done bool, err error)
	answer chan error // buffered
	gone   <-chan struct{}
	made   *string // what it waits to be made: a container's id, "" for the pod; nil for anything else
}

func newActor(k *Keeper, id string, st *pod.State) *actor {
	if st == nil {
		st = pod.Fold(nil)
	}
	st.ID = id
	return &actor{
		k: k, id: id, log: k.log.With("pod", short(id)), inbox: make(chan func()), done: make(chan struct{}), st: st,
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

func (w *waiter) settle() {
	if ok, err := w.check(); ok {
		w.answer <- err
	} else {
		w.answer <- errRemoved
	}
}

// forget drops a removed pod from the indexes, and its journal.
func (a *actor) forget() {
	a.publish()
	if a.j != nil {
		if err := a.j.Remove(); err != nil {
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

// request asks the actor for something: prepare says which facts the request
// adds (synced before anything is done about it), check when it is fulfilled.
// made, if not nil, names what the caller wants to be made.
func (a *actor) request(ctx context.Context, prepare func() ([]*pod.Fact, error), check func() (bool, error), made *string) error {
	w := &waiter{check: check, answer: make(chan error, 1), gone: ctx.Done(), made: made}
	err := a.send(ctx, func() {
		fs, err := prepare()
		if err == nil && len(fs) > 0 {
			err = a.record(true, fs...)
		}
		if err != nil {
			w.answer <- err
			return
		}
		a.hurry()
		a.waiters = append(a.waiters, w)
	})
	if err != nil {
		return err
	}
	select {
	case err := <-w.answer:
		return err
	case <-ctx.Done():
		select {
		case err := <-w.answer:
			if err == nil && made != nil { // the answer came, but nobody was there
				go a.send(a.k.ctx, func() { a.unanswered[*made] = true })
			}
		default:
		}
		return fmt.Errorf("pod %s: gave up waiting while %s; the work goes on: %w", short(a.id), a.doing(), ctx.Err())
	case <-a.done:
		select {
		case err := <-w.answer:
			return err
		default:
			return errRemoved
		}
	}
}

// hurry makes failed effects try again now: somebody asks.
func (a *actor) hurry() {
	for _, r := range a.retries {
		r.at = time.Now()
	}
}

// record writes facts and folds them. What a request wants (sync) is folded
// only once it is on disk. What has already happened (not sync) is folded in
// any case: memory is the truth, and the disk gets it as soon as it can.
func (a *actor) record(sync bool, fs ...*pod.Fact) error {
	lines := a.unsaved
	for _, f := range fs {
		b, err := json.Marshal(f)
		if err != nil {
			return fmt.Errorf("encode fact %q: %w", f.Kind, err)
		}
		lines = append(lines, b)
	}
	var err error
	if a.j == nil {
		a.j, err = journal.Create(a.k.o.Journals, a.id, lines...)
	} else {
		err = a.j.Append(sync, lines...)
	}
	a.k.facts.Add(int64(len(fs)))
	switch {
	case err == nil:
		a.unsaved = nil
		if sync {
			a.k.syncs.Add(1)
		}
	case sync:
		return fmt.Errorf("write to the journal of pod %s: %w", short(a.id), err)
	default:
		a.log.Error("the journal cannot be written; what happened is kept in memory and written later", "err", err)
		a.unsaved = lines
	}
	a.st = pod.Fold(a.st, fs...)
	for _, f := range fs {
		a.log.Debug(string(f.Kind), "res", f.Res, "container", short(f.Container), "reason", f.Reason)
		a.noticed(f)
	}
	return nil
}

// noticed publishes what subscribers want to hear of a fact.
func (a *actor) noticed(f *pod.Fact) {
	ev := func(t EventType, id string) {
		a.publish()
		a.k.events.publish(&Event{At: f.At, Type: t, ContainerID: id, Pod: a.view.Load()})
	}
	switch f.Kind {
	case pod.Ready:
		ev(EventCreated, a.id)
		ev(EventStarted, a.id)
	case pod.ContainerDeclared:
		a.k.mu.Lock()
		a.k.containers[f.Container] = a
		a.k.mu.Unlock()
	case pod.ContainerCreated:
		ev(EventCreated, f.Container)
	case pod.ContainerStarted:
		ev(EventStarted, f.Container)
	case pod.ContainerExited:
		ev(EventStopped, f.Container)
	case pod.Failed:
		if f.Res == pod.Task {
			ev(EventStopped, f.Container)
		}
	case pod.ContainerRemoved:
		a.k.mu.Lock()
		delete(a.k.containers, f.Container)
		for n, id := range a.k.names {
			if id == f.Container {
				delete(a.k.names, n)
			}
		}
		a.k.mu.Unlock()
		delete(a.accepted, f.Container)
		delete(a.exits, f.Container)
		delete(a.unanswered, f.Container)
		ev(EventDeleted, f.Container)
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
		a.record(false, fs...)
	}
	if !a.seenStop && a.st.Stopped() {
		a.seenStop = true
		a.publish()
		a.k.events.publish(&Event{At: time.Now(), Type: EventStopped, ContainerID: a.id, Pod: a.view.Load()})
	}
	if len(a.unsaved) > 0 {
		if a.record(false) == nil && len(a.unsaved) > 0 {
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

// lateExits are the ends that were reported before the start was recorded.
func (a *actor) lateExits() []*pod.Fact {
	var fs []*pod.Fact
	for _, c := range a.st.Containers {
		e := a.exits[c.ID]
		if e == nil || c.Status() == pod.ContainerStateCreated && a.inflight[string(pod.Task)+"/"+c.ID] != nil {
			continue
		}
		delete(a.exits, c.ID)
		if c.Status() == pod.ContainerStateRunning {
			fs = append(fs, exitFact(c.ID, e))
		}
	}
	return fs
}

func exitFact(id string, e *Exit) *pod.Fact {
	return &pod.Fact{At: e.At, Kind: pod.ContainerExited, Container: id, Code: &e.Code, Reason: e.Reason, Message: e.Message}
}

// publish shows the state to the world. Callers who read it wait for nothing.
func (a *actor) publish() {
	trouble := a.trouble()
	if old := a.view.Load(); old != nil && old.State == a.st && old.Trouble == trouble {
		return
	}
	a.view.Store(a.k.published(a.view.Load(), a.st, trouble))
}

// answer tells those who wait for what is now so. What was made while nobody
// was left who waited for it is remembered.
func (a *actor) answer() {
	keep := a.waiters[:0]
	told := map[string]bool{}
	for _, w := range a.waiters {
		ok, err := w.check()
		switch left := gone(w.gone); {
		case !ok && (!left || w.made != nil):
			keep = append(keep, w) // if it left: to know whether the answer finds anybody
		case ok && !left:
			w.answer <- err
			if w.made != nil {
				told[*w.made] = true
			}
		case ok && err == nil && w.made != nil && !told[*w.made]:
			told[*w.made] = false
		}
	}
	clear(a.waiters[len(keep):])
	a.waiters = keep
	for made, ok := range told {
		if !ok {
			a.unanswered[made] = true
		}
	}
}

func gone(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// patience is how long a caller waits for an effect that keeps failing.
const patience = 3 * time.Second

// stuck returns the error for a caller whose wish hangs on effects that have
// been failing for some time. The work goes on.
func (a *actor) stuck(container string, all bool) error {
	for _, r := range a.retries {
		if (all || r.effect.Container == container) && time.Since(r.since) > patience {
			return r.error(a.id)
		}
	}
	return nil
}

func (r *retry) error(pod string) error {
	what := string(r.effect.Res)
	if r.effect.Container != "" {
		what += " of container " + short(r.effect.Container)
	}
	return fmt.Errorf("pod %s: cannot %s %s (try %d, failing for %v, goes on): %w", short(pod), r.effect.Verb, what, r.n,
		time.Since(r.since).Round(time.Second), r.err)
}

func (a *actor) trouble() string {
	var errs []error
	for _, r := range a.retries {
		errs = append(errs, fmt.Errorf("cannot %s %s (try %d since %s): %w", r.effect.Verb, r.effect.Key(), r.n, r.since.Format(time.TimeOnly), r.err))
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
