//go:build linux

// Package holder is the tiny init of a pod whose containers share a PID
// namespace. The shim's binary, run under the name Name, becomes it before
// anything else of that binary is set up: it reaps, ends on SIGTERM, and
// promises to do nothing else, in well under a megabyte.
//
// Package boot imports it for both: to be it, and to know its name.
package holder

import (
	"os"
	"os/signal"
	"runtime"
	"syscall"
	"unsafe"
)

// Name is a holder's first argument (argv[0]); the second is the pod's id.
const Name = "berth-holder"

// Package initialisation is the earliest moment there is: the packages that the
// shim needs and a holder does not are initialised later, and so cost it nothing.
func init() {
	// Nobody profiles a shim's memory; the tables for it cost some.
	runtime.MemProfileRate = 0
	if len(os.Args) > 0 && os.Args[0] == Name {
		run()
		os.Exit(0)
	}
}

func run() {
	// It was started by descriptor, and would be called by its number.
	name := append([]byte(Name), 0)
	_, _, _ = syscall.RawSyscall(syscall.SYS_PRCTL, syscall.PR_SET_NAME, uintptr(unsafe.Pointer(&name[0])), 0)
	signals := make(chan os.Signal, 8)
	signal.Notify(signals, syscall.SIGCHLD, syscall.SIGTERM, syscall.SIGINT)
	for {
		reap()
		if s := <-signals; s != syscall.SIGCHLD {
			return
		}
	}
}

// reap takes all that ended: SIGCHLD is sent once for many.
func reap() {
	for {
		pid, err := syscall.Wait4(-1, nil, syscall.WNOHANG, nil)
		if err == syscall.EINTR {
			continue
		}
		if err != nil || pid <= 0 {
			return
		}
	}
}
