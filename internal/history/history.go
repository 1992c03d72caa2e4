// Package history tells a pod's journal as a timeline, with how long each step
// took. It promises to change nothing and to need no daemon. It may import pod
// and journal; only the command berth imports it.
package history

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path/filepath"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/journal"
	"berth/internal/pod"
)

// Line is one entry of a timeline. Took is how long the step that ends with it
// was due: from when the pod's plan first asked for it; 0 for what is no step.
type Line struct {
	At   time.Time
	What string
	Took time.Duration
}

// Facts reads a pod's journal. A damaged one gives what is before the damage,
// and an error that wraps journal.ErrDamaged.
func Facts(dir, id string) ([]*pod.Fact, error) {
	lines, damage := journal.Read(dir, id)
	var fs []*pod.Fact
	for n, l := range lines {
		f := &pod.Fact{}
		if err := json.Unmarshal(l, f); err != nil {
			return fs, errors.Join(damage, fmt.Errorf("fact %d: %w: %w", n+1, journal.ErrDamaged, err))
		}
		fs = append(fs, f)
	}
	return fs, damage
}

// Find returns the id of the one pod whose id begins with word, or whose name is
// word, among the journals of root.
func Find(root, word string) (string, error) {
	dir := filepath.Join(root, "journal")
	ids, err := journal.List(dir)
	if err != nil {
		return "", err
	}
	var found []string
	for _, id := range ids {
		if word != "" && strings.HasPrefix(id, word) || word != "" && nameOf(dir, id) == word {
			found = append(found, id)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return "", fmt.Errorf("no journal in %s is of a pod called %q (a removed pod has none): %w", dir, word, errdefs.ErrNotFound)
	}
	return "", fmt.Errorf("%q fits %d pods: %s: %w", word, len(found), strings.Join(found, ", "), errdefs.ErrInvalidArgument)
}

// nameOf is the first part of the pod's unique name: what its config calls it.
func nameOf(dir, id string) string {
	fs, _ := Facts(dir, id)
	for _, f := range fs {
		if f.Kind == pod.Declared {
			name, _, _ := strings.Cut(f.Name, "_")
			return name
		}
	}
	return ""
}

// Tell makes the timeline. Two facts that say one thing (a task is held, its
// container has started) are one line.
func Tell(facts []*pod.Fact) []Line {
	var out []Line
	s := pod.Fold(nil)
	due := map[string]time.Time{} // by effect: since when the plan asks for it
	names := map[string]string{}
	for _, f := range facts {
		if f.Kind == pod.ContainerDeclared {
			names[f.Container] = strings.SplitN(f.Name, "_", 2)[0]
		}
		l := Line{At: f.At, What: sentence(f, names)}
		var verbs []pod.Verb
		switch f.Kind {
		case pod.Holds, pod.Failed:
			verbs = []pod.Verb{pod.Take, pod.Probe}
		case pod.Released:
			verbs = []pod.Verb{pod.Give, pod.Probe, pod.Take}
		case pod.ContainerExited:
			verbs = []pod.Verb{pod.Stop}
		case pod.Ready:
			l.Took = f.At.Sub(s.CreatedAt)
		}
		for _, v := range verbs {
			res := f.Res
			if f.Kind == pod.ContainerExited {
				res = pod.Task
			}
			if t, ok := due[string(v)+" "+(&pod.Effect{Res: res, Container: f.Container}).Key()]; ok {
				l.Took = max(0, f.At.Sub(t))
				break
			}
		}
		s = pod.Fold(s, f)
		planned := map[string]time.Time{}
		for _, e := range pod.Plan(s) {
			k := string(e.Verb) + " " + e.Key()
			planned[k] = f.At
			if t, ok := due[k]; ok {
				planned[k] = t
			}
		}
		due = planned
		if l.What != "" {
			out = append(out, l)
		}
	}
	return out
}

// sentence is what a fact says; "" for what others say better.
func sentence(f *pod.Fact, names map[string]string) string {
	who := ""
	if f.Container != "" {
		if who = names[f.Container]; who == "" {
			who = f.Container[:min(12, len(f.Container))]
		}
	}
	res := string(f.Res)
	if who != "" {
		res += " of " + who
	}
	switch f.Kind {
	case pod.Intends:
		return ""
	case pod.Declared:
		handler := ""
		if f.Handler != "" {
			handler = ", handler " + f.Handler
		}
		return fmt.Sprintf("pod %s declared%s", f.Name, handler)
	case pod.Holds:
		return res + " taken"
	case pod.Released:
		return res + " given back"
	case pod.Failed:
		return res + " failed: " + f.Message
	case pod.Ready:
		return "pod ready"
	case pod.Lost, pod.Rebooted:
		s := "pod " + string(f.Kind)
		if f.Reason != "" {
			s += ": " + f.Reason
		}
		return s
	case pod.ContainerStarted:
		return fmt.Sprintf("container %s started, pid %d", who, f.Pid)
	case pod.ContainerExited:
		code := int32(pod.CodeUnknown)
		if f.Code != nil {
			code = *f.Code
		}
		return strings.TrimSpace(fmt.Sprintf("container %s exited, code %d %s", who, code, f.Reason))
	case pod.ContainerStop:
		return fmt.Sprintf("container %s is to stop: %s, killed after %v", who, f.Signal, f.Deadline.Sub(f.At).Round(time.Millisecond))
	}
	if rest, ok := strings.CutPrefix(string(f.Kind), "container "); ok && who != "" {
		return "container " + who + " " + rest
	}
	return "pod " + string(f.Kind)
}

// Write prints the timeline: time of day, time since the line before, how long
// the step took, what happened.
func Write(w io.Writer, lines []Line) error {
	tw := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(tw, "TIME\tAFTER\tTOOK\tWHAT")
	for i, l := range lines {
		after, took := "", ""
		if i > 0 {
			after = "+" + brief(max(0, l.At.Sub(lines[i-1].At))) // clocks of two processes
		}
		if l.Took > 0 {
			took = brief(l.Took)
		}
		fmt.Fprintf(tw, "%s\t%s\t%s\t%s\n", l.At.Local().Format("2006-01-02 15:04:05.000"), after, took, l.What)
	}
	return tw.Flush()
}

func brief(d time.Duration) string {
	switch {
	case d < time.Second:
		return d.Round(100 * time.Microsecond).String()
	case d < time.Minute:
		return d.Round(10 * time.Millisecond).String()
	}
	return d.Round(time.Second).String()
}
