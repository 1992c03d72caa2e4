package stats

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// descriptors are the open files of a container's processes, and how many its
// first process may open.
type descriptors struct{ files, sockets, limit uint64 }

// descriptors looks through the processes of a cgroup. Those that end meanwhile
// are not counted.
func (h *hierarchy) descriptors(path string, init int) descriptors {
	buf := buffers.Get().(*[]byte)
	defer buffers.Put(buf)
	controller := ""
	if !h.unified {
		controller = "pids"
		if _, ok := h.dirs[controller]; !ok {
			controller = "memory"
		}
	}
	d, ok := h.open(controller, path, *buf)
	if !ok {
		return descriptors{}
	}
	pids := d.pids()
	d.close()
	var out descriptors
	for _, pid := range pids {
		folder := fmt.Sprintf("/proc/%d/fd", pid)
		f, err := os.Open(folder)
		if err != nil {
			continue
		}
		names, _ := f.Readdirnames(-1)
		f.Close()
		out.files += uint64(len(names))
		for _, name := range names {
			if to, err := os.Readlink(folder + "/" + name); err == nil && strings.HasPrefix(to, "socket:") {
				out.sockets++
			}
		}
	}
	if init > 0 {
		out.limit = openFilesLimit(init)
	}
	return out
}

// openFilesLimit is a process's soft limit of open files.
func openFilesLimit(pid int) uint64 {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/limits", pid))
	if err != nil {
		return 0
	}
	for line := range bytes.SplitSeq(b, []byte("\n")) {
		rest, ok := bytes.CutPrefix(line, []byte("Max open files"))
		if !ok {
			continue
		}
		f := bytes.Fields(rest)
		if len(f) == 0 {
			return 0
		}
		if string(f[0]) == "unlimited" {
			return math.MaxUint64
		}
		v, _ := parseUint(f[0])
		return v
	}
	return 0
}

// filesystem is the one that writable layers are on.
type filesystem struct {
	device                   string
	major, minor             uint64
	size, inodes, inodesFree uint64
}

// statFilesystem is empty when path cannot be looked at.
func statFilesystem(path string) filesystem {
	var f filesystem
	var st unix.Stat_t
	if unix.Stat(path, &st) == nil {
		f.major, f.minor = uint64(unix.Major(st.Dev)), uint64(unix.Minor(st.Dev))
		f.device = deviceName(f.major, f.minor)
	}
	var fs unix.Statfs_t
	if unix.Statfs(path, &fs) == nil {
		f.size = fs.Blocks * uint64(fs.Bsize)
		f.inodes, f.inodesFree = fs.Files, fs.Ffree
	}
	return f
}

// deviceName is a block device's path, or its number when it has none here.
func deviceName(major, minor uint64) string {
	number := strconv.FormatUint(major, 10) + ":" + strconv.FormatUint(minor, 10)
	if to, err := os.Readlink("/sys/dev/block/" + number); err == nil {
		return "/dev/" + filepath.Base(to)
	}
	return number
}
