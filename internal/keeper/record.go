package keeper

import (
	"encoding/json"
	"fmt"
	"slices"

	"berth/internal/journal"
	"berth/internal/pod"
)

// weight says how much hangs on a fact.
type weight int

const (
	// asked: a request's wish. It is folded only once it is on disk.
	asked weight = iota
	// happened: folded in any case. Memory is the truth, and the disk gets it as
	// soon as it can; a power cut may take it, with all that it speaks of.
	happened
	// lasting: as happened, and synced: what it speaks of outlives a power cut.
	lasting
)

// record writes facts and folds them.
func (a *actor) record(as weight, fs ...*pod.Fact) error {
	all := slices.Concat(a.unsaved, fs)
	err := a.write(as != happened, all)
	a.k.facts.Add(int64(len(fs)))
	switch {
	case err == nil:
		a.unsaved = nil
		if as != happened {
			a.k.syncs.Add(1)
			a.unsynced = false
		}
	case as == asked:
		return fmt.Errorf("write to the journal of pod %s: %w", short(a.id), err)
	default:
		a.log.Error("the journal cannot be written; what happened is kept in memory and written later", "err", err)
		a.unsaved = all
	}
	a.st = a.k.fold(a.st, fs...)
	for _, f := range fs {
		a.log.Debug(string(f.Kind), "res", f.Res, "container", short(f.Container), "reason", f.Reason)
		a.noticed(f, as)
	}
	return nil
}

// write puts facts into the journal, which begins with the first.
func (a *actor) write(sync bool, fs []*pod.Fact) error {
	lines := make([][]byte, len(fs))
	for i, f := range fs {
		b, err := json.Marshal(f)
		if err != nil {
			return fmt.Errorf("encode fact %q: %w", f.Kind, err)
		}
		lines[i] = b
	}
	m := &moment{when: "before", verb: "write", what: "nothing", pod: a, facts: fs, synced: sync}
	if len(fs) > 0 {
		m.what = string(fs[0].Kind)
	}
	err := a.k.at(m)
	if err != nil {
		return err
	}
	if a.j == nil {
		m.synced = true
		a.j, err = journal.Create(a.k.o.Journals, a.id, lines...)
	} else {
		err = a.j.Append(sync, lines...)
	}
	if err != nil {
		return err
	}
	m.when = "after"
	return a.k.at(m)
}

// noticed publishes what subscribers want to hear of a fact.
func (a *actor) noticed(f *pod.Fact, as weight) {
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
		a.unsynced = a.unsynced || as == happened
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
