package keeper

import (
	"sync"
	"time"

	"berth/internal/pod"
)

// EffectKind is what effects are counted by. Outcome is ok, failed (given up:
// the pod goes down, or the container does not start) or retried.
type EffectKind struct{ Verb, Resource, Outcome string }

// Stats are a keeper's numbers, for metrics.
type Stats struct {
	Effects map[EffectKind]int64
	// Retrying counts the effects that failed and wait for their next try;
	// Strays those of them that would give something back.
	Retrying, Strays int
	// Oldest is the age of the oldest step that is not finished; 0 for none.
	Oldest time.Duration
	// Recovery is how long it took to read the journals.
	Recovery time.Duration
}

// effectCounts counts effects. Its lock is held for map work only.
type effectCounts struct {
	// mu guards the field below.
	mu sync.Mutex
	n  map[EffectKind]int64
}

func (c *effectCounts) add(e *pod.Effect, outcome string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.n == nil {
		c.n = map[EffectKind]int64{}
	}
	c.n[EffectKind{string(e.Verb), string(e.Res), outcome}]++
}

// progress is how far a pod's actor is behind, published for Stats.
type progress struct {
	oldest           time.Time // of the steps that are not finished
	retrying, strays int
}

// progress looks at what is under way.
func (a *actor) progress() *progress {
	p := &progress{retrying: len(a.retries)}
	for _, w := range a.inflight {
		p.oldest = earlier(p.oldest, w.since)
	}
	for _, r := range a.retries {
		p.oldest = earlier(p.oldest, r.since)
		if r.effect.Verb == pod.Give {
			p.strays++
		}
	}
	return p
}

// Stats returns the numbers. It waits for no pod.
func (k *Keeper) Stats() *Stats {
	s := &Stats{Effects: map[EffectKind]int64{}, Recovery: time.Duration(k.took.Load())}
	k.effects.mu.Lock()
	for e, n := range k.effects.n {
		s.Effects[e] = n
	}
	k.effects.mu.Unlock()
	var oldest time.Time
	k.mu.RLock()
	for _, a := range k.pods {
		if p := a.behind.Load(); p != nil {
			oldest = earlier(oldest, p.oldest)
			s.Retrying += p.retrying
			s.Strays += p.strays
		}
	}
	k.mu.RUnlock()
	if !oldest.IsZero() {
		s.Oldest = time.Since(oldest)
	}
	return s
}
