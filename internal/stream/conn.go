package stream

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// watchEvery is how often a connection that nobody reads is looked at.
const watchEvery = 2 * time.Second

// listener knows its connections. net/http forgets those that were upgraded, and
// does not tell their handlers when the client left.
type listener struct {
	net.Listener

	mu    sync.Mutex
	shut  bool
	conns map[*conn]struct{}
}

func newListener(l net.Listener) *listener {
	return &listener{Listener: l, conns: map[*conn]struct{}{}}
}

func (l *listener) Accept() (net.Conn, error) {
	nc, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	c := &conn{Conn: nc, l: l}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	l.mu.Lock()
	shut := l.shut
	if !shut {
		l.conns[c] = struct{}{}
	}
	l.mu.Unlock()
	if shut {
		c.Close()
		return nil, net.ErrClosed
	}
	go c.watch()
	return c, nil
}

// cut closes all connections.
func (l *listener) cut() {
	l.mu.Lock()
	l.shut = true
	var all []*conn
	for c := range l.conns {
		all = append(all, c)
	}
	l.mu.Unlock()
	for _, c := range all {
		c.Close()
	}
}

// conn is a client's connection; ctx ends when the client left or it was closed.
type conn struct {
	net.Conn
	l      *listener
	ctx    context.Context
	cancel context.CancelFunc
}

func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		c.cancel()
	}
	return n, err
}

func (c *conn) Close() error {
	c.cancel()
	c.l.mu.Lock()
	delete(c.l.conns, c)
	c.l.mu.Unlock()
	return c.Conn.Close()
}

// watch notices that the client left while its data waits unread: a process that
// does not take its stdin would keep the session for ever.
func (c *conn) watch() {
	tick := time.NewTicker(watchEvery)
	defer tick.Stop()
	for {
		select {
		case <-c.ctx.Done():
			return
		case <-tick.C:
			if c.peerGone() {
				c.Close() // also ends a write that the peer will never take
				return
			}
		}
	}
}

// peerGone asks the kernel whether the peer closed. Neither SPDY nor WebSocket
// half-closes a connection.
func (c *conn) peerGone() bool {
	tc, ok := c.Conn.(*net.TCPConn)
	if !ok {
		return false
	}
	raw, err := tc.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		gone = err == nil && info.State != unix.BPF_TCP_ESTABLISHED
	})
	return gone || err != nil
}

// connContext makes requests end with their connection.
func connContext(ctx context.Context, nc net.Conn) context.Context {
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	c, ok := nc.(*conn)
	if !ok {
		return ctx
	}
	ctx, cancel := context.WithCancel(ctx)
	context.AfterFunc(c.ctx, cancel)
	return ctx
}
