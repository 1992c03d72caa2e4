package journal

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A full disk refuses a new journal, and takes what the pods that exist still
// have to say.
func TestFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := unix.Mount("small", dir, "tmpfs", 0, "size=256k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) })
	j, err := Create(dir, id, lines(1)...)
	if err != nil {
		t.Fatal(err)
	}
	defer j.Close()
	fill, err := os.Create(filepath.Join(dir, "fill.x"))
	if err != nil {
		t.Fatal(err)
	}
	defer fill.Close()
	for err == nil {
		_, err = fill.Write(make([]byte, 4096))
	}
	if !errors.Is(err, unix.ENOSPC) {
		t.Fatal(err)
	}
	if _, err := Create(dir, "another", lines(1)...); !errors.Is(err, unix.ENOSPC) {
		t.Errorf("a new journal on a full disk: %v, want ENOSPC", err)
	}
	const more = 200
	for i, l := range lines(more) {
		if err := j.Append(true, l); err != nil {
			t.Fatalf("line %d on a full disk: %v", i, err)
		}
	}
	// The reserve has an end: the failed line leaves nothing, and once there is
	// room again all goes on.
	n := more + 1
	for ; err == nil || n == more+1; n++ {
		if err = j.Append(true, make([]byte, 1000)); err != nil {
			break
		}
	}
	if err := os.Remove(filepath.Join(dir, "fill.x")); err != nil {
		t.Fatal(err)
	}
	fill.Close()
	if err := j.Append(true, []byte("{}")); err != nil {
		t.Fatal(err)
	}
	if ls, err := Read(dir, id); err != nil || len(ls) != n+1 {
		t.Errorf("%d lines, %v; want %d", len(ls), err, n+1)
	}
	if ids, err := List(dir); err != nil || len(ids) != 1 {
		t.Errorf("journals %v, %v; the refused one must leave nothing", ids, err)
	}
}
