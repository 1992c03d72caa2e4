package ocispec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const allAccess = "rwm"

// devices sets the device nodes and what the device cgroup allows: nothing but
// what is listed (and what every OCI runtime adds: null, zero, full, random,
// urandom, tty, ptmx, pts). A privileged container gets all of the host's.
func (b *builder) devices(context.Context) error {
	l := b.spec.Linux
	rules := []specs.LinuxDeviceCgroup{{Allow: false, Access: allAccess}}
	byPath := map[string]int{}
	add := func(d specs.LinuxDevice) {
		if i, ok := byPath[d.Path]; ok {
			l.Devices[i] = d
			return
		}
		byPath[d.Path] = len(l.Devices)
		l.Devices = append(l.Devices, d)
	}
	if b.privileged && !b.PrivilegedWithoutHostDevices {
		rules = []specs.LinuxDeviceCgroup{{Allow: true, Access: allAccess}}
		// /dev is the kernel's own; it does not hang.
		host, err := listDevices("/dev", "/dev")
		if err != nil {
			return fmt.Errorf("list the host's devices: %w", err)
		}
		for _, d := range host {
			add(d)
		}
	}
	for i, d := range b.Container.GetDevices() {
		for _, node := range b.paths.devices[i] {
			add(node)
			rules = append(rules, specs.LinuxDeviceCgroup{
				Allow: true, Type: node.Type, Major: &node.Major, Minor: &node.Minor,
				Access: cmp.Or(d.GetPermissions(), allAccess),
			})
		}
	}
	l.Resources.Devices = rules
	return nil
}

// errNoDevice is a path that is no device and no directory.
var errNoDevice = errors.New("not a device")

// listDevices describes the device at path, or those below it when it is a
// directory, at the same places below target.
func listDevices(path, target string) ([]specs.LinuxDevice, error) {
	fi, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !fi.IsDir() {
		d, err := device(path, target)
		if err != nil {
			return nil, err
		}
		return []specs.LinuxDevice{*d}, nil
	}
	entries, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	var list []specs.LinuxDevice
	for _, e := range entries {
		from, to := filepath.Join(path, e.Name()), filepath.Join(target, e.Name())
		switch {
		case e.IsDir():
			switch e.Name() {
			// Each container has its own of the first four; the others hold no
			// devices but links and mounts of managers.
			case "pts", "shm", "mqueue", "fd", ".lxc", ".lxd-mounts", ".udev":
				continue
			}
			below, err := listDevices(from, to)
			if errors.Is(err, fs.ErrNotExist) {
				continue // unplugged meanwhile
			}
			if err != nil {
				return nil, err
			}
			list = append(list, below...)
		case e.Name() == "console": // the runtime makes it when there is a terminal
		case e.Type()&fs.ModeDevice != 0:
			d, err := device(from, to)
			if errors.Is(err, fs.ErrNotExist) {
				continue
			}
			if err != nil {
				return nil, err
			}
			list = append(list, *d)
		}
	}
	return list, nil
}

// device describes one device node; path must not be a symlink.
func device(path, target string) (*specs.LinuxDevice, error) {
	var st unix.Stat_t
	if err := unix.Lstat(path, &st); err != nil {
		return nil, &fs.PathError{Op: "lstat", Path: path, Err: err}
	}
	d := &specs.LinuxDevice{
		Path:  target,
		Major: int64(unix.Major(uint64(st.Rdev))), //nolint:unconvert // the type differs by architecture
		Minor: int64(unix.Minor(uint64(st.Rdev))), //nolint:unconvert // the type differs by architecture
		UID:   &st.Uid,
		GID:   &st.Gid,
	}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFBLK:
		d.Type = "b"
	case unix.S_IFCHR:
		d.Type = "c"
	default:
		return nil, fmt.Errorf("%s: %w", path, errNoDevice)
	}
	mode := os.FileMode(st.Mode &^ unix.S_IFMT)
	d.FileMode = &mode
	return d, nil
}
