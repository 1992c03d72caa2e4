package stream

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/exec"
)

// protocols are the two ways in which clients come.
var protocols = []string{"spdy", "websocket"}

func executor(t *testing.T, protocol, to string) remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	cfg := &rest.Config{TLSClientConfig: rest.TLSClientConfig{Insecure: u.Scheme == "https"}}
	var e remotecommand.Executor
	if protocol == "spdy" {
		e, err = remotecommand.NewSPDYExecutor(cfg, http.MethodPost, u)
	} else {
		e, err = remotecommand.NewWebSocketExecutorForProtocols(cfg, http.MethodGet, to, "v4.channel.k8s.io")
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func execURL(t *testing.T, s *Server, r *runtime.ExecRequest) string {
	t.Helper()
	if r.ContainerId == "" {
		r.ContainerId = "c"
	}
	resp, err := s.Exec(r)
	if err != nil {
		t.Fatal(err)
	}
	return resp.Url
}

func sh(script string) []string { return []string{"sh", "-c", script} }

func TestExec(t *testing.T) {
	for _, p := range protocols {
		t.Run(p, func(t *testing.T) {
			noLeaks(t)
			s := serve(t, newShim(t), nil)
			var out, errOut bytes.Buffer
			u := execURL(t, s, &runtime.ExecRequest{Cmd: sh("echo to-out; echo to-err >&2; exit 3"), Stdout: true, Stderr: true})
			err := executor(t, p, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: &errOut})
			var exit exec.ExitError
			if !errors.As(err, &exit) || exit.ExitStatus() != 3 {
				t.Errorf("exit: %v", err)
			}
			if out.String() != "to-out\n" || errOut.String() != "to-err\n" {
				t.Errorf("stdout %q, stderr %q", out.String(), errOut.String())
			}

			out.Reset()
			u = execURL(t, s, &runtime.ExecRequest{Cmd: sh("head -c 5"), Stdin: true, Stdout: true})
			err = executor(t, p, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: &out})
			if err != nil || out.String() != "hello" {
				t.Errorf("stdin: %v, stdout %q", err, out.String())
			}
			eventually(t, "no tickets are left", func() bool { return s.tickets.len() == 0 })
		})
	}
}

// Without stdin a process sees its end at once, over both protocols; what the
// client did not ask for is not carried.
func TestExecOnlyWhatWasAskedFor(t *testing.T) {
	for _, p := range protocols {
		t.Run(p, func(t *testing.T) {
			s := serve(t, newShim(t), nil)
			var out bytes.Buffer
			u := execURL(t, s, &runtime.ExecRequest{Cmd: sh("cat; echo end; echo no >&2"), Stdout: true})
			if err := executor(t, p, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out}); err != nil {
				t.Fatal(err)
			}
			if out.String() != "end\n" {
				t.Errorf("stdout %q", out.String())
			}
		})
	}
}

// Over SPDY the end of the client's stdin is the end of the process's.
func TestExecStdinEnds(t *testing.T) {
	s := serve(t, newShim(t), nil)
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	var out bytes.Buffer
	u := execURL(t, s, &runtime.ExecRequest{Cmd: []string{"sha256sum"}, Stdin: true, Stdout: true})
	if err := executor(t, "spdy", u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: bytes.NewReader(data), Stdout: &out}); err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("%x  -\n", sha256.Sum256(data)); out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

// sizes is a client's terminal.
type sizes chan remotecommand.TerminalSize

func (s sizes) Next() *remotecommand.TerminalSize {
	z, ok := <-s
	if !ok {
		return nil
	}
	return &z
}

func TestExecTerminal(t *testing.T) {
	for _, p := range protocols {
		t.Run(p, func(t *testing.T) {
			s := serve(t, newShim(t), nil)
			in, typed := io.Pipe()
			out := &watched{}
			size := make(sizes, 1)
			size <- remotecommand.TerminalSize{Width: 91, Height: 37}
			u := execURL(t, s, &runtime.ExecRequest{Cmd: sh("until test \"$(stty size)\" = '37 91'; do sleep 0.02; done; tty >/dev/null && echo is-a-tty; read x; echo got-$x"), Stdin: true, Stdout: true, Tty: true})
			done := make(chan error, 1)
			go func() {
				done <- executor(t, p, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: in, Stdout: out, Tty: true, TerminalSizeQueue: size})
			}()
			eventually(t, "the size arrives", func() bool { return strings.Contains(out.String(), "is-a-tty") })
			fmt.Fprintln(typed, "key")
			if err := <-done; err != nil {
				t.Fatal(err)
			}
			if !strings.Contains(out.String(), "got-key") {
				t.Errorf("output %q", out.String())
			}
			close(size)
			typed.Close()
		})
	}
}

// watched is a buffer that can be looked at while it is written.
type watched struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (w *watched) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.Write(p)
}

func (w *watched) String() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.b.String()
}

// A slow reader gets all of it.
func TestExecSlowReader(t *testing.T) {
	for _, p := range protocols {
		t.Run(p, func(t *testing.T) {
			s := serve(t, newShim(t), nil)
			got := sha256.New()
			n := 0
			slow := writer(func(b []byte) (int, error) {
				if n++; n%50 == 0 {
					time.Sleep(time.Millisecond)
				}
				return got.Write(b)
			})
			u := execURL(t, s, &runtime.ExecRequest{Cmd: []string{"seq", "1", "500000"}, Stdout: true})
			if err := executor(t, p, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: slow}); err != nil {
				t.Fatal(err)
			}
			want := sha256.New()
			for i := 1; i <= 500000; i++ {
				fmt.Fprintln(want, i)
			}
			if !bytes.Equal(got.Sum(nil), want.Sum(nil)) {
				t.Error("output differs")
			}
		})
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// endless is a stdin that a process does not take.
type endless struct{}

func (endless) Read(p []byte) (int, error) { return len(p), nil }

// The process of a client that is gone is hung up: also when it neither writes
// nor reads, and when the client's data waits unread.
func TestExecClientGone(t *testing.T) {
	for _, p := range protocols {
		for name, o := range map[string]remotecommand.StreamOptions{
			"silent":       {Stdout: io.Discard},
			"unread stdin": {Stdout: io.Discard, Stdin: endless{}},
		} {
			t.Run(p+" "+name, func(t *testing.T) {
				noLeaks(t)
				shim := newShim(t)
				s := serve(t, shim, nil)
				wire, leave := cable(t, s.Address())
				u := execURL(t, s, &runtime.ExecRequest{Cmd: []string{"sleep", "1000"}, Stdin: o.Stdin != nil, Stdout: true})
				u = strings.Replace(u, s.Address(), wire, 1)
				done := make(chan error, 1)
				go func() { done <- executor(t, p, u).StreamWithContext(t.Context(), o) }()
				eventually(t, "the process runs", func() bool { return alive(shim.lastPid()) })
				time.Sleep(100 * time.Millisecond)
				leave()
				<-done // a SPDY client takes a broken connection for the end
				eventually(t, "the process ends", func() bool { return !alive(shim.lastPid()) })
			})
		}
	}
}

// cable carries one connection to a server; cut ends it with a reset, as the
// kernel does for a client that dies with answers unread. (A mere end would wait
// in line behind the stdin that nobody takes; keep-alive finds that later.)
func cable(t *testing.T, to string) (address string, cut func()) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var near, far net.Conn
	up := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(up)
		if near, err = l.Accept(); err != nil {
			return
		}
		if far, err = net.Dial("tcp", to); err != nil {
			near.Close()
			return
		}
		wg.Go(func() { _, _ = io.Copy(far, near) })
		wg.Go(func() { _, _ = io.Copy(near, far) })
	})
	cut = sync.OnceFunc(func() {
		l.Close()
		<-up
		if far != nil {
			_ = far.(*net.TCPConn).SetLinger(0)
			far.Close()
			near.Close()
		}
		wg.Wait()
	})
	t.Cleanup(cut)
	return l.Addr().String(), cut
}

func TestExecFailures(t *testing.T) {
	for _, p := range protocols {
		t.Run(p, func(t *testing.T) {
			s := serve(t, newShim(t), nil)
			for _, tc := range []struct {
				id   string
				cmd  []string
				want string
			}{
				{"c", []string{"/no/such/command"}, "no such file"},
				{"missing", sh("true"), "not found"},
				{"dead", sh("true"), "unavailable"},
			} {
				u := execURL(t, s, &runtime.ExecRequest{ContainerId: tc.id, Cmd: tc.cmd, Stdout: true})
				err := executor(t, p, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
				if err == nil || !strings.Contains(err.Error(), tc.want) {
					t.Errorf("%s: %v, want %q", tc.id, err, tc.want)
				}
			}
		})
	}
}

// A token is good once.
func TestToken(t *testing.T) {
	s := serve(t, newShim(t), nil)
	u := execURL(t, s, &runtime.ExecRequest{Cmd: sh("true"), Stdout: true})
	run := func() error {
		return executor(t, "spdy", u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
	}
	if err := run(); err != nil {
		t.Fatal(err)
	}
	if err := run(); err == nil {
		t.Error("a token was taken twice")
	}
	for _, path := range []string{"/exec/abcdefgh", "/", "/attach/" + u[strings.LastIndex(u, "/")+1:]} {
		resp, err := http.Get("http://" + s.Address() + path)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusNotFound {
			t.Errorf("%s: %s", path, resp.Status)
		}
	}
	if _, err := s.Exec(&runtime.ExecRequest{Cmd: sh("true"), Stdout: true}); err == nil {
		t.Error("no container id, and accepted")
	}
	if _, err := s.PortForward(&runtime.PortForwardRequest{}); err == nil {
		t.Error("no pod id, and accepted")
	}
	eventually(t, "no tickets are left", func() bool { return s.tickets.len() == 0 })
}

// Tickets that nobody uses are forgotten.
func TestTicketsExpire(t *testing.T) {
	ts := newTickets()
	_, a := ts.issue(ticket{id: "a"})
	ts.name(a, "http://x/exec/token")
	a.born = time.Now().Add(-2 * ticketLife)
	ts.issue(ticket{id: "b"})
	if len(ts.byKey) != 1 || len(ts.byToken) != 0 {
		t.Errorf("%d keys, %d tokens", len(ts.byKey), len(ts.byToken))
	}
}

// Stop ends open sessions, and their processes.
func TestStop(t *testing.T) {
	for _, p := range protocols {
		t.Run(p, func(t *testing.T) {
			noLeaks(t)
			shim := newShim(t)
			s := serve(t, shim, nil)
			u := execURL(t, s, &runtime.ExecRequest{Cmd: []string{"sleep", "1000"}, Stdout: true})
			done := make(chan error, 1)
			go func() {
				done <- executor(t, p, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: io.Discard})
			}()
			eventually(t, "the process runs", func() bool { return alive(shim.lastPid()) })
			if err := s.Stop(); err != nil {
				t.Error(err)
			}
			<-done
			eventually(t, "the process ends", func() bool { return !alive(shim.lastPid()) })
		})
	}
}
