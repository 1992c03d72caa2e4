// Package netns runs a function in another network namespace. It promises that
// no thread stays there: a pod's namespace goes when its pod does, and nothing
// else of this process ever runs in it.
//
// It imports nothing of ours; stream and stats import it.
package netns

import (
	"fmt"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// own is the thread's namespace. /proc/self is that of the first thread.
const own = "/proc/thread-self/ns/net"

// Do calls f on a thread in the namespace at path (a file of nsfs), and returns
// when it did. f must not start goroutines that count on the namespace; sockets
// that it makes stay in it.
func Do(path string, f func() error) error {
	there, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer there.Close()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		here, err := os.Open(own)
		if err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("open own network namespace: %w", err)
			return
		}
		defer here.Close()
		if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
			runtime.UnlockOSThread()
			done <- fmt.Errorf("enter network namespace %s: %w", path, err)
			return
		}
		err = f()
		if unix.Setns(int(here.Fd()), unix.CLONE_NEWNET) == nil {
			runtime.UnlockOSThread()
		}
		// Else the thread ends with this goroutine, which is still locked to it.
		done <- err
	}()
	return <-done
}
