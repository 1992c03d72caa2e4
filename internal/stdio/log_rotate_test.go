//go:build linux

package stdio

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// Rotation from outside under load: the union of the files is gapless, in
// order, without duplicates.
func TestRotationUnderLoad(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	l := openTestLog(t, LogOptions{Path: path})
	const lines = 60_000
	var wg sync.WaitGroup
	for _, s := range []Stream{Stdout, Stderr} {
		wg.Go(func() {
			var p []byte
			for i := range lines {
				p = fmt.Appendf(p, "%v %d\n", s, i)
				// Pieces end anywhere in a line.
				if n := len(p) - i%7; n > 200 {
					if err := l.Write(s, p[:n]); err != nil {
						t.Error(err)
						return
					}
					p = append(p[:0], p[n:]...)
				}
				if i%100 == 0 {
					time.Sleep(100 * time.Microsecond)
				}
			}
			if err := l.Write(s, p); err != nil {
				t.Error(err)
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	var files []string
	for rotate := true; rotate; {
		select {
		case <-done:
			rotate = false
		case <-time.After(3 * time.Millisecond):
			aside := filepath.Join(dir, "rotated-"+strconv.Itoa(len(files)))
			if err := os.Rename(path, aside); err != nil {
				t.Fatal(err)
			}
			if err := l.Reopen(); err != nil {
				t.Fatal(err)
			}
			files = append(files, aside)
		}
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if len(files) < 10 {
		t.Fatalf("only %d rotations", len(files))
	}
	var rs []record
	for _, f := range append(files, path) {
		rs = append(rs, readLog(t, f)...)
	}
	for _, s := range []Stream{Stdout, Stderr} {
		got := of(rs, s)
		if len(got) != lines {
			t.Errorf("%v: %d lines of %d", s, len(got), lines)
		}
		for i, text := range got {
			if want := fmt.Sprintf("F%v %d", s, i); text != want {
				t.Fatalf("%v: line %d is %q, want %q", s, i, text, want)
			}
		}
	}
	if st := l.Stats(); st.Reopens != int64(len(files)) || st.Lines != 2*lines || st.Dropped != 0 {
		t.Errorf("stats %+v after %d reopens", st, len(files))
	}
}

// After Reopen nothing is written to the old file any more: whoever rotates
// may compress it at once.
func TestReopenLeavesTheOldFileAlone(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "0.log")
	l := openTestLog(t, LogOptions{Path: path})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = l.Write(Stdout, []byte("a line\n"))
			}
		}
	})
	for i := range 50 {
		aside := path + strconv.Itoa(i)
		if err := os.Rename(path, aside); err != nil {
			t.Fatal(err)
		}
		if err := l.Reopen(); err != nil {
			t.Fatal(err)
		}
		before, _ := os.Stat(aside)
		time.Sleep(time.Millisecond)
		after, _ := os.Stat(aside)
		if before.Size() != after.Size() {
			t.Fatalf("rotation %d: the old file grew from %d to %d", i, before.Size(), after.Size())
		}
	}
	close(stop)
	wg.Wait()
}

func TestOwnRotation(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "0.log")
	// A foreign file beside the log is not ours to remove.
	for _, n := range []string{"0.log.keep", "0.log.20200101-000000", "10.log.20200101-000000.000000000"} {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	l := openTestLog(t, LogOptions{Path: path, MaxSize: 10_000, MaxFiles: 3})
	const lines = 3000
	for i := range lines {
		if err := l.Write(Stdout, fmt.Appendf(nil, "line %d\n", i)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	var logs []string
	foreign := 0
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		st, _ := e.Info()
		if st.Size() == 0 {
			foreign++
			continue
		}
		if st.Size() > 10_000 {
			t.Errorf("%s has %d bytes", e.Name(), st.Size())
		}
		if e.Name() != "0.log" {
			logs = append(logs, e.Name())
		}
	}
	if foreign != 3 || len(logs) != 2 {
		t.Fatalf("%d foreign files, rotated: %q", foreign, logs)
	}
	slices.Sort(logs)
	var rs []record
	for _, n := range append(logs, "0.log") {
		rs = append(rs, readLog(t, filepath.Join(dir, n))...)
	}
	for i, text := range of(rs, Stdout) {
		if want := fmt.Sprintf("Fline %d", lines-len(rs)+i); text != want {
			t.Fatalf("record %d is %q, want %q", i, text, want)
		}
	}
	if len(rs) < 300 {
		t.Errorf("only %d records kept", len(rs))
	}
}

// Where rotation fails, the old file goes on, and not every write tries anew.
func TestOwnRotationFails(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "logs", "0.log")
	l := openTestLog(t, LogOptions{Path: path, MaxSize: 1000})
	if err := os.Rename(filepath.Dir(path), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Dir(path), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for i := range 100 {
		_ = l.Write(Stdout, fmt.Appendf(nil, "line %d\n", i))
	}
	l.Close()
	if got := readLog(t, filepath.Join(dir, "moved", "0.log")); len(got) != 100 {
		t.Errorf("%d lines of 100", len(got))
	}
}

func TestRateLimit(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) {
		path := filepath.Join(dir, "0.log")
		l, err := OpenLog(&LogOptions{Path: path, Rate: 100, MaxLine: 50})
		if err != nil {
			t.Fatal(err)
		}
		line := strings.Repeat("x", 19) + "\n"
		write := func(p string) {
			if err := l.Write(Stdout, []byte(p)); err != nil {
				t.Fatal(err)
			}
		}
		write(strings.Repeat(line, 8)) // five fit
		time.Sleep(500 * time.Millisecond)
		write(line) // same second
		time.Sleep(600 * time.Millisecond)
		write("a" + line)
		time.Sleep(time.Second)
		// One line of three records, the limit in its middle, goes over into
		// the next second: its rest must not look like a line.
		write(strings.Repeat("y", 120))
		time.Sleep(time.Second)
		write("yyy\nnext\n")
		write(strings.Repeat("z", 30) + "\n" + strings.Repeat(line, 9))
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		x := "F" + strings.TrimSuffix(line, "\n")
		got := of(readLog(t, path), Stdout)
		want := []string{
			x, x, x, x, x,
			"F[berth: 4 lines, 76 bytes not logged: over the rate limit]",
			"Fa" + x[1:],
			"P" + strings.Repeat("y", 50),
			"F[berth: 2 lines, 73 bytes not logged: over the rate limit]",
			"Fnext",
			"F" + strings.Repeat("z", 30),
			x, x, x,
			"F[berth: 6 lines, 114 bytes not logged: over the rate limit]",
		}
		if !slices.Equal(got, want) {
			t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
		}
		if st := l.Stats(); st.Dropped != 12 {
			t.Errorf("stats %+v", st)
		}
	})
}
