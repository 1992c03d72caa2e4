package process

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// tailSize is how much of a runtime's last words an error keeps.
	tailSize = 4 << 10
	// logSize is how much of the end of a runtime's log is searched for its error.
	logSize = 64 << 10
	// dieTime is how long to wait for a runtime process after SIGKILL.
	dieTime = 5 * time.Second
	// outputGrace is how long output is read on after the runtime's exit, when
	// a process that it left still holds the pipe.
	outputGrace = 50 * time.Millisecond
)

// call is one run of the runtime binary.
type call struct {
	sub  string   // subcommand
	args []string // and what follows it
	log  string   // path of its log file, removed after the call
	// streams are the container's ends, which the runtime hands down as its
	// own. nil: no stdin (or input), outputs are captured.
	streams *streams
	input   []byte // for stdin; less than a pipe holds
	timeout time.Duration
}

// callError is a runtime call that failed.
type callError struct {
	sub string
	// message is what the runtime logged as its error, or the end of its
	// standard error, or "".
	message string
	logged  bool // message is from the log
	status  unix.WaitStatus
}

func (e *callError) Error() string {
	if e.message != "" {
		return "runtime " + e.sub + ": " + e.message
	}
	if e.status.Signaled() {
		return fmt.Sprintf("runtime %s: killed by signal %d", e.sub, e.status.Signal())
	}
	return fmt.Sprintf("runtime %s: exit status %d", e.sub, e.status.ExitStatus())
}

// call runs the runtime and waits for it, at most for c.timeout. When the time
// or ctx is over, everything that the runtime started is killed; what it did
// until then is the caller's to undo.
func (h *Host) call(ctx context.Context, c *call) error {
	ctx, cancel := context.WithTimeout(ctx, c.timeout)
	defer cancel()
	argv := append(make([]string, 0, 16), h.runtime, "--root", h.root)
	if c.log != "" {
		argv = append(argv, "--log", c.log, "--log-format", "json")
		defer os.Remove(c.log)
	}
	if h.systemd {
		argv = append(argv, "--systemd-cgroup")
	}
	argv = append(append(argv, c.sub), c.args...)

	fd, err := unix.Open("/dev/null", unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open /dev/null: %w", err)
	}
	defer unix.Close(fd)
	null := uintptr(fd)
	files := []uintptr{null, null, null}
	var out *capture
	if c.streams != nil {
		files = c.streams.childFiles(null)
	} else {
		if out, err = newCapture(); err != nil {
			return err
		}
		defer out.close()
		files[1], files[2] = uintptr(out.w), uintptr(out.w)
		if len(c.input) > 0 {
			r, err := filledPipe(c.input)
			if err != nil {
				return err
			}
			defer unix.Close(r)
			files[0] = uintptr(r)
		}
	}
	child, err := reapers().spawn(h.runtime, argv, &syscall.ProcAttr{
		Env: h.env, Files: files, Sys: &syscall.SysProcAttr{Setpgid: true},
	})
	if err != nil {
		return err
	}
	var overflow *time.Timer
	if c.streams != nil {
		overflow = time.AfterFunc(relieveAfter, c.streams.relieve)
		defer func() {
			overflow.Stop()
			c.streams.settle()
		}()
	} else {
		out.start()
	}
	select {
	case <-child.exited:
	case <-ctx.Done():
		killTree(child)
		select {
		case <-child.exited:
		case <-time.After(dieTime):
		}
		return fmt.Errorf("runtime %s gave no answer: %w", c.sub, ctx.Err())
	}
	status := child.end.status
	if status.Exited() && status.ExitStatus() == 0 {
		return nil
	}
	e := &callError{sub: c.sub, status: status}
	if e.message = lastError(c.log); e.message != "" {
		e.logged = true
	} else if out != nil {
		e.message = strings.TrimSpace(string(out.tail()))
	} else {
		overflow.Stop()
		c.streams.settle()
		e.message = strings.TrimSpace(string(c.streams.lastWords()))
	}
	return e
}

// killTree kills a runtime process, its group, and what it started outside of
// the group: runc's init makes a session of its own.
func killTree(c *child) {
	// Stopped, it can start no more. Its children cannot either once they are
	// killed; two looks find those that were just being made.
	_ = c.signal(int(unix.SIGSTOP))
	for range 2 {
		_ = signalPids(descendants(c.pid), int(unix.SIGKILL), func() []int { return descendants(c.pid) })
	}
	reapers().killGroup(c)
	_ = c.signal(int(unix.SIGKILL))
}

// lastError finds the last error in a log of JSON lines, as runc and crun write it.
func lastError(path string) string {
	if path == "" {
		return ""
	}
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	if size, err := f.Seek(0, io.SeekEnd); err == nil {
		_, _ = f.Seek(max(0, size-logSize), io.SeekStart)
	}
	b, _ := io.ReadAll(io.LimitReader(f, logSize))
	last := ""
	for line := range strings.Lines(string(b)) {
		var entry struct{ Level, Msg string }
		if json.Unmarshal([]byte(line), &entry) != nil {
			continue
		}
		switch entry.Level {
		case "error", "fatal", "panic":
			last = entry.Msg
		}
	}
	return last
}

// capture reads both outputs of a runtime call and keeps the end.
type capture struct {
	r    *os.File
	w    int // -1 when closed
	done chan struct{}
	buf  []byte
}

func newCapture() (*capture, error) {
	r, w, err := pipe(true, 0, 0)
	if err != nil {
		return nil, err
	}
	return &capture{r: r, w: w}, nil
}

// start begins to read, after the runtime got its end.
func (c *capture) start() {
	_ = unix.Close(c.w)
	c.w = -1
	c.done = make(chan struct{})
	go func() {
		defer close(c.done)
		b := make([]byte, tailSize)
		for {
			n, err := c.r.Read(b)
			c.buf = keepTail(append(c.buf, b[:n]...))
			if err != nil {
				return
			}
		}
	}()
}

// tail is what was written last, as far as it comes within the grace.
func (c *capture) tail() []byte {
	_ = c.r.SetReadDeadline(time.Now().Add(outputGrace))
	<-c.done
	return c.buf
}

func (c *capture) close() {
	if c.w >= 0 {
		_ = unix.Close(c.w)
	}
	_ = c.r.Close() // ends a pending Read
}

func keepTail(b []byte) []byte {
	if n := len(b) - tailSize; n > 0 {
		b = append(b[:0], b[n:]...)
	}
	return b
}

// filledPipe gives the reading end of a pipe with data in it and no writer.
func filledPipe(data []byte) (int, error) {
	var p [2]int
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, fmt.Errorf("make pipe: %w", err)
	}
	defer unix.Close(p[1])
	if err := unix.SetNonblock(p[1], true); err != nil {
		unix.Close(p[0])
		return -1, fmt.Errorf("make pipe: %w", err)
	}
	if n, err := unix.Write(p[1], data); err != nil || n < len(data) {
		unix.Close(p[0])
		return -1, fmt.Errorf("input of %d bytes is more than a pipe holds: %w", len(data), unix.E2BIG)
	}
	return p[0], nil
}
