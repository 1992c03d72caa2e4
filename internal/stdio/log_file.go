package stdio

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/containerd/errdefs"
)

const (
	logMode = 0o640
	dirMode = 0o755
	// rotatedFormat names the files own rotation leaves: <path>.<this>. Names
	// sort by age, and the kubelet takes them for rotated logs.
	rotatedFormat = "20060102-150405.000000000"
)

// openLogFile opens a log file for appending and tells its size.
func openLogFile(path string) (*os.File, int64, error) {
	f, err := openNoFollow(path)
	if errors.Is(err, fs.ErrNotExist) {
		if err = os.MkdirAll(filepath.Dir(path), dirMode); err == nil {
			f, err = openNoFollow(path)
		}
	}
	if err != nil {
		if isSymlink(err) {
			return nil, 0, fmt.Errorf("open log %s: is a symbolic link: %w", path, errdefs.ErrInvalidArgument)
		}
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	st, err := f.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%s is not a regular file: %w", path, errdefs.ErrInvalidArgument)
	}
	if err != nil {
		f.Close()
		return nil, 0, fmt.Errorf("open log: %w", err)
	}
	return f, st.Size(), nil
}

// Reopen opens the log's path again, after somebody renamed the file: opens,
// switches, closes the old file. Records up to the switch are in the old file,
// all others in the new one. On an error the old file stays in use.
// FailedPrecondition after Close.
func (l *Log) Reopen() error {
	if l.opts.Path == "" {
		return nil
	}
	f, size, err := openLogFile(l.opts.Path)
	if err != nil {
		return fmt.Errorf("reopen, the old file stays in use: %w", err)
	}
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		f.Close()
		return fmt.Errorf("reopen log %s: closed: %w", l.opts.Path, errdefs.ErrFailedPrecondition)
	}
	old := l.file
	l.use(f, size)
	l.mu.Unlock()
	l.reopens.Add(1)
	// What closing reports is of no use to the caller: the switch is done.
	old.Close()
	return nil
}

// use switches to an opened file. mu is held.
func (l *Log) use(f *os.File, size int64) {
	l.torn = l.torn && sameFile(l.file, f)
	l.file, l.size, l.rotate = f, size, l.opts.MaxSize
}

func sameFile(a, b *os.File) bool {
	x, err := a.Stat()
	if err != nil {
		return false
	}
	y, err := b.Stat()
	return err == nil && os.SameFile(x, y)
}

// Close writes what streams left without a newline, and closes the file.
func (l *Log) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil
	}
	l.closed = true
	if l.file == nil {
		return nil
	}
	l.finish(Stdout)
	l.finish(Stderr)
	return l.file.Close()
}

// rotateFor starts a new file when n more bytes would make this one longer
// than MaxSize. When that fails the old file stays, and the next try comes
// after another MaxSize. mu is held.
func (l *Log) rotateFor(n int) {
	if l.opts.MaxSize <= 0 || l.size == 0 || l.size+int64(n) <= l.rotate {
		return
	}
	path := l.opts.Path
	aside := path + "." + time.Now().UTC().Format(rotatedFormat)
	if err := os.Rename(path, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		l.rotate = l.size + l.opts.MaxSize
		return
	}
	f, size, err := openLogFile(path)
	if err != nil {
		// Best effort: readers look for the file in use at path.
		_ = os.Rename(aside, path)
		l.rotate = l.size + l.opts.MaxSize
		return
	}
	old := l.file
	l.use(f, size)
	old.Close()
	l.prune()
}

// prune removes the oldest files of own rotation beyond MaxFiles. Only names
// that own rotation gives are touched, compressed or not.
func (l *Log) prune() {
	dir, base := filepath.Split(l.opts.Path)
	entries, err := os.ReadDir(filepath.Clean(dir))
	if err != nil {
		return // the next rotation tries again
	}
	var rotated []string
	for _, e := range entries {
		stamp, ok := strings.CutPrefix(e.Name(), base+".")
		if !ok {
			continue
		}
		if _, err := time.Parse(rotatedFormat, strings.TrimSuffix(stamp, ".gz")); err == nil {
			rotated = append(rotated, e.Name())
		}
	}
	slices.Sort(rotated)
	for len(rotated) > l.opts.MaxFiles-1 {
		_ = os.Remove(filepath.Join(dir, rotated[0]))
		rotated = rotated[1:]
	}
}
