// Package doctor compares what the journals say that pods hold with what the
// machine has, in both directions: what no pod holds (a stray), and what a pod
// holds and is not there (missing). It promises to look only, until Fix is
// called on a finding, and to leave alone what may belong to somebody else: a
// thing is Berth's by its place under root and state, or by the root file system
// that a process has. It needs no daemon.
//
// It may import the packages whose records it reads; only the command berth
// imports it.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"berth/internal/history"
	"berth/internal/journal"
	"berth/internal/pod"
)

// Options say where to look.
type Options struct {
	// Root and State are the daemon's folders.
	Root, State string
	// Addresses is where host-local keeps its addresses; "" for its default.
	Addresses string
	// Own names networks that no other runtime uses: an address in one of them
	// is Berth's. In others only those are that Berth has a record of.
	Own []string
	// Settle is how long a difference must last to count: pods come and go
	// while we look.
	Settle time.Duration
}

// Finding is one difference.
type Finding struct {
	Kind string // shim, process, cgroup, mount, socket, folder, address, record, layer, journal
	Name string // what it is, for people: a path, an address, a process
	Pod  string // the pod's id, as far as it is known
	// Missing: the pod holds it, and it is not there. Otherwise it is there,
	// and no pod holds it.
	Missing bool

	give func(context.Context) error // gives it back; nil when only berthd can help
}

func (f *Finding) String() string {
	if f.Missing {
		return fmt.Sprintf("missing: %s %s, which pod %.12s holds", f.Kind, f.Name, f.Pod)
	}
	of := ""
	if f.Pod != "" {
		of = fmt.Sprintf(" (of %.12s)", f.Pod)
	}
	return fmt.Sprintf("stray: %s %s%s, which no pod holds", f.Kind, f.Name, of)
}

// Fixable tells whether Fix can give it back.
func (f *Finding) Fixable() bool { return f.give != nil }

// Fix gives a stray back.
func (f *Finding) Fix(ctx context.Context) error {
	if f.give == nil {
		return errors.New("only berthd can mend this: it tries when the pod is stopped or removed")
	}
	return f.give(ctx)
}

// Report is what was found.
type Report struct {
	Pods     int
	Findings []*Finding // in the order in which they are to be fixed
	Notes    []string   // what could not be looked at
}

// ledger is what the journals say.
type ledger struct {
	pods       map[string]*pod.State
	containers map[string]*pod.State
	boot       map[string]string // by pod: the boot its journal speaks of
}

// order is the order of fixing: what uses comes before what is used.
var order = []string{"journal", "process", "shim", "cgroup", "mount", "socket", "layer", "folder", "address", "record"}

// Look compares. What differs only for a moment is left out.
func Look(ctx context.Context, o *Options) (*Report, error) {
	if o.Addresses == "" {
		o.Addresses = "/var/lib/cni/networks"
	}
	first, err := look(o)
	if err != nil || len(first.Findings) == 0 {
		return first, err
	}
	select {
	case <-time.After(o.Settle):
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	second, err := look(o)
	if err != nil {
		return nil, err
	}
	before := map[string]bool{}
	for _, f := range first.Findings {
		before[f.String()] = true
	}
	second.Findings = slices.DeleteFunc(second.Findings, func(f *Finding) bool { return !before[f.String()] })
	return second, nil
}

// look looks at the machine first: what it has then, a journal has named before.
func look(o *Options) (*Report, error) {
	m, err := survey(o)
	if err != nil {
		return nil, err
	}
	l, damaged, err := read(o.Root)
	if err != nil {
		return nil, err
	}
	layers, note := layers(o)
	r := &Report{Pods: len(l.pods), Findings: damaged}
	if note != "" {
		r.Notes = append(r.Notes, note)
	}
	r.Findings = append(r.Findings, m.strays(o, l)...)
	r.Findings = append(r.Findings, strayLayers(o, l, layers)...)
	r.Findings = append(r.Findings, m.missing(o, l)...)
	slices.SortStableFunc(r.Findings, func(a, b *Finding) int {
		return slices.Index(order, a.Kind) - slices.Index(order, b.Kind)
	})
	return r, nil
}

// read folds the journals.
func read(root string) (*ledger, []*Finding, error) {
	dir := filepath.Join(root, "journal")
	ids, err := journal.List(dir)
	if err != nil {
		return nil, nil, err
	}
	l := &ledger{pods: map[string]*pod.State{}, containers: map[string]*pod.State{}, boot: map[string]string{}}
	var bad []*Finding
	for _, id := range ids {
		facts, err := history.Facts(dir, id)
		if errors.Is(err, os.ErrNotExist) {
			continue // removed just now
		}
		if err != nil {
			bad = append(bad, &Finding{Kind: "journal", Name: "without damage (" + err.Error() + ")", Pod: id, Missing: true})
		}
		s := pod.Fold(&pod.State{ID: id, Holdings: map[pod.Resource]pod.Holding{}}, facts...)
		l.pods[id] = s
		for _, c := range s.Containers {
			l.containers[c.ID] = s
		}
		for _, f := range facts {
			if f.Kind == pod.Declared || f.Kind == pod.Rebooted {
				l.boot[id] = f.Boot
			}
		}
	}
	return l, bad, nil
}

// intends tells whether the pod may have the resource.
func (l *ledger) intends(id string, r pod.Resource) bool {
	s := l.pods[id]
	return s != nil && s.Holdings[r].Phase != pod.None
}

// byPrefix finds the pod whose id begins with p.
func (l *ledger) byPrefix(p string) bool {
	for id := range l.pods {
		if strings.HasPrefix(id, p) {
			return true
		}
	}
	return false
}
