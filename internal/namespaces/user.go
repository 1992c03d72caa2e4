package namespaces

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync/atomic"
	"syscall"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// IDMapping maps Length ids from ContainerID on to those from HostID on, as in
// user_namespaces(7).
type IDMapping struct {
	HostID      uint32 `json:"host_id"`
	ContainerID uint32 `json:"container_id"`
	Length      uint32 `json:"length"`
}

// UserMapping is how a user namespace maps its users and groups.
type UserMapping struct {
	UIDs []IDMapping `json:"uids"`
	GIDs []IDMapping `json:"gids"`
}

// maxExtents is how many lines the kernel takes in an id map.
const maxExtents = 340

func (m *UserMapping) check() error {
	if err := checkMap("uids", m.UIDs); err != nil {
		return err
	}
	return checkMap("gids", m.GIDs)
}

// checkMap refuses what the kernel would refuse with a bare EINVAL, and a map
// without root, in which no container could start.
func checkMap(field string, m []IDMapping) error {
	bad := func(i int, name, format string, args ...any) error {
		return fmt.Errorf("%s[%d].%s: %s: %w", field, i, name, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
	}
	if len(m) == 0 || len(m) > maxExtents {
		return fmt.Errorf("%s: %d mappings, want 1 to %d: %w", field, len(m), maxExtents, errdefs.ErrInvalidArgument)
	}
	const end = uint64(1)<<32 - 1 // the last id is "no id" and cannot be mapped
	overlap := func(a, b, length, other uint32) bool {
		return uint64(a) < uint64(b)+uint64(other) && uint64(b) < uint64(a)+uint64(length)
	}
	root := false
	for i, x := range m {
		switch {
		case x.Length == 0:
			return bad(i, "length", "0 maps nothing")
		case uint64(x.HostID)+uint64(x.Length) > end:
			return bad(i, "host_id", "%d ids from %d on are out of range", x.Length, x.HostID)
		case uint64(x.ContainerID)+uint64(x.Length) > end:
			return bad(i, "container_id", "%d ids from %d on are out of range", x.Length, x.ContainerID)
		}
		for j, y := range m[:i] {
			if overlap(x.HostID, y.HostID, x.Length, y.Length) {
				return bad(i, "host_id", "overlaps with %s[%d]", field, j)
			}
			if overlap(x.ContainerID, y.ContainerID, x.Length, y.Length) {
				return bad(i, "container_id", "overlaps with %s[%d]", field, j)
			}
		}
		root = root || x.ContainerID == 0
	}
	if !root {
		return fmt.Errorf("%s: id 0 of the container is not mapped: %w", field, errdefs.ErrInvalidArgument)
	}
	return nil
}

// holderName is the whole command line of a holder.
const holderName = "berth-namespace-holder"

// hooked is set once Main ran, so that no binary starts itself by mistake.
var hooked atomic.Bool

// Main must be called first in main (and in TestMain) of a binary that makes
// user namespaces. Only a fresh process can enter one, so Create starts this
// very binary again; in that process Main never returns: it waits to be ended,
// or for its parent to go, and does nothing else.
//
// Starting ourselves needs nothing of the host: no helper binary on the disk
// and no leave to ptrace. The holder is ended as soon as its namespaces are
// pinned, as a rule before its runtime has come up.
func Main() {
	if len(os.Args) == 1 && os.Args[0] == holderName {
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	hooked.Store(true)
}

// holder is a child process inside new namespaces, until they are pinned.
type holder struct {
	process *os.Process
	stdin   *os.File
}

// startHolder starts a process in new namespaces. It must be called on a thread
// that lives until the holder is ended: the holder dies with it.
func startHolder(flags int, m *UserMapping) (*holder, error) {
	if !hooked.Load() {
		return nil, fmt.Errorf("make a user namespace: this binary does not call namespaces.Main: %w", errdefs.ErrNotImplemented)
	}
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	defer r.Close()
	p, err := os.StartProcess("/proc/self/exe", []string{holderName}, &os.ProcAttr{
		Dir:   "/",
		Env:   []string{"GOMAXPROCS=1"},
		Files: []*os.File{r},
		Sys: &syscall.SysProcAttr{
			Cloneflags:                 uintptr(flags),
			UidMappings:                sysMap(m.UIDs),
			GidMappings:                sysMap(m.GIDs),
			GidMappingsEnableSetgroups: true,
			Pdeathsig:                  syscall.SIGKILL, // lint: allow, the thread is locked and outlives it
		},
	})
	if err != nil {
		w.Close()
		if errors.Is(err, unix.ENOSPC) {
			err = fmt.Errorf("%w: the limit user.max_user_namespaces is reached: %w", err, errdefs.ErrUnavailable)
		}
		return nil, fmt.Errorf("make a user namespace: %w", err)
	}
	return &holder{process: p, stdin: w}, nil
}

// end kills and reaps the holder. Its pid stays its own until then, so that
// /proc/<pid>/ns is never somebody else's.
func (h *holder) end() {
	_ = h.process.Kill()
	_, _ = h.process.Wait()
	h.stdin.Close()
}

func sysMap(m []IDMapping) []syscall.SysProcIDMap {
	s := make([]syscall.SysProcIDMap, len(m))
	for i, x := range m {
		s[i] = syscall.SysProcIDMap{ContainerID: int(x.ContainerID), HostID: int(x.HostID), Size: int(x.Length)}
	}
	return s
}
