package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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
				return
			}
			actors[i] = a
		})
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return err
	}
	k.mu.Lock()
	for _, a := range actors {
		if a != nil {
			k.index(a)
		}
	}
	k.mu.Unlock()
	close(k.loaded)
	for _, a := range actors {
		if a != nil {
			k.wg.Add(1)
			go a.run()
		}
	}
	k.log.Info("pods recovered", "pods", len(ids), "took", time.Since(start).Round(time.Millisecond))
	return nil
}

// index enters a recovered pod. Two journals may claim one name (a crash
// cannot make that, a person can): the first keeps it, both are served.
func (k *Keeper) index(a *actor) {
	claim := func(name, id string) {
		if h, taken := k.names[name]; taken {
			a.log.Error("a name has two holders", "name", name, "holder", h, "other", id)
			return
		}
		k.names[name] = id
	}
	k.pods[a.id] = a
	claim(a.st.Name, a.id)
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
	a := newActor(k, id, pod.Recover(pod.Fold(&pod.State{ID: id, Holdings: map[pod.Resource]pod.Holding{}}, facts...)))
	a.j = j
	boot := ""
	for _, f := range facts {
		if f.Kind == pod.Declared || f.Kind == pod.Rebooted {
			boot = f.Boot
		}
	}
	if boot != k.o.BootID {
		a.record(true, &pod.Fact{At: time.Now(), Kind: pod.Rebooted, Boot: k.o.BootID})
	}
	if damage != nil {
		a.log.Error("the pod is stopped", "err", damage)
		a.record(true, pod.Distrust(a.st, damage.Error(), time.Now())...)
	}
	return a, nil
}
