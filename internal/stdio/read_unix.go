//go:build unix

package stdio

import (
	"io"
	"os"
	"syscall"
)

// lazyReader reads a file of the runtime's poller. It takes a buffer for the
// moment of the read only; between reads it waits in the poller.
type lazyReader struct {
	f    *os.File
	conn syscall.RawConn
	try  func(fd uintptr) bool // made once, so that a read allocates nothing
	buf  *[]byte
	n    int
	err  error
}

// newLazyReader returns nil for what is no file.
func newLazyReader(r any) *lazyReader {
	f, ok := r.(*os.File)
	if !ok {
		return nil
	}
	conn, err := f.SyscallConn()
	if err != nil {
		return nil
	}
	l := &lazyReader{f: f, conn: conn}
	l.try = l.read
	return l
}

func (l *lazyReader) read(fd uintptr) bool {
	l.buf = readPool.Get().(*[]byte)
	for {
		l.n, l.err = syscall.Read(int(fd), *l.buf)
		if l.err != syscall.EINTR {
			break
		}
	}
	if l.n > 0 {
		return true
	}
	l.n = 0
	readPool.Put(l.buf)
	l.buf = nil
	return l.err != syscall.EAGAIN
}

// next is reader.next.
func (l *lazyReader) next() (*[]byte, int, error) {
	l.buf, l.n, l.err = nil, 0, nil
	if err := l.conn.Read(l.try); err != nil {
		// A raw connection does not say os.ErrClosed; the file does.
		if _, e := l.f.Read(nil); e != nil {
			err = e
		}
		return nil, 0, err
	}
	buf := l.buf
	l.buf = nil
	switch {
	case l.n > 0:
		return buf, l.n, nil
	case l.err == nil || l.err == syscall.EIO:
		// EIO is how a terminal tells that its last process is gone.
		return nil, 0, io.EOF
	default:
		return nil, 0, os.NewSyscallError("read", l.err)
	}
}
