package stdio

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// A terminal tells by an error that its last process is gone: that is an end.
func TestRelayOfATerminal(t *testing.T) {
	noLeaks(t)
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	conn, err := master.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	var n int
	if e := conn.Control(func(fd uintptr) {
		if err = unix.IoctlSetPointerInt(int(fd), unix.TIOCSPTLCK, 0); err == nil {
			n, err = unix.IoctlGetInt(int(fd), unix.TIOCGPTN)
		}
	}); e != nil || err != nil {
		t.Fatal(e, err)
	}
	tty, err := os.OpenFile("/dev/pts/"+strconv.Itoa(n), os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "0.log")
	l := openTestLog(t, LogOptions{Path: path})
	cmd := exec.Command("/bin/sh", "-c", "echo one; echo two >&2; printf three")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = tty, tty, tty
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	tty.Close()
	r := NewRelay(master, nil, l)
	if err := cmd.Wait(); err != nil {
		t.Fatal(err)
	}
	if !r.Drain(5 * time.Second) {
		t.Error("not complete")
	}
	if got := of(readLog(t, path), Stdout); !slices.Equal(got, []string{"Fone\r", "Ftwo\r", "Pthree"}) {
		t.Errorf("%q", got)
	}
}
