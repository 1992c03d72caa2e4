package e2e

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/url"
	"sync"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/exec"
)

// protocols are the ways in which clients come.
var protocols = []string{"spdy", "websocket"}

func executor(t *testing.T, protocol, to string) remotecommand.Executor {
	t.Helper()
	u, err := url.Parse(to)
	if err != nil {
		t.Fatal(err)
	}
	var e remotecommand.Executor
	if protocol == "spdy" {
		e, err = remotecommand.NewSPDYExecutor(&rest.Config{}, http.MethodPost, u)
	} else {
		// What streaming servers of CRI speak: it cannot end stdin.
		e, err = remotecommand.NewWebSocketExecutorForProtocols(&rest.Config{}, http.MethodGet, to, "v4.channel.k8s.io")
	}
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// session is one of exec or attach.
type session struct {
	tty      bool
	stdin    io.Reader
	resize   remotecommand.TerminalSizeQueue
	protocol string
}

// result is what a session ended with: what it wrote, its exit code, or an error.
type result struct {
	out, errOut string
	code        int
	err         error
}

func (c *container) exec(t *testing.T, s *session, cmd ...string) *result {
	t.Helper()
	r, err := c.p.n.rt.Exec(t.Context(), &cri.ExecRequest{
		ContainerId: c.id, Cmd: cmd, Tty: s.tty, Stdin: s.stdin != nil, Stdout: true, Stderr: !s.tty,
	})
	if err != nil {
		t.Fatal(err)
	}
	return s.run(t, r.Url)
}

func (s *session) run(t *testing.T, to string) *result {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()
	var out, errOut buffer
	o := remotecommand.StreamOptions{Stdin: s.stdin, Stdout: &out, Tty: s.tty, TerminalSizeQueue: s.resize}
	if !s.tty {
		o.Stderr = &errOut
	}
	err := executor(t, s.protocol, to).StreamWithContext(ctx, o)
	r := &result{out: out.String(), errOut: errOut.String()}
	var exit exec.ExitError
	if errors.As(err, &exit) {
		r.code = exit.ExitStatus()
	} else {
		r.err = err
	}
	return r
}

// buffer can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}

// sizes is a terminal's sizes, given one after the other.
type sizes struct {
	ch chan remotecommand.TerminalSize
}

func (s *sizes) Next() *remotecommand.TerminalSize {
	v, ok := <-s.ch
	if !ok {
		return nil
	}
	return &v
}

// quickly fails when f takes long: for what must not wait for something else.
func quickly(t *testing.T, what string, limit time.Duration, f func()) {
	t.Helper()
	begin := time.Now()
	f()
	if d := time.Since(begin); d > limit {
		t.Errorf("%s took %v", what, d)
	}
}
