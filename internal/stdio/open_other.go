//go:build !unix

package stdio

import (
	"errors"
	"io/fs"
	"os"
)

var errSymlink = errors.New("is a symbolic link")

// openNoFollow opens a log file. Without O_NOFOLLOW the check comes first: who
// can swap the file in between can write the log anyway.
func openNoFollow(path string) (*os.File, error) {
	if st, err := os.Lstat(path); err == nil && st.Mode()&fs.ModeSymlink != 0 {
		return nil, errSymlink
	}
	return os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, logMode)
}

func isSymlink(err error) bool { return errors.Is(err, errSymlink) }
