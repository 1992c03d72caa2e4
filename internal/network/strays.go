package network

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"time"

	"github.com/containerd/log"
	"golang.org/x/sys/unix"
)

// endPlugins kills the plugin processes that work for the pod, with what they
// started, and waits until they are gone. They are told by their environment,
// which each plugin hands on to those it delegates to.
func endPlugins(ctx context.Context, id string) error {
	deadline := time.Now().Add(killGrace)
	for {
		pids, err := pluginsOf(id)
		if err != nil || len(pids) == 0 {
			return err
		}
		log.G(ctx).Warnf("kill plugins %v of pod %s, left by a daemon that died", pids, id)
		for _, pid := range pids {
			if err := killPlugin(pid, id, deadline); err != nil {
				return fmt.Errorf("end plugin process %d of pod %s: %w", pid, id, err)
			}
		}
		if ctx.Err() != nil || time.Now().After(deadline) {
			return fmt.Errorf("plugin processes of pod %s keep coming: %w", id, errors.Join(ctx.Err(), context.DeadlineExceeded))
		}
	}
}

// pluginsOf are the live processes that carry the pod's id as a plugin does.
func pluginsOf(id string) ([]int, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for plugins of pod %s: %w", id, err)
	}
	var pids []int
	for _, e := range entries {
		if pid, err := strconv.Atoi(e.Name()); err == nil && worksFor(pid, id) {
			pids = append(pids, pid)
		}
	}
	return pids, nil
}

// worksFor looks at a process's environment. A process that ended has none.
func worksFor(pid int, id string) bool {
	env, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "environ"))
	if err != nil || !bytes.Contains(env, []byte("CNI_COMMAND=")) {
		return false
	}
	return bytes.Contains(append([]byte{0}, env...), []byte("\x00CNI_CONTAINERID="+id+"\x00"))
}

func killPlugin(pid int, id string, deadline time.Time) error {
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ESRCH) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("open pidfd: %w", err)
	}
	defer unix.Close(fd)
	if !worksFor(pid, id) { // the pid is another's by now
		return nil
	}
	if err := unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("kill: %w", err)
	}
	for {
		wait := max(0, int(time.Until(deadline)/time.Millisecond))
		n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, wait)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case err != nil:
			return fmt.Errorf("wait for its end: %w", err)
		case n == 0:
			return fmt.Errorf("wait for its end: %w", context.DeadlineExceeded)
		}
		return nil
	}
}
