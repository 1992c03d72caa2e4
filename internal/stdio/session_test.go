//go:build linux

package stdio

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// serve runs a shim's side for each connection, and waits for all at the end.
func serve(t *testing.T, handle func(p *Peer, req *SessionRequest)) (socket string) {
	t.Helper()
	socket = filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				p, req, err := AcceptSession(context.Background(), conn)
				if err == nil {
					handle(p, req)
					p.Close()
				}
			})
		}
	})
	t.Cleanup(func() { l.Close(); wg.Wait() })
	return socket
}

// runShell is a small shim: it runs the request's process as a shell command.
func runShell(t *testing.T, drain time.Duration) func(p *Peer, req *SessionRequest) {
	return func(p *Peer, req *SessionRequest) {
		var script string
		if err := json.Unmarshal(req.Process, &script); err != nil {
			_ = p.Fail(err)
			return
		}
		cmd, stdout, stderr := command(t, script)
		_ = p.Started(cmd.Process.Pid)
		r := NewRelay(stdout, stderr, NewWriterSink(p.Stdout(), p.Stderr()))
		left := make(chan error, 1)
		go func() { left <- p.Stdin(nil, nil, nil) }()
		err := cmd.Wait()
		at := time.Now()
		if !r.Drain(drain) {
			<-r.Done()
		}
		code := int32(0)
		if exit, ok := errors.AsType[*exec.ExitError](err); ok {
			code = int32(exit.ExitCode())
		}
		_ = p.Exit(&Exit{Code: code, At: at, Cut: r.Cut()})
		<-left
	}
}

func shell(script string) *SessionRequest {
	p, _ := json.Marshal(script)
	return &SessionRequest{Op: OpExec, Container: "c", Exec: "e", Process: p, Stdout: true, Stderr: true}
}

func TestSessionExec(t *testing.T) {
	noLeaks(t)
	socket := serve(t, runShell(t, 200*time.Millisecond))
	for _, c := range []struct {
		script, out, err string
		code             int32
		cut              bool
	}{
		{"echo out; echo err >&2; exit 3", "out\n", "err\n", 3, false},
		{"sleep 600 & echo ok", "ok\n", "", 0, true},
		{"true", "", "", 0, false},
	} {
		s, err := DialSession(t.Context(), socket, shell(c.script))
		if err != nil {
			t.Fatal(err)
		}
		if s.Pid() <= 0 {
			t.Errorf("pid %d", s.Pid())
		}
		var out, errs bytes.Buffer
		start := time.Now()
		exit, err := s.Run(t.Context(), nil, &out, &errs, nil)
		if err != nil {
			t.Fatal(err)
		}
		if exit.Code != c.code || exit.Cut != c.cut || out.String() != c.out || errs.String() != c.err {
			t.Errorf("%s: %+v, %q, %q", c.script, exit, &out, &errs)
		}
		if d := time.Since(exit.At); d < 0 || d > 10*time.Second || time.Since(start) > 2*time.Second {
			t.Errorf("%s: ended %v ago, took %v", c.script, d, time.Since(start))
		}
	}
}

// A slow reader gets all of a fast writer's output.
func TestSessionSlowReader(t *testing.T) {
	noLeaks(t)
	socket := serve(t, runShell(t, 50*time.Millisecond))
	const lines = 2_000_000
	want := sha256.New()
	for i := range lines {
		fmt.Fprintln(want, i+1)
	}
	s, err := DialSession(t.Context(), socket, shell(fmt.Sprintf("seq 1 %d", lines)))
	if err != nil {
		t.Fatal(err)
	}
	got := sha256.New()
	n := 0
	exit, err := s.Run(t.Context(), nil, writerFunc(func(p []byte) (int, error) {
		if n++; n%100 == 0 || n < 5 {
			time.Sleep(30 * time.Millisecond)
		}
		return got.Write(p)
	}), nil, nil)
	if err != nil || exit.Code != 0 || exit.Cut {
		t.Fatalf("%+v, %v", exit, err)
	}
	if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
		t.Error("the output differs")
	}
}

// stdin, byte for byte, both ways at once, then its end.
func TestSessionEcho(t *testing.T) {
	noLeaks(t)
	socket := serve(t, func(p *Peer, _ *SessionRequest) {
		_ = p.Started(1)
		r, w := io.Pipe()
		copied := make(chan struct{})
		go func() {
			_, _ = io.Copy(p.Stdout(), r)
			_ = p.Exit(&Exit{Code: 7})
			close(copied)
		}()
		err := p.Stdin(func(b []byte) error { _, err := w.Write(b); return err }, func() { w.Close() }, nil)
		if err != io.EOF {
			t.Errorf("the client closed: %v", err)
		}
		w.Close()
		<-copied
	})
	s, err := DialSession(t.Context(), socket, &SessionRequest{Op: OpExec, Stdin: true})
	if err != nil {
		t.Fatal(err)
	}
	const size = 64<<20 + 12345
	in, got := sha256.New(), sha256.New()
	var n atomic.Int64
	src := io.TeeReader(io.LimitReader(&numbers{}, size), in)
	exit, err := s.Run(t.Context(), src, io.MultiWriter(got, writerFunc(func(p []byte) (int, error) {
		n.Add(int64(len(p)))
		return len(p), nil
	})), nil, nil)
	if err != nil || exit.Code != 7 {
		t.Fatalf("%+v, %v", exit, err)
	}
	if n.Load() != size || !bytes.Equal(in.Sum(nil), got.Sum(nil)) {
		t.Errorf("%d bytes of %d, or others", n.Load(), size)
	}
}

// numbers is an endless stream in which no place looks like another.
type numbers struct{ n uint64 }

func (r *numbers) Read(p []byte) (int, error) {
	for i := 0; i+8 <= len(p); i += 8 {
		binary.BigEndian.PutUint64(p[i:], r.n*0x9e3779b97f4a7c15)
		r.n++
	}
	if len(p) < 8 {
		return copy(p, "numbers!"), nil
	}
	return len(p) &^ 7, nil
}

// A process that takes no input hides neither a resize nor the client's end.
func TestSessionStuckStdin(t *testing.T) {
	noLeaks(t)
	sizes := make(chan Size, 1)
	left := make(chan error, 1)
	release := make(chan struct{})
	var taken atomic.Int64
	socket := serve(t, func(p *Peer, _ *SessionRequest) {
		_ = p.Started(1)
		left <- p.Stdin(func(b []byte) error {
			<-release
			taken.Add(int64(len(b)))
			return nil
		}, func() { t.Error("a client that is gone is no end of stdin") }, func(z Size) { sizes <- z })
	})
	s, err := DialSession(t.Context(), socket, &SessionRequest{Op: OpAttach, Stdin: true, Terminal: true})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	resize := make(chan Size, 1)
	var sent atomic.Int64
	run := make(chan error, 1)
	go func() {
		src := &numbers{}
		_, err := s.Run(ctx, readerFunc(func(p []byte) (int, error) {
			n, err := src.Read(p)
			sent.Add(int64(n))
			return n, err
		}), nil, nil, resize)
		run <- err
	}()
	eventually(t, "a full window", func() bool { return sent.Load() > stdinWindow })
	resize <- Size{80, 25}
	if z := <-sizes; z != (Size{80, 25}) {
		t.Errorf("%+v", z)
	}
	if n := sent.Load(); n > stdinWindow+2*readSize {
		t.Errorf("%d bytes read from stdin that nobody takes", n)
	}
	cancel()
	if err := <-run; !errors.Is(err, context.Canceled) {
		t.Errorf("Run: %v", err)
	}
	if err := <-left; err != io.EOF {
		t.Errorf("Stdin: %v", err)
	}
	close(release)
}

type readerFunc func([]byte) (int, error)

func (f readerFunc) Read(p []byte) (int, error) { return f(p) }

func TestSessionErrors(t *testing.T) {
	noLeaks(t)
	for _, c := range classes {
		socket := serve(t, func(p *Peer, _ *SessionRequest) {
			_ = p.Fail(fmt.Errorf("find container x\n\x00: %w", c.err))
		})
		_, err := DialSession(t.Context(), socket, &SessionRequest{Op: OpExec, Container: "x"})
		if !errors.Is(err, c.err) || !strings.Contains(err.Error(), "find container x\n\x00") {
			t.Errorf("%s: %v", c.code, err)
		}
	}
	for _, c := range []struct {
		name   string
		handle func(p *Peer, _ *SessionRequest)
		is     func(error) bool
	}{
		{"unknown", func(p *Peer, _ *SessionRequest) { _ = p.Fail(errors.New("odd")) }, errdefs.IsUnknown},
		{"long", func(p *Peer, _ *SessionRequest) {
			_ = p.Fail(fmt.Errorf("%w: %s", errdefs.ErrNotFound, strings.Repeat("\x01", 1<<20)))
		}, errdefs.IsNotFound},
		{"gone before start", func(p *Peer, _ *SessionRequest) {}, errdefs.IsUnavailable},
		{"gone after start", func(p *Peer, _ *SessionRequest) { _ = p.Started(1) }, errdefs.IsUnavailable},
		{"error after start", func(p *Peer, _ *SessionRequest) {
			_ = p.Started(1)
			_ = p.Fail(errdefs.ErrResourceExhausted)
		}, errdefs.IsResourceExhausted},
	} {
		s, err := DialSession(t.Context(), serve(t, c.handle), &SessionRequest{Op: OpExec})
		if err == nil {
			_, err = s.Run(t.Context(), nil, nil, nil, nil)
		}
		if !c.is(err) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
	if _, err := DialSession(t.Context(), "/nowhere", &SessionRequest{Op: OpExec}); !errdefs.IsUnavailable(err) {
		t.Errorf("no socket: %v", err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	wait := make(chan struct{})
	socket := serve(t, func(*Peer, *SessionRequest) { <-wait })
	if _, err := DialSession(ctx, socket, &SessionRequest{Op: OpExec}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("no answer: %v", err)
	}
	close(wait)
	// The writer of the client fails: the session ends with its error.
	socket = serve(t, runShell(t, time.Second))
	s, err := DialSession(t.Context(), socket, shell("echo x"))
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Run(t.Context(), nil, writerFunc(func([]byte) (int, error) { return 0, io.ErrShortWrite }), nil, nil)
	if !errors.Is(err, io.ErrShortWrite) {
		t.Error(err)
	}
}

// Leaving and detaching are told apart.
func TestSessionLeave(t *testing.T) {
	noLeaks(t)
	left := make(chan error, 1)
	socket := serve(t, func(p *Peer, _ *SessionRequest) {
		_ = p.Started(1)
		left <- p.Stdin(nil, nil, nil)
	})
	for _, c := range []struct {
		leave func(*Session) error
		want  error
	}{{(*Session).Detach, nil}, {(*Session).Close, io.EOF}} {
		s, err := DialSession(t.Context(), socket, &SessionRequest{Op: OpAttach})
		if err != nil {
			t.Fatal(err)
		}
		run := make(chan error, 1)
		go func() { _, err := s.Run(t.Context(), nil, nil, nil, nil); run <- err }()
		if err := c.leave(s); err != nil {
			t.Error(err)
		}
		if err := <-left; err != c.want {
			t.Errorf("Stdin: %v, want %v", err, c.want)
		}
		if err := <-run; !errdefs.IsUnavailable(err) {
			t.Errorf("Run: %v", err)
		}
	}
}

// A client that does not read any more gets an attach's error or its end, and
// the shim waits for neither.
func TestSessionFailDoesNotHang(t *testing.T) {
	noLeaks(t)
	hung := make(chan error, 1)
	failed := make(chan struct{})
	socket := serve(t, func(p *Peer, _ *SessionRequest) {
		_ = p.Started(1)
		go func() {
			for {
				if _, err := p.Stdout().Write(make([]byte, 1<<20)); err != nil {
					hung <- err
					return
				}
			}
		}()
		time.Sleep(50 * time.Millisecond)
		start := time.Now()
		_ = p.Fail(errdefs.ErrResourceExhausted)
		if d := time.Since(start); d > 5*time.Second {
			t.Errorf("Fail took %v", d)
		}
		close(failed)
	})
	s, err := DialSession(t.Context(), socket, &SessionRequest{Op: OpAttach})
	if err != nil {
		t.Fatal(err)
	}
	<-failed
	if err := <-hung; err == nil {
		t.Error("the write must fail")
	}
	if _, err := s.Run(t.Context(), nil, nil, nil, nil); err == nil {
		t.Error("no error for a session that was dropped")
	}
}
