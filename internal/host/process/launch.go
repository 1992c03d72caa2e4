package process

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"berth/internal/host"
)

// settleTime is how long to watch a started process until it is the user's
// command. It takes less than a millisecond.
const settleTime = 200 * time.Millisecond

// launch is a runtime call that leaves a process.
type launch struct {
	sub     string
	args    []string
	id      string
	pidFile string
	log     string
	streams *streams
	spec    *host.StreamSpec
	timeout time.Duration
	adopted func(pid int, s *scope) error // takes the process as a child
}

// launch makes the call, takes the process that it left, and its terminal.
// When adopted was called and launch fails, the process is the caller's to end.
func (h *Host) launch(ctx context.Context, l *launch) error {
	c := &call{sub: l.sub, args: l.args, log: l.log, streams: l.streams, timeout: l.timeout}
	if l.streams.listener != nil {
		c.args, c.streams = append(c.args, "--console-socket", l.streams.listener.path), nil
	}
	c.args = append(c.args, l.id)
	defer os.Remove(l.pidFile)
	s := reapers().watch()
	defer s.close()
	err := h.call(ctx, c)
	l.streams.closeChild()
	if err != nil {
		return startError(err)
	}
	b, err := os.ReadFile(l.pidFile)
	if err != nil {
		return fmt.Errorf("runtime %s left no pid: %w", l.sub, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil || pid <= 0 {
		return fmt.Errorf("runtime %s left a pid that is none: %q", l.sub, b)
	}
	if err := l.adopted(pid, s); err != nil {
		return fmt.Errorf("runtime %s: %w", l.sub, err)
	}
	return l.streams.terminal(l.spec)
}

// settle waits until a started process executed the user's command, and fails
// when it could not: of that the runtime hears nothing. A process that takes
// long (a hook, a slow disk) is left to itself. s may be nil.
func settle(p *child, s *streams) error {
	pause := 50 * time.Microsecond
	for until := time.Now().Add(settleTime); ; pause = min(2*pause, 10*time.Millisecond) {
		st, ok := readStat(p.pid)
		if !ok || st.state == 'Z' {
			<-p.exited // it is about to be told
			break
		}
		if st.flags&forkNoExec == 0 || time.Now().After(until) {
			return nil
		}
		select {
		case <-p.exited:
		case <-time.After(pause):
		}
	}
	if !p.end.noexec {
		return nil
	}
	message := "the command could not be executed"
	if s != nil {
		if words := lastLine(s.lastWords()); words != "" {
			message = words
		}
	}
	code := startCode(message)
	if code == 128 {
		code = 126
	}
	return &host.StartError{Code: code, Message: plainMessage(message)}
}

// undone adds to the error of what failed that undoing it failed too.
func undone(err, undo error) error {
	if undo == nil {
		return err
	}
	return fmt.Errorf("%w (and it could not be undone: %v)", err, undo)
}
