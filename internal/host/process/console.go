package process

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// maxSocketPath is the longest path of a unix socket, without the final zero (unix(7)).
const maxSocketPath = 107

// listener is the socket to which the runtime sends the terminal's master.
type listener struct {
	fd   int
	dir  string
	path string
}

// listen makes the socket in a directory of its own, in the first place whose
// path is short enough.
func (h *Host) listen() (*listener, error) {
	var last error
	for _, parent := range []string{h.root, "/run", os.TempDir()} {
		if len(parent)+len("/berth-4294967295/pty") > maxSocketPath {
			continue
		}
		dir, err := os.MkdirTemp(parent, "berth-") // mode 0700
		if err != nil {
			last = err
			continue
		}
		l := &listener{dir: dir, path: filepath.Join(dir, "pty")}
		if l.fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0); err == nil {
			if err = unix.Bind(l.fd, &unix.SockaddrUnix{Name: l.path}); err == nil {
				err = unix.Listen(l.fd, 1)
			}
		}
		if err != nil {
			l.close()
			return nil, fmt.Errorf("listen for a terminal on %s: %w", l.path, err)
		}
		return l, nil
	}
	return nil, fmt.Errorf("make directory for a terminal's socket: %w", last)
}

func (l *listener) close() {
	if l.fd >= 0 {
		_ = unix.Close(l.fd)
		l.fd = -1
	}
	_ = os.RemoveAll(l.dir)
}

// receive takes the master after the runtime's call: it has been sent by then,
// and waits in the socket.
func (l *listener) receive() (*console, error) {
	conn, _, err := unix.Accept4(l.fd, unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("accept the runtime's terminal: %w", err)
	}
	defer unix.Close(conn)
	name, oob := make([]byte, 4096), make([]byte, unix.CmsgSpace(4*4))
	_, n, _, _, err := unix.Recvmsg(conn, name, oob, unix.MSG_CMSG_CLOEXEC)
	if err != nil {
		return nil, fmt.Errorf("receive the runtime's terminal: %w", err)
	}
	master := -1
	msgs, err := unix.ParseSocketControlMessage(oob[:n])
	for i := range msgs {
		fds, ferr := unix.ParseUnixRights(&msgs[i])
		err = errors.Join(err, ferr)
		for _, fd := range fds {
			if master < 0 {
				master = fd
			} else {
				_ = unix.Close(fd)
			}
		}
	}
	if master < 0 {
		return nil, fmt.Errorf("runtime sent no terminal: %w", errors.Join(err, unix.EBADMSG))
	}
	if err := unix.SetNonblock(master, true); err != nil {
		_ = unix.Close(master)
		return nil, fmt.Errorf("prepare terminal: %w", err)
	}
	return &console{f: os.NewFile(uintptr(master), "terminal")}, nil
}

// console is a terminal's master.
type console struct{ f *os.File }

// input is a second descriptor of the same terminal, so that the owner can
// close its input and go on reading.
func (c *console) input() (*os.File, error) {
	raw, err := c.f.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	var derr error
	err = raw.Control(func(master uintptr) {
		fd, derr = unix.FcntlInt(master, unix.F_DUPFD_CLOEXEC, 0)
	})
	if err = errors.Join(err, derr); err != nil {
		return nil, fmt.Errorf("duplicate terminal: %w", err)
	}
	return os.NewFile(uintptr(fd), "terminal"), nil
}

// resize sets the size in cells.
func (c *console) resize(width, height uint16) error {
	raw, err := c.f.SyscallConn()
	if err != nil {
		return err
	}
	var ierr error
	err = raw.Control(func(fd uintptr) {
		ierr = unix.IoctlSetWinsize(int(fd), unix.TIOCSWINSZ, &unix.Winsize{Row: height, Col: width})
	})
	return errors.Join(err, ierr)
}

// Read reports the end when no process has the terminal open any more, which
// Linux says as EIO.
func (c *console) Read(p []byte) (int, error) {
	n, err := c.f.Read(p)
	if errors.Is(err, unix.EIO) {
		err = io.EOF
	}
	return n, err
}

func (c *console) SetReadDeadline(t time.Time) error { return c.f.SetReadDeadline(t) }
func (c *console) Close() error                      { return c.f.Close() }
