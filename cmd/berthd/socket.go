package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// listen opens the API socket, for root alone. It refuses when another berthd
// works on the same state folder; the socket of a dead one is replaced. The lock
// is the process's: it ends with it, however that ends.
func listen(state, socket string) (net.Listener, error) {
	// 0711: the pods' folders below are reached by mapped users.
	if err := os.MkdirAll(state, 0o711); err != nil {
		return nil, fmt.Errorf("create the state folder: %w", err)
	}
	path := filepath.Join(state, "berthd.lock")
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("another berthd runs on %s: stop it, or choose another --state", state)
		}
		return nil, fmt.Errorf("lock %s: %w", path, err)
	}
	if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("remove the old socket: %w", err)
	}
	old := syscall.Umask(0o177) // nobody else may connect, not even for a moment
	l, err := net.Listen("unix", socket)
	syscall.Umask(old)
	if err != nil {
		return nil, fmt.Errorf("listen on %s: %w", socket, err)
	}
	return l, nil
}
