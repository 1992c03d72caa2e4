package namespaces

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// ipcSysctls are the System V ones; see ipc_namespaces(7). The POSIX ones are
// everything below fs.mqueue.
var ipcSysctls = []string{
	"kernel/msgmax", "kernel/msgmnb", "kernel/msgmni", "kernel/msg_next_id",
	"kernel/sem", "kernel/sem_next_id",
	"kernel/shmall", "kernel/shmmax", "kernel/shmmni", "kernel/shm_next_id", "kernel/shm_rmid_forced",
}

// sysctlPath turns a name into a path below /proc/sys. As in sysctl(8): the
// first separator decides, and the other character then stands for itself
// (net.ipv4.conf.eth0/1.forwarding is about the interface eth0.1).
func sysctlPath(name string) string {
	if i := strings.IndexAny(name, "./"); i < 0 || name[i] == '/' {
		return name
	}
	return strings.Map(func(r rune) rune {
		switch r {
		case '.':
			return '/'
		case '/':
			return '.'
		}
		return r
	}, name)
}

// sysctlKind tells which namespace a sysctl belongs to.
func sysctlKind(name string) (kind, error) {
	path := sysctlPath(name)
	if !filepath.IsLocal(path) || filepath.Clean(path) != path {
		return kind{}, fmt.Errorf("sysctl %q is not a name: %w", name, errdefs.ErrInvalidArgument)
	}
	switch {
	case strings.HasPrefix(path, "net/"):
		return netKind, nil
	case strings.HasPrefix(path, "fs/mqueue/") || slices.Contains(ipcSysctls, path):
		return ipcKind, nil
	case path == "kernel/domainname":
		return utsKind, nil
	}
	return kind{}, fmt.Errorf("sysctl %q belongs to no namespace of a pod: %w", name, errdefs.ErrInvalidArgument)
}

// Tune writes sysctls inside the pinned namespaces p. Create does so by itself,
// except for those of interfaces that are not there yet
// (net.ipv4.conf.eth0.arp_ignore): for them call Tune once the network is up.
// Writing a value again is harmless.
//
// Errors: InvalidArgument for a sysctl that has no namespace in p, that the
// kernel does not know, or whose value it refuses.
func Tune(ctx context.Context, p *Paths, sysctls map[string]string) error {
	if len(sysctls) == 0 {
		return nil
	}
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("write sysctls: %w", err)
	}
	need := map[kind]bool{}
	for name := range sysctls {
		k, err := sysctlKind(name)
		if err != nil {
			return err
		}
		if *p.at(k) == "" {
			return fmt.Errorf("sysctl %q needs a %s namespace of the pod's own: %w", name, k.name, errdefs.ErrInvalidArgument)
		}
		need[k] = true
	}
	return onThread(func() error {
		for k := range need {
			if err := join(*p.at(k), k); err != nil {
				return err
			}
		}
		return writeSysctls(sysctls, func(string) bool { return false })
	})
}

// skipMissingInterfaces tells whether path is about an interface that a network
// plugin makes later.
func skipMissingInterfaces(path string) bool {
	part := strings.Split(path, "/")
	if len(part) < 5 || part[0] != "net" || (part[2] != "conf" && part[2] != "neigh") {
		return false
	}
	_, err := os.Stat(filepath.Join("/proc/sys", filepath.Join(part[:4]...)))
	return errors.Is(err, fs.ErrNotExist)
}

// writeSysctls writes into the namespaces of the calling thread, in the order of
// the names, so that failures are the same each time.
func writeSysctls(sysctls map[string]string, skip func(path string) bool) error {
	for _, name := range slices.Sorted(maps.Keys(sysctls)) {
		path := sysctlPath(name)
		if skip(path) {
			continue
		}
		if err := writeSysctl(filepath.Join("/proc/sys", path), sysctls[name]); err != nil {
			return fmt.Errorf("sysctl %q = %q: %w: %w", name, sysctls[name], err, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// writeSysctl writes as root and, where the kernel lets only the root of the
// owning user namespace write (System V and POSIX ones, since Linux 5.19), as
// that one.
func writeSysctl(path, value string) error {
	err := writeFile(path, value)
	if !errors.Is(err, fs.ErrPermission) {
		return err
	}
	var st unix.Stat_t
	if statErr := unix.Stat(path, &st); statErr != nil || st.Uid == 0 {
		return err
	}
	return asUser(st.Uid, func() error { return writeFile(path, value) })
}

func writeFile(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.WriteString(value)
	return err
}

// asUser runs f with uid as the effective user of the calling thread only. A
// change of it makes the whole process undumpable, which is undone.
func asUser(uid uint32, f func() error) error {
	dumpable, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0)
	if err != nil {
		return fmt.Errorf("read dumpable: %w", err)
	}
	if err := setEffectiveUser(uid); err != nil {
		return err
	}
	err = f()
	if back := setEffectiveUser(0); back != nil {
		return errors.Join(err, back)
	}
	if dumpable == 1 {
		if back := unix.Prctl(unix.PR_SET_DUMPABLE, 1, 0, 0, 0); back != nil {
			return errors.Join(err, fmt.Errorf("set dumpable: %w", back))
		}
	}
	return err
}

// setEffectiveUser changes this thread; syscall.Setresuid would change all.
func setEffectiveUser(uid uint32) error {
	const keep = ^uintptr(0)
	if _, _, errno := unix.RawSyscall(unix.SYS_SETRESUID, keep, uintptr(uid), keep); errno != 0 {
		return fmt.Errorf("become user %d: %w", uid, errno)
	}
	return nil
}
