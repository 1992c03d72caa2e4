package stdio

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

const (
	// A reader that is there takes what is left at once; one that is away may
	// take minutes. The time between two looks doubles.
	lingerMin  = time.Millisecond
	lingerStep = 100 * time.Millisecond
	lingerMax  = 10 * time.Minute
)

// openPath opens what containerd names by a bare path: a FIFO, or else a file
// that exists.
func openPath(path string) (io.WriteCloser, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if st.Mode()&fs.ModeNamedPipe == 0 {
		return os.OpenFile(path, os.O_WRONLY|os.O_APPEND, 0)
	}
	return openFIFO(path)
}

// fifo is the writing end of a FIFO, with a reading end so that it never
// breaks. Writes wait in the runtime's poller.
type fifo struct {
	w *os.File
	r int // never read, and out of the poller: it would wake for every write
}

func openFIFO(path string) (*fifo, error) {
	r, err := openHalf(path, unix.O_RDONLY)
	if err != nil {
		return nil, err
	}
	w, err := openHalf(path, unix.O_WRONLY)
	if err != nil {
		unix.Close(r)
		return nil, err
	}
	return &fifo{w: os.NewFile(uintptr(w), path), r: r}, nil
}

// openHalf opens one end of a FIFO without waiting for the other.
func openHalf(path string, mode int) (int, error) {
	for {
		fd, err := unix.Open(path, mode|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == unix.EINTR {
			continue
		}
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: path, Err: err}
		}
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || st.Mode&unix.S_IFMT != unix.S_IFIFO {
			unix.Close(fd)
			return -1, fmt.Errorf("%s is no FIFO: %w", path, errdefs.ErrFailedPrecondition)
		}
		return fd, nil
	}
}

func (f *fifo) Write(p []byte) (int, error) { return f.w.Write(p) }

// Close ends the stream for the reader. A FIFO whose last end is closed forgets
// what it holds, and one without a writer lets no new reader in: so both ends
// stay until somebody has read it, and then the reader gets its end.
func (f *fifo) Close() error {
	// A Write that is under way ends, and there is none after.
	err := f.w.SetWriteDeadline(time.Unix(1, 0))
	f.linger(lingerMin, time.Now().Add(lingerMax))
	return err
}

func (f *fifo) linger(step time.Duration, until time.Time) {
	n, err := unix.IoctlGetInt(f.r, unix.TIOCINQ)
	if err != nil || n == 0 || time.Now().After(until) {
		f.w.Close()
		unix.Close(f.r)
		return
	}
	time.AfterFunc(step, func() { f.linger(min(2*step, lingerStep), until) })
}

// openSource opens a FIFO for reading, and holds its writing end open.
func openSource(path string) (*os.File, io.Closer, error) {
	r, err := openHalf(path, unix.O_RDONLY)
	if err != nil {
		return nil, nil, err
	}
	w, err := openHalf(path, unix.O_WRONLY)
	if err != nil {
		unix.Close(r)
		return nil, nil, err
	}
	return os.NewFile(uintptr(r), path), heldEnd(w), nil
}

// heldEnd is an end of a FIFO that is only held, out of the poller.
type heldEnd int

func (h heldEnd) Close() error { return os.NewSyscallError("close", unix.Close(int(h))) }
