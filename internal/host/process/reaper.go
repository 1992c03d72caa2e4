package process

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// maxHeld bounds the exits kept for children that are not known yet. It is far
// above what a runtime call leaves; a container that floods this process with
// orphans pushes out the oldest.
const maxHeld = 8192

// adoptTime bounds the wait for a child that the runtime has yet to leave.
const adoptTime = 2 * time.Second

// end is how a process ended, as wait said.
type end struct {
	status unix.WaitStatus
	at     time.Time
	// noexec: it failed and never became another program, so it was the
	// runtime's init that could not execute the user's command.
	noexec bool
}

// child is a process that this one has to reap. Signals reach it through its
// pidfd, hence never a process that took over its pid.
type child struct {
	pid    int
	exited chan struct{}
	end    end // valid after exited
	onExit func(end)

	mu sync.Mutex
	fd int // pidfd; -1 after the exit
}

// signal returns ESRCH after the exit.
func (c *child) signal(sig int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.fd < 0 {
		return unix.ESRCH
	}
	return unix.PidfdSendSignal(c.fd, unix.Signal(sig), nil, 0)
}

// finish publishes the exit. onExit must not block.
func (c *child) finish(e end) {
	c.mu.Lock()
	if c.fd >= 0 {
		_ = unix.Close(c.fd)
		c.fd = -1
	}
	c.mu.Unlock()
	c.end = e
	close(c.exited)
	if c.onExit != nil {
		c.onExit(e)
	}
}

// heldExit is an exit that nobody owned when it was reaped.
type heldExit struct {
	seq uint64
	pid int
	end end
}

// reaper reaps every child of this process: those it started, those that a
// runtime left to it (a container's init), and orphans that the kernel gave it
// because it is a subreaper. There is one in a process, since wait4(-1) takes
// everybody's children.
type reaper struct {
	mu     sync.Mutex
	owners map[int]*child
	scopes map[*scope]struct{}
	held   []heldExit // oldest first; empty when no scope is open
	seq    uint64     // of the newest held exit
}

// scope is a span of time in which children appear whose pids are learned
// later. Exits in it are held until it is closed.
type scope struct {
	r     *reaper
	since uint64
}

// reapers starts the process's reaper at its first use.
var reapers = sync.OnceValue(func() *reaper {
	r := &reaper{owners: make(map[int]*child), scopes: make(map[*scope]struct{})}
	sigchld := make(chan os.Signal, 1)
	signal.Notify(sigchld, unix.SIGCHLD)
	go func() {
		for {
			for r.reapOne() {
			}
			<-sigchld
		}
	}()
	return r
})

// reapOne reaps one child and tells its owner. It reports whether there may be another.
func (r *reaper) reapOne() bool {
	// wait with WNOHANG does not block. The lock makes "it is still unreaped"
	// and "it has an owner" one question for adopt and killGroup.
	r.mu.Lock()
	pid, e, ok := waitAny()
	if !ok {
		r.mu.Unlock()
		return false
	}
	c := r.owners[pid]
	if c != nil {
		delete(r.owners, pid)
	} else if pid > 0 && len(r.scopes) > 0 {
		if len(r.held) >= maxHeld {
			r.held = append(r.held[:0], r.held[maxHeld/2:]...)
		}
		r.seq++
		r.held = append(r.held, heldExit{r.seq, pid, e})
	}
	r.mu.Unlock()
	if c != nil {
		c.finish(e)
	}
	return true
}

// waitAny reaps any child. pid is 0 when someone else took the one it saw.
func waitAny() (pid int, e end, ok bool) {
	// Look before reaping: what a zombie was doing is in /proc until then.
	pid, code, ok := peek(unix.P_ALL, 0)
	if !ok || pid == 0 {
		return 0, end{}, false
	}
	if code > 0 {
		st, ok := readStat(pid)
		e.noexec = ok && st.flags&forkNoExec != 0
	}
	for {
		got, err := unix.Wait4(pid, &e.status, unix.WNOHANG, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil || got != pid {
			return 0, end{}, true
		}
		e.at = time.Now()
		return pid, e, true
	}
}

// peek looks for an exited child without reaping it. ok is false when there is
// no such child at all; pid is 0 when none has exited. code is the exit code,
// or -1 for a signal.
func peek(idType, id int) (pid, code int, ok bool) {
	var info unix.Siginfo
	for {
		err := unix.Waitid(idType, id, &info, unix.WEXITED|unix.WNOHANG|unix.WNOWAIT, nil)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return 0, 0, false
		}
		break
	}
	// siginfo_t: three ints, then a union aligned as a pointer that starts with
	// si_pid, si_uid, si_status for SIGCHLD (sigaction(2)).
	const align = unsafe.Sizeof(uintptr(0))
	at := unsafe.Add(unsafe.Pointer(&info), (3*unsafe.Sizeof(int32(0))+align-1)&^(align-1))
	field := (*[3]int32)(at)
	code = -1
	if info.Code == cldExited {
		code = int(field[2])
	}
	return int(field[0]), code, true
}

// cldExited is CLD_EXITED of siginfo_t's si_code.
const cldExited = 1

// watch opens a scope.
func (r *reaper) watch() *scope {
	s := &scope{r: r}
	r.mu.Lock()
	s.since = r.seq
	r.scopes[s] = struct{}{}
	r.mu.Unlock()
	return s
}

// close drops what no other open scope may still ask for. It can be called again.
func (s *scope) close() {
	r := s.r
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.scopes, s)
	if len(r.scopes) == 0 {
		r.held = nil
		return
	}
	oldest := r.seq
	for o := range r.scopes {
		oldest = min(oldest, o.since)
	}
	n := 0
	for n < len(r.held) && r.held[n].seq <= oldest {
		n++
	}
	r.held = append(r.held[:0], r.held[n:]...)
}

// take returns the newest exit of pid in the scope. r.mu is held.
func (s *scope) take(pid int) (end, bool) {
	held := s.r.held
	for i := len(held) - 1; i >= 0 && held[i].seq > s.since; i-- {
		if held[i].pid == pid {
			return held[i].end, true
		}
	}
	return end{}, false
}

// adopt takes a child that appeared in the scope. fd is its pidfd, or -1.
// onExit may run before adopt returns.
func (s *scope) adopt(pid, fd int, onExit func(end)) (*child, error) {
	c := &child{pid: pid, fd: fd, exited: make(chan struct{}), onExit: onExit}
	for pause := 100 * time.Microsecond; ; pause *= 2 {
		done, err := s.tryAdopt(c)
		if done {
			return c, nil
		}
		// crun returns while the process that made the container is still
		// about to exit, and to leave it to this one.
		if st, ok := readStat(pid); err == nil && ok && st.ppid != os.Getpid() && pause < adoptTime/2 {
			time.Sleep(pause)
			continue
		}
		if err == nil {
			if done, err = s.tryAdopt(c); done {
				return c, nil
			}
		}
		if c.fd >= 0 {
			_ = unix.Close(c.fd)
		}
		return nil, errors.Join(fmt.Errorf("process %d is not a child of this one", pid), err)
	}
}

// tryAdopt makes c a child that will be reaped, or was. It reports whether it could.
func (s *scope) tryAdopt(c *child) (bool, error) {
	r := s.r
	r.mu.Lock()
	if r.owners[c.pid] == nil {
		if _, _, ok := peek(unix.P_PID, c.pid); ok {
			defer r.mu.Unlock()
			// Unreaped, and under the lock it stays so: this pidfd is its.
			if c.fd < 0 {
				var err error
				if c.fd, err = unix.PidfdOpen(c.pid, 0); err != nil {
					return false, fmt.Errorf("open pidfd of child %d: %w", c.pid, err)
				}
			}
			r.owners[c.pid] = c
			return true, nil
		}
	}
	e, ok := s.take(c.pid)
	r.mu.Unlock()
	if ok {
		c.finish(e)
	}
	return ok, nil
}

// spawn starts a program as a direct child. attr.Sys must not be nil.
func (r *reaper) spawn(path string, argv []string, attr *syscall.ProcAttr) (*child, error) {
	s := r.watch()
	defer s.close()
	fd := -1
	attr.Sys.PidFD = &fd
	pid, _, err := syscall.StartProcess(path, argv, attr)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	// It is this process's own child, so that it is there or was reaped in s.
	return s.adopt(pid, fd, nil)
}

// killGroup sends SIGKILL to the process group that c leads, while c is
// unreaped and the number can mean no other group.
func (r *reaper) killGroup(c *child) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.owners[c.pid] == c {
		_ = unix.Kill(-c.pid, unix.SIGKILL)
	}
}
