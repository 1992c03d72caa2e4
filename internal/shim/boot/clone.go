//go:build linux

package boot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"runtime"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// cloneSpec is what cloneHolder needs, made ready before the fork: afterwards
// nothing may be allocated.
type cloneSpec struct {
	exe      uintptr // descriptor of the binary
	argv     **byte
	envp     **byte
	null     uintptr // descriptor of /dev/null
	netns    uintptr // descriptor, ^0 = none
	userns   uintptr // descriptor, ^0 = none
	unshare  uintptr // CLONE_NEW… flags
	report   uintptr // writing end of a pipe
	empty    *byte   // ""
	mask     *uint64 // no signal
	message  *[2]uint64
	identity bool // become user 0 of the user namespace
}

// What the children report, with a value.
const (
	reportPid   = 1 // pid of the holder
	reportError = 2 // errno
)

const none = ^uintptr(0)

// startHolder starts exe as the init of new namespaces and returns its pid. The
// holder is a child of this process. It is made by two clones of which nothing
// runs but the system calls below: Go cannot enter a user namespace, which asks
// for a process with one thread, and a pid namespace begins with the next child.
func startHolder(argv []string, netns, userns *os.File, unshare uintptr) (pid int, err error) {
	exe, err := os.Open("/proc/self/exe")
	if err != nil {
		return 0, err
	}
	defer exe.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return 0, err
	}
	defer null.Close()
	r, w, err := os.Pipe()
	if err != nil {
		return 0, err
	}
	defer r.Close()
	argvp, err := syscall.SlicePtrFromStrings(argv)
	if err != nil {
		w.Close()
		return 0, err
	}
	envp, err := syscall.SlicePtrFromStrings([]string{"GOMAXPROCS=1"})
	if err != nil {
		w.Close()
		return 0, err
	}
	var (
		none64  uint64
		message [2]uint64
		empty   byte
	)
	spec := &cloneSpec{
		exe: exe.Fd(), argv: &argvp[0], envp: &envp[0], null: null.Fd(), netns: none, userns: none,
		unshare: unshare, report: w.Fd(), empty: &empty, mask: &none64, message: &message,
	}
	if netns != nil {
		spec.netns = netns.Fd()
	}
	if userns != nil {
		spec.userns, spec.identity = userns.Fd(), true
	}

	// No signal may be handled in a child that is half a Go program.
	all, old := ^uint64(0), uint64(0)
	runtime.LockOSThread()
	sigprocmask(&all, &old)
	helper, errno := cloneHolder(spec)
	sigprocmask(&old, nil)
	runtime.UnlockOSThread()
	runtime.KeepAlive(spec)
	w.Close()
	if errno != 0 {
		return 0, fmt.Errorf("clone: %w", errno)
	}
	// The helper ended, or soon will; who reaps our children reaps it too. When
	// nobody does, this takes it.
	defer func() { _, _ = syscall.Wait4(int(helper), nil, syscall.WNOHANG, nil) }()
	var failure error
	for {
		var b [16]byte
		if n, err := r.Read(b[:]); err != nil || n != len(b) {
			break // every writer ended or became another program
		}
		kind, value := binary.NativeEndian.Uint64(b[:8]), binary.NativeEndian.Uint64(b[8:])
		if kind == reportPid {
			pid = int(value)
		} else {
			failure = syscall.Errno(value)
		}
	}
	if failure == nil && pid == 0 {
		failure = errors.New("the helper died")
	}
	if failure != nil {
		return 0, fmt.Errorf("start the holder of namespaces: %w", failure)
	}
	return pid, nil
}

func sigprocmask(set, old *uint64) {
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK,
		uintptr(unsafe.Pointer(set)), uintptr(unsafe.Pointer(old)), unsafe.Sizeof(*set), 0, 0)
}

// cloneHolder returns in the parent only. In the children it is like the child
// of a fork in C: system calls and nothing else.
//
//go:noinline
//go:norace
//go:nosplit
func cloneHolder(s *cloneSpec) (helper uintptr, errno syscall.Errno) {
	var pid uintptr
	helper, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD), 0, 0, 0, 0, 0)
	if errno != 0 || helper != 0 {
		return helper, errno
	}
	// The helper.
	if s.netns != none {
		if _, _, errno = syscall.RawSyscall(unix.SYS_SETNS, s.netns, unix.CLONE_NEWNET, 0); errno != 0 {
			goto fail
		}
	}
	if s.userns != none {
		if _, _, errno = syscall.RawSyscall(unix.SYS_SETNS, s.userns, unix.CLONE_NEWUSER, 0); errno != 0 {
			goto fail
		}
	}
	if _, _, errno = syscall.RawSyscall(unix.SYS_UNSHARE, s.unshare, 0, 0); errno != 0 {
		goto fail
	}
	pid, _, errno = syscall.RawSyscall6(unix.SYS_CLONE, uintptr(unix.SIGCHLD)|unix.CLONE_PARENT, 0, 0, 0, 0, 0)
	if errno != 0 {
		goto fail
	}
	if pid != 0 {
		s.message[0], s.message[1] = reportPid, uint64(pid)
		_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, s.report, uintptr(unsafe.Pointer(s.message)), 16)
		for {
			_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 0, 0, 0)
		}
	}
	// The holder.
	_, _, _ = syscall.RawSyscall(unix.SYS_SETSID, 0, 0, 0)
	for fd := uintptr(0); fd < 3; fd++ {
		if _, _, errno = syscall.RawSyscall(unix.SYS_DUP3, s.null, fd, 0); errno != 0 && errno != unix.EINVAL {
			goto fail
		}
	}
	if s.identity {
		// Where setgroups is denied there are none to drop.
		_, _, _ = syscall.RawSyscall(unix.SYS_SETGROUPS, 0, 0, 0)
		if _, _, errno = syscall.RawSyscall(unix.SYS_SETRESGID, 0, 0, 0); errno != 0 {
			goto fail
		}
		if _, _, errno = syscall.RawSyscall(unix.SYS_SETRESUID, 0, 0, 0); errno != 0 {
			goto fail
		}
	}
	_, _, _ = syscall.RawSyscall6(unix.SYS_RT_SIGPROCMASK, unix.SIG_SETMASK, uintptr(unsafe.Pointer(s.mask)), 0, 8, 0, 0)
	_, _, errno = syscall.RawSyscall6(unix.SYS_EXECVEAT, s.exe, uintptr(unsafe.Pointer(s.empty)),
		uintptr(unsafe.Pointer(s.argv)), uintptr(unsafe.Pointer(s.envp)), unix.AT_EMPTY_PATH, 0)
fail:
	s.message[0], s.message[1] = reportError, uint64(errno)
	_, _, _ = syscall.RawSyscall(unix.SYS_WRITE, s.report, uintptr(unsafe.Pointer(s.message)), 16)
	for {
		_, _, _ = syscall.RawSyscall(unix.SYS_EXIT_GROUP, 1, 0, 0)
	}
}
