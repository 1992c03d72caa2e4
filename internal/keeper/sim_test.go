package keeper

import (
	"context"
	"flag"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"berth/internal/pod"
)

var (
	simSeed = flag.Uint64("sim.seed", 0, "play this seed only, and tell its story")
	simTime = flag.Duration("sim.time", 4*time.Second, "how long to play seeds")
	simFrom = flag.Uint64("sim.from", 1, "the first seed")
)

// simDir is a folder for journals that costs no disk.
func simDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "berth-sim-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// play runs f in a world of its own, until it is over, and checks its rules.
func play(t *testing.T, seed uint64, m *mutant, f func(w *world)) *world {
	t.Helper()
	dir, err := os.MkdirTemp(simDir(t), "j")
	if err != nil {
		t.Fatal(err)
	}
	var w *world
	synctest.Test(t, func(t *testing.T) {
		w = newWorld(t, seed, dir)
		w.mutant = m
		f(w)
		w.over()
		synctest.Wait() // for the last subscriber
	})
	os.RemoveAll(dir)
	return w
}

// over ends all keepers, the dead too.
func (w *world) over() {
	w.mu.Lock()
	ls := w.all
	w.ended = true
	w.mu.Unlock()
	for _, l := range ls {
		l.k.cancel()
	}
	close(w.buried)
	for _, l := range ls {
		l.bury()
	}
}

// weather is a run of random requests and faults, and then of calm.
func weather(w *world) {
	w.storm = true
	long, many := 30+w.roll(90, "storm"), 1+w.roll(3, "clients")
	w.live(w.nextCrash())
	stop, end := context.WithTimeout(context.Background(), time.Duration(long)*time.Second)
	defer end()
	var clients []*client
	var wg sync.WaitGroup
	for i := range many {
		c := &client{w: w, name: fmt.Sprintf("p%d", i)}
		clients = append(clients, c)
		wg.Go(func() {
			for {
				l := w.current(stop)
				if l == nil {
					return
				}
				c.act(l)
				time.Sleep(time.Duration(50+c.roll(2000, "pause")) * time.Millisecond)
			}
		})
	}
	wg.Go(func() { w.badLuck(stop) })
	wg.Wait()
	w.heal()
	w.goals()
	for _, c := range clients {
		w.farewell(c)
	}
	w.empty()
}

func (w *world) nextCrash() int {
	if w.roll(5, "crash at all") == 0 {
		return 0
	}
	return 1 + w.roll(120, "crash at")
}

// badLuck kills and starts keepers, cuts the power and fills the disk.
func (w *world) badLuck(stop context.Context) {
	for stop.Err() == nil {
		l := w.now
		select {
		case <-l.died:
			time.Sleep(w.spanNow(20*time.Second, "down"))
			w.mu.Lock()
			if w.roll(4, "power") == 0 {
				w.reboot()
			}
			next := w.nextCrash()
			w.mu.Unlock()
			w.live(next)
		case <-time.After(w.spanNow(15*time.Second, "luck")):
			w.mu.Lock()
			switch w.roll(6, "luck") {
			case 0:
				l.die("from outside")
			case 1:
				w.full = true
				w.say("FAULT: the disk is full")
				time.AfterFunc(w.span(10*time.Second, "full"), func() {
					w.mu.Lock()
					defer w.mu.Unlock()
					w.full = false
				})
			}
			w.mu.Unlock()
		case <-stop.Done():
		}
	}
}

func (w *world) spanNow(d time.Duration, name string) time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.span(d, name)
}

// heal ends the faults. A keeper lives from now on.
func (w *world) heal() {
	w.mu.Lock()
	w.storm, w.full = false, false
	w.say("the faults end")
	l := w.now
	l.crashAt = 0
	dead := l.dead
	w.mu.Unlock()
	if dead {
		w.live(0)
	}
}

// goals checks that every pod is where it is meant to be.
func (w *world) goals() {
	time.Sleep(takeTimeout + 3*giveTimeout) // so long may what hangs now hang
	l := w.now
	w.mu.Lock()
	for k := range w.late {
		w.say("late: %s", k)
	}
	w.mu.Unlock()
	for _, p := range l.k.Pods() {
		w.mu.Lock()
		if p.Trouble != "" {
			w.broken("pod %s has trouble though the faults are over: %s", p.Name, p.Trouble)
		}
		if !p.IsReady() && !p.Stopped() {
			w.broken("pod %s is neither ready nor stopped: %s, %v", p.Name, p.Reason, p.Holdings)
		}
		for _, c := range p.Containers {
			what := fmt.Sprintf("container %s of %s", c.Name, p.Name)
			x := w.exits[c.ID]
			switch {
			case c.Removing || !c.IsCreated():
				w.broken("%s is half made or half removed", what)
			case c.Status() == pod.ContainerStateExited:
				if len(w.bad) == 0 {
					w.trueExit(p, c)
				}
			case c.StopAsked || p.Stopping:
				w.broken("%s was to be stopped, and is not", what)
			case c.StartAsked && c.Status() == pod.ContainerStateCreated:
				w.broken("%s was to be started, and is not", what)
			case c.Status() == pod.ContainerStateRunning && (x == nil || x.started == 0 || x.exit != nil):
				w.broken("%s is said to run, and does not", what)
			}
		}
		w.mu.Unlock()
	}
}

// farewell removes a client's pod.
func (w *world) farewell(c *client) {
	for range 20 {
		p := c.view(w.now)
		if p == nil {
			return
		}
		if err, _ := w.now.call(time.Minute, func(ctx context.Context) error { return w.now.k.RemovePod(ctx, p.ID) }); err != nil {
			w.mu.Lock()
			w.broken("pod %s cannot be removed though the faults are over: %v", c.name, err)
			w.mu.Unlock()
			return
		}
	}
	w.mu.Lock()
	w.broken("pod %s is removed and comes again", c.name)
	w.mu.Unlock()
}

// empty checks that nothing is left.
func (w *world) empty() {
	time.Sleep(time.Second)
	l := w.now
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, finish := range w.late {
		finish(true)
	}
	if left := w.left(); len(left) > 0 {
		w.broken("left over: %v", left)
	}
	es, _ := os.ReadDir(w.dir)
	for _, e := range es {
		w.broken("a journal is left: %s", w.nameOf(e.Name()))
	}
	l.k.mu.RLock()
	defer l.k.mu.RUnlock()
	if len(l.k.names)+len(l.k.pods)+len(l.k.containers) > 0 {
		w.broken("names, pods or containers are left in the keeper's memory: %v, %d, %d", l.k.names, len(l.k.pods), len(l.k.containers))
	}
}

// report fails the test with the story of the run.
func report(t *testing.T, w *world, how string) {
	t.Helper()
	tr := w.trace
	if len(tr) > 400 && *simSeed == 0 {
		tr = append([]string{fmt.Sprintf("… (%d lines before)", len(tr)-400)}, tr[len(tr)-400:]...)
	}
	t.Errorf("%s\n%s\n\nits story:\n%s", how, strings.Join(w.bad, "\n"), strings.Join(tr, "\n"))
}

func TestSimulation(t *testing.T) {
	if *simSeed != 0 {
		w := play(t, *simSeed, nil, weather)
		for _, b := range w.bad {
			t.Error(b)
		}
		return
	}
	begin, n, moments := time.Now(), 0, 0
	for seed := *simFrom; time.Since(begin) < *simTime; seed++ {
		w := play(t, seed, nil, weather)
		n++
		for _, l := range w.all {
			moments += l.points
		}
		if len(w.bad) > 0 {
			report(t, w, fmt.Sprintf("seed %d (again: go test ./internal/keeper -run TestSimulation -sim.seed %d)", seed, seed))
			return
		}
	}
	t.Logf("%d seeds, %d effects and writes, %.0f seeds a minute", n, moments, float64(n)/time.Since(begin).Minutes())
}
