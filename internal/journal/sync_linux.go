package journal

import (
	"os"

	"golang.org/x/sys/unix"
)

// fdatasync leaves the times out, which nobody reads: one disk write less.
func fdatasync(f *os.File) error {
	for {
		if err := unix.Fdatasync(int(f.Fd())); err != unix.EINTR {
			return err
		}
	}
}

// allocate gives the file blocks without changing its size. File systems that
// cannot do that do without.
func allocate(f *os.File, off, n int64) error {
	for {
		switch err := unix.Fallocate(int(f.Fd()), unix.FALLOC_FL_KEEP_SIZE, off, n); err {
		case unix.EINTR:
		case unix.EOPNOTSUPP, unix.ENOSYS:
			return nil
		default:
			return err
		}
	}
}
