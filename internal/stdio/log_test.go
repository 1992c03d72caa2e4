//go:build linux

package stdio

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// record is one line of a log file.
type record struct {
	at   time.Time
	s    Stream
	tag  byte
	text string
}

var recordFormat = regexp.MustCompile(`(?s)^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{9}Z) (stdout|stderr) ([PF]) (.*)$`)

// parse reads records and fails for anything that is none.
func parse(t testing.TB, data []byte) []record {
	t.Helper()
	var out []record
	for line := range strings.SplitAfterSeq(string(data), "\n") {
		if line == "" {
			continue
		}
		m := recordFormat.FindStringSubmatch(strings.TrimSuffix(line, "\n"))
		if m == nil || !strings.HasSuffix(line, "\n") {
			t.Fatalf("not a record: %q", line)
		}
		at, err := time.Parse(time.RFC3339Nano, m[1])
		if err != nil {
			t.Fatal(err)
		}
		r := record{at, Stdout, m[3][0], m[4]}
		if m[2] == "stderr" {
			r.s = Stderr
		}
		out = append(out, r)
	}
	return out
}

func readLog(t testing.TB, path string) []record {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return parse(t, data)
}

// of are the tags and texts of one stream's records.
func of(rs []record, s Stream) []string {
	var out []string
	for _, r := range rs {
		if r.s == s {
			out = append(out, string(r.tag)+r.text)
		}
	}
	return out
}

// model is what a stream's records must be, whatever the writes: plainly said.
func model(stream string, maxLine int) []string {
	var out []string
	for line := range strings.SplitAfterSeq(stream, "\n") {
		text, whole := strings.CutSuffix(line, "\n")
		for len(text) > maxLine {
			out = append(out, "P"+text[:maxLine])
			text = text[maxLine:]
		}
		if whole {
			out = append(out, "F"+text)
		} else if text != "" {
			out = append(out, "P"+text)
		}
	}
	return out
}

func openTestLog(t testing.TB, o LogOptions) *Log {
	t.Helper()
	l, err := OpenLog(&o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestLogRecords(t *testing.T) {
	long := strings.Repeat("0123456789", 5)
	for _, c := range []struct {
		name, in string
		want     []string
	}{
		{"line", "hello\n", []string{"Fhello"}},
		{"empty line", "\n\n", []string{"F", "F"}},
		{"no newline at the end", "a\nb", []string{"Fa", "Pb"}},
		{"nothing", "", nil},
		{"carriage return stays", "a\r\n\r\n", []string{"Fa\r", "F\r"}},
		{"longer than a record", long + "\n", []string{"P" + long[:20], "P" + long[:20], "F" + long[:10]}},
		{"two records long", long[:40] + "\n", []string{"P" + long[:20], "F" + long[:20]}},
		{"a record long, no newline", long[:20], []string{"P" + long[:20]}},
		{"multi-byte", "grüße, 世界\n", []string{"Fgrüße, 世界"}},
		{"multi-byte across records", "世界世界世界世界\n", []string{"P" + "世界世界世界世界"[:20], "F" + "世界世界世界世界"[20:]}},
		{"binary", "\x00\xff\xfe \x01\n\x80", []string{"F\x00\xff\xfe \x01", "P\x80"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			noLeaks(t)
			if m := model(c.in, 20); !slices.Equal(m, c.want) {
				t.Fatalf("the model says %q, want %q", m, c.want)
			}
			for _, step := range []int{1, 3, 7, 1 << 20} {
				path := filepath.Join(t.TempDir(), "a", "b", "0.log")
				l := openTestLog(t, LogOptions{Path: path, MaxLine: 20})
				for p := []byte(c.in); len(p) > 0; p = p[min(step, len(p)):] {
					if err := l.Write(Stderr, p[:min(step, len(p))]); err != nil {
						t.Fatal(err)
					}
				}
				if err := l.Close(); err != nil {
					t.Fatal(err)
				}
				rs := readLog(t, path)
				if got := of(rs, Stderr); !slices.Equal(got, c.want) || len(rs) != len(c.want) {
					t.Errorf("in steps of %d: %q, want %q", step, got, c.want)
				}
				if st := l.Stats(); st.Lines != int64(len(c.want)) || st.Dropped != 0 {
					t.Errorf("in steps of %d: stats %+v of %d records", step, st, len(c.want))
				}
			}
		})
	}
}

func TestLogStreamsDoNotMix(t *testing.T) {
	noLeaks(t)
	path := filepath.Join(t.TempDir(), "0.log")
	before := time.Now().Add(-time.Second)
	l := openTestLog(t, LogOptions{Path: path})
	for _, w := range []struct {
		s Stream
		p string
	}{{Stdout, "out 1"}, {Stderr, "err 1\nerr"}, {Stdout, " and more\n"}, {Stderr, " 2\n"}, {Stdout, "end"}} {
		if err := l.Write(w.s, []byte(w.p)); err != nil {
			t.Fatal(err)
		}
	}
	l.Close()
	rs := readLog(t, path)
	want := []record{
		{s: Stderr, tag: 'F', text: "err 1"},
		{s: Stdout, tag: 'F', text: "out 1 and more"},
		{s: Stderr, tag: 'F', text: "err 2"},
		{s: Stdout, tag: 'P', text: "end"},
	}
	last := before
	for i, r := range rs {
		if r.at.Before(last) || r.at.After(time.Now()) {
			t.Errorf("record %d at %v, the one before at %v", i, r.at, last)
		}
		last = r.at
		rs[i].at = time.Time{}
	}
	if !slices.Equal(rs, want) {
		t.Errorf("%+v, want %+v", rs, want)
	}
}

func TestLogFile(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "new", "0.log")
	l := openTestLog(t, LogOptions{Path: path})
	st, err := os.Stat(path)
	if err != nil {
		t.Fatalf("the file must be there before the first line: %v", err)
	}
	if st.Mode().Perm() != 0o640 {
		t.Errorf("mode %v", st.Mode())
	}
	if st, _ := os.Stat(filepath.Dir(path)); st.Mode().Perm() != 0o755 {
		t.Errorf("mode of the folder %v", st.Mode())
	}
	_ = l.Write(Stdout, []byte("one\n"))
	l.Close()
	if err := l.Close(); err != nil {
		t.Errorf("second close: %v", err)
	}
	if err := l.Write(Stdout, []byte("x\n")); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("write after close: %v", err)
	}
	if err := l.Reopen(); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("reopen after close: %v", err)
	}
	l = openTestLog(t, LogOptions{Path: path})
	_ = l.Write(Stdout, []byte("two\n"))
	l.Close()
	if got := of(readLog(t, path), Stdout); !slices.Equal(got, []string{"Fone", "Ftwo"}) {
		t.Errorf("opened again: %q", got)
	}
}

func TestLogRefusesWhatIsNoFile(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	target := filepath.Join(dir, "target")
	if err := os.WriteFile(target, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	link, fifo := filepath.Join(dir, "link"), filepath.Join(dir, "fifo")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	reader, err := os.OpenFile(fifo, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for _, path := range []string{link, fifo} {
		if l, err := OpenLog(&LogOptions{Path: path}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("open %s: %v, %v", path, l, err)
		}
	}
	if _, err := OpenLog(&LogOptions{Path: dir}); err == nil {
		t.Error("a folder was opened")
	}

	// A link that takes the place of a log in use is refused as well.
	path := filepath.Join(dir, "0.log")
	l := openTestLog(t, LogOptions{Path: path})
	_ = l.Write(Stdout, []byte("before\n"))
	if err := os.Rename(path, path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(target, path); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); !errdefs.IsInvalidArgument(err) {
		t.Errorf("reopen: %v", err)
	}
	_ = l.Write(Stdout, []byte("after\n"))
	if got := of(readLog(t, path+".1"), Stdout); !slices.Equal(got, []string{"Fbefore", "Fafter"}) {
		t.Errorf("the old file must stay in use: %q", got)
	}
	if data, _ := os.ReadFile(target); string(data) != "secret" {
		t.Errorf("wrote through a link: %q", data)
	}
}

func TestLogDiscard(t *testing.T) {
	noLeaks(t)
	l, err := OpenLog(&LogOptions{})
	if err != nil {
		t.Fatal(err)
	}
	err = errors.Join(l.Write(Stdout, []byte("x\n")), l.Reopen(), l.Close())
	if st := l.Stats(); err != nil || st.Bytes != 2 {
		t.Errorf("%v, %+v", err, st)
	}
}

func TestReopenKeepsTheOldFileOnFailure(t *testing.T) {
	noLeaks(t)
	dir := t.TempDir()
	path := filepath.Join(dir, "logs", "0.log")
	l := openTestLog(t, LogOptions{Path: path})
	_ = l.Write(Stdout, []byte("one\npart"))
	// Root passes every mode: a file in the folder's place is what fails.
	if err := os.Rename(filepath.Dir(path), filepath.Join(dir, "moved")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Dir(path), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Reopen(); !errors.Is(err, syscall.ENOTDIR) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("reopen: %v", err)
	}
	_ = l.Write(Stdout, []byte("ial\n"))
	l.Close()
	if got := of(readLog(t, filepath.Join(dir, "moved", "0.log")), Stdout); !slices.Equal(got, []string{"Fone", "Fpartial"}) {
		t.Errorf("%q", got)
	}
}

func TestLogAllocatesNothingForALine(t *testing.T) {
	l := openTestLog(t, LogOptions{Path: filepath.Join(t.TempDir(), "0.log")})
	p := bytes.Repeat([]byte("a line of a usual length, as services write them: some seventy bytes..\n"), 400)
	allocs := testing.AllocsPerRun(200, func() { _ = l.Write(Stdout, p[:len(p)-10]) })
	// The race detector makes pools forget now and then.
	if allocs > 4 {
		t.Errorf("%v allocations for 400 lines", allocs)
	}
}
