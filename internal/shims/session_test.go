//go:build linux

package shims

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/stdio"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// sh runs a shell command in a container, through a session.
func sh(t *testing.T, s *Shim, container, script string, change func(*stdio.SessionRequest)) (*stdio.Exit, string, error) {
	t.Helper()
	proc, err := json.Marshal(&specs.Process{Args: []string{"/bin/sh", "-c", script}, Env: []string{"PATH=/bin"}, Cwd: "/"})
	if err != nil {
		t.Fatal(err)
	}
	req := &stdio.SessionRequest{
		Op: stdio.OpExec, Container: container, Exec: newID()[:16], Process: proc, Stdout: true, Stderr: true, Drain: 100 * time.Millisecond,
	}
	if change != nil {
		change(req)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	session, err := stdio.DialSession(ctx, s.SessionSocket(), req)
	if err != nil {
		return nil, "", err
	}
	var out bytes.Buffer
	exit, err := session.Run(ctx, nil, &out, &out, nil)
	return exit, out.String(), err
}

func TestSessions(t *testing.T) {
	p := newPod(t)
	s := p.start()
	task := p.task("sleep 1000")
	if _, err := s.Run(t.Context(), task); err != nil {
		t.Fatal(err)
	}

	// A background child that holds the streams does not hold back the exit.
	begin := time.Now()
	exit, out, err := sh(t, s, task.ID, "sleep 300 & echo ok", nil)
	if err != nil || exit.Code != 0 || out != "ok\n" || !exit.Cut {
		t.Errorf("background child: %+v, %q, %v", exit, out, err)
	}
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("background child held the exit back for %v", d)
	}

	// A timeout ends the tree.
	exit, _, err = sh(t, s, task.ID, "setsid sleep 301 & sleep 301", func(r *stdio.SessionRequest) { r.Timeout = 300 * time.Millisecond })
	if err != nil || !exit.TimedOut || exit.Code != 137 {
		t.Errorf("timeout: %+v, %v", exit, err)
	}
	if left := sleepers(t, s, task.ID, "301"); left != 0 {
		t.Errorf("%d processes outlive their exec's timeout", left)
	}

	// A client that leaves takes its process with it, unless detached.
	for _, detached := range []bool{false, true} {
		id := map[bool]string{false: "302", true: "303"}[detached]
		proc, _ := json.Marshal(&specs.Process{Args: []string{"/bin/sleep", id}, Env: []string{"PATH=/bin"}, Cwd: "/"})
		session, err := stdio.DialSession(t.Context(), s.SessionSocket(), &stdio.SessionRequest{
			Op: stdio.OpExec, Container: task.ID, Exec: newID(), Process: proc, Stdout: true, Detached: detached,
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := session.Close(); err != nil {
			t.Fatal(err)
		}
		want := 0
		if detached {
			want = 1
		}
		deadline := time.Now().Add(3 * time.Second)
		for sleepers(t, s, task.ID, id) != want && time.Now().Before(deadline) {
			time.Sleep(10 * time.Millisecond)
		}
		if got := sleepers(t, s, task.ID, id); got != want {
			t.Errorf("client left (detached %t): %d processes, want %d", detached, got, want)
		}
	}

	if _, _, err := sh(t, s, newID(), "true", nil); !errdefs.IsNotFound(err) {
		t.Errorf("exec in an unknown container: %v, want NotFound", err)
	}
	if err := s.Stop(t.Context(), task.ID, "", 0); err != nil {
		t.Fatal(err)
	}
	exited(t, s, task.ID)
	if _, _, err := sh(t, s, task.ID, "true", nil); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("exec in an exited container: %v, want FailedPrecondition", err)
	}
}

// sleepers counts a container's processes that sleep for a given time.
func sleepers(t *testing.T, s *Shim, id, seconds string) int {
	t.Helper()
	pids, err := s.Pids(t.Context(), id)
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, pid := range pids {
		b, _ := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
		if strings.Contains(string(b), "sleep\x00"+seconds+"\x00") {
			n++
		}
	}
	return n
}

func TestAttach(t *testing.T) {
	p := newPod(t)
	s := p.start()
	task := p.task("read line; echo got $line; exit 6")
	task.Stdin = true
	if _, err := s.Run(t.Context(), task); err != nil {
		t.Fatal(err)
	}
	session, err := stdio.DialSession(t.Context(), s.SessionSocket(), &stdio.SessionRequest{
		Op: stdio.OpAttach, Container: task.ID, Stdin: true, Stdout: true, Stderr: true,
	})
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	exit, err := session.Run(t.Context(), strings.NewReader("it\n"), &out, &out, nil)
	if err != nil || exit.Code != 6 || out.String() != "got it\n" {
		t.Errorf("attach: %+v, %q, %v", exit, &out, err)
	}
	if log := read(t, task.Log.Path); !strings.Contains(log, "stdout F got it\n") {
		t.Errorf("log: %q", log)
	}
}

func TestStartErrors(t *testing.T) {
	p := newPod(t)
	s := p.start()
	task := p.task("", func(s *specs.Spec) { s.Process.Args = []string{"/no/such/file"} })
	_, err := s.Run(t.Context(), task)
	if e, ok := err.(*ErrStart); !ok || e.Code != 127 || !strings.Contains(e.Message, "no such file") {
		t.Errorf("missing command: %v", err)
	}
	broken := p.task("true")
	if err := os.WriteFile(filepath.Join(broken.Bundle, "config.json"), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(t.Context(), broken); !errdefs.IsInvalidArgument(err) {
		t.Errorf("broken bundle: %v, want InvalidArgument", err)
	}
	if entries, err := os.ReadDir(p.req.RuntimeRoot); err != nil || len(entries) > 0 {
		t.Errorf("failed starts left %v, %v", entries, err)
	}
}

// TestNothingAddsUp: what a shim holds after many containers and execs is what
// it held after the first.
func TestNothingAddsUp(t *testing.T) {
	p := newPod(t)
	s := p.start()
	long := p.task("sleep 1000")
	if _, err := s.Run(t.Context(), long); err != nil {
		t.Fatal(err)
	}
	id, dir := p.bundle("echo x")
	cycle := func() {
		task := &Task{ID: id, Bundle: dir, Log: stdio.LogOptions{Path: filepath.Join(p.req.Dir, "log")}}
		if _, err := s.Run(t.Context(), task); err != nil {
			t.Fatal(err)
		}
		if exit, out, err := sh(t, s, long.ID, "echo y", nil); err != nil || exit.Code != 0 || out != "y\n" {
			t.Fatalf("exec: %+v, %q, %v", exit, out, err)
		}
		if _, _, err := sh(t, s, long.ID, "exit 1", func(r *stdio.SessionRequest) {
			r.Process, _ = json.Marshal(&specs.Process{Args: []string{"/missing"}, Cwd: "/"})
		}); err == nil {
			t.Fatal("a missing command ran")
		}
		exited(t, s, id)
		if st, err := s.Delete(t.Context(), id); err != nil || st.ExitCode != 0 {
			t.Fatalf("delete: %+v, %v", st, err)
		}
	}
	count := func() (fds, threads int) {
		dir := "/proc/" + strconv.Itoa(s.addr.Pid)
		entries, err := os.ReadDir(dir + "/fd")
		if err != nil {
			t.Fatal(err)
		}
		tasks, err := os.ReadDir(dir + "/task")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries), len(tasks)
	}
	for range 3 {
		cycle()
	}
	fds, threads := count()
	for range 25 {
		cycle()
	}
	var fds2, threads2 int
	for range 100 { // sessions close a moment after their clients
		if fds2, threads2 = count(); fds2 <= fds {
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
	if fds2 > fds || threads2 > threads+4 {
		t.Errorf("descriptors %d → %d, threads %d → %d", fds, fds2, threads, threads2)
	}
}

func TestSharedPIDInUserNamespace(t *testing.T) {
	// Somebody who keeps a user namespace open while the shim starts.
	keeper := exec.Command("/bin/busybox", "sleep", "1000")
	ids := []syscall.SysProcIDMap{{ContainerID: 0, HostID: 100000, Size: 65536}}
	keeper.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: ids, GidMappings: ids, GidMappingsEnableSetgroups: true}
	if err := keeper.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = keeper.Process.Kill()
		_ = keeper.Wait()
	})
	user := "/proc/" + strconv.Itoa(keeper.Process.Pid) + "/ns/user"
	p := newPod(t)
	p.req.SharePID, p.req.PIDNS, p.req.UserNS = true, filepath.Join(p.req.Dir, "ns", "pid"), user
	s := p.start()
	a := s.addr
	holder := "/proc/" + strconv.Itoa(a.HolderPid)
	want, err := os.Readlink(user)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.Readlink(holder + "/ns/user"); err != nil || got != want {
		t.Errorf("user namespace of the holder: %s, %v; want %s", got, err, want)
	}
	if st := read(t, holder+"/status"); !strings.Contains(st, "Uid:\t100000\t100000\t100000\t100000") {
		t.Errorf("the holder is not user 0 of the namespace:\n%s", st)
	}
	if err := p.m.Finish(t.Context(), p.id, p.req.Dir, &a); err != nil {
		t.Fatal(err)
	}
	p.gone(&a, a.HolderPid)
}

func TestKilledShimLeavesItsHolderToFinish(t *testing.T) {
	p := newPod(t)
	p.req.SharePID, p.req.PIDNS = true, filepath.Join(p.req.Dir, "ns", "pid")
	s := p.start()
	a := s.addr
	if err := syscall.Kill(a.Pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	// berthd died in the middle of Start: nobody knows an address.
	if err := p.m.Finish(t.Context(), p.id, p.req.Dir, nil); err != nil {
		t.Fatal(err)
	}
	p.gone(&a, a.HolderPid)
	if _, err := os.Lstat(p.req.PIDNS); err == nil {
		t.Error("the pin is left")
	}
}
