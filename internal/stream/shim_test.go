package stream

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/console"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"

	"berth/internal/stdio"
)

// fakeShim serves sessions as a shim does, with processes of this machine.
type fakeShim struct {
	t      *testing.T
	socket string

	mu    sync.Mutex
	pids  []int
	gone  int // sessions whose client left
	netns map[string]string
	// attached is told about every attach.
	attached chan *stdio.SessionRequest
}

func newShim(t *testing.T) *fakeShim {
	t.Helper()
	dir, err := os.MkdirTemp("", "s")
	if err != nil {
		t.Fatal(err)
	}
	s := &fakeShim{t: t, socket: filepath.Join(dir, "s"), netns: map[string]string{}, attached: make(chan *stdio.SessionRequest, 10)}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { s.serve(c) })
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
		os.RemoveAll(dir)
	})
	return s
}

// Session makes the shim a Containers: every id is a container of it.
func (s *fakeShim) Session(_ context.Context, id string) (*Target, error) {
	switch id {
	case "missing":
		return nil, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
	case "dead":
		return &Target{SessionSocket: s.socket + "x", ContainerID: id, Spec: spec()}, nil
	}
	return &Target{SessionSocket: s.socket, ContainerID: id, Spec: spec(), TTY: id == "tty", Stdin: id != "noinput"}, nil
}

func (s *fakeShim) NetNS(_ context.Context, id string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns, ok := s.netns[id]
	if !ok {
		return "", fmt.Errorf("pod %s: %w", id, errdefs.ErrNotFound)
	}
	return ns, nil
}

func spec() *specs.Spec {
	return &specs.Spec{Process: &specs.Process{Env: []string{"PATH=" + os.Getenv("PATH")}, Cwd: "/"}}
}

func (s *fakeShim) serve(c net.Conn) {
	peer, req, err := stdio.AcceptSession(context.Background(), c)
	if err != nil {
		return
	}
	defer peer.Close()
	if req.Op == stdio.OpAttach {
		s.attach(peer, req)
		return
	}
	s.exec(peer, req)
}

func (s *fakeShim) exec(peer *stdio.Peer, req *stdio.SessionRequest) {
	var p specs.Process
	if err := json.Unmarshal(req.Process, &p); err != nil {
		_ = peer.Fail(err)
		return
	}
	cmd := exec.Command(p.Args[0], p.Args[1:]...)
	cmd.Env = p.Env
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	var in io.WriteCloser
	resize := func(stdio.Size) {}
	var outputs sync.WaitGroup
	// Output comes after Started: a client drops what comes before.
	started := make(chan struct{})
	gate := func(w io.Writer) io.Writer {
		return writer(func(b []byte) (int, error) { <-started; return w.Write(b) })
	}
	if req.Terminal {
		pty, path, err := console.NewPty()
		if err != nil {
			_ = peer.Fail(err)
			return
		}
		defer pty.Close()
		slave, err := os.OpenFile(path, os.O_RDWR|syscall.O_NOCTTY, 0)
		if err != nil {
			_ = peer.Fail(err)
			return
		}
		cmd.Stdin, cmd.Stdout, cmd.Stderr = slave, slave, slave
		cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
		in = pty
		resize = func(z stdio.Size) { _ = pty.Resize(console.WinSize{Width: z.Width, Height: z.Height}) }
		outputs.Go(func() { _, _ = io.Copy(gate(peer.Stdout()), pty) })
		defer slave.Close()
		if err := cmd.Start(); err != nil {
			_ = peer.Fail(fmt.Errorf("start %s: %w: %w", p.Args[0], err, errdefs.ErrInvalidArgument))
			return
		}
		slave.Close()
	} else {
		if req.Stdin {
			in, _ = cmd.StdinPipe()
		}
		if req.Stdout {
			cmd.Stdout = gate(peer.Stdout())
		}
		if req.Stderr {
			cmd.Stderr = gate(peer.Stderr())
		}
		cmd.WaitDelay = req.Drain
		if err := cmd.Start(); err != nil {
			_ = peer.Fail(fmt.Errorf("start %s: %w: %w", p.Args[0], err, errdefs.ErrInvalidArgument))
			return
		}
	}
	pid := cmd.Process.Pid
	s.mu.Lock()
	s.pids = append(s.pids, pid)
	s.mu.Unlock()
	_ = peer.Started(pid)
	close(started)
	exit := &stdio.Exit{At: time.Now()}
	var late atomic.Bool
	if req.Timeout > 0 {
		defer time.AfterFunc(req.Timeout, func() {
			late.Store(true)
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}).Stop()
	}
	left := make(chan struct{})
	go func() {
		defer close(left)
		err := peer.Stdin(func(b []byte) error {
			if in == nil {
				return nil
			}
			_, err := in.Write(b)
			return err
		}, func() {
			if in != nil && !req.Terminal {
				in.Close()
			}
		}, resize)
		s.mu.Lock()
		s.gone++
		s.mu.Unlock()
		if err != nil {
			_ = syscall.Kill(-pid, syscall.SIGHUP)
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
	}()
	err := cmd.Wait()
	outputs.Wait()
	exit.Code = int32(cmd.ProcessState.ExitCode())
	if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		exit.Code = 128 + int32(ws.Signal())
	}
	exit.Cut = errors.Is(err, exec.ErrWaitDelay)
	exit.TimedOut = late.Load()
	_ = peer.Exit(exit)
	<-left
}

// attach greets on both outputs, repeats what it is told, and ends at "bye".
func (s *fakeShim) attach(peer *stdio.Peer, req *stdio.SessionRequest) {
	_ = peer.Started(1)
	_, _ = io.WriteString(peer.Stdout(), "out\n")
	if !req.Terminal {
		_, _ = io.WriteString(peer.Stderr(), "err\n")
	}
	s.attached <- req
	_ = peer.Stdin(func(b []byte) error {
		_, _ = peer.Stdout().Write(b)
		if strings.Contains(string(b), "bye") {
			_ = peer.Exit(&stdio.Exit{Code: 7})
		}
		return nil
	}, nil, func(z stdio.Size) { fmt.Fprintf(peer.Stdout(), "%dx%d\n", z.Width, z.Height) })
	s.mu.Lock()
	s.gone++
	s.mu.Unlock()
}

func (s *fakeShim) lastPid() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.pids) == 0 {
		return 0
	}
	return s.pids[len(s.pids)-1]
}

func (s *fakeShim) left() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.gone
}

// serve starts a server in front of the shim.
func serve(t *testing.T, s *fakeShim, o *Options) *Server {
	t.Helper()
	if o == nil {
		o = &Options{}
	}
	if o.Drain == 0 {
		o.Drain = 200 * time.Millisecond
	}
	srv, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	srv.Start(s)
	t.Cleanup(func() { srv.Stop() })
	return srv
}

// noLeaks fails the test when it leaves a goroutine or a file descriptor. Call
// it first, so that its check comes after every other cleanup.
func noLeaks(t *testing.T) {
	t.Helper()
	warm(t)
	goroutines, files := runtime.NumGoroutine(), openFiles(t)
	t.Cleanup(func() {
		deadline := time.Now().Add(20 * time.Second) // client-go takes 5 s to see that a WebSocket ended
		for runtime.NumGoroutine() > goroutines || openFiles(t) > files {
			if time.Now().After(deadline) {
				var b strings.Builder
				_ = pprof.Lookup("goroutine").WriteTo(&b, 1)
				t.Fatalf("left over: goroutines %d -> %d, files %d -> %v\n%s",
					goroutines, runtime.NumGoroutine(), files, fileNames(t), b.String())
			}
			time.Sleep(5 * time.Millisecond)
		}
	})
}

// warm makes what the Go runtime and libraries make once.
func warm(t *testing.T) {
	t.Helper()
	if err := exec.Command("true").Run(); err != nil {
		t.Fatal(err)
	}
}

func openFiles(t *testing.T) int { return len(fileNames(t)) }

func fileNames(t *testing.T) []string {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil {
			names = append(names, to)
		}
	}
	return names
}

// eventually waits until ok, at most for a time that means it never will be.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(15 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not in 15 s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func alive(pid int) bool { return pid > 0 && syscall.Kill(pid, 0) == nil }
