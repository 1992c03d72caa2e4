package main

import (
	"bytes"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// processes are what carries a pod's output: the daemon behind the socket, and
// what names the pod in its command line, its shim.
func (p *pod) processes() ([]int, error) {
	daemon, err := peer(strings.TrimPrefix(p.s.endpoint, "unix://"))
	if err != nil {
		return nil, err
	}
	pids := []int{daemon}
	es, err := os.ReadDir("/proc")
	if err != nil {
		return nil, err
	}
	for _, e := range es {
		pid, err := strconv.Atoi(e.Name())
		if err != nil || pid == daemon {
			continue
		}
		if cmd, err := os.ReadFile("/proc/" + e.Name() + "/cmdline"); err == nil && bytes.Contains(cmd, []byte(p.id)) {
			pids = append(pids, pid)
		}
	}
	if len(pids) < 2 {
		return nil, fmt.Errorf("pod %s has no shim", p.id)
	}
	return pids, nil
}

// peer is the process that listens on a socket.
func peer(path string) (int, error) {
	c, err := net.Dial("unix", path)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, err
	}
	var cred *unix.Ucred
	var cerr error
	if err := raw.Control(func(fd uintptr) { cred, cerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) }); err != nil {
		return 0, err
	}
	if cerr != nil {
		return 0, cerr
	}
	return int(cred.Pid), nil
}

// cpu is the time that processes have used, in ticks of 10 ms.
func cpu(pids []int) time.Duration {
	var sum time.Duration
	for _, pid := range pids {
		b, _ := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		_, rest, _ := strings.Cut(string(b), ") ")
		f := strings.Fields(rest)
		if len(f) < 13 {
			continue
		}
		for _, v := range f[11:13] { // utime, stime
			n, _ := strconv.Atoi(v)
			sum += time.Duration(n) * 10 * time.Millisecond
		}
	}
	return sum
}
