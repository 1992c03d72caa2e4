package stats

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// netWithLinks makes a network namespace with two interfaces, net1 and eth0. It
// lasts as long as the test.
func netWithLinks(t *testing.T) string {
	t.Helper()
	made, end := make(chan error), make(chan struct{})
	var path string
	go func() {
		runtime.LockOSThread() // and never unlocked
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "net1"}, PeerName: "eth0"})
		}
		path = fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		made <- err
		<-end
	}()
	if err := <-made; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { close(end) })
	return path
}

func TestNetwork(t *testing.T) {
	path := netWithLinks(t)
	pods := &fakePods{}
	pods.addPod("p1", "", path)
	c := New(&Options{Pods: pods, CgroupRoot: fakeV2(t)})
	s, err := c.Pod(t.Context(), "p1")
	if err != nil {
		t.Fatal(err)
	}
	n := s.Linux.Network
	if n.GetDefaultInterface().GetName() != "eth0" || len(n.Interfaces) != 1 || n.Interfaces[0].Name != "net1" || n.Timestamp == 0 {
		t.Fatalf("%v", n)
	}
	if n.DefaultInterface.RxBytes == nil || n.DefaultInterface.TxErrors == nil {
		t.Errorf("%v", n.DefaultInterface)
	}
}

// cgroup makes a real cgroup and a process in it that uses CPU, memory, files
// and a socket.
func cgroup(t *testing.T) (path string, pid int) {
	t.Helper()
	h := findHierarchy("/sys/fs/cgroup")
	if len(h.dirs) == 0 {
		t.Fatal("no cgroups are mounted")
	}
	path = fmt.Sprintf("/berth-stats-test-%d", os.Getpid())
	for _, root := range h.dirs {
		dir := filepath.Join(root, path)
		if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
			t.Fatal(err)
		}
	}
	t.Cleanup(func() {
		deadline := time.Now().Add(10 * time.Second)
		for _, root := range h.dirs {
			for {
				err := os.Remove(filepath.Join(root, path))
				if err == nil || errors.Is(err, os.ErrNotExist) {
					break
				}
				if time.Now().After(deadline) {
					t.Errorf("the test's cgroup stays: %v", err)
					break
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
	})
	// The shell puts itself in, tells so, waits, then burns CPU.
	script := "read go; echo in; x=" + strings.Repeat("7", 3<<20) + "; while :; do :; done"
	file := filepath.Join(t.TempDir(), "burn")
	if err := os.WriteFile(file, []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("sh", file)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	sockets, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	sock := os.NewFile(uintptr(sockets[0]), "socket")
	unix.Close(sockets[1])
	cmd.ExtraFiles = []*os.File{sock}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	sock.Close()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for _, root := range h.dirs {
		if err := os.WriteFile(filepath.Join(root, path, "cgroup.procs"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fmt.Fprintln(in, "go")
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	return path, cmd.Process.Pid
}

// On this machine's cgroups: a process that burns CPU shows as one.
func TestRealCgroup(t *testing.T) {
	path, pid := cgroup(t)
	pods := &fakePods{}
	k := addContainer(pods.addPod("p1", "", ""), "c1", path)
	k.StartedAt, k.Pid = time.Now(), pid
	c := New(&Options{Pods: pods, Storage: t.TempDir()})
	var last uint64
	deadline := time.Now().Add(20 * time.Second)
	for i := 0; ; i++ {
		s, err := c.Container(t.Context(), "c1")
		if err != nil {
			t.Fatal(err)
		}
		cpu := s.Cpu.UsageCoreNanoSeconds.Value
		if cpu < last {
			t.Fatalf("CPU ran backwards: %d after %d", cpu, last)
		}
		last = cpu
		rate := s.Cpu.UsageNanoCores.Value
		if i > 1 && cpu > 1e8 && rate > 1e7 && rate < 2e9 && s.Memory.UsageBytes.Value > 1<<20 && s.Memory.RssBytes.Value > 1<<20 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("never looked busy: %v", s)
		}
		time.Sleep(300 * time.Millisecond)
	}
	u := c.cgroups.read(path)
	if u.processes != 1 || u.threads != 1 {
		t.Errorf("%d processes, %d threads", u.processes, u.threads)
	}
	d := c.cgroups.descriptors(path, pid)
	// stdin, stdout, stderr, the socket, the script
	if d.files < 4 || d.files > 8 || d.sockets != 1 || d.limit == 0 {
		t.Errorf("%+v", d)
	}
}
