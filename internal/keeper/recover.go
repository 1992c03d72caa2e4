package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"berth/internal/journal"
	"berth/internal/pod"
)

// readers bounds how many journals are read at once.
const readers = 16

// Recover reads the journals and starts an actor for each. It returns when all
// pods are known; what each of them does then is its own affair, and no pod's
// trouble is another's.
func (k *Keeper) Recover(ctx context.Context) error {
	ids, err := journal.List(k.o.Journals)
	if err != nil {
		return err
	}
	start := time.Now()
	actors := make([]*actor, len(ids))
	var wg sync.WaitGroup
	slots := make(chan struct{}, readers)
	for i, id := range ids {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			a, err := k.load(id)
			if err != nil {
				k.log.Error("a pod cannot be read and is left alone", "pod", id, "err", err)
				k.unread.Add(1)
				return
			}
			actors[i] = a
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	actors = slices.DeleteFunc(actors, func(a *actor) bool { return a == nil })
	slices.SortFunc(actors, func(a, b *actor) int { return b.st.CreatedAt.Compare(a.st.CreatedAt) })
	k.mu.Lock()
	for _, a := range actors {
		k.index(a)
	}
	k.mu.Unlock()
	k.took.Store(int64(time.Since(start)))
	close(k.loaded)
	for _, a := range actors {
		k.wg.Add(1)
		go a.run()
	}
	k.log.Info("pods recovered", "pods", len(ids), "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// index enters a recovered pod, the newest first. Two journals may claim one
// name (a crash cannot make that, a restored disk or a person can): the newest
// keeps it, and the other pod goes, as nobody can ask for it any more.
func (k *Keeper) index(a *actor) {
	claim := func(name, id string) (holder string, ok bool) {
		if h, taken := k.names[name]; taken {
			a.log.Error("a name has two holders", "name", name, "holder", h, "other", id)
			return h, false
		}
		k.names[name] = id
		return id, true
	}
	k.pods[a.id] = a
	if h, ok := claim(a.st.Name, a.id); !ok {
		now := time.Now()
		a.orders = []*pod.Fact{{At: now, Kind: pod.Lost, Reason: "pod " + h + " has its name"}, {At: now, Kind: pod.RemoveAsked}}
	}
	for _, c := range a.st.Containers {
		k.containers[c.ID] = a
		claim(c.Name, c.ID)
	}
	a.publish()
}

// load reads one journal. A damaged one still tells what it can: that pod is
// stopped, with the damage as the reason, and can be removed.
func (k *Keeper) load(id string) (*actor, error) {
	j, lines, damage := journal.Open(k.o.Journals, id)
	if j == nil {
		return nil, damage
	}
	facts := make([]*pod.Fact, 0, len(lines))
	for n, l := range lines {
		f := &pod.Fact{}
		if err := json.Unmarshal(l, f); err != nil {
			damage = errors.Join(damage, fmt.Errorf("fact %d: %w", n+1, err))
			break
		}
		facts = append(facts, f)
	}
	if len(facts) == 0 && damage == nil {
		return nil, j.Remove() // the crash came before its first fact: nothing was taken
	}
	a := newActor(k, id, pod.Recover(k.fold(&pod.State{ID: id, Holdings: map[pod.Resource]pod.Holding{}}, facts...)))
	a.j = j
	if a.st.Removed {
		return nil, j.Remove() // the crash came after its last fact
	}
	// Who asked for what is half made may ask again, and gets it.
	a.unanswered[""] = a.st.ReadyAt.IsZero()
	for _, c := range a.st.Containers {
		a.unanswered[c.ID] = !c.IsCreated()
	}
	boot := ""
	for _, f := range facts {
		if f.Kind == pod.Declared || f.Kind == pod.Rebooted {
			boot = f.Boot
		}
	}
	if boot != k.o.BootID {
		a.record(lasting, &pod.Fact{At: time.Now(), Kind: pod.Rebooted, Boot: k.o.BootID})
	}
	if damage != nil {
		a.log.Error("the pod is stopped", "err", damage)
		a.record(lasting, pod.Distrust(a.st, damage.Error(), time.Now())...)
	}
	return a, nil
}
