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
// works on the same folders; the socket of a dead one is replaced.
func listen(root, state, socket string) (net.Listener, error) {
	for _, f := range []struct{ flag, dir string }{{"--state", state}, {"--root", root}} {
		// 0711: the pods' folders below are reached by mapped users.
		if err := os.MkdirAll(f.dir, 0o711); err != nil {
			return nil, fmt.Errorf("create the folder of %s: %w", f.flag, err)
		}
		if err := lock(f.dir, f.flag); err != nil {
			return nil, err
		}
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

// lock makes this process the only berthd of a folder. The lock is the
// process's: it ends with it, however that ends.
func lock(dir, flag string) error {
	path := filepath.Join(dir, "berthd.lock")
	fd, err := unix.Open(path, unix.O_CREAT|unix.O_RDWR|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		unix.Close(fd)
		if errors.Is(err, unix.EWOULDBLOCK) {
			return fmt.Errorf("another berthd runs on %s: stop it, or choose another %s", dir, flag)
		}
		return fmt.Errorf("lock %s: %w", path, err)
	}
	return nil
}
