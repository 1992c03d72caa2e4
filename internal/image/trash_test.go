package image

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"
)

// A daemon killed while it tried out a mount leaves that; the next one takes it
// away.
func TestInterruptedProbeGoes(t *testing.T) {
	root := t.TempDir()
	first, err := New(t.Context(), &Config{Root: root})
	if err != nil {
		t.Fatal(err)
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	var trash string
	filepath.WalkDir(root, func(path string, e fs.DirEntry, err error) error {
		if err == nil && e.Name() == "trash" {
			trash = path
		}
		return nil
	})
	if trash == "" {
		t.Fatal("no folder of what is to be deleted")
	}
	probe := filepath.Join(trash, probePrefix+"1")
	merged := filepath.Join(probe, "merged")
	if err := os.MkdirAll(merged, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("probe", merged, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(merged, unix.MNT_DETACH) })
	open(t, Config{Root: root})
	eventually(t, "the probe is gone", func() bool {
		_, err := os.Stat(probe)
		return errors.Is(err, fs.ErrNotExist)
	})
}
