package e2e

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// blocked is a stdin on which nothing ever comes, until the test ends.
func blocked(t *testing.T) io.Reader {
	r, w := io.Pipe()
	t.Cleanup(func() { w.Close() })
	return r
}

func (c *container) attach(t *testing.T, s *session) *result {
	t.Helper()
	r, err := c.p.n.rt.Attach(t.Context(), &cri.AttachRequest{ContainerId: c.id, Tty: s.tty, Stdin: s.stdin != nil, Stdout: true, Stderr: !s.tty})
	if err != nil {
		t.Fatal(err)
	}
	return s.run(t, r.Url)
}

// What a client says reaches the container; with stdinOnce its end does too (over
// WebSocket a client cannot say it).
func TestAttach(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	for _, proto := range protocols {
		c := p.run("c-"+proto, script(map[string]string{"spdy": "cat", "websocket": "head -n 2"}[proto]+"; echo after; echo err >&2; exit 3"), func(c *cri.ContainerConfig) { c.Stdin, c.StdinOnce = true, true })
		r := c.attach(t, &session{protocol: proto, stdin: strings.NewReader("hello\nthere\n")})
		if r.err != nil && r.code == 0 && !strings.Contains(r.err.Error(), "exit") {
			t.Errorf("%s: %+v", proto, r)
		}
		if r.out != "hello\nthere\nafter\n" || r.errOut != "err\n" {
			t.Errorf("%s: %+v", proto, r)
		}
		if st := c.wait(); st.ExitCode != 3 {
			t.Errorf("%s: %v", proto, st)
		}
		if out := strings.ReplaceAll(c.output(), "err\n", ""); out != "hello\nthere\nafter\n" {
			t.Errorf("%s: the log has %q", proto, out)
		}
	}
}

// Several clients see the same; one that leaves takes nobody along.
func TestAttachMany(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", script("read x; i=0; while test $i -lt 50; do echo tick $i; i=$((i+1)); sleep 0.02; done"), func(c *cri.ContainerConfig) { c.Stdin = true })
	outs := make([]buffer, 3)
	done := make(chan error, len(outs))
	for i := range outs {
		r := must[*cri.AttachResponse](t)(shared.rt.Attach(t.Context(), &cri.AttachRequest{ContainerId: c.id, Stdout: true, Stderr: true, Stdin: i == 0}))
		o := remotecommand.StreamOptions{Stdout: &outs[i], Stderr: io.Discard}
		if i == 0 {
			// The first one says what lets the container go on, once all are there.
			pr, pw := io.Pipe()
			o.Stdin = pr
			go func() {
				time.Sleep(time.Second)
				io.WriteString(pw, "go\n")
			}()
			t.Cleanup(func() { pw.Close() })
		}
		ctx := t.Context()
		if i == 2 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, 1300*time.Millisecond)
			defer cancel()
		}
		e := executor(t, protocols[i%2], r.Url)
		go func() { done <- e.StreamWithContext(ctx, o) }()
	}
	if st := c.wait(); st.ExitCode != 0 {
		t.Errorf("%v", st)
	}
	for range outs {
		<-done
	}
	var want strings.Builder
	for i := range 50 {
		fmt.Fprintf(&want, "tick %d\n", i)
	}
	for i := range 2 {
		if got := outs[i].String(); got != want.String() {
			t.Errorf("client %d saw %q", i, got)
		}
	}
	if got := c.output(); got != want.String() {
		t.Errorf("the log has %q", got)
	}
}

func TestAttachTerminal(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	for _, proto := range protocols {
		c := p.run("c-"+proto, script("until test \"$(stty size 2>&1)\" = '30 90'; do sleep 0.02; done; echo resized; read line; echo \"got $line\"; exit 0"),
			func(c *cri.ContainerConfig) { c.Stdin, c.Tty = true, true })
		q := &sizes{make(chan remotecommand.TerminalSize, 1)}
		q.ch <- remotecommand.TerminalSize{Width: 90, Height: 30}
		in, w := io.Pipe()
		go func() {
			c.waitLog("resized")
			io.WriteString(w, "hello\n")
		}()
		r := c.attach(t, &session{protocol: proto, tty: true, stdin: in, resize: q})
		close(q.ch)
		w.Close()
		if out := strings.ReplaceAll(r.out, "\r", ""); r.err != nil || !strings.Contains(out, "got hello\n") {
			t.Errorf("%s: %+v", proto, r)
		}
		if st := c.wait(); st.ExitCode != 0 {
			t.Errorf("%s: %v", proto, st)
		}
	}
}

// A client that does not read loses its session; the container and its log
// never wait for it.
func TestAttachSlowClient(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	const count = 300000
	c := p.run("c", script(fmt.Sprintf("read x; exec probe lines %d", count)), func(c *cri.ContainerConfig) { c.Stdin = true })
	r := must[*cri.AttachResponse](t)(shared.rt.Attach(t.Context(), &cri.AttachRequest{ContainerId: c.id, Stdin: true, Stdout: true, Stderr: true}))
	ctx, cancel := context.WithCancel(t.Context())
	stuck := make(chan struct{})
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		executor(t, "spdy", r.Url).StreamWithContext(ctx, remotecommand.StreamOptions{
			Stdin: io.MultiReader(strings.NewReader("go\n"), blocked(t)), Stdout: writerFunc(func(p []byte) (int, error) {
				<-stuck
				return len(p), nil
			}), Stderr: io.Discard,
		})
	}()
	if st := c.wait(); st.ExitCode != 0 {
		t.Errorf("%v", st)
	}
	lines := readLog(t, c.log)
	noGaps(t, lines)
	if len(lines) != count {
		t.Errorf("%d lines, want %d", len(lines), count)
	}
	close(stuck)
	cancel()
	<-gone
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }
