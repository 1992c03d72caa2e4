//go:build unix

package stdio

import (
	"errors"
	"os"
	"syscall"
)

// openNoFollow opens a log file. O_NONBLOCK keeps the open of a FIFO that
// stands in the log's place from waiting for a reader.
func openNoFollow(path string) (*os.File, error) {
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE|syscall.O_NOFOLLOW|syscall.O_NONBLOCK, logMode)
}

func isSymlink(err error) bool { return errors.Is(err, syscall.ELOOP) }
