package stream

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"k8s.io/client-go/tools/remotecommand"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestAttach(t *testing.T) {
	for _, p := range protocols {
		t.Run(p, func(t *testing.T) {
			shim := newShim(t)
			s := serve(t, shim, nil)
			attach := func(r *runtime.AttachRequest, o remotecommand.StreamOptions) error {
				resp, err := s.Attach(r)
				if err != nil {
					t.Fatal(err)
				}
				return executor(t, p, resp.Url).StreamWithContext(t.Context(), o)
			}
			var out, errOut watched
			in, typed := io.Pipe()
			go fmt.Fprint(typed, "bye\n")
			// The end of the container's process ends the session without an error.
			err := attach(&runtime.AttachRequest{ContainerId: "c", Stdin: true, Stdout: true, Stderr: true}, remotecommand.StreamOptions{Stdin: in, Stdout: &out, Stderr: &errOut})
			if err != nil || out.String() != "out\nbye\n" || errOut.String() != "err\n" {
				t.Errorf("%v, stdout %q, stderr %q", err, out.String(), errOut.String())
			}
			typed.Close()
			if r := <-shim.attached; !r.Stdin || !r.Stdout || !r.Stderr || r.Terminal || r.Replay != 0 {
				t.Errorf("request %+v", r)
			}

			// Stdin that was not asked for, or that the container has not, is
			// not attached to: its end would be the container's.
			for _, r := range []*runtime.AttachRequest{
				{ContainerId: "c", Stdout: true},
				{ContainerId: "noinput", Stdin: true, Stdout: true},
			} {
				before := shim.left()
				ctx, leave := context.WithCancel(t.Context())
				resp, err := s.Attach(r)
				if err != nil {
					t.Fatal(err)
				}
				o := remotecommand.StreamOptions{Stdout: io.Discard}
				if r.Stdin {
					o.Stdin = strings.NewReader("")
				}
				done := make(chan struct{})
				go func() {
					defer close(done)
					_ = executor(t, p, resp.Url).StreamWithContext(ctx, o)
				}()
				if got := <-shim.attached; got.Stdin {
					t.Errorf("%+v attached stdin", r)
				}
				leave()
				<-done
				eventually(t, "the shim sees the client leave", func() bool { return shim.left() > before })
				eventually(t, "the connection is forgotten", func() bool {
					s.listener.mu.Lock()
					defer s.listener.mu.Unlock()
					return len(s.listener.conns) == 0
				})
			}
		})
	}
}

// A client can ask for the last lines of the log, in the URL.
func TestAttachReplay(t *testing.T) {
	shim := newShim(t)
	s := serve(t, shim, nil)
	for query, want := range map[string]int{"?replay=20": 20, "?replay=many": 0, "": 0} {
		resp, err := s.Attach(&runtime.AttachRequest{ContainerId: "c", Stdin: true, Stdout: true})
		if err != nil {
			t.Fatal(err)
		}
		o := remotecommand.StreamOptions{Stdin: strings.NewReader("bye\n"), Stdout: io.Discard}
		if err := executor(t, "spdy", resp.Url+query).StreamWithContext(t.Context(), o); err != nil {
			t.Error(err)
		}
		if r := <-shim.attached; r.Replay != want {
			t.Errorf("%q asks for %d lines, want %d", query, r.Replay, want)
		}
	}
}
