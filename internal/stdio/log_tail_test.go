//go:build linux

package stdio

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func tail(t *testing.T, l *Log, n int) (out [2]string) {
	t.Helper()
	if err := l.Tail(n, func(s Stream, p []byte) { out[s] += string(p) }); err != nil {
		t.Fatal(err)
	}
	return out
}

func TestTail(t *testing.T) {
	path := filepath.Join(t.TempDir(), "0.log")
	l, err := OpenLog(&LogOptions{Path: path, MaxLine: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if got := tail(t, l, 5); got != [2]string{} {
		t.Errorf("an empty log: %q", got)
	}
	for _, w := range []struct {
		s    Stream
		text string
	}{{Stdout, "one\ntwo\n"}, {Stderr, "an error that is long\n"}, {Stdout, "\nfour is\r\n"}, {Stdout, "half"}} {
		if err := l.Write(w.s, []byte(w.text)); err != nil {
			t.Fatal(err)
		}
	}
	for n, want := range map[int][2]string{
		0:   {},
		1:   {"four is\r\nhalf"},
		2:   {"\nfour is\r\nhalf"},
		3:   {"\nfour is\r\nhalf", "an error that is long\n"},
		4:   {"two\n\nfour is\r\nhalf", "an error that is long\n"},
		100: {"one\ntwo\n\nfour is\r\nhalf", "an error that is long\n"},
	} {
		if got := tail(t, l, n); got != want {
			t.Errorf("the last %d lines: %q, want %q", n, got, want)
		}
	}
	// A file that is renamed is another's until the log is reopened.
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte("t stdout F not ours\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := tail(t, l, 5); got[0] != "half" || got[1] != "" {
		t.Errorf("of another file: %q", got)
	}
}

func TestTailIsBounded(t *testing.T) {
	l, err := OpenLog(&LogOptions{Path: filepath.Join(t.TempDir(), "0.log")})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const count = 20000
	for i := range count {
		if err := l.Write(Stdout, fmt.Appendf(nil, "line %d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	lines := strings.Split(strings.TrimSuffix(tail(t, l, count)[0], "\n"), "\n")
	if len(lines) < 1000 || len(lines) == count || lines[len(lines)-1] != fmt.Sprint("line ", count-1) {
		t.Errorf("%d lines, from %q to %q", len(lines), lines[0], lines[len(lines)-1])
	}
	if want := fmt.Sprint("line ", count-len(lines)); lines[0] != want {
		t.Errorf("begins with %q, want the whole line %q", lines[0], want)
	}
}

// Whoever comes while the process writes sees the last lines and all that
// follows, without a gap between and nothing twice.
func TestAttachAfterReplay(t *testing.T) {
	noLeaks(t)
	l, err := OpenLog(&LogOptions{Path: filepath.Join(t.TempDir(), "0.log")})
	if err != nil {
		t.Fatal(err)
	}
	out, w := pipe(t)
	r := NewRelay(out, nil, l)
	const clients = 20
	enough, written := make(chan struct{}), make(chan struct{})
	count := 0
	go func() {
		defer close(written)
		defer w.Close()
		for {
			select {
			case <-enough:
				return
			default:
				fmt.Fprintf(w, "line %d\n", count)
				count++
			}
		}
	}()
	seen := make([]bytes.Buffer, clients)
	all := make([]*Client, clients)
	for i := range all {
		time.Sleep(2 * time.Millisecond)
		all[i] = NewClient(&seen[i], nil)
		r.AttachAfter(all[i], func(out func(Stream, []byte)) {
			if err := l.Tail(10, out); err != nil {
				t.Error(err)
			}
		})
	}
	close(enough)
	<-written
	if !r.Drain(10 * time.Second) {
		t.Error("not complete")
	}
	for i, c := range all {
		<-c.Done()
		if c.Err() != nil {
			t.Errorf("client %d: %v", i, c.Err())
			continue
		}
		lines := strings.Split(strings.TrimSuffix(seen[i].String(), "\n"), "\n")
		if len(lines) < 10 {
			t.Errorf("client %d saw %q", i, lines)
		}
		for k, line := range lines {
			if want := fmt.Sprint("line ", count-len(lines)+k); line != want {
				t.Errorf("client %d: %q, want %q", i, line, want)
				break
			}
		}
	}
}

// A past that is more than a client holds ends that client, and nothing else.
func TestAttachAfterTooMuch(t *testing.T) {
	noLeaks(t)
	out, w := pipe(t)
	r := NewRelay(out, nil)
	c := NewClient(nil, nil)
	r.AttachAfter(c, func(out func(Stream, []byte)) { out(Stdout, make([]byte, 2*clientLimit)) })
	<-c.Done()
	if c.Err() == nil {
		t.Error("it was not told")
	}
	if n := len(*r.clients.Load()); n != 0 {
		t.Errorf("%d clients are attached", n)
	}
	w.Close()
	<-r.Done()
}
