package pod

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var rewrite = flag.Bool("rewrite", false, "write the dialogues anew with what the machine says")

// TestDialogues plays testdata/*.txt. A line of a dialogue is what happens:
//
//	run [hostnet] | stop | remove | crash | reboot | lost | damaged
//	create C | start C | stop C SECONDS | remove C
//	done VERB RES [C]            the effect succeeded
//	fail VERB RES [C] [CODE]     the effect failed
//	absent RES [C]               a probe found nothing
//	exit C CODE                  the shim reports an exit
//
// and what follows it, indented, is what the machine then says: the pod's state
// and the plan.
func TestDialogues(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no dialogues: %v", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { playFile(t, f) })
	}
}

func playFile(t *testing.T, path string) {
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	d := &dialogue{now: time.Unix(0, 0).UTC()}
	var out strings.Builder
	sc := bufio.NewScanner(strings.NewReader(string(b)))
	for sc.Scan() {
		l := sc.Text()
		if strings.HasPrefix(l, "  ") {
			continue
		}
		fmt.Fprintln(&out, l)
		if l == "" || strings.HasPrefix(l, "#") {
			continue
		}
		d.now = d.now.Add(time.Second)
		if err := d.play(strings.Fields(l)); err != nil {
			fmt.Fprintf(&out, "  refused: %v\n", err)
			continue
		}
		d.say(&out)
	}
	if *rewrite {
		if err := os.WriteFile(path, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if out.String() != string(b) {
		t.Errorf("%s is not what the machine says (go test -rewrite writes it anew, read the diff):\n%s", path, diff(string(b), out.String()))
	}
}

func diff(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range g {
		if i >= len(w) || w[i] != g[i] {
			return fmt.Sprintf("line %d\nwant %q\ngot  %q", i+1, w[min(i, len(w)-1)], g[i])
		}
	}
	return "the file is longer"
}

type dialogue struct {
	s   *State
	now time.Time
}

func (d *dialogue) play(w []string) error {
	fs, err := d.facts(w)
	if err != nil {
		return err
	}
	d.s = Fold(d.s, fs...)
	d.s.ID = "p"
	for {
		fs := Settle(d.s, d.now)
		if len(fs) == 0 {
			return nil
		}
		d.s = Fold(d.s, fs...)
	}
}

func (d *dialogue) facts(w []string) ([]*Fact, error) {
	arg := func(i int) string {
		if i < len(w) {
			return w[i]
		}
		return ""
	}
	switch w[0] {
	case "run":
		d.s = nil
		return Declare("pod", "", &Traits{HostNetwork: arg(1) == "hostnet"}, nil, "boot1", d.now), nil
	case "crash":
		d.s = Recover(d.s)
		return nil, nil
	case "reboot":
		d.s = Recover(d.s)
		return []*Fact{{At: d.now, Kind: Rebooted, Boot: "boot2"}}, nil
	case "lost":
		return []*Fact{{At: d.now, Kind: Lost, Reason: ReasonShimLost}}, nil
	case "damaged":
		return Distrust(Recover(d.s), "journal is damaged", d.now), nil
	case "create":
		return d.s.CheckCreate(arg(1), "name-"+arg(1), nil, d.now)
	case "start":
		return d.s.CheckStart(arg(1), d.now)
	case "stop":
		if len(w) == 1 {
			return d.s.CheckStop(d.now), nil
		}
		n, err := strconv.Atoi(arg(2))
		if err != nil {
			return nil, err
		}
		return d.s.CheckContainerStop(arg(1), "SIGTERM", d.now.Add(time.Duration(n)*time.Second), d.now)
	case "remove":
		if len(w) == 1 {
			return d.s.CheckRemove(d.now), nil
		}
		return d.s.CheckContainerRemove(arg(1), d.now)
	case "exit":
		n, err := strconv.Atoi(arg(2))
		if err != nil {
			return nil, err
		}
		code := int32(n)
		return []*Fact{{At: d.now, Kind: ContainerExited, Container: arg(1), Code: &code, Reason: "Error"}}, nil
	case "absent":
		return []*Fact{{At: d.now, Kind: Released, Res: Resource(arg(1)), Container: arg(2)}}, nil
	case "done", "fail":
		return d.effect(w[0] == "done", Verb(arg(1)), Resource(arg(2)), arg(3), arg(4))
	}
	return nil, fmt.Errorf("no such line: %q", w)
}

// effect is the end of an effect, which must have been planned.
func (d *dialogue) effect(ok bool, v Verb, r Resource, container, code string) ([]*Fact, error) {
	if !slices.ContainsFunc(Plan(d.s), func(e *Effect) bool { return e.Verb == v && e.Res == r && e.Container == container }) {
		return nil, errors.New("this effect is not planned")
	}
	f := &Fact{At: d.now, Res: r, Container: container}
	switch {
	case ok && v == Give:
		f.Kind = Released
	case ok && v != Stop:
		f.Kind, f.Data = Holds, []byte(`{}`)
		if r == Task {
			return []*Fact{f, {At: d.now, Kind: ContainerStarted, Container: container, Pid: 42}}, nil
		}
	case v == Take:
		f.Kind, f.Message = Failed, "it failed"
		if n, err := strconv.Atoi(code); err == nil {
			c := int32(n)
			f.Code = &c
		}
	default:
		return nil, nil // a failed Give, Probe or Stop, or an accepted Stop, says nothing
	}
	return []*Fact{f}, nil
}

func (d *dialogue) say(out *strings.Builder) {
	state := "being made"
	switch {
	case d.s.Removed:
		state = "removed"
	case d.s.Stopped():
		state = "stopped"
	case d.s.Stopping:
		state = "going down: " + d.s.Reason
	case d.s.IsReady():
		state = "ready"
	}
	fmt.Fprintf(out, "  pod %s\n", state)
	for _, c := range d.s.Containers {
		s := [...]string{"created", "running", "exited"}[c.Status()]
		if s == "created" && !c.IsCreated() {
			s = "being created"
		}
		if s == "exited" {
			s = fmt.Sprintf("exited %d %s", c.ExitCode, c.Reason)
		}
		if c.Removing {
			s += ", being removed"
		}
		fmt.Fprintf(out, "  container %s %s\n", c.ID, s)
	}
	for _, e := range Plan(d.s) {
		fmt.Fprintf(out, "  %s %s", e.Verb, e.Res)
		if e.Container != "" {
			fmt.Fprintf(out, " %s", e.Container)
		}
		if e.Verb == Stop {
			fmt.Fprintf(out, " %s, killed in %v", e.Signal, e.Deadline.Sub(d.now))
		}
		fmt.Fprintln(out)
	}
}
