package journal

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"testing"
)

const id = "0123abcd"

func lines(n int) [][]byte {
	var ls [][]byte
	for i := range n {
		ls = append(ls, fmt.Appendf(nil, `{"fact":"holds","n":%d}`, i))
	}
	return ls
}

func create(t *testing.T, ls [][]byte) (dir string) {
	t.Helper()
	dir = t.TempDir()
	j, err := Create(dir, id, ls[0])
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range ls[1:] {
		if err := j.Append(false, l); err != nil {
			t.Fatal(err)
		}
	}
	if err := j.Close(); err != nil {
		t.Fatal(err)
	}
	return dir
}

func TestRoundTrip(t *testing.T) {
	ls := lines(5)
	dir := create(t, ls)
	if _, err := Create(dir, id); !errors.Is(err, os.ErrExist) {
		t.Errorf("Create over a journal: %v, want ErrExist", err)
	}
	j, got, err := Open(dir, id)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(ls) || !bytes.Equal(got[4], ls[4]) {
		t.Errorf("got %q, want %q", got, ls)
	}
	if err := j.Append(true, []byte(`{}`)); err != nil {
		t.Fatal(err)
	}
	if n, syncs := j.Counts(); n != 6 || syncs != 1 {
		t.Errorf("Counts = %d, %d, want 6, 1", n, syncs)
	}
	if ids, err := List(dir); err != nil || len(ids) != 1 || ids[0] != id {
		t.Errorf("List = %v, %v", ids, err)
	}
	if err := j.Remove(); err != nil {
		t.Fatal(err)
	}
	if err := j.Remove(); err != nil {
		t.Errorf("second Remove: %v", err)
	}
	if ids, _ := List(dir); len(ids) != 0 {
		t.Errorf("List after Remove = %v", ids)
	}
}

// A journal cut at any byte opens without error and with a prefix of its lines,
// and can be appended to.
func TestCutAnywhere(t *testing.T) {
	ls := lines(4)
	dir := create(t, ls)
	path := filepath.Join(dir, id)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		if err := os.WriteFile(path, whole[:n], 0o600); err != nil {
			t.Fatal(err)
		}
		j, got, err := Open(dir, id)
		if err != nil {
			t.Fatalf("cut at %d: %v", n, err)
		}
		for i, l := range got {
			if !bytes.Equal(l, ls[i]) {
				t.Fatalf("cut at %d: line %d is %q", n, i, l)
			}
		}
		if err := j.Append(true, []byte(`{"after":1}`)); err != nil {
			t.Fatal(err)
		}
		j.Close()
		j, again, err := Open(dir, id)
		if err != nil || len(again) != len(got)+1 {
			t.Fatalf("cut at %d, appended: %d lines, %v; want %d", n, len(again), err, len(got)+1)
		}
		j.Close()
	}
}

// A journal with any byte flipped never yields a line that was not written: it
// gives a prefix, says it is damaged (unless the flip made the last line look
// torn), and stays usable.
func TestFlipAnywhere(t *testing.T) {
	ls := lines(4)
	dir := create(t, ls)
	path := filepath.Join(dir, id)
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for n := range whole {
		b := bytes.Clone(whole)
		b[n] ^= 0x55
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		j, got, err := Open(dir, id)
		if n < len(whole)-1 && !errors.Is(err, ErrDamaged) {
			t.Fatalf("flip at %d: %v, want ErrDamaged", n, err)
		}
		if len(got) >= len(ls) {
			t.Fatalf("flip at %d went unseen", n)
		}
		for i, l := range got {
			if !bytes.Equal(l, ls[i]) {
				t.Fatalf("flip at %d: line %d is %q", n, i, l)
			}
		}
		if j == nil {
			t.Fatalf("flip at %d: no journal to go on with", n)
		}
		if err := j.Append(true, []byte(`{"after":1}`)); err != nil {
			t.Fatal(err)
		}
		j.Close()
		if j, again, err := Open(dir, id); err != nil || len(again) != len(got)+1 {
			t.Fatalf("flip at %d, appended: %d lines, %v", n, len(again), err)
		} else {
			j.Close()
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(magic + id + "\n"))
	f.Add([]byte(magic + id + "\n00000000 {}\n"))
	f.Fuzz(func(t *testing.T, b []byte) {
		ls, good, _ := parse(b, id)
		if good > len(b) {
			t.Fatalf("good = %d of %d bytes", good, len(b))
		}
		again, good2, bad := parse(b[:good], id)
		if bad != nil || good2 != good || len(again) != len(ls) {
			t.Fatalf("the good part does not parse as itself: %v", bad)
		}
	})
}
