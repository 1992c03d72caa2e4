package namespaces

import (
	"runtime"

	"golang.org/x/sys/unix"
)

// onThread runs f on an OS thread that ends with it, so that f may change the
// thread's namespaces. The Go runtime never makes another thread or runs another
// goroutine from a locked one.
func onThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		// Locked and never unlocked: the runtime ends the thread when the
		// goroutine ends.
		runtime.LockOSThread()
		if unix.Gettid() != unix.Getpid() {
			done <- f()
			return
		}
		// The process's first thread cannot end. It would stay, parked in
		// the pod's namespaces, and everybody who looks at /proc/<pid>/ns
		// would take them for ours. Hold it until another one did the work.
		defer runtime.UnlockOSThread()
		inner := make(chan error, 1)
		go func() {
			runtime.LockOSThread()
			inner <- f()
		}()
		done <- <-inner
	}()
	return <-done
}
