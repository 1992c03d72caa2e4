package shim

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"time"

	"berth/internal/host"
	"berth/internal/stdio"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
	"github.com/opencontainers/runtime-spec/specs-go"
)

const (
	// partWait bounds what is said to a client that may not listen any more.
	partWait = 2 * time.Second
	// timeoutKill bounds the kill of an exec whose time is up, before its
	// client hears of it.
	timeoutKill = 2 * time.Second
)

// ServeSessions serves exec and attach sessions until the listener closes.
func (c *Core) ServeSessions(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			if errors.Is(err, net.ErrClosed) {
				return nil
			}
			select {
			case <-c.done:
				return nil
			case <-time.After(10 * time.Millisecond): // out of descriptors
			}
			log.L.WithError(err).Warn("accept session")
			continue
		}
		go c.session(conn)
	}
}

func (c *Core) session(conn net.Conn) {
	defer conn.Close()
	peer, req, err := stdio.AcceptSession(c.ctx, conn)
	if err != nil {
		log.L.WithError(err).Debug("session refused")
		return
	}
	defer peer.Close()
	if req.Op == stdio.OpAttach {
		err = c.attachSession(conn, peer, req)
	} else {
		err = c.execSession(peer, req)
	}
	if err != nil {
		_ = peer.Fail(err) // the client may be gone
	}
}

// execSession runs a process for a client. A client that reads slowly holds the
// process back; when one leaves, the process is hung up, unless detached.
func (c *Core) execSession(peer *stdio.Peer, req *stdio.SessionRequest) error {
	var spec specs.Process
	if err := json.Unmarshal(req.Process, &spec); err != nil {
		return fmt.Errorf("exec %s: process: %w: %w", req.Exec, errdefs.ErrInvalidArgument, err)
	}
	t, err := c.find(c.ctx, req.Container)
	if err != nil {
		return err
	}
	p, err := c.addExec(t, req.Exec, nil)
	if err != nil {
		return err
	}
	process, err := c.runExec(t, &host.ExecSpec{
		ContainerID: t.id, ID: p.id, Bundle: t.bundle, Process: &spec,
		Streams: host.StreamSpec{
			Terminal: req.Terminal, Stdin: req.Stdin,
			Stdout: req.Stdout || req.Terminal, Stderr: req.Stderr && !req.Terminal,
		},
	})
	if err != nil {
		return errors.Join(err, c.removeExec(t, p))
	}
	// The client hears of the start before it hears the process.
	startErr := peer.Started(process.Pid())
	c.running(p, func() {
		p.attach(process, stdio.NewWriterSink(peer.Stdout(), peer.Stderr()), nil, true)
	})
	left := make(chan bool, 1)
	if startErr != nil {
		left <- false
	} else {
		go func() { left <- c.follow(peer, p) }()
	}
	if err := c.conduct(t, p, peer, req, left); err != nil {
		_ = peer.Fail(err)
	}
	_ = peer.Close()
	close(p.announced)
	if err := c.removeExec(t, p); err != nil {
		c.finishLater(t, p, err)
	}
	return nil
}

// conduct follows an exec to its end and tells the client.
func (c *Core) conduct(t *task, p *proc, peer *stdio.Peer, req *stdio.SessionRequest, left <-chan bool) error {
	var timeout <-chan time.Time
	if req.Timeout > 0 {
		timer := time.NewTimer(req.Timeout)
		defer timer.Stop()
		timeout = timer.C
	}
	var hangup <-chan time.Time
	timedOut := false
	for ended := false; !ended; {
		select {
		case <-p.process.Done():
			ended = true
		case <-timeout:
			timedOut, timeout = true, nil
			if !c.killExec(p, timeoutKill) {
				return fmt.Errorf("exec %s in container %s: timed out after %v and does not end after SIGKILL: %w",
					p.id, t.id, req.Timeout, context.DeadlineExceeded)
			}
		case detached := <-left:
			left = nil
			_ = peer.Close() // nobody waits to write to it
			if detached || req.Detached {
				continue
			}
			// As a terminal that goes away: those who know what to do then have
			// the time that streams may take.
			if err := c.signal(c.ctx, p, sighup, true); err != nil {
				log.L.WithError(err).Debugf("hang up exec %s", p.id)
			}
			timer := time.NewTimer(c.drain())
			defer timer.Stop()
			hangup = timer.C
		case <-hangup:
			hangup = nil
			if !c.killExec(p, killWait) {
				return nil
			}
		}
	}
	exit := p.process.Exit()
	c.mu.Lock()
	p.state = Exited
	p.status.ExitedAt, p.status.Code, p.status.Signal = exit.At, exit.Code, exit.Signal
	c.mu.Unlock()
	drain := req.Drain
	if drain <= 0 {
		drain = c.drain()
	}
	if !p.relay.Drain(drain) {
		// A slow reader gets all that the process wrote, while it stays. (Once
		// it left, what is written to it fails, and the relay ends.)
		select {
		case <-p.relay.Done():
		case <-c.done:
		}
	}
	return peer.Exit(&stdio.Exit{Code: exit.Code, At: exit.At, Cut: p.relay.Cut(), TimedOut: timedOut})
}

// killExec ends an exec's tree and tells whether the exec ended in time.
func (c *Core) killExec(p *proc, wait time.Duration) bool {
	ctx, cancel := context.WithTimeout(c.ctx, wait)
	defer cancel()
	if err := p.process.Kill(ctx); err != nil {
		if errdefs.IsNotFound(err) && !p.ended() {
			p.kick(c.drain())
		}
		log.L.WithError(err).Debugf("kill exec %s", p.id)
	}
	select {
	case <-p.process.Done():
		return true
	case <-ctx.Done():
		return p.ended()
	}
}

// finishLater gives an exec back when it ends after all.
func (c *Core) finishLater(t *task, p *proc, err error) {
	log.L.WithError(err).Warnf("exec %s of %s (pid %d) %s", p.id, t.id, p.process.Pid(), c.cfg.Platform.Stuck(p.process.Pid()))
	go func() {
		select {
		case <-p.process.Done():
			_ = c.removeExec(t, p)
		case <-c.done:
		}
	}()
}

// attachSession lets a client follow a task's streams from now on.
func (c *Core) attachSession(conn net.Conn, peer *stdio.Peer, req *stdio.SessionRequest) error {
	t, err := c.find(c.ctx, req.Container)
	if err != nil {
		return err
	}
	c.mu.Lock()
	state := t.state
	c.mu.Unlock()
	if state == Exited {
		return fmt.Errorf("attach to container %s, which is %v: %w", t.id, state, errdefs.ErrFailedPrecondition)
	}
	if err := peer.Started(t.process.Pid()); err != nil {
		return nil // the client left
	}
	client := stdio.NewClient(peer.Stdout(), peer.Stderr())
	defer t.relay.AttachAfter(client, t.past(req.Replay))()
	left := make(chan bool, 1)
	go func() { left <- c.follow(peer, &t.proc) }()
	select {
	case <-left:
		return nil
	case <-client.Done():
		if err := client.Err(); err != nil {
			return err
		}
	case <-c.done:
		return errEnding
	}
	select {
	case <-t.announced:
	case <-left:
		return nil
	case <-c.done:
		return errEnding
	}
	exit := t.process.Exit()
	_ = conn.SetWriteDeadline(time.Now().Add(partWait))
	return peer.Exit(&stdio.Exit{Code: exit.Code, At: exit.At, Cut: t.relay.Cut()})
}

// past gives out the last lines of a task's log, nil when none are wanted.
func (t *task) past(lines int) func(func(stdio.Stream, []byte)) {
	if lines <= 0 || t.log == nil {
		return nil
	}
	return func(out func(stdio.Stream, []byte)) {
		if err := t.log.Tail(lines, out); err != nil {
			log.L.WithError(err).Warnf("last lines of %s for a client", t.id)
		}
	}
}

// follow takes what the client sends until it leaves, and tells whether it
// asked that the process go on.
func (c *Core) follow(peer *stdio.Peer, p *proc) (detached bool) {
	err := peer.Stdin(
		func(b []byte) error {
			if p.input == nil {
				return nil
			}
			_, err := p.input.Write(b)
			return err
		},
		func() {
			if p.input != nil {
				_ = p.input.CloseWrite()
			}
		},
		func(s stdio.Size) {
			if err := p.process.Resize(s.Width, s.Height); err != nil {
				log.L.WithError(err).Debugf("resize %s", p.id)
			}
		})
	return err == nil
}
