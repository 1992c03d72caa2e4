package keeper

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod"
)

// ErrGone says that a pod's shim is proven dead.
var ErrGone = errors.New("the shim is gone")

// Options configure a keeper.
type Options struct {
	// Journals is the folder of journals, on a disk that outlives a reboot.
	Journals string
	Machine  Machine
	// BootID names this boot of the machine.
	BootID string
	// DecodePod and DecodeContainer make Decoded of a stored config.
	DecodePod       func(json.RawMessage) (any, error)
	DecodeContainer func(json.RawMessage) (any, error)
	Log             *slog.Logger

	tap func(*moment) error
}

// Keeper holds all pods of a node.
type Keeper struct {
	o       *Options
	log     *slog.Logger
	ctx     context.Context // ends all effects and actors
	cancel  context.CancelFunc
	wg      sync.WaitGroup
	loaded  chan struct{} // closed when the journals were read
	events  *events
	syncs   atomic.Int64
	facts   atomic.Int64
	unread  atomic.Int64 // journals that could not be read
	effects effectCounts
	took    atomic.Int64                              // how long Recover took, nanoseconds
	plan    func(*pod.State) []*pod.Effect            // pod.Plan
	fold    func(*pod.State, ...*pod.Fact) *pod.State // pod.Fold
	tap     func(*moment) error                       // nil but in tests of this package

	// mu guards the indexes below. It is held for map work only.
	mu         sync.RWMutex
	pods       map[string]*actor
	containers map[string]*actor // by container id, from its declaration on
	names      map[string]string // names in use → id of the holder
}

// New returns a keeper that knows no pod yet: call Recover.
func New(o *Options) (*Keeper, error) {
	if err := os.MkdirAll(o.Journals, 0o700); err != nil {
		return nil, fmt.Errorf("create the folder of journals: %w", err)
	}
	if o.Log == nil {
		o.Log = slog.Default()
	}
	ctx, cancel := context.WithCancel(context.Background())
	return &Keeper{
		o: o, log: o.Log, ctx: ctx, cancel: cancel,
		loaded: make(chan struct{}), events: newEvents(), plan: pod.Plan, fold: pod.Fold, tap: o.tap,
		pods: map[string]*actor{}, containers: map[string]*actor{}, names: map[string]string{},
	}, nil
}

// Close stops the keeper's work where it is. Pods live on; the next keeper
// finds them in their journals.
func (k *Keeper) Close() error {
	k.cancel()
	k.wg.Wait()
	k.events.close()
	return nil
}

// Whole tells whether the keeper knows every pod that has a journal: recovery is
// over, and no journal refused to be read. Only then is what no pod holds
// nobody's.
func (k *Keeper) Whole() bool { return k.Recovered() && k.unread.Load() == 0 }

// Recovered tells whether all journals were read.
func (k *Keeper) Recovered() bool {
	select {
	case <-k.loaded:
		return true
	default:
		return false
	}
}

// Counts returns how many facts and journal syncs this keeper has written.
func (k *Keeper) Counts() (facts, syncs int64) { return k.facts.Load(), k.syncs.Load() }

// wait blocks until the journals were read: before that nobody can tell what
// exists. It takes milliseconds.
func (k *Keeper) wait(ctx context.Context) error {
	select {
	case <-k.loaded:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("the journals are still being read: %w", ctx.Err())
	}
}

// Pods returns all pods, oldest first.
func (k *Keeper) Pods() []*Pod {
	if k.wait(k.ctx) != nil {
		return nil
	}
	k.mu.RLock()
	ps := make([]*Pod, 0, len(k.pods))
	for _, a := range k.pods {
		if p := a.view.Load(); p != nil {
			ps = append(ps, p)
		}
	}
	k.mu.RUnlock()
	sort.Slice(ps, func(i, j int) bool { return ps[i].CreatedAt.Before(ps[j].CreatedAt) })
	return ps
}

// Pod finds a pod by id or unique prefix.
func (k *Keeper) Pod(id string) (*Pod, error) {
	a, _, err := k.find(k.pods, "pod", id)
	if err != nil {
		return nil, err
	}
	p := a.view.Load()
	if p == nil {
		return nil, fmt.Errorf("pod %s: %w", id, errdefs.ErrNotFound)
	}
	return p, nil
}

// Container finds a container by id or unique prefix, and its pod.
func (k *Keeper) Container(id string) (*Pod, *Container, error) {
	a, full, err := k.find(k.containers, "container", id)
	if err != nil {
		return nil, nil, err
	}
	if p := a.view.Load(); p != nil {
		for _, c := range p.Containers {
			if c.ID == full {
				return p, c, nil
			}
		}
	}
	return nil, nil, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
}

// find looks id up in one of the indexes, as a whole or as a prefix that is
// unique in it.
func (k *Keeper) find(m map[string]*actor, what, id string) (*actor, string, error) {
	if err := k.wait(k.ctx); err != nil {
		return nil, "", err
	}
	k.mu.RLock()
	defer k.mu.RUnlock()
	if a, ok := m[id]; ok {
		return a, id, nil
	}
	var found *actor
	var full string
	for i, a := range m {
		if id == "" || !strings.HasPrefix(i, id) {
			continue
		}
		if found != nil {
			return nil, "", fmt.Errorf("%s id %s is not unique: %w", what, id, errdefs.ErrInvalidArgument)
		}
		found, full = a, i
	}
	if found == nil {
		return nil, "", fmt.Errorf("%s %q: %w", what, id, errdefs.ErrNotFound)
	}
	return found, full, nil
}

// reserve takes name for id. It returns the actor of the holder when it is taken.
func (k *Keeper) reserve(name, id string) (holder string, ok bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if h, taken := k.names[name]; taken {
		return h, false
	}
	k.names[name] = id
	return id, true
}

// newID returns 64 random hex digits, as CRI runtimes use.
func newID() string {
	var b [32]byte
	rand.Read(b[:])
	return hex.EncodeToString(b[:])
}

// decode makes the views' Decoded. A config that cannot be read is the pod's
// trouble, not the keeper's.
func decode(f func(json.RawMessage) (any, error), raw json.RawMessage) (any, error) {
	if f == nil || raw == nil {
		return nil, nil
	}
	return f(raw)
}

// published returns the view of a state.
func (k *Keeper) published(old *Pod, s *pod.State, trouble string) *Pod {
	p := &Pod{State: s, Trouble: trouble, Containers: make([]*Container, len(s.Containers))}
	if old != nil && old.Decoded != nil {
		p.Decoded = old.Decoded
	} else {
		d, err := decode(k.o.DecodePod, s.Config)
		if err != nil {
			k.log.Error("a pod's config cannot be read", "pod", s.ID, "err", err)
		}
		p.Decoded = d
	}
	for i, c := range s.Containers {
		v := &Container{Container: c, PodID: s.ID}
		if old != nil {
			for _, o := range old.Containers {
				if o.ID == c.ID {
					v.Decoded = o.Decoded
				}
			}
		}
		if v.Decoded == nil {
			d, err := decode(k.o.DecodeContainer, c.Config)
			if err != nil {
				k.log.Error("a container's config cannot be read", "pod", s.ID, "container", c.ID, "err", err)
			}
			v.Decoded = d
		}
		p.Containers[i] = v
	}
	return p
}

// backoff is how long to wait before try n (from 1) of a failed effect.
func backoff(n int) time.Duration {
	return min(100*time.Millisecond<<min(n-1, 10), 30*time.Second)
}
