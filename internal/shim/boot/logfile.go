//go:build linux

package boot

import (
	"fmt"
	"os"
	"sync"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// maxLog is where a log file begins anew.
const maxLog = 1 << 20

// setLog sends messages to descriptor 2: containerd's log fifo, or the file
// that berthd gave.
func setLog(debug bool) {
	w := &logWriter{f: os.Stderr}
	var st unix.Stat_t
	if unix.Fstat(2, &st) == nil {
		w.file = st.Mode&unix.S_IFMT == unix.S_IFREG
		w.size = st.Size
		if st.Mode&unix.S_IFMT == unix.S_IFIFO {
			// Whoever opened it may have made it blocking on the way.
			w.fifo = unix.SetNonblock(2, true) == nil
		}
	}
	log.L.Logger.SetOutput(w)
	if debug {
		_ = log.SetLevel("debug")
	}
}

// logWriter never blocks and never grows: a full fifo drops, and tells how much
// once it has room; a full file begins anew.
type logWriter struct {
	mu         sync.Mutex
	f          *os.File
	file, fifo bool
	size       int64 // of the file
	dropped    int   // messages that the fifo had no room for
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file && w.size+int64(len(p)) > maxLog {
		if unix.Ftruncate(int(w.f.Fd()), 0) == nil {
			w.size = 0
		}
	}
	if w.fifo {
		w.offer(p)
		return len(p), nil
	}
	n, _ := w.f.Write(p)
	w.size += int64(n)
	return len(p), nil
}

// offer writes past the runtime's poller, which would wait for room.
func (w *logWriter) offer(p []byte) {
	if w.dropped > 0 {
		p = append(fmt.Appendf(nil, "%d messages dropped: nobody read them\n", w.dropped), p...)
	}
	for {
		_, err := unix.Write(2, p)
		switch err {
		case unix.EINTR:
			continue
		case nil:
			w.dropped = 0
		default:
			w.dropped++
		}
		return
	}
}
