package ocispec

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
)

// pathArg0 is the name under which a binary runs as a path helper.
const pathArg0 = "berth-paths"

// hooked says that this binary can run as a path helper.
var hooked atomic.Bool

// PathMain must be called first in the main of every binary that calls Build
// with the default prober. In a process that was started as a path helper it
// does that work and does not return.
func PathMain() {
	hooked.Store(true)
	if len(os.Args) == 0 || os.Args[0] != pathArg0 {
		return
	}
	servePaths(os.Stdin, os.Stdout)
	os.Exit(0)
}

// pathReply answers for one path.
type pathReply struct {
	Info PathInfo `json:"info"`
	// Error is empty on success; Invalid tells the caller's mistake from trouble.
	Error   string `json:"error,omitempty"`
	Invalid bool   `json:"invalid,omitempty"`
}

// servePaths answers lists of paths, a reply for each path, in order and up to
// the first error, until the input ends. That ends the process at once, also
// while a path hangs: the daemon is gone.
func servePaths(in io.Reader, out io.Writer) {
	requests := make(chan []HostPath)
	go func() {
		for d := json.NewDecoder(in); ; {
			var list []HostPath
			if err := d.Decode(&list); err != nil {
				os.Exit(0)
			}
			requests <- list
		}
	}()
	e := json.NewEncoder(out)
	for list := range requests {
		for _, p := range list {
			var r pathReply
			info, err := lookAtPath(&p)
			if err != nil {
				r.Error, r.Invalid = err.Error(), callersFault(err)
			} else {
				r.Info = *info
			}
			if e.Encode(&r) != nil {
				return
			}
			if err != nil {
				break
			}
		}
	}
}

// callersFault says that the path is wrong, rather than the file system ill.
func callersFault(err error) bool {
	for _, e := range []error{errNoDevice, errNotRegular, errTooLarge, unix.ENOENT, unix.ENOTDIR, unix.EEXIST, unix.ELOOP, unix.ENAMETOOLONG, unix.EINVAL, unix.EISDIR} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

// lookAtPath does what is wanted of one path. Every call in it may hang.
func lookAtPath(p *HostPath) (*PathInfo, error) {
	if p.Use == UseMount {
		if _, err := os.Stat(p.Path); errors.Is(err, os.ErrNotExist) {
			if err := os.MkdirAll(p.Path, 0o755); err != nil {
				return nil, err
			}
		} else if err != nil {
			return nil, err
		}
	}
	source, err := filepath.EvalSymlinks(p.Path)
	if err != nil {
		return nil, err
	}
	info := &PathInfo{Source: source}
	switch p.Use {
	case UseDevice:
		info.Devices, err = listDevices(source, p.Target)
	case UseFile:
		info.Data, err = readBounded(source, p.MaxSize)
	}
	if err != nil {
		return nil, err
	}
	if p.Label != "" {
		if err := relabel(source, p.Label); err != nil {
			return nil, err
		}
	}
	if p.Propagation {
		if err := info.lookUpMount(); err != nil {
			return nil, err
		}
	}
	return info, nil
}

// lookUpMount finds the mount that Source is on: of those at the longest path
// above it, the one mounted last.
func (i *PathInfo) lookUpMount() error {
	mounts, err := mountinfo.GetMounts(mountinfo.ParentsFilter(i.Source))
	if err != nil {
		return err
	}
	var at *mountinfo.Info
	for _, m := range mounts {
		if at == nil || len(m.Mountpoint) >= len(at.Mountpoint) {
			at = m
		}
	}
	if at == nil {
		return fmt.Errorf("%s is on no mount", i.Source)
	}
	i.MountPoint = at.Mountpoint
	for f := range strings.FieldsSeq(at.Optional) {
		i.Shared = i.Shared || strings.HasPrefix(f, "shared:")
		i.Slave = i.Slave || strings.HasPrefix(f, "master:")
	}
	return nil
}

var (
	errNotRegular = errors.New("not a regular file")
	errTooLarge   = errors.New("file is too large")
)

// readBounded reads a regular file. It does not wait for a FIFO's writer.
func readBounded(path string, limit int64) ([]byte, error) {
	// Before it is opened, because opening a device can do things, and after,
	// because it may be another file by then.
	if fi, err := os.Stat(path); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() {
		return nil, errNotRegular
	}
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	if fi, err := f.Stat(); err != nil {
		return nil, err
	} else if !fi.Mode().IsRegular() {
		return nil, errNotRegular
	}
	data, err := io.ReadAll(io.LimitReader(f, limit+1))
	if err != nil {
		return nil, err
	}
	if int64(len(data)) > limit {
		return nil, fmt.Errorf("%w: more than %d bytes", errTooLarge, limit)
	}
	return data, nil
}
