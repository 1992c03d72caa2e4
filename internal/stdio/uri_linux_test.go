package stdio

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func mkfifo(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "fifo")
	if err := syscall.Mkfifo(path, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func openReader(t *testing.T, path string) *os.File {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func cpuTime(t *testing.T) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// A reader that goes away and comes back, again and again, finds every line.
// While it is away the writer blocks, without work.
func TestFIFOReaderGoneAndBack(t *testing.T) {
	noLeaks(t)
	path := mkfifo(t)
	k, err := OpenURI(t.Context(), path, "", &URIOptions{ContainerID: "c"})
	if err != nil {
		t.Fatal(err)
	}
	const lines = 100_000
	cmd, stdout, stderr := command(t, fmt.Sprintf("seq 1 %d", lines))
	r := NewRelay(stdout, stderr, k)
	want := 1
	for round := 0; want <= lines; round++ {
		f := openReader(t, path)
		br := bufio.NewReaderSize(f, 16)
		for {
			line, err := br.ReadString('\n')
			if err == io.EOF && line == "" {
				break
			}
			if line != fmt.Sprintln(want) {
				t.Fatalf("line %d is %q, %v", want, line, err)
			}
			want++
			// Leave at a line's end with nothing read ahead: what a reader has
			// taken is its own.
			if round < 20 && want%1000 == 0 && br.Buffered() == 0 {
				break
			}
		}
		f.Close()
		if round == 1 {
			time.Sleep(100 * time.Millisecond) // the FIFO fills
			cpu := cpuTime(t)
			time.Sleep(300 * time.Millisecond)
			if d := cpuTime(t) - cpu; d > 100*time.Millisecond {
				t.Errorf("waiting for a reader took %v of CPU", d)
			}
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !r.Drain(5 * time.Second) {
		t.Error("not complete")
	}
}

// The process ends while the reader is away: what it wrote waits in the FIFO.
func TestFIFOKeepsTheRestForALateReader(t *testing.T) {
	noLeaks(t)
	out, errPath := mkfifo(t), mkfifo(t)
	k, err := OpenURI(t.Context(), "fifo://"+out, errPath, &URIOptions{})
	if err != nil {
		t.Fatal(err)
	}
	cmd, stdout, stderr := command(t, "echo out; echo err >&2")
	r := NewRelay(stdout, stderr, k)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !r.Drain(5 * time.Second) {
		t.Error("not complete")
	}
	for path, want := range map[string]string{out: "out\n", errPath: "err\n"} {
		f := openReader(t, path)
		if got, err := io.ReadAll(f); string(got) != want || err != nil {
			t.Errorf("%q, %v", got, err)
		}
		f.Close()
	}
}

// The end of one stream reaches its reader while the other goes on.
func TestFIFOStreamsEndByThemselves(t *testing.T) {
	noLeaks(t)
	out, errPath := mkfifo(t), mkfifo(t)
	k, err := OpenURI(t.Context(), out, errPath, &URIOptions{})
	if err != nil {
		t.Fatal(err)
	}
	stdout, w := pipe(t)
	stderr, errW := pipe(t)
	r := NewRelay(stdout, stderr, k)
	fo, fe := openReader(t, out), openReader(t, errPath)
	fmt.Fprint(w, "x")
	w.Close()
	if got, err := io.ReadAll(fo); string(got) != "x" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	fmt.Fprint(errW, "y")
	errW.Close()
	if got, err := io.ReadAll(fe); string(got) != "y" || err != nil {
		t.Errorf("%q, %v", got, err)
	}
	if !r.Drain(5 * time.Second) {
		t.Error("not complete")
	}
}

func TestFileURI(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "new dir", "out")
	u := "file://" + strings.ReplaceAll(path, " ", "%20")
	for range 2 {
		k, err := OpenURI(t.Context(), u, u, &URIOptions{})
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(k.Write(Stdout, []byte("a\n")), k.Write(Stderr, []byte("b\n")), k.Close(), k.Close())
		if err != nil {
			t.Fatal(err)
		}
	}
	if got, err := os.ReadFile(path); string(got) != "a\nb\na\nb\n" {
		t.Errorf("%q, %v", got, err)
	}
	// A bare path of a file that exists is used, /dev/null for one.
	k, err := OpenURI(t.Context(), path, "/dev/null", &URIOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(k.Write(Stdout, []byte("c\n")), k.Write(Stderr, []byte("d\n")), k.Close())
	if got, _ := os.ReadFile(path); err != nil || !bytes.HasSuffix(got, []byte("b\nc\n")) {
		t.Errorf("%q, %v", got, err)
	}
}

func TestOpenURIErrors(t *testing.T) {
	noLeaks(t)
	fifo := mkfifo(t)
	for _, c := range []struct {
		uri string
		is  func(error) bool
	}{
		{"npipe://x", errdefs.IsNotImplemented},
		{"%zz", errdefs.IsInvalidArgument},
		{filepath.Join(t.TempDir(), "absent"), func(err error) bool { return errors.Is(err, os.ErrNotExist) }},
		{"binary:///no/such/logger", func(err error) bool { return errors.Is(err, os.ErrNotExist) }},
		{"binary-v2:///bin/true", errdefs.IsFailedPrecondition},
	} {
		if k, err := OpenURI(t.Context(), c.uri, "", &URIOptions{}); k != nil || !c.is(err) {
			t.Errorf("%s: %v", c.uri, err)
		}
		if strings.HasPrefix(c.uri, "binary") {
			continue // stdout's URI decides
		}
		if k, err := OpenURI(t.Context(), fifo, c.uri, &URIOptions{}); k != nil || !c.is(err) {
			t.Errorf("%s: %v", c.uri, err)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := OpenURI(ctx, "binary:///bin/sleep?600", "", &URIOptions{}); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a logger that is never ready: %v", err)
	}
	k, err := OpenURI(t.Context(), "", "", &URIOptions{})
	if err != nil || k.Write(Stdout, []byte("x")) != nil || k.Close() != nil {
		t.Errorf("no URI discards: %v", err)
	}
}

// loggerScript writes what it is told and given into files beside itself.
const loggerScript = `#!/bin/sh
cd "$(/bin/busybox dirname "$0")" || exit 1
echo "$CONTAINER_NAMESPACE/$CONTAINER_ID $* $(/bin/busybox env | /bin/busybox grep -c HOME)" >told
%s
exec 5>&-
/bin/busybox cat <&3 >out &
/bin/busybox cat <&4 >err
wait
echo done >>told
`

func TestLoggingBinary(t *testing.T) {
	noLeaks(t)
	for _, c := range []struct{ scheme, ready string }{{"binary", ""}, {"binary-v2", "printf x >&5"}} {
		dir := t.TempDir()
		path := filepath.Join(dir, "logger")
		if err := os.WriteFile(path, fmt.Appendf(nil, loggerScript, c.ready), 0o700); err != nil {
			t.Fatal(err)
		}
		uri := c.scheme + "://" + path + "?z=1&a=two%20words&flag"
		k, err := OpenURI(t.Context(), uri, uri, &URIOptions{ContainerID: "id", Namespace: "ns"})
		if err != nil {
			t.Fatal(err)
		}
		cmd, stdout, stderr := command(t, "seq 1 100000; echo err >&2")
		r := NewRelay(stdout, stderr, k)
		if err := cmd.Wait(); err != nil {
			t.Fatal(err)
		}
		if !r.Drain(5 * time.Second) {
			t.Error("not complete")
		}
		want := "ns/id z 1 a two words flag 0\ndone\n"
		eventually(t, "the logger's end", func() bool {
			told, _ := os.ReadFile(filepath.Join(dir, "told"))
			return string(told) == want
		})
		out, _ := os.ReadFile(filepath.Join(dir, "out"))
		errs, _ := os.ReadFile(filepath.Join(dir, "err"))
		if n := bytes.Count(out, []byte("\n")); n != 100_000 || string(errs) != "err\n" {
			t.Errorf("%d lines, %q", n, errs)
		}
	}
}

// A logger that dies loses the log, not the process.
func TestLoggingBinaryDies(t *testing.T) {
	noLeaks(t)
	k, err := OpenURI(t.Context(), "binary:///bin/true", "", &URIOptions{})
	if err != nil {
		t.Fatal(err)
	}
	c := &collector{}
	cmd, stdout, stderr := command(t, "seq 1 100000")
	r := NewRelay(stdout, stderr, k, c)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !r.Drain(5*time.Second) || strings.Count(c.text(Stdout), "\n") != 100_000 {
		t.Errorf("%d lines", strings.Count(c.text(Stdout), "\n"))
	}
}

// stdin outlives its writer, and ends with CloseWrite after all data.
func TestSource(t *testing.T) {
	noLeaks(t)
	path := mkfifo(t)
	for _, uri := range []string{path, "fifo://" + path} {
		s, err := OpenSource(uri)
		if err != nil {
			t.Fatal(err)
		}
		r, w := pipe(t)
		in := NewInput(w, false)
		copied := make(chan error)
		go func() {
			_, err := s.WriteTo(in)
			copied <- errors.Join(err, in.Close())
		}()
		for i := range 3 { // the daemon, and twice its successor
			f, err := os.OpenFile(path, os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintln(f, i)
			f.Close()
			time.Sleep(10 * time.Millisecond)
		}
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		_, _ = f.Write(bytes.Repeat([]byte("x"), 50_000))
		if err := errors.Join(s.CloseWrite(), f.Close()); err != nil {
			t.Fatal(err)
		}
		got, err := io.ReadAll(r)
		if err != nil || len(got) != 50_006 || !bytes.HasPrefix(got, []byte("0\n1\n2\nx")) {
			t.Errorf("%d bytes, %v", len(got), err)
		}
		if err := errors.Join(<-copied, s.Close()); err != nil {
			t.Error(err)
		}
		r.Close()
	}
	// Close ends a copy that waits.
	s, err := OpenSource(path)
	if err != nil {
		t.Fatal(err)
	}
	time.AfterFunc(20*time.Millisecond, func() { s.Close() })
	if _, err := s.WriteTo(io.Discard); !errors.Is(err, os.ErrClosed) {
		t.Error(err)
	}
	if _, err := OpenSource("file:///x"); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
	if _, err := OpenSource("/dev/null"); !errdefs.IsFailedPrecondition(err) {
		t.Error(err)
	}
}
