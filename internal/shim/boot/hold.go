//go:build linux

package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"berth/internal/shim"
	"berth/internal/shim/holder"

	"golang.org/x/sys/unix"
)

// holderCgroup is the holder's own cgroup in the pod's: a cgroup with children
// may hold no process itself.
const holderCgroup = "berth-holder"

// held is a holder that runs.
type held struct {
	pid    int
	pidfd  *os.File
	done   chan struct{}
	pin    string   // where the pid namespace is pinned, "" = nowhere
	groups []string // cgroup folders that were made
	mu     sync.Mutex
	closed bool
}

// hold starts a holder for pod id and pins its pid namespace.
func hold(ctx context.Context, id string, r *shim.HoldRequest) (_ *held, err error) {
	netns, err := openNS(r.NetNS)
	if err != nil {
		return nil, err
	}
	defer netns.Close()
	userns, err := openNS(r.UserNS)
	if err != nil {
		return nil, err
	}
	defer userns.Close()
	flags := uintptr(unix.CLONE_NEWPID)
	if r.IPC {
		flags |= unix.CLONE_NEWIPC
	}
	if r.UTS {
		flags |= unix.CLONE_NEWUTS
	}
	pid, err := startHolder([]string{holder.Name, id}, netns, userns, flags)
	if err != nil {
		return nil, err
	}
	h := &held{pid: pid, done: make(chan struct{}), pin: r.PIDNS}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if err != nil {
		_ = unix.Kill(pid, unix.SIGKILL)
		return nil, fmt.Errorf("pidfd of the holder: %w", err)
	}
	h.pidfd = os.NewFile(uintptr(fd), "pidfd")
	go h.watch()
	defer func() {
		if err != nil {
			err = errors.Join(err, h.Close(context.WithoutCancel(ctx)))
		}
	}()
	if r.Cgroup != "" {
		if h.groups, err = enterPod(r.Cgroup, pid); err != nil {
			return nil, err
		}
	}
	if h.pin != "" {
		if err := pinNS("/proc/"+strconv.Itoa(pid)+"/ns/pid", h.pin); err != nil {
			return nil, err
		}
	}
	return h, nil
}

func openNS(path string) (*os.File, error) {
	if path == "" {
		return nil, nil
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("open namespace: %w", err)
	}
	return f, nil
}

// pinNS binds a namespace's file on path.
func pinNS(ns, path string) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		return fmt.Errorf("pin pid namespace: %w", err)
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return fmt.Errorf("pin pid namespace: %w", err)
	}
	f.Close()
	if err := unix.Mount(ns, path, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("pin pid namespace on %s: %w", path, err)
	}
	return nil
}

// unpinNS undoes pinNS. Nothing pinned is success.
func unpinNS(path string) error {
	for {
		// A start that was repeated may have pinned twice.
		err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
		if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.ENOENT) {
			break
		}
		if err != nil {
			return fmt.Errorf("unpin %s: %w", path, err)
		}
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("unpin: %w", err)
	}
	return nil
}

// enterPod moves the holder into a cgroup of its own below the pod's, where the
// pod has one.
func enterPod(parent string, pid int) ([]string, error) {
	var made []string
	for _, d := range cgroupDirs(parent) {
		dir := filepath.Join(d, holderCgroup)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			return made, fmt.Errorf("cgroup of the holder: %w", err)
		}
		made = append(made, dir)
		if strings.HasPrefix(d, cgroupRoot+"/cpuset") {
			// An empty cpuset of v1 takes no process.
			for _, f := range []string{"cpuset.cpus", "cpuset.mems"} {
				if b, err := os.ReadFile(filepath.Join(d, f)); err == nil {
					_ = os.WriteFile(filepath.Join(dir, f), b, 0)
				}
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(pid)), 0); err != nil {
			return made, fmt.Errorf("cgroup of the holder: %w", err)
		}
	}
	return made, nil
}

func (h *held) Pid() int              { return h.pid }
func (h *held) Done() <-chan struct{} { return h.done }

// watch waits for the holder's end without a thread: a pidfd is readable then.
func (h *held) watch() {
	defer close(h.done)
	c, err := h.pidfd.SyscallConn()
	if err != nil {
		return
	}
	_ = c.Read(func(fd uintptr) bool {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		n, err := unix.Poll(p, 0)
		return n > 0 && err == nil
	})
}

func (h *held) Close(ctx context.Context) error {
	h.mu.Lock()
	done := h.closed
	h.mu.Unlock()
	if done {
		return nil
	}
	select {
	case <-h.done:
	default:
		// It has nothing to tidy up, and its namespace ends with it.
		if c, err := h.pidfd.SyscallConn(); err == nil {
			_ = c.Control(func(fd uintptr) { _ = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) })
		}
		select {
		case <-h.done:
		case <-ctx.Done():
			return fmt.Errorf("holder %d does not end: %w", h.pid, context.Cause(ctx))
		}
	}
	err := removeHolder(ctx, h.pin, h.groups)
	h.mu.Lock()
	defer h.mu.Unlock()
	if err == nil && !h.closed {
		h.closed = true
		_ = h.pidfd.Close()
	}
	return err
}

// removeHolder gives back what a dead holder leaves.
func removeHolder(ctx context.Context, pin string, groups []string) error {
	var errs error
	if pin != "" {
		errs = unpinNS(pin)
	}
	for _, g := range groups {
		err := unix.Rmdir(g)
		// An ended process stays in its cgroup until it is reaped.
		for wait := time.Millisecond; errors.Is(err, unix.EBUSY) && wait < time.Second && ctx.Err() == nil; wait *= 2 {
			time.Sleep(wait)
			err = unix.Rmdir(g)
		}
		if err != nil && !errors.Is(err, unix.ENOENT) {
			errs = errors.Join(errs, fmt.Errorf("remove cgroup %s: %w", g, err))
		}
	}
	return errs
}

// killHolders ends the holders of pod id that a dead shim left.
func killHolders(ctx context.Context, id string) error {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return err
	}
	want := holder.Name + "\x00" + id + "\x00"
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		// Its command line, read while the pidfd is open, is that of this process.
		b, err := os.ReadFile("/proc/" + e.Name() + "/cmdline")
		if err == nil && string(b) == want {
			_ = unix.PidfdSendSignal(fd, unix.SIGKILL, nil, 0)
			err = waitPidfd(ctx, fd)
		} else {
			err = nil
		}
		_ = unix.Close(fd)
		if err != nil {
			return fmt.Errorf("holder %d: %w", pid, err)
		}
	}
	return nil
}

// waitPidfd waits for a process's end.
func waitPidfd(ctx context.Context, fd int) error {
	for ctx.Err() == nil {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
		if n, err := unix.Poll(p, 50); err == nil && n > 0 {
			return nil
		}
	}
	return context.Cause(ctx)
}
