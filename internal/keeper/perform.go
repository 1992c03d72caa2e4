package keeper

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"berth/internal/pod"
)

// How long one try of an effect may take. A runtime, a plugin or a mount that
// hangs is cut off by whoever runs it well before; this is the last resort.
const (
	takeTimeout = 5 * time.Minute
	giveTimeout = time.Minute
)

// result is how an effect ended.
type result struct {
	taken *Taken
	exit  *Exit
	err   error
}

// start starts the planned effects whose resource has none under way and whose
// time has come. It returns when the next failed one is due.
func (a *actor) start() (next time.Time) {
	plan := a.k.plan(a.st)
	for key := range a.retries {
		if !slices.ContainsFunc(plan, func(e *pod.Effect) bool { return e.Key() == key }) {
			delete(a.retries, key)
		}
	}
	now := time.Now()
	for _, e := range plan {
		key := e.Key()
		if a.inflight[key] != nil {
			continue
		}
		if e.Verb == pod.Stop {
			if by, ok := a.accepted[e.Container]; ok && !e.Deadline.Before(by) {
				continue
			}
		}
		if e.Verb == pod.Give && !a.mayGive(e) {
			continue // advance writes what is unsaved again, soon
		}
		if r := a.retries[key]; r != nil {
			if r.effect.Verb != e.Verb {
				delete(a.retries, key)
			} else if r.at.After(now) {
				next = earlier(next, r.at)
				continue
			}
		}
		a.inflight[key] = &work{effect: e, since: now}
		a.perform(e)
	}
	a.tell()
	if len(a.waiters) > 0 && len(a.retries) > 0 {
		next = earlier(next, now.Add(time.Second)) // patience of those who wait
	}
	return next
}

// mayGive tells whether the journal knows why e is given back. Nothing is while
// the disk refuses that: the next keeper would believe that it is still held.
// And to give a task back is to acknowledge its exit, which nobody else knows
// afterwards: that is on disk before.
func (a *actor) mayGive(e *pod.Effect) bool {
	if e.Res == pod.Task && a.unsynced {
		a.record(lasting)
	}
	return len(a.unsaved) == 0
}

// tell makes what is under way known to callers who give up.
func (a *actor) tell() {
	var s []string
	for _, w := range a.inflight {
		s = append(s, fmt.Sprintf("%s %s (since %s)", w.effect.Verb, strings.TrimSuffix(w.effect.Key(), "/"), w.since.Format("15:04:05.000")))
	}
	for _, r := range a.retries {
		s = append(s, fmt.Sprintf("retrying %s %s after: %v", r.effect.Verb, r.effect.Key(), r.err))
	}
	slices.Sort(s)
	t := strings.Join(s, ", ")
	a.stage.Store(&t)
	a.behind.Store(a.progress())
}

// job returns what the effect is about.
func (a *actor) job(e *pod.Effect) *Job {
	a.publish()
	j := &Job{Pod: a.view.Load(), Data: a.st.Holdings[e.Res].Data}
	if e.Container != "" {
		for _, c := range j.Pod.Containers {
			if c.ID == e.Container {
				j.Container, j.Data = c, c.Holdings[e.Res].Data
			}
		}
	}
	return j
}

// perform runs the effect in a goroutine of its own; its result comes back as a
// message.
func (a *actor) perform(e *pod.Effect) {
	job := a.job(e)
	a.k.wg.Add(1)
	go func() {
		defer a.k.wg.Done()
		r := a.k.do(a, e, job)
		select {
		case a.inbox <- func() { a.finish(e, r) }:
		case <-a.done:
		case <-a.k.ctx.Done():
		}
	}()
}

// do performs the effect once.
func (k *Keeper) do(a *actor, e *pod.Effect, job *Job) *result {
	r := &result{err: k.at(&moment{when: "before", verb: string(e.Verb), what: string(e.Res), pod: a, effect: e})}
	if r.err == nil {
		r = k.try(e, job)
	}
	if err := k.at(&moment{when: "after", verb: string(e.Verb), what: string(e.Res), pod: a, effect: e, result: r}); err != nil {
		r = &result{err: err} // it was done, and nobody hears of it
	}
	return r
}

func (k *Keeper) try(e *pod.Effect, job *Job) *result {
	timeout := giveTimeout
	if e.Verb == pod.Take {
		timeout = takeTimeout
	}
	ctx, cancel := context.WithTimeout(k.ctx, timeout)
	defer cancel()
	r := &result{}
	res := k.o.Machine.Resource(e.Res)
	switch e.Verb {
	case pod.Take:
		r.taken, r.err = res.Take(ctx, job)
	case pod.Probe:
		r.taken, r.err = res.Probe(ctx, job)
	case pod.Give:
		r.exit, r.err = res.Give(ctx, job)
	case pod.Stop:
		r.err = k.o.Machine.Stop(ctx, job, e.Signal, e.Deadline)
	}
	return r
}

// finish takes an effect's result into the pod.
func (a *actor) finish(e *pod.Effect, r *result) {
	key := e.Key()
	delete(a.inflight, key)
	if a.k.ctx.Err() != nil {
		return // the keeper closes: the next one will see for itself
	}
	switch {
	case r.err == nil:
		a.k.effects.add(e, "ok")
	case e.Verb == pod.Take:
		a.k.effects.add(e, "failed")
	default:
		a.k.effects.add(e, "retried")
		a.fail(e, r.err)
		return
	}
	delete(a.retries, key)
	now := time.Now()
	f := &pod.Fact{At: now, Res: e.Res, Container: e.Container}
	switch {
	case e.Verb == pod.Stop:
		a.accepted[e.Container] = e.Deadline
		return
	case e.Verb == pod.Give || r.err == nil && r.taken == nil:
		f.Kind = pod.Released
	case r.err != nil:
		a.log.Warn("a pod could not get what it needs", "res", e.Res, "container", short(e.Container), "err", r.err)
		f.Kind, f.Message = pod.Failed, r.err.Error()
		var se *StartError
		if errors.As(r.err, &se) {
			f.Code = &se.Code
		}
		a.failures(e, r.err)
	default:
		f.Kind, f.Data = pod.Holds, r.taken.Data
	}
	fs := []*pod.Fact{f}
	if f.Kind == pod.Holds && e.Res == pod.Task {
		fs = append(fs, &pod.Fact{At: r.taken.At, Kind: pod.ContainerStarted, Container: e.Container, Pid: r.taken.Pid})
	}
	if r.exit != nil {
		if c := a.st.Container(e.Container); c != nil && c.FinishedAt.IsZero() {
			fs = append([]*pod.Fact{exitFact(e.Container, r.exit)}, fs...)
		}
	}
	as := happened
	if r.exit != nil || f.Kind == pod.Failed && e.Res == pod.Task {
		as = lasting // an end that only this keeper knows
	}
	a.record(as, fs...)
}

// fail keeps a failed effect for its next try.
func (a *actor) fail(e *pod.Effect, err error) {
	key := e.Key()
	r := a.retries[key]
	if r == nil || r.effect.Verb != e.Verb {
		r = &retry{since: time.Now()}
		a.retries[key] = r
	}
	r.effect, r.err, r.hurried = e, err, false
	r.n++
	r.at = time.Now().Add(backoff(r.n))
	a.log.Warn("will try again", "effect", e.Verb, "res", e.Res, "container", short(e.Container), "try", r.n,
		"next", backoff(r.n), "err", err)
}

// failures answers those who wait for what has just failed, with the error as
// it is: its class would not survive the journal.
func (a *actor) failures(e *pod.Effect, err error) {
	if a.cause == nil {
		a.cause = map[string]error{}
	}
	a.cause[e.Container] = err
}

// why returns the error of a failed Take for the pod ("") or a container.
func (a *actor) why(container, text string) error {
	if err := a.cause[container]; err != nil {
		return err
	}
	return errors.New(text)
}

// watch keeps an ear on the shim as long as the pod holds one.
func (a *actor) watch() {
	held := a.st.Holdings[pod.Shim].Phase == pod.Held && !a.st.ShimLost && !a.st.Rebooted
	if held == (a.watching != nil) {
		return
	}
	if !held {
		a.watching()
		a.watching = nil
		return
	}
	ctx, cancel := context.WithCancel(a.k.ctx)
	a.watching = cancel
	job := a.job(&pod.Effect{Res: pod.Shim})
	a.k.wg.Add(1)
	go func() {
		defer a.k.wg.Done()
		for n := 1; ; n++ {
			err := a.k.o.Machine.Watch(ctx, job, func(c *TaskChange) {
				a.send(ctx, func() { a.changed(c) })
			})
			if ctx.Err() != nil {
				return
			}
			if errors.Is(err, ErrGone) {
				a.send(ctx, func() { a.lost(err) })
				return
			}
			a.log.Warn("the shim cannot be watched; trying again", "err", err)
			select {
			case <-time.After(backoff(n)):
			case <-ctx.Done():
				return
			}
		}
	}()
}

// changed takes a shim's word on a task.
func (a *actor) changed(c *TaskChange) {
	if c.Exit == nil {
		return
	}
	k := a.st.Container(c.Container)
	if k == nil || k.Status() == pod.ContainerStateExited {
		return
	}
	a.exits[c.Container] = c.Exit
}

// lost notes the shim's death, unless the pod is giving it back anyway.
func (a *actor) lost(err error) {
	if a.inflight[string(pod.Shim)+"/"] != nil || a.st.Holdings[pod.Shim].Phase != pod.Held {
		return
	}
	a.log.Error("the shim died; its containers are ended", "err", err)
	a.record(happened, &pod.Fact{At: time.Now(), Kind: pod.Lost, Reason: pod.ReasonShimLost, Message: err.Error()})
}
