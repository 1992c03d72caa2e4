//go:build linux

package stdio

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// smallDisk mounts a tmpfs with limits for the test.
func smallDisk(t *testing.T, options string) string {
	t.Helper()
	dir := t.TempDir()
	if err := unix.Mount("berth-test", dir, "tmpfs", 0, options); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			_ = unix.Unmount(dir, unix.MNT_DETACH)
			t.Errorf("unmount: %v", err)
		}
	})
	return dir
}

var markerFormat = regexp.MustCompile(`^\[berth: (\d+) lines, (\d+) bytes not logged: no space left on device\]$`)

// A full disk costs lines, which are counted and marked, and nothing else.
func TestFullDisk(t *testing.T) {
	noLeaks(t)
	dir := smallDisk(t, "size=256k")
	path := filepath.Join(dir, "0.log")
	ballast := filepath.Join(dir, "ballast")
	l := openTestLog(t, LogOptions{Path: path})
	// Not a whole number of pages is left, so a write fails in its middle.
	if err := os.WriteFile(ballast, bytes.Repeat([]byte{1}, 128<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	next := 0
	write := func(lines int) {
		var p []byte
		for range lines {
			p = fmt.Appendf(p, "line %06d %s\n", next, strings.Repeat("x", next%100))
			next++
		}
		if err := l.Write(Stdout, p); err != nil {
			t.Fatal(err)
		}
	}
	check := func() (lost int) {
		t.Helper()
		want := 0
		for _, text := range of(readLog(t, path), Stdout) {
			if m := markerFormat.FindStringSubmatch(text[1:]); m != nil {
				n, _ := strconv.Atoi(m[1])
				size, _ := strconv.Atoi(m[2])
				sum := 0
				for i := want; i < want+n; i++ {
					sum += len("line 000000 ") + i%100
				}
				if size != sum {
					t.Fatalf("marker of %d bytes, lost were %d", size, sum)
				}
				want += n
				lost += n
				continue
			}
			if !strings.HasPrefix(text, fmt.Sprintf("Fline %06d ", want)) {
				t.Fatalf("%q, want line %d: a loss without a marker, or a wrong one", text, want)
			}
			want++
		}
		return lost
	}

	for range 40 {
		write(200) // more than the disk holds
	}
	if l.Stats().Dropped == 0 {
		t.Fatal("the disk was not full")
	}
	if lost := check(); lost != 0 {
		t.Fatal("a marker before there was space for it")
	}
	start := time.Now()
	for range 100 {
		write(200)
	}
	if d := time.Since(start); d > 2*time.Second {
		t.Errorf("a full disk held the process for %v", d)
	}
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	write(10)
	if lost := check(); int64(lost) != l.Stats().Dropped {
		t.Errorf("the markers tell of %d lines, dropped were %d", lost, l.Stats().Dropped)
	}
	// Full again, and freed by a rotation to nothing.
	for range 40 {
		write(200)
	}
	if err := os.Truncate(path, 0); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	rs := readLog(t, path)
	if len(rs) != 1 || !markerFormat.MatchString(rs[0].text) {
		t.Errorf("Close must tell what is missing: %+v", rs)
	}
	if st := l.Stats(); st.Lines+st.Dropped != int64(next) {
		t.Errorf("stats %+v of %d lines", st, next)
	}
}

// A line of which a part was lost does not go on as if it were whole.
func TestFullDiskInsideALine(t *testing.T) {
	noLeaks(t)
	dir := smallDisk(t, "size=64k")
	path, ballast := filepath.Join(dir, "0.log"), filepath.Join(dir, "ballast")
	l := openTestLog(t, LogOptions{Path: path, MaxLine: 1000})
	_ = l.Write(Stdout, []byte("first\n"))
	if err := os.WriteFile(ballast, bytes.Repeat([]byte{1}, 56<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	long := bytes.Repeat([]byte("0123456789"), 2000)
	_ = l.Write(Stdout, long)
	if err := os.Remove(ballast); err != nil {
		t.Fatal(err)
	}
	_ = l.Write(Stdout, []byte("rest of the long line\nlast\n"))
	l.Close()
	rs := of(readLog(t, path), Stdout)
	n := len(rs)
	if rs[0] != "Ffirst" || n < 3 || !markerFormat.MatchString(rs[n-2][1:]) || rs[n-1] != "Flast" {
		t.Errorf("%d records, the last: %q", n, rs[max(0, n-2):])
	}
	for _, r := range rs[1 : n-2] {
		if r != "P"+string(long[:1000]) {
			t.Errorf("%q", r)
		}
	}
}

// A file that cannot be cut back keeps its records apart all the same.
func TestTornRecord(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "0.log")
	l := openTestLog(t, LogOptions{Path: path})
	_ = l.Write(Stdout, []byte("one\n"))
	l.mu.Lock()
	if _, err := l.file.WriteString("half a rec"); err != nil {
		t.Fatal(err)
	}
	l.torn = true
	l.mu.Unlock()
	_ = l.Write(Stdout, []byte("two\nthree\n"))
	l.Close()
	data, _ := os.ReadFile(path)
	lines := strings.Split(string(data), "\n")
	if len(lines) != 5 || lines[1] != "half a rec" || !strings.HasSuffix(lines[2], " F two") || !strings.HasSuffix(lines[3], " F three") {
		t.Errorf("%q", lines)
	}
}

// Own rotation that can move the file but not make a new one puts it back.
func TestOwnRotationOnAFullDisk(t *testing.T) {
	noLeaks(t)
	dir := smallDisk(t, "size=1m,nr_inodes=2") // the root and one file
	path := filepath.Join(dir, "0.log")
	l := openTestLog(t, LogOptions{Path: path, MaxSize: 1000})
	for i := range 100 {
		_ = l.Write(Stdout, fmt.Appendf(nil, "line %d\n", i))
	}
	l.Close()
	if got := readLog(t, path); len(got) != 100 {
		t.Errorf("%d lines of 100 where the log is looked for", len(got))
	}
}
