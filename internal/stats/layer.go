package stats

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

const (
	// layerFresh is how long a measurement of a writable layer is good at least:
	// it walks the layer's files.
	layerFresh = 10 * time.Second
	// layerShare bounds what measuring costs: after one that took t the next
	// comes not before layerShare times t.
	layerShare = 20
	// firstWait is how long the first one is waited for.
	firstWait = 100 * time.Millisecond
	// layerParallel bounds how many layers are measured at once.
	layerParallel = 2
	// layerTimeout ends a measurement that hangs.
	layerTimeout = 2 * time.Minute
)

// layers measures writable layers in the background, when somebody asks.
type layers struct {
	measure func(ctx context.Context, snapshot string) (bytes, inodes uint64, err error)
	slots   chan struct{}

	mu   sync.Mutex
	byID map[string]*layer
}

// layer is a writable layer's last measurement.
type layer struct {
	at            time.Time
	bytes, inodes uint64

	next  time.Time     // when to measure again
	asked time.Time     //
	busy  chan struct{} // closed when the measurement under way ends; nil: none
}

func newLayers(measure func(context.Context, string) (uint64, uint64, error)) *layers {
	return &layers{measure: measure, slots: make(chan struct{}, layerParallel), byID: map[string]*layer{}}
}

// get returns the last measurement and starts another if it is old. What was
// never measured is zero, as of now.
func (ls *layers) get(ctx context.Context, snapshot string) layer {
	now := time.Now()
	if snapshot == "" || ls.measure == nil {
		return layer{at: now}
	}
	ls.mu.Lock()
	l := ls.byID[snapshot]
	if l == nil {
		l = &layer{}
		ls.byID[snapshot] = l
	}
	l.asked = now
	if l.busy == nil && !now.Before(l.next) {
		l.busy = make(chan struct{})
		go ls.run(snapshot, l)
	}
	got, busy := *l, l.busy
	ls.mu.Unlock()
	if got.at.IsZero() && busy != nil {
		wait := time.NewTimer(firstWait)
		defer wait.Stop()
		select {
		case <-busy:
		case <-wait.C:
		case <-ctx.Done():
		}
		ls.mu.Lock()
		got = *l
		ls.mu.Unlock()
	}
	if got.at.IsZero() {
		got.at = now
	}
	return got
}

func (ls *layers) run(snapshot string, l *layer) {
	ls.slots <- struct{}{}
	ctx, cancel := context.WithTimeout(context.Background(), layerTimeout)
	defer cancel()
	start := time.Now()
	bytes, inodes, err := ls.measure(ctx, snapshot)
	end := time.Now()
	<-ls.slots

	ls.mu.Lock()
	defer ls.mu.Unlock()
	if err == nil {
		l.at, l.bytes, l.inodes = start, bytes, inodes
	} else {
		slog.Debug("measure writable layer", "snapshot", snapshot, "error", err)
	}
	l.next = end.Add(max(layerFresh, layerShare*end.Sub(start)))
	close(l.busy)
	l.busy = nil
}

func (ls *layers) sweep(now time.Time) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for k, l := range ls.byID {
		if l.busy == nil && now.Sub(l.asked) > forget {
			delete(ls.byID, k)
		}
	}
}
