//go:build linux

package boot

import (
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
	}
	log.L.Logger.SetOutput(w)
	if debug {
		_ = log.SetLevel("debug")
	}
}

// logWriter never blocks and never grows: a full fifo drops, a full file begins
// anew.
type logWriter struct {
	mu   sync.Mutex
	f    *os.File
	file bool
	size int64
}

func (w *logWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.file && w.size+int64(len(p)) > maxLog {
		if unix.Ftruncate(int(w.f.Fd()), 0) == nil {
			w.size = 0
		}
	}
	n, _ := w.f.Write(p)
	w.size += int64(n)
	return len(p), nil
}
