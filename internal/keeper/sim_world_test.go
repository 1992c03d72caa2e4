package keeper

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"hash/fnv"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/pod"
)

// world is the machine of a simulation: what outlives every keeper. It does to
// each effect what the seed says, and watches that the rules are kept.
//
// Every decision is a roll of a dice that is named by what it is about (and by
// how often that was asked), never by the order in which goroutines ask. So a
// seed plays the same again even where the scheduler does not.
type world struct {
	t      testing.TB
	seed   uint64
	dir    string // of journals
	begin  time.Time
	buried chan struct{} // closed when the run is over: the dead may return

	// mu guards the fields below.
	mu      sync.Mutex
	boot    int
	storm   bool // faults happen
	full    bool // the disk is
	calm    bool // no random choice at all: for the enumeration of crash points
	counts  map[string]int
	pods    map[string]*simPod
	files   map[string]*simFile
	ghosts  map[string][]byte // removed journals whose removal may not be on disk
	exits   map[string]*simExit
	late    map[string]func(bool) // effects of dead keepers that are not over
	lives   int
	now     *life // the one that lives, or lived last
	all     []*life
	trace   []string
	bad     []string
	mutant  *mutant
	ended   bool
	fullRan bool // the disk was full once
	cuts    bool // there was a power cut
}

// simPod is what a pod has of the machine.
type simPod struct {
	id, name string
	held     map[pod.Resource]bool
	rootfs   map[string]bool
	tasks    map[string]*simTask
	alive    bool          // the shim is
	changed  chan struct{} // closed and renewed when a task changes
}

// simTask is a container's processes, as its shim sees them.
type simTask struct {
	name    string
	running bool
	pid     int
	at      time.Time
	exit    *Exit
	stopBy  time.Time
	told    bool
}

// simExit is the truth about a container's end, and what was said of it.
type simExit struct {
	started  int
	known    bool // it was acknowledged
	exit     *Exit
	reported []int32 // codes of the events
}

// simFile is a journal as it was written.
type simFile struct {
	size, synced  int64
	state, onDisk *pod.State
}

var errDead = errors.New("this keeper is dead")

func newWorld(t testing.TB, seed uint64, dir string) *world {
	return &world{t: t, seed: seed, dir: dir, begin: time.Now(), buried: make(chan struct{}), counts: map[string]int{},
		pods: map[string]*simPod{}, files: map[string]*simFile{}, ghosts: map[string][]byte{}, exits: map[string]*simExit{}, late: map[string]func(bool){}}
}

// roll returns the next number below n of the dice called name.
func (w *world) roll(n int, name ...string) int {
	if w.calm {
		return n - 1 // never a fault: those are the low numbers
	}
	k := strings.Join(name, " ")
	w.counts[k]++
	h := fnv.New64a()
	fmt.Fprintf(h, "%d %s %d", w.seed, k, w.counts[k])
	x := h.Sum64()
	x ^= x >> 33
	x *= 0xff51afd7ed558ccd
	x ^= x >> 33
	return int(x % uint64(n))
}

// span is a time around d, different for every name, so that no two things
// happen in the same instant.
func (w *world) span(d time.Duration, name ...string) time.Duration {
	h := fnv.New64a()
	fmt.Fprint(h, name)
	odd := time.Duration(h.Sum64()%9973) * time.Microsecond
	if w.calm {
		return d/2 + odd
	}
	return time.Duration(w.roll(int(d/time.Millisecond)+1, append(name, "span")...))*time.Millisecond + odd
}

// say adds a line to the trace. The caller holds mu.
func (w *world) say(format string, args ...any) {
	line := fmt.Sprintf("%9.3fs  ", time.Since(w.begin).Seconds()) + fmt.Sprintf(format, args...)
	w.trace = append(w.trace, line)
	if *simSeed != 0 { // at once: it may be a run without end
		fmt.Println(line)
	}
}

// broken notes that a rule was broken. The caller holds mu.
func (w *world) broken(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	w.say("RULE BROKEN: %s", s)
	w.bad = append(w.bad, s)
}

func (w *world) pod(p *Pod) *simPod {
	s := w.pods[p.ID]
	if s == nil {
		s = &simPod{id: p.ID, name: p.Name, held: map[pod.Resource]bool{}, rootfs: map[string]bool{}, tasks: map[string]*simTask{}, changed: make(chan struct{})}
		w.pods[p.ID] = s
	}
	return s
}

func (p *simPod) has(r pod.Resource, c string) bool {
	switch r {
	case pod.Rootfs:
		return p.rootfs[c]
	case pod.Task:
		return p.tasks[c] != nil
	}
	return p.held[r]
}

// left names what the pod still has.
func (p *simPod) left() (l []string) {
	for r := range p.held {
		l = append(l, string(r))
	}
	for c := range p.rootfs {
		l = append(l, "rootfs "+short(c))
	}
	for _, t := range p.tasks {
		l = append(l, "task "+t.name)
	}
	slices.Sort(l)
	return l
}

func (p *simPod) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// end is a task's end. The caller holds mu.
func (w *world) end(p *simPod, c string, code int32, reason string) {
	t := p.tasks[c]
	if t == nil || !t.running {
		return
	}
	t.running = false
	e := &Exit{Code: code, At: time.Now(), Reason: reason}
	w.exits[c].exit = e
	w.say("host: %s %s ends with %d", p.name, t.name, code)
	if p.alive {
		t.exit = e // recorded by the shim; on disk
		p.wake()
	}
}

// run starts a container's process, which ends by itself after some time, or never.
func (w *world) run(p *simPod, j *Job) *simTask {
	c := j.Container.ID
	x := w.exits[c]
	if x == nil {
		x = &simExit{}
		w.exits[c] = x
	}
	x.started++
	if x.started > 1 {
		w.broken("container %s of %s was started %d times", j.Container.Name, p.name, x.started)
	}
	t := &simTask{name: j.Container.Name, running: true, pid: 1000 + len(w.exits), at: time.Now()}
	p.tasks[c] = t
	if w.roll(3, "ends", t.name) == 0 {
		code := int32(w.roll(4, "code", t.name))
		time.AfterFunc(w.span(20*time.Second, "life", t.name), func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			if w.pods[p.id] == p && p.tasks[c] == t {
				w.end(p, c, code, "by itself")
			}
		})
	}
	return t
}

// crashShim is a shim's death by SIGKILL. Its containers' processes stay.
func (w *world) crashShim(p *simPod) {
	if p.alive {
		w.say("FAULT: the shim of %s dies", p.name)
		p.alive = false
		p.wake()
	}
}

// reboot ends everything that is the kernel's, and takes from the disk what was
// not synced.
func (w *world) reboot() {
	w.boot++
	w.cuts = true
	w.say("FAULT: power cut; boot %d", w.boot)
	for _, finish := range w.late {
		finish(false)
	}
	for _, p := range w.pods {
		p.alive = false
		delete(p.held, pod.Shim)
		delete(p.held, pod.Namespaces)
		for c, t := range p.tasks {
			if t.running {
				t.running = false
				w.exits[c].exit = &Exit{Code: pod.CodeUnknown, At: time.Now(), Reason: pod.ReasonUnknown}
			}
			if t.exit == nil {
				delete(p.tasks, c)
			}
		}
		p.wake()
	}
	for id, f := range w.files {
		b, err := os.ReadFile(filepath.Join(w.dir, id))
		if err != nil {
			continue
		}
		n := int(f.synced) + w.roll(len(b)-int(f.synced)+1, "cut", fmt.Sprint(w.boot), w.nameOf(id))
		if w.calm { // the worst
			n = int(f.synced)
		}
		if n < len(b) {
			w.say("disk: the journal of %s lost %d bytes", w.nameOf(id), len(b)-n)
			if err := os.WriteFile(filepath.Join(w.dir, id), b[:n], 0o600); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	for id, b := range w.ghosts {
		if w.roll(2, "ghost", w.nameOf(id)) == 0 {
			w.say("disk: the journal of %s is back", w.nameOf(id))
			if err := os.WriteFile(filepath.Join(w.dir, id), b, 0o600); err != nil {
				w.t.Fatal(err)
			}
		}
	}
	clear(w.ghosts)
}

func (w *world) nameOf(id string) string {
	if p := w.pods[id]; p != nil {
		return p.name
	}
	return short(id)
}

// reread makes the books about the journals anew from the files, as the next
// keeper will.
func (w *world) reread() {
	clear(w.files)
	es, err := os.ReadDir(w.dir)
	if err != nil {
		w.t.Fatal(err)
	}
	for _, e := range es {
		b, err := os.ReadFile(filepath.Join(w.dir, e.Name()))
		if err != nil {
			w.t.Fatal(err)
		}
		f := &simFile{size: int64(bytes.LastIndexByte(b, '\n') + 1), state: pod.Fold(nil)}
		for _, l := range bytes.SplitAfter(b, []byte("\n"))[1:] {
			if !bytes.HasSuffix(l, []byte("\n")) {
				continue
			}
			fact := &pod.Fact{}
			if err := json.Unmarshal(l[9:], fact); err != nil {
				w.t.Fatal(err)
			}
			f.state = pod.Fold(f.state, fact)
		}
		f.synced, f.onDisk = f.size, f.state // a machine that runs has it all
		w.files[e.Name()] = f
	}
}

// wrote keeps the books about a journal.
func (w *world) wrote(id string, fs []*pod.Fact, synced bool) {
	fi, err := os.Stat(filepath.Join(w.dir, id))
	if err != nil {
		w.t.Fatal(err)
	}
	f := w.files[id]
	if f == nil {
		f = &simFile{state: pod.Fold(nil), onDisk: pod.Fold(nil)}
		w.files[id] = f
		clear(w.ghosts) // the folder was synced
	}
	f.state, f.size = pod.Fold(f.state, fs...), fi.Size()
	if synced {
		f.onDisk, f.synced = f.state, f.size
	}
}

// left names everything that pods have.
func (w *world) left() (l []string) {
	for _, p := range w.pods {
		for _, s := range p.left() {
			l = append(l, p.name+" "+s)
		}
	}
	slices.Sort(l)
	return l
}
