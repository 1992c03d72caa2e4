package ocispec

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// maxUserFile bounds /etc/passwd and /etc/group of an image, which are an
// image author's to write. Real ones are a few KiB.
const maxUserFile = 4 << 20

// maxID is the highest user or group id: runc takes ids as signed 32 bit.
const maxID = math.MaxInt32

// passwdEntry is what matters of a line of /etc/passwd.
type passwdEntry struct {
	name     string
	uid, gid uint32
}

// findUser returns the first entry of a passwd file that match accepts. Lines
// that are no entry, or whose ids are no ids, are passed over: a broken line
// must never become uid 0.
func findUser(data []byte, match func(name string, uid uint32) bool) (passwdEntry, bool) {
	for line := range bytes.Lines(data) {
		f := bytes.SplitN(bytes.TrimSpace(line), []byte{':'}, 5)
		if len(f) < 4 || len(f[0]) == 0 || f[0][0] == '#' {
			continue
		}
		uid, ok1 := parseID(string(f[2]))
		gid, ok2 := parseID(string(f[3]))
		if name := string(f[0]); ok1 && ok2 && match(name, uid) {
			return passwdEntry{name, uid, gid}, true
		}
	}
	return passwdEntry{}, false
}

// eachGroup calls f for the entries of a group file until f says false.
func eachGroup(data []byte, f func(name string, gid uint32, members []byte) bool) {
	for line := range bytes.Lines(data) {
		l := bytes.SplitN(bytes.TrimSpace(line), []byte{':'}, 4)
		if len(l) < 3 || len(l[0]) == 0 || l[0][0] == '#' {
			continue
		}
		gid, ok := parseID(string(l[2]))
		if !ok {
			continue
		}
		var members []byte
		if len(l) == 4 {
			members = l[3]
		}
		if !f(string(l[0]), gid, members) {
			return
		}
	}
}

// findGroup returns the id of a group by name.
func findGroup(data []byte, name string) (id uint32, found bool) {
	eachGroup(data, func(n string, gid uint32, _ []byte) bool {
		if n == name {
			id, found = gid, true
		}
		return !found
	})
	return id, found
}

// groupsOf returns the ids of the groups that list the user as a member. A
// group that has the user's own name is the primary one and does not count,
// as in containerd.
func groupsOf(data []byte, user string) []uint32 {
	var ids []uint32
	eachGroup(data, func(n string, gid uint32, members []byte) bool {
		if n == user {
			return true
		}
		for m := range bytes.SplitSeq(members, []byte{','}) {
			if string(m) == user {
				ids = append(ids, gid)
				break
			}
		}
		return true
	})
	return ids
}

// parseID takes a decimal user or group id.
func parseID(s string) (uint32, bool) {
	if s == "" || s[0] < '0' || s[0] > '9' {
		return 0, false
	}
	n, err := strconv.ParseUint(s, 10, 32)
	if err != nil || n > maxID {
		return 0, false
	}
	return uint32(n), true
}

// readUserFile reads a file of an image's root file system. A missing file is
// fs.ErrNotExist; anything but a regular file of bounded size is an error.
func readUserFile(root *os.Root, name string) ([]byte, error) {
	at, err := resolveInRoot(root, name)
	if err != nil {
		return nil, err
	}
	// Looked at before it is opened: opening a device node of an image can do
	// things. Nonblocking, in case it is a FIFO by then.
	if fi, err := root.Lstat(at); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("/%s of the image is not a regular file", name)
	}
	f, err := root.OpenFile(at, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	fi, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !fi.Mode().IsRegular() {
		return nil, fmt.Errorf("/%s of the image is not a regular file", name)
	}
	buf := bytes.NewBuffer(make([]byte, 0, min(fi.Size(), maxUserFile)+bytes.MinRead))
	if _, err := buf.ReadFrom(io.LimitReader(f, maxUserFile+1)); err != nil {
		return nil, fmt.Errorf("read /%s of the image: %w", name, err)
	}
	if buf.Len() > maxUserFile {
		return nil, fmt.Errorf("/%s of the image is larger than %d bytes", name, maxUserFile)
	}
	return buf.Bytes(), nil
}

// resolveInRoot follows symlinks as a process inside the root would see them.
// os.Root refuses absolute links, which images do have (/etc/passwd -> /usr/…),
// so they are followed here; os.Root still guards every step.
func resolveInRoot(root *os.Root, name string) (string, error) {
	fi, err := root.Lstat(name)
	if err == nil && fi.Mode()&fs.ModeSymlink == 0 {
		return name, nil // the usual case
	}
	var done string
	todo := strings.Split(name, "/")
	for links := 0; len(todo) > 0; {
		next := path.Join(done, todo[0]) // ".." ends at the root: see path.Join below
		todo = todo[1:]
		if next = strings.TrimPrefix(path.Join("/", next), "/"); next == "" {
			done = ""
			continue
		}
		fi, err := root.Lstat(next)
		if err != nil {
			return "", err
		}
		if fi.Mode()&fs.ModeSymlink == 0 {
			done = next
			continue
		}
		if links++; links > 40 { // as the kernel
			return "", &fs.PathError{Op: "resolve", Path: name, Err: unix.ELOOP}
		}
		to, err := root.Readlink(next)
		if err != nil {
			return "", err
		}
		if path.IsAbs(to) {
			done = ""
		}
		todo = slices.Concat(strings.Split(to, "/"), todo)
	}
	if done == "" {
		done = "."
	}
	return done, nil
}

// missing says that there is no such file, also when a directory on the way
// is none.
func missing(err error) bool {
	return errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR)
}
