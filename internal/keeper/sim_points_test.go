package keeper

import (
	"context"
	"flag"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"berth/internal/pod"
)

var simPairs = flag.Int("sim.pairs", 7, "play every n-th pair of crash points; 1 plays all")

// shortest is the shortest life of a pod, run, create, start, stop, remove, as a
// kubelet would have it: it looks at what there is, and asks for what is next.
// Each keeper dies at the next of crashes; when they are used up one lives.
// With cut, the power goes with each of them.
func shortest(w *world, cut bool, crashes ...int) {
	w.calm = true
	c := &client{w: w, name: "p"}
	next := func() {
		at := 0
		if len(crashes) > 0 {
			at, crashes = crashes[0], crashes[1:]
		}
		w.live(at)
	}
	next()
	stop, end := context.WithTimeout(context.Background(), time.Hour)
	defer end()
	stopped, gone := false, false
	for !gone {
		l := w.now
		select {
		case <-l.died:
			time.Sleep(time.Second)
			if cut {
				w.mu.Lock()
				w.reboot()
				w.mu.Unlock()
			}
			next()
			continue
		default:
		}
		if stop.Err() != nil {
			w.mu.Lock()
			w.broken("the pod's life does not come to its end")
			w.mu.Unlock()
			return
		}
		p := c.view(l)
		switch {
		case p == nil && stopped:
			gone = true
		case p == nil:
			c.runPod(l)
		case stopped:
			c.removePod(l, p)
		case p.Stopping:
			stopped = true // by the power cut
		case !p.IsReady():
			time.Sleep(100 * time.Millisecond)
		case len(p.Containers) == 0:
			c.create(l, p)
		default:
			switch k := p.Containers[0]; {
			case !k.IsCreated() || k.StartAsked && k.Status() == pod.ContainerStateCreated:
				time.Sleep(100 * time.Millisecond) // it is under way
			case k.Status() == pod.ContainerStateCreated && !k.StopAsked:
				c.start(l, k)
			case k.Status() == pod.ContainerStateRunning:
				c.stop(l, k, time.Second)
			default:
				w.mu.Lock()
				if x := w.exits[k.ID]; k.ExitCode != 137 || x == nil || x.started != 1 {
					w.broken("the container is %d %s after its stop", k.ExitCode, k.Reason)
				}
				w.mu.Unlock()
				stopped = true
				time.Sleep(2 * time.Second)
			}
		}
	}
	w.heal()
	w.empty()
}

// TestEveryCrashPoint kills the keeper at every effect and write of the shortest
// life, without and with a power cut, and of the life that follows each of these
// deaths (of these pairs the default plays one in seven: -sim.pairs 1 plays all).
func TestEveryCrashPoint(t *testing.T) {
	t.Parallel()
	whole := play(t, 0, nil, func(w *world) { shortest(w, false) })
	if len(whole.bad) > 0 {
		report(t, whole, "a life without a crash")
		return
	}
	points := whole.all[0].names
	if len(points) < 30 {
		t.Fatalf("only %d moments: %q", len(points), points)
	}
	for _, want := range []string{"before write declared", "after take network", "before probe shim"} {
		if want != "before probe shim" && !slices.Contains(points, want) {
			t.Errorf("no moment %q in %q", want, points)
		}
	}
	singles, pairs := 0, 0
	seconds := make([]int, len(points)+1) // how many moments the life after a crash has
	for i := 1; i <= len(points); i++ {
		w := play(t, 0, nil, func(w *world) { shortest(w, false, i) })
		singles++
		if len(w.bad) > 0 {
			report(t, w, fmt.Sprintf("crash %d, %s", i, points[i-1]))
			return
		}
		if cut := play(t, 0, nil, func(w *world) { shortest(w, true, i) }); len(cut.bad) > 0 {
			report(t, cut, fmt.Sprintf("power cut at %d, %s", i, points[i-1]))
			return
		}
		if len(w.all) > 1 {
			seconds[i] = w.all[1].points
		}
	}
	var mu sync.Mutex
	var wg sync.WaitGroup
	slots := make(chan struct{}, 2)
	n := 0
	for i := 1; i <= len(points); i++ {
		for j := 1; j <= seconds[i]; j++ {
			if n++; n%*simPairs != 0 {
				continue
			}
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				w := play(t, 0, nil, func(w *world) { shortest(w, false, i, j) })
				mu.Lock()
				defer mu.Unlock()
				pairs++
				if len(w.bad) > 0 && !t.Failed() {
					report(t, w, fmt.Sprintf("crash %d, %s, and %d of the next life", i, points[i-1], j))
				}
			})
		}
	}
	wg.Wait()
	t.Logf("%d single crashes, as many power cuts, and %d of %d pairs", singles, pairs, n)
}
