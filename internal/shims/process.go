//go:build linux

package shims

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// process is one process, named for good: its pidfd was opened while pid and
// start time agreed.
type process struct {
	pid int
	fd  *os.File
}

// openProcess finds the process of pid and start time. nil when it is dead.
func openProcess(pid int, start uint64) (*process, error) {
	if pid <= 0 {
		return nil, nil
	}
	fd, err := unix.PidfdOpen(pid, unix.PIDFD_NONBLOCK)
	if errors.Is(err, unix.ESRCH) || errors.Is(err, unix.EINVAL) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("pidfd of %d: %w", pid, err)
	}
	p := &process{pid: pid, fd: os.NewFile(uintptr(fd), "pidfd")}
	started, state, err := readStat(pid)
	if errors.Is(err, os.ErrNotExist) || err == nil && (started != start || state == 'Z' || state == 'X') {
		p.close()
		return nil, nil
	}
	if err != nil {
		p.close()
		return nil, err
	}
	return p, nil
}

func (p *process) close() { _ = p.fd.Close() }

// kill sends SIGKILL.
func (p *process) kill() error {
	c, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	var sent error
	if err := c.Control(func(fd uintptr) { sent = unix.PidfdSendSignal(int(fd), unix.SIGKILL, nil, 0) }); err != nil {
		return err
	}
	if errors.Is(sent, unix.ESRCH) {
		return nil
	}
	return sent
}

// wait waits for the process's end.
func (p *process) wait(ctx context.Context) error {
	c, err := p.fd.SyscallConn()
	if err != nil {
		return err
	}
	done := make(chan error, 1)
	go func() {
		done <- c.Read(func(fd uintptr) bool {
			f := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
			n, err := unix.Poll(f, 0)
			return n > 0 && err == nil
		})
	}()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		_ = p.fd.SetReadDeadline(past)
		if err := <-done; err == nil {
			return nil
		}
		return context.Cause(ctx)
	}
}

// readStat returns start time (clock ticks since boot) and state, proc(5).
func readStat(pid int) (start uint64, state byte, err error) {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/stat")
	if errors.Is(err, unix.ESRCH) {
		return 0, 0, os.ErrNotExist // it ended while we read
	}
	if err != nil {
		return 0, 0, err
	}
	// The name in parentheses may hold anything; state is field 3.
	i := strings.LastIndexByte(string(b), ')')
	f := strings.Fields(string(b[i+1:]))
	if i < 0 || len(f) < 20 {
		return 0, 0, fmt.Errorf("/proc/%d/stat cannot be read", pid)
	}
	start, err = strconv.ParseUint(f[19], 10, 64)
	return start, f[0][0], err
}

// strays finds the processes of a pod's shim by their command line: for a start
// that was cut off before anybody knew the pid.
func strays(id string) ([]*process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	var found []*process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || !isShim(pid, id) {
			continue
		}
		start, _, err := readStat(pid)
		if err != nil {
			continue
		}
		p, err := openProcess(pid, start)
		if err != nil {
			return found, err
		}
		if p != nil && isShim(pid, id) {
			found = append(found, p)
		}
	}
	return found, nil
}

func isShim(pid int, id string) bool {
	b, err := os.ReadFile("/proc/" + strconv.Itoa(pid) + "/cmdline")
	if err != nil || len(b) == 0 {
		return false
	}
	argv := strings.Split(strings.TrimSuffix(string(b), "\x00"), "\x00")
	named := false
	for i := 1; i < len(argv); i++ {
		named = named || argv[i-1] == "-id" && argv[i] == id
	}
	return named && argv[len(argv)-1] == actionServe && argv[0] == shimName
}
