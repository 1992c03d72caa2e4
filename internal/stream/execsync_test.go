package stream

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
)

func TestExecSync(t *testing.T) {
	noLeaks(t)
	s := serve(t, newShim(t), nil)
	r, err := s.ExecSync(t.Context(), "c", sh("echo out; echo err >&2; cat; exit 9"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" || r.ExitCode != 9 {
		t.Errorf("%q %q %d", r.Stdout, r.Stderr, r.ExitCode)
	}
	if r, err := s.ExecSync(t.Context(), "c", sh("kill -TERM $$"), 0); err != nil || r.ExitCode != 143 {
		t.Errorf("a signal: %v %v", r, err)
	}
	if _, err := s.ExecSync(t.Context(), "c", []string{"/no/such/command"}, 0); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no command: %v", err)
	}
	if _, err := s.ExecSync(t.Context(), "missing", sh("true"), 0); !errdefs.IsNotFound(err) {
		t.Errorf("no container: %v", err)
	}
	if _, err := s.ExecSync(t.Context(), "dead", sh("true"), 0); !errdefs.IsUnavailable(err) {
		t.Errorf("no shim: %v", err)
	}
}

// What is too much is read and thrown away; the process does not notice.
func TestExecSyncCaps(t *testing.T) {
	s := serve(t, newShim(t), nil)
	r, err := s.ExecSync(t.Context(), "c", sh("head -c 40000000 /dev/zero && echo all-written >&2; exit 4"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if string(r.Stderr) != "all-written\n" || r.ExitCode != 4 {
		t.Errorf("stderr %q, exit %d", r.Stderr, r.ExitCode)
	}
	if len(r.Stdout)+len(r.Stderr) != answerCap {
		t.Errorf("%d bytes", len(r.Stdout))
	}
	// The kubelet's and crictl's limit of a message.
	if n := proto.Size(r); n > 16<<20 {
		t.Errorf("the answer has %d bytes", n)
	}
	r, err = s.ExecSync(t.Context(), "c", sh("head -c 20000000 /dev/zero >&2 & head -c 20000000 /dev/zero; wait"), 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Stdout) != answerCap/2 || len(r.Stderr) != answerCap/2 || proto.Size(r) > 16<<20 {
		t.Errorf("%d and %d bytes, %d in all", len(r.Stdout), len(r.Stderr), proto.Size(r))
	}
}

func TestFit(t *testing.T) {
	for _, tc := range []struct{ a, b, wantA, wantB int }{
		{10, 20, 10, 20},
		{answerCap, 0, answerCap, 0},
		{outputCap, 100, answerCap - 100, 100},
		{100, outputCap, 100, answerCap - 100},
		{outputCap, outputCap, answerCap / 2, answerCap / 2},
	} {
		a, b := fit(make([]byte, tc.a), make([]byte, tc.b))
		if len(a) != tc.wantA || len(b) != tc.wantB {
			t.Errorf("fit(%d, %d) = %d, %d", tc.a, tc.b, len(a), len(b))
		}
	}
}

func TestCapped(t *testing.T) {
	var c capped
	chunk := bytes.Repeat([]byte("abc"), 11111)
	total := 0
	for total < outputCap+5*len(chunk) {
		n, err := c.Write(chunk)
		if n != len(chunk) || err != nil {
			t.Fatal(n, err)
		}
		total += n
	}
	if len(c.b) != outputCap || cap(c.b) != outputCap {
		t.Errorf("kept %d in %d", len(c.b), cap(c.b))
	}
	if !bytes.HasPrefix(c.b, chunk) || !strings.HasPrefix(string(c.b[len(chunk):]), "abcabc") {
		t.Error("the start is not what was written")
	}
}

func TestExecSyncTimeout(t *testing.T) {
	noLeaks(t)
	shim := newShim(t)
	s := serve(t, shim, nil)
	_, err := s.ExecSync(t.Context(), "c", sh("sleep 1000 & sleep 1000"), 200*time.Millisecond)
	if !errors.Is(err, context.DeadlineExceeded) || !errdefs.IsDeadlineExceeded(err) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the process ends", func() bool { return !alive(shim.lastPid()) })
}

// A caller that leaves takes its command with it.
func TestExecSyncCallerGone(t *testing.T) {
	noLeaks(t)
	shim := newShim(t)
	s := serve(t, shim, nil)
	ctx, leave := context.WithCancel(t.Context())
	go func() {
		for !alive(shim.lastPid()) {
			time.Sleep(time.Millisecond)
		}
		leave()
	}()
	if _, err := s.ExecSync(ctx, "c", []string{"sleep", "1000"}, 0); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
	eventually(t, "the process ends", func() bool { return !alive(shim.lastPid()) })
}

// A command that leaves a child with its output does not hold up the answer.
func TestExecSyncBackgroundChild(t *testing.T) {
	shim := newShim(t)
	s := serve(t, shim, nil)
	start := time.Now()
	r, err := s.ExecSync(t.Context(), "c", sh("sleep 2 & echo ok"), 0)
	if err != nil || string(r.Stdout) != "ok\n" || r.ExitCode != 0 {
		t.Fatalf("%v %v", r, err)
	}
	if d := time.Since(start); d > 1500*time.Millisecond {
		t.Errorf("took %s", d)
	}
}
