//go:build linux

package stdio

import (
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// FuzzLog writes any bytes in any pieces to both streams, with reopens and own
// rotation at any moment: the records of all files must be the model's, and so
// join to the input.
func FuzzLog(f *testing.F) {
	f.Add([]byte("hello\nworld"), []byte{3, 0x83, 7, 0xff, 1}, uint8(4), false)
	f.Add([]byte("\n\n\x00\r\n"), []byte{1, 1, 1}, uint8(0), true)
	f.Add([]byte("aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"), []byte{200, 64, 0}, uint8(1), true)
	f.Fuzz(func(t *testing.T, data, steps []byte, maxLine uint8, own bool) {
		dir := t.TempDir()
		path := filepath.Join(dir, "0.log")
		o := LogOptions{Path: path, MaxLine: int(maxLine) + 1}
		if own {
			o.MaxSize, o.MaxFiles = 100, 1<<20
		}
		l, err := OpenLog(&o)
		if err != nil {
			t.Fatal(err)
		}
		var in [2][]byte
		var names []string
		// A step's low bits are a length, bit 7 the stream, bit 6 a reopen.
		for i := 0; len(data) > 0; i++ {
			step := byte(5)
			if len(steps) > 0 {
				step = steps[i%len(steps)]
			}
			p := data[:min(len(data), int(step&0x3f)+1)]
			data = data[len(p):]
			s := Stream(step >> 7)
			in[s] = append(in[s], p...)
			if err := l.Write(s, p); err != nil {
				t.Fatal(err)
			}
			if step&0x40 != 0 {
				name := filepath.Join(dir, strconv.Itoa(i))
				if err := os.Rename(path, name); err != nil {
					t.Fatal(err)
				}
				names = append(names, name)
				if err := l.Reopen(); err != nil {
					t.Fatal(err)
				}
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
		var rs []record
		if own {
			// Files of own rotation and of reopens interleave; their records'
			// order is that of their stamps, and of lines within a file.
			rs = ordered(t, dir)
		} else {
			for _, n := range append(names, path) {
				rs = append(rs, readLog(t, n)...)
			}
		}
		for _, s := range []Stream{Stdout, Stderr} {
			if got, want := of(rs, s), model(string(in[s]), o.MaxLine); !slices.Equal(got, want) {
				t.Fatalf("%v: %q, want %q", s, got, want)
			}
		}
		if st := l.Stats(); st.Lines != int64(len(rs)) || st.Dropped != 0 {
			t.Errorf("stats %+v of %d records", st, len(rs))
		}
	})
}

// ordered reads all files of a folder, sorted by the time of their first record.
func ordered(t *testing.T, dir string) []record {
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var files [][]record
	for _, e := range entries {
		if rs := readLog(t, filepath.Join(dir, e.Name())); len(rs) > 0 {
			files = append(files, rs)
		}
	}
	slices.SortStableFunc(files, func(a, b []record) int { return a[0].at.Compare(b[0].at) })
	return slices.Concat(files...)
}
