package process

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/host"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// faulty is a runtime that misbehaves as its configuration says: lines of
// <subcommand> <how> <argument>, read at every call.
const faulty = `#!/bin/bash
for a; do case $a in create|run|start|kill|delete|exec|update) sub=$a; break;; esac; done
while read -r s how arg; do
  [ "$s" = "$sub" ] || continue
  case $how in
    sleep) sleep "$arg";;
    fail) echo "told to fail" >&2; exit "$arg";;
    hang) sleep 1000 & setsid sleep 1000 & exec sleep 1000;;
    flood) head -c "$arg" /dev/zero | tr '\0' x >&2; echo END >&2;;
    floodfail) head -c "$arg" /dev/zero | tr '\0' x >&2; echo END >&2; exit 1;;
    after) RUNC "$@"; exec sleep 1000;;
    nopid) for f; do [ "$p" = --pid-file ] && pf=$f; p=$f; done; RUNC "$@"; rm -f "$pf"; exit 0;;
  esac
done < CONF
exec RUNC "$@"
`

// newFaulty gives a host on a faulty runtime, and how to configure it.
func newFaulty(t *testing.T, timeout time.Duration) (*Host, func(lines ...string)) {
	t.Helper()
	dir := t.TempDir()
	script, conf := filepath.Join(dir, "runtime"), filepath.Join(dir, "conf")
	text := strings.NewReplacer("RUNC", runcPath, "CONF", conf).Replace(faulty)
	if err := os.WriteFile(script, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	set := func(lines ...string) {
		if err := os.WriteFile(conf, []byte(strings.Join(append(lines, ""), "\n")), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	set()
	h := newHost(t, Options{Runtime: script, CallTimeout: timeout})
	t.Cleanup(func() { set() })
	return h, set
}

// A runtime that hangs is ended with all it started, and what it made is undone.
func TestHungRuntime(t *testing.T) {
	h, set := newFaulty(t, 250*time.Millisecond)
	for _, how := range []string{"run hang", "run after"} {
		set(how)
		id, dir := bundle(t, []string{"sleep", "1000"})
		start := time.Now()
		_, err := h.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir, Start: true, Streams: allStreams})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "runtime run") {
			t.Errorf("%s: %v", how, err)
		}
		if d := time.Since(start); d > bound(5*time.Second) {
			t.Errorf("%s took %v", how, d)
		}
		if left := leftovers(); len(left) > 0 {
			t.Errorf("%s left %v", how, left)
		}
	}
	set()
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	for _, how := range []string{"exec hang", "exec after"} {
		set(how)
		_, err := h.Exec(t.Context(), &host.ExecSpec{ContainerID: id, ID: "x", Process: process("sleep", "1000"), Streams: allStreams})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%s: %v", how, err)
		}
		if pids, err := h.Pids(t.Context(), id); err != nil || len(pids) != 1 {
			t.Errorf("%s left %v, %v", how, pids, err)
		}
	}
	set("update hang")
	if err := h.Update(t.Context(), id, &specs.LinuxResources{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("update: %v", err)
	}
	// A caller that leaves ends its call.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if err := h.Update(ctx, id, &specs.LinuxResources{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("update: %v", err)
	}
	set("delete hang", "kill hang")
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	wait(t, p, time.Second)
	if err := p.Delete(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("delete with a hung runtime: %v", err)
	}
	// Processes and cgroups do not wait for the runtime.
	if left := leftovers(); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	set()
	if err := p.Delete(t.Context()); err != nil {
		t.Errorf("second delete: %v", err)
	}
}

// A start that fails leaves no init behind.
func TestFailingRuntime(t *testing.T) {
	h, set := newFaulty(t, 5*time.Second)
	set("start fail 1")
	for range rounds(30) {
		id, dir := bundle(t, []string{"sleep", "1000"})
		p, err := h.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir})
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Start(t.Context()); err == nil || !strings.Contains(err.Error(), "told to fail") {
			t.Errorf("start: %v", err)
		}
		if e := wait(t, p, time.Second); e.Code != 137 {
			t.Errorf("exit %+v", e)
		}
		if err := p.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for how, want := range map[string]string{"run fail 1": "told to fail", "run nopid 1": "left no pid"} {
		set(how)
		id, dir := bundle(t, []string{"sleep", "1000"})
		_, err := h.Create(t.Context(), &host.CreateSpec{ID: id, Bundle: dir, Start: true, Streams: allStreams})
		var s *host.StartError
		if err == nil || !strings.Contains(err.Error(), want) || errors.As(err, &s) {
			t.Errorf("%s: %v", how, err)
		}
		if left := leftovers(); len(left) > 0 {
			t.Errorf("%s left %v", how, left)
		}
	}
	// Without a runtime that kills, the kernel does.
	set("kill fail 1")
	_, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"}, hostPID)
	if err := p.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if e := wait(t, p, time.Second); e.Code != 137 {
		t.Errorf("exit %+v", e)
	}
	set("delete fail 1")
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	if err := p.Delete(t.Context()); err == nil || !strings.Contains(err.Error(), "told to fail") {
		t.Errorf("delete: %v", err)
	}
	set()
	if err := p.Delete(t.Context()); err != nil {
		t.Errorf("second delete: %v", err)
	}
	if exists(filepath.Join(h.root, id)) {
		t.Error("the runtime still knows the container")
	}
}

// A runtime that writes more than a pipe holds is not blocked by it.
func TestFloodingRuntime(t *testing.T) {
	h, set := newFaulty(t, 10*time.Second)
	const size = 1 << 20
	set(fmt.Sprintf("run flood %d", size))
	start := time.Now()
	id, p := run(t, h, allStreams, sh("echo own >&2; sleep 1000"))
	if d := time.Since(start); d > bound(5*time.Second) {
		t.Errorf("it took %v", d)
	}
	// Nothing of what was read ahead is lost, and the order is kept.
	s := p.Streams()
	got := 0
	buf := make([]byte, 10000)
	for text := ""; !strings.HasSuffix(text, "xEND\nown\n"); {
		_ = s.Stderr.SetReadDeadline(time.Now().Add(5 * time.Second))
		n, err := s.Stderr.Read(buf)
		if err != nil {
			t.Fatalf("after %d bytes: %v", got, err)
		}
		got += n
		text = (text + string(buf[:n]))[max(0, len(text)+n-20):]
	}
	if want := size + len("END\nown\n"); got != want {
		t.Errorf("%d bytes, want %d", got, want)
	}
	for _, how := range []string{"update", "exec"} {
		set(fmt.Sprintf("%s floodfail %d", how, size))
		start = time.Now()
		var err error
		if how == "exec" {
			_, err = h.Exec(t.Context(), &host.ExecSpec{ContainerID: id, Process: process("true"), Streams: allStreams})
		} else {
			err = h.Update(t.Context(), id, &specs.LinuxResources{})
		}
		if err == nil || !strings.HasSuffix(err.Error(), "xEND") || len(err.Error()) > tailSize+200 || len(err.Error()) < tailSize-200 {
			t.Errorf("%s: error of %d bytes: %.100v", how, len(fmt.Sprint(err)), err)
		}
		if d := time.Since(start); d > bound(5*time.Second) {
			t.Errorf("%s took %v", how, d)
		}
	}
	set()
	if err := p.Delete(t.Context()); err != nil {
		t.Error(err)
	}
}

// With a runtime that cannot place an exec in a cgroup, or does not, its
// processes are found all the same.
func TestRuntimeWithoutSubgroups(t *testing.T) {
	refuse := `for a; do if [ "$a" = --cgroup ]; then for b; do [ "$p" = --log ] && l=$b; p=$b; done
echo '{"level":"error","msg":"flag provided but not defined: -cgroup"}' >"$l"; exit 1; fi; done
`
	ignore := `for a; do shift; if [ "$a" = --cgroup ]; then skip=1; elif [ "$skip" ]; then skip=; else set -- "$@" "$a"; fi; done
`
	for name, script := range map[string]string{"refuses": refuse, "ignores": ignore} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "runtime")
			if err := os.WriteFile(file, []byte("#!/bin/bash\n"+script+"exec "+runcPath+` "$@"`+"\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			h := newHost(t, Options{Runtime: file})
			id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
			for range 2 {
				x := execIn(t, h, id, allStreams, sh("sleep 1000 & sleep 1000")...)
				if x.(*execution).group != nil {
					t.Error("the exec has a cgroup")
				}
				eventually(t, "two sleep", func() bool { pids, _ := h.Pids(t.Context(), id); return len(pids) == 3 })
				if err := x.Kill(t.Context()); err != nil {
					t.Error(err)
				}
			}
			if pids, _ := h.Pids(t.Context(), id); len(pids) != 1 {
				t.Errorf("processes %v", pids)
			}
			if err := p.Delete(t.Context()); err != nil {
				t.Error(err)
			}
		})
	}
}

// Orphans of a container without a pid namespace of its own become this
// process's children, and are reaped.
func TestOrphansAreReaped(t *testing.T) {
	h := newHost(t, Options{})
	_, p := run(t, h, host.StreamSpec{}, sh("i=0; while [ $i -lt 200 ]; do (true & true &); i=$((i+1)); done; sleep 1000"), hostPID)
	eventually(t, "init sleeps", func() bool { return len(p.(*container).rec.cg.pids()) > 0 })
	time.Sleep(300 * time.Millisecond)
	for _, pid := range descendants(os.Getpid()) {
		if st, ok := readStat(pid); ok && st.state == 'Z' && st.ppid == os.Getpid() {
			eventually(t, "zombie is reaped", func() bool { st, ok := readStat(pid); return !ok || st.state != 'Z' })
		}
	}
	if err := p.Delete(t.Context()); err != nil {
		t.Error(err)
	}
	r := reapers()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) != 0 || len(r.scopes) != 0 {
		t.Errorf("%d exits held for %d scopes", len(r.held), len(r.scopes))
	}
}

// A signal to a process that is gone goes nowhere, though its pid is taken.
func TestSignalAfterExit(t *testing.T) {
	h := newHost(t, Options{})
	id, p := run(t, h, host.StreamSpec{}, []string{"sleep", "1000"})
	x := execIn(t, h, id, host.StreamSpec{}, "true").(*execution)
	wait(t, x, 5*time.Second)
	<-x.child.exited
	x.child.pid = os.Getpid()
	if err := x.child.signal(int(unix.SIGKILL)); err != unix.ESRCH {
		t.Errorf("signal after exit: %v", err)
	}
	if err := x.Kill(t.Context()); err != nil {
		t.Error(err)
	}
	if err := p.Delete(t.Context()); err != nil {
		t.Error(err)
	}
}

// What is not a child is not taken for one, and what nobody asks for is not kept.
func TestAdopt(t *testing.T) {
	audit(t)
	r := reapers()
	s := r.watch()
	defer s.close()
	if c, err := s.adopt(1, -1, nil); err == nil {
		t.Errorf("process 1 is a child of this one: %v", c)
	}
	argv := []string{"/bin/busybox", "sh", "-c", "exit 7"}
	c, err := r.spawn(argv[0], argv, &syscall.ProcAttr{Sys: &syscall.SysProcAttr{}})
	if err != nil {
		t.Fatal(err)
	}
	<-c.exited
	if c.end.status.ExitStatus() != 7 || c.end.noexec {
		t.Errorf("end %+v", c.end)
	}
	if _, err := s.adopt(c.pid, -1, nil); err == nil {
		t.Error("an exit that was told to its owner was told again")
	}
	// A child without an owner, seen after its exit; then nobody asks.
	pid, _, err := syscall.StartProcess(argv[0], argv, &syscall.ProcAttr{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "it is reaped", func() bool { _, ok := readStat(pid); return !ok })
	for range 2 {
		late, err := s.adopt(pid, -1, nil)
		if err != nil || late.end.status.ExitStatus() != 7 {
			t.Errorf("exit before adoption: %+v, %v", late, err)
		}
	}
	next := r.watch()
	defer next.close()
	if _, err := next.adopt(pid, -1, nil); err == nil {
		t.Error("an exit from before the scope was found in it")
	}
	s.close()
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.held) != 0 {
		t.Errorf("%d exits are held for nobody", len(r.held))
	}
}
