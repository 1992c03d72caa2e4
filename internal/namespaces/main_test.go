package namespaces

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

const (
	inside   = "BERTH_TEST_INSIDE"    // set in a private mount namespace
	creating = "BERTH_TEST_CREATE_IN" // makes namespaces there and prints "done"
)

// TestMain runs the tests in a mount namespace of their own, so that a failing
// test leaves no mount on the machine.
func TestMain(m *testing.M) {
	Main()
	switch {
	case os.Getenv(creating) != "":
		_, err := Create(context.Background(), crashRequest(os.Getenv(creating)))
		fmt.Println("done", err)
		os.Exit(0)
	case os.Getenv(inside) == "":
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// mounts are the lines of our mount table that mention dir.
func mounts(t *testing.T, dir string) []string {
	t.Helper()
	all, err := os.ReadFile("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for line := range strings.Lines(string(all)) {
		if strings.Contains(line, dir) {
			got = append(got, line)
		}
	}
	return got
}

// in runs a command in pinned namespaces, as another process would.
func in(t *testing.T, p *Paths, command ...string) string {
	t.Helper()
	var args []string
	for flag, path := range map[string]string{"--net": p.Net, "--ipc": p.IPC, "--uts": p.UTS, "--user": p.User} {
		if path != "" {
			args = append(args, flag+"="+path)
		}
	}
	out, err := exec.Command("nsenter", append(append(args, "--"), command...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v in %+v: %v: %s", command, p, err, out)
	}
	return strings.TrimSpace(string(out))
}

// inode identifies a namespace.
func inode(t *testing.T, path string) uint64 {
	t.Helper()
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		t.Fatalf("stat %s: %v", path, err)
	}
	return st.Ino
}
