//go:build linux

package stdio

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestAttach(t *testing.T) {
	noLeaks(t)
	c := &collector{}
	out, w := pipe(t)
	errOut, errW := pipe(t)
	r := NewRelay(out, errOut, c)
	fmt.Fprintln(w, "before")
	eventually(t, "the first line", func() bool { return c.text(Stdout) != "" })

	a, b := &collector{}, &collector{}
	writer := func(c *collector, s Stream) io.Writer {
		return writerFunc(func(p []byte) (int, error) { return len(p), c.Write(s, p) })
	}
	ca, cb := NewClient(writer(a, Stdout), writer(a, Stderr)), NewClient(writer(b, Stdout), nil)
	r.Attach(ca)
	detach := r.Attach(cb)
	fmt.Fprintln(w, "one")
	fmt.Fprintln(errW, "two")
	eventually(t, "both clients", func() bool {
		return a.text(Stdout) == "one\n" && a.text(Stderr) == "two\n" && b.text(Stdout) == "one\n"
	})
	detach()
	detach()
	<-cb.Done()
	fmt.Fprintln(w, "three")
	w.Close()
	errW.Close()
	if !r.Drain(5 * time.Second) {
		t.Error("not complete")
	}
	<-ca.Done()
	if err := errors.Join(ca.Err(), cb.Err()); err != nil {
		t.Error(err)
	}
	if a.text(Stdout) != "one\nthree\n" || b.text(Stdout) != "one\n" || b.text(Stderr) != "" {
		t.Errorf("%q, %q", a.text(Stdout), b.text(Stdout))
	}
	late := NewClient(io.Discard, nil)
	r.Attach(late)()
	<-late.Done()
	if late.Err() != nil {
		t.Error(late.Err())
	}
}

// Clients that do not read, that are gone, or that fail: the log gets all of
// 100 MiB, the exit is on time, each client learns its own end.
func TestAttachedClientsThatDoNotRead(t *testing.T) {
	noLeaks(t)
	sum := sha256.New()
	all := NewWriterSink(sum, nil)
	cmd, stdout, stderr := command(t, "head -c 100M /dev/zero; exit 3")
	stuck := make(chan struct{})
	slow := NewClient(writerFunc(func(p []byte) (int, error) { <-stuck; return len(p), nil }), nil)
	closed := NewClient(writerFunc(func([]byte) (int, error) { return 0, os.ErrClosed }), nil)
	var n atomic.Int64
	r := NewRelay(stdout, stderr, all)
	detach := r.Attach(slow)
	r.Attach(closed)
	r.Attach(NewClient(writerFunc(func(p []byte) (int, error) { n.Add(int64(len(p))); return len(p), nil }), nil))
	var exit *exec.ExitError
	if err := cmd.Wait(); !errors.As(err, &exit) || exit.ExitCode() != 3 {
		t.Errorf("exit: %v", err)
	}
	if !r.Drain(5 * time.Second) {
		t.Error("not complete")
	}
	<-slow.Done()
	<-closed.Done()
	if !errdefs.IsResourceExhausted(slow.Err()) || !errors.Is(closed.Err(), os.ErrClosed) {
		t.Errorf("slow: %v; closed: %v", slow.Err(), closed.Err())
	}
	want := sha256.Sum256(make([]byte, 100<<20))
	if !bytes.Equal(sum.Sum(nil), want[:]) {
		t.Error("the log did not get all")
	}
	detach()
	close(stuck)
}

// Many attach and leave while the process writes.
func TestAttachChurn(t *testing.T) {
	noLeaks(t)
	out, w := pipe(t)
	c := &collector{}
	r := NewRelay(out, nil, c)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 50 {
				x := NewClient(io.Discard, io.Discard)
				detach := r.Attach(x)
				runtime.Gosched()
				detach()
				<-x.Done()
			}
		})
	}
	for i := range 5000 {
		fmt.Fprintln(w, i)
	}
	wg.Wait()
	w.Close()
	if !r.Drain(5*time.Second) || strings.Count(c.text(Stdout), "\n") != 5000 || len(*r.clients.Load()) != 0 {
		t.Errorf("%d lines, %d clients", strings.Count(c.text(Stdout), "\n"), len(*r.clients.Load()))
	}
}
