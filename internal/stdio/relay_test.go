//go:build linux

package stdio

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// collector is a Sink that keeps everything, as fast as gate lets it.
type collector struct {
	gate chan struct{} // nil: open; else Write waits for it once

	mu     sync.Mutex
	got    [2]bytes.Buffer
	closed int
}

func (c *collector) Write(s Stream, p []byte) error {
	if c.gate != nil {
		<-c.gate
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.got[s].Write(p)
	return nil
}

func (c *collector) Close() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed++
	return nil
}

func (c *collector) text(s Stream) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got[s].String()
}

// command starts a shell whose outputs are pipes, as a host would.
func command(t *testing.T, script string) (cmd *exec.Cmd, stdout, stderr *os.File) {
	t.Helper()
	var ends [4]*os.File
	for i := range 2 {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		ends[i], ends[i+2] = r, w
	}
	cmd = exec.Command("/bin/sh", "-c", script)
	cmd.Stdout, cmd.Stderr = ends[2], ends[3]
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := cmd.Process.Pid
	t.Cleanup(func() { _ = syscall.Kill(-pid, syscall.SIGKILL) })
	ends[2].Close()
	ends[3].Close()
	return cmd, ends[0], ends[1]
}

func pipe(t *testing.T) (r, w *os.File) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.Close() })
	return r, w
}

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within 10 s: %s", what)
		}
	}
}

func TestRelayToAllSinks(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "0.log")
	l := openTestLog(t, LogOptions{Path: path})
	a, b := &collector{}, &collector{}
	cmd, stdout, stderr := command(t, "seq 1 50000; echo problem >&2; printf end")
	r := NewRelay(stdout, stderr, l, a, NewWriterSink(nil, io.Discard), b)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !r.Drain(5 * time.Second) {
		t.Fatal("not complete")
	}
	if !r.Drain(0) || r.Cut() {
		t.Error("a second Drain must say the same")
	}
	var want strings.Builder
	for i := range 50_000 {
		fmt.Fprintln(&want, i+1)
	}
	want.WriteString("end")
	for _, c := range []*collector{a, b} {
		if c.text(Stdout) != want.String() || c.text(Stderr) != "problem\n" || c.closed != 1 {
			t.Errorf("%d bytes, %q, closed %d times", len(c.text(Stdout)), c.text(Stderr), c.closed)
		}
	}
	rs := readLog(t, path)
	if got := of(rs, Stdout); !slices.Equal(got, model(want.String(), defaultMaxLine)) {
		t.Errorf("%d records", len(got))
	}
	if got := of(rs, Stderr); !slices.Equal(got, []string{"Fproblem"}) {
		t.Errorf("%q", got)
	}
}

func TestRelayWithoutOutputs(t *testing.T) {
	noLeaks(t)
	c := &collector{}
	r := NewRelay(nil, nil, c)
	if !r.Drain(0) || c.closed != 1 {
		t.Error("a relay of nothing must be done")
	}
	r.Close()
}

// A child in the background that holds the pipe costs the grace and no more;
// what was written before the exit is there.
func TestDrainWithABackgroundChild(t *testing.T) {
	noLeaks(t)
	for _, script := range []string{
		"sleep 600 & echo ok",
		"(sleep 0.2; while :; do echo more; done) & echo ok", // never silent
		"(sleep 0.2; exec yes) & echo ok",                    // and never slow
	} {
		c := &collector{}
		cmd, stdout, stderr := command(t, script)
		r := NewRelay(stdout, stderr, c)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		start := time.Now()
		if r.Drain(300 * time.Millisecond) {
			t.Errorf("%s: complete while a child holds the pipe", script)
		}
		if d := time.Since(start); d < 300*time.Millisecond || d > 2*time.Second {
			t.Errorf("%s: drained for %v", script, d)
		}
		<-r.Done()
		if !r.Cut() || !strings.HasPrefix(c.text(Stdout), "ok\n") || c.closed != 1 {
			t.Errorf("%s: cut %v, %.20q, closed %d times", script, r.Cut(), c.text(Stdout), c.closed)
		}
	}
}

// What a sink has not yet taken when the grace ends is delivered, not cut.
func TestDrainWithASlowSink(t *testing.T) {
	noLeaks(t)
	c := &collector{gate: make(chan struct{})}
	cmd, stdout, stderr := command(t, "head -c 60000 /dev/zero")
	r := NewRelay(stdout, stderr, c)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	if r.Drain(50 * time.Millisecond) {
		t.Error("complete although the sink has nothing")
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("Drain waited %v for a sink", d)
	}
	close(c.gate)
	<-r.Done()
	if n := len(c.text(Stdout)); n != 60_000 || r.Cut() {
		t.Errorf("%d bytes of 60000, cut %v", n, r.Cut())
	}
	if !r.Drain(time.Second) {
		t.Error("now it is complete")
	}
}

func TestDrainByMany(t *testing.T) {
	noLeaks(t)
	out, _ := pipe(t)
	r := NewRelay(out, nil, &collector{})
	var wg sync.WaitGroup
	start := time.Now()
	for _, grace := range []time.Duration{time.Hour, 50 * time.Millisecond, time.Hour} {
		wg.Go(func() {
			if r.Drain(grace) {
				t.Error("complete")
			}
		})
	}
	wg.Wait()
	if d := time.Since(start); d > 5*time.Second {
		t.Errorf("the shortest grace must count, not %v", d)
	}
}

// plain hides what a file can do more than an Output.
type plain struct{ f *os.File }

func (p plain) Read(b []byte) (int, error)        { return p.f.Read(b) }
func (p plain) Close() error                      { return p.f.Close() }
func (p plain) SetReadDeadline(t time.Time) error { return p.f.SetReadDeadline(t) }

// deadlineless cannot be cut but by closing.
type deadlineless struct{ plain }

func (deadlineless) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }

// An Output that is no file works as well.
func TestRelayOfAnyOutput(t *testing.T) {
	noLeaks(t)
	c := &collector{}
	cmd, stdout, stderr := command(t, "seq 1 100000")
	r := NewRelay(plain{stdout}, plain{stderr}, c)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !r.Drain(5*time.Second) || strings.Count(c.text(Stdout), "\n") != 100_000 {
		t.Errorf("cut %v, %d lines", r.Cut(), strings.Count(c.text(Stdout), "\n"))
	}
	for _, wrap := range []func(*os.File) Output{
		func(f *os.File) Output { return plain{f} },
		func(f *os.File) Output { return deadlineless{plain{f}} },
	} {
		c := &collector{}
		out, w := pipe(t)
		r := NewRelay(wrap(out), nil, c)
		if _, err := w.WriteString("x"); err != nil {
			t.Fatal(err)
		}
		eventually(t, "data", func() bool { return c.text(Stdout) == "x" })
		if r.Drain(time.Millisecond) {
			t.Error("complete")
		}
		<-r.Done()
	}
}

func TestRelayCloseGivesUp(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	k, err := OpenURI(t.Context(), path, "", &URIOptions{})
	if err != nil {
		t.Fatal(err)
	}
	out, w := pipe(t)
	r := NewRelay(out, nil, k)
	// More than the FIFO holds, and nobody reads: the writer blocks.
	go func() { _, _ = w.Write(make([]byte, 100<<10)) }()
	time.Sleep(50 * time.Millisecond)
	r.Close()
	select {
	case <-r.Done():
	case <-time.After(5 * time.Second):
		t.Fatal("Close left a pump in a blocked sink")
	}
	if !r.Cut() {
		t.Error("data was lost: that is a cut")
	}
	// Take what the FIFO holds, so that it is given up.
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.Copy(io.Discard, f)
	f.Close()
}

// A sink that fails loses its stream; the process and the others do not notice.
func TestRelayWithAFailingSink(t *testing.T) {
	noLeaks(t)
	var calls atomic.Int32
	failing := NewWriterSink(writerFunc(func([]byte) (int, error) {
		calls.Add(1)
		return 0, io.ErrClosedPipe
	}), nil)
	c := &collector{}
	cmd, stdout, stderr := command(t, "seq 1 100000")
	r := NewRelay(stdout, stderr, failing, c)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !r.Drain(5*time.Second) || strings.Count(c.text(Stdout), "\n") != 100_000 || calls.Load() != 1 {
		t.Errorf("%d lines, %d calls of the failed sink", strings.Count(c.text(Stdout), "\n"), calls.Load())
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

// An idle relay costs a few KiB.
func TestIdleRelayIsSmall(t *testing.T) {
	noLeaks(t)
	const relays = 200
	measure := func() uint64 {
		runtime.GC()
		runtime.GC() // pools forget after the second
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return m.HeapAlloc + m.StackInuse
	}
	c := &collector{}
	before := measure()
	var rs []*Relay
	var ws []*os.File
	for range relays {
		a, aw := pipe(t)
		b, bw := pipe(t)
		fmt.Fprintln(aw, "hello") // it was not always idle
		rs, ws = append(rs, NewRelay(a, b, c)), append(ws, aw, bw)
	}
	eventually(t, "all lines", func() bool { return len(c.text(Stdout)) == relays*len("hello\n") })
	cost := (int64(measure()) - int64(before)) / relays
	t.Logf("an idle relay of two streams: %d bytes", cost)
	if cost > 16<<10 {
		t.Errorf("an idle relay costs %d bytes", cost)
	}
	for _, w := range ws {
		w.Close()
	}
	for _, r := range rs {
		r.Drain(5 * time.Second)
	}
}
