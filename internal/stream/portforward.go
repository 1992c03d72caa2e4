package stream

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"sync/atomic"
	"time"

	"berth/internal/netns"
)

const (
	// dialTimeout bounds each of the two tries to reach a port.
	dialTimeout = 10 * time.Second
	// lingering is how long a client may be silent after its pod closed; then
	// its half is closed too.
	lingering = 30 * time.Second
)

// PortForward carries one connection of a client to a port in the pod. An error
// is this connection's own, and is written to the client; once connected there
// is none: what breaks later is a connection that breaks.
func (l *library) PortForward(_ context.Context, key string, port int32, client io.ReadWriteCloser) error {
	t, err := l.tickets.get(key)
	if err != nil {
		return err
	}
	pod, err := l.reach(t, int(port))
	if err != nil {
		settle(client)
		return err
	}
	defer pod.Close()
	forward(t.ctx, client, pod)
	return nil
}

// reach connects to a port of a ticket's pod.
func (l *library) reach(t *ticket, port int) (*net.TCPConn, error) {
	path, err := l.containers.NetNS(t.ctx, t.id)
	if err != nil {
		return nil, err
	}
	return dialLocal(t.ctx, path, port)
}

// settle waits until a SPDY stream is open on both sides, which an empty write
// does. The library resets the stream of a failed connection; doing so earlier
// keeps the message from the client, and a goroutine of the library for ever.
func settle(client io.ReadWriteCloser) {
	if _, ok := client.(resetter); ok {
		_, _ = client.Write(nil)
	}
}

// dialLocal connects to a port on localhost in a network namespace ("" for this
// process's own), over IPv4, then over IPv6.
func dialLocal(ctx context.Context, path string, port int) (*net.TCPConn, error) {
	var errs []error
	for _, to := range []struct{ network, host string }{{"tcp4", "127.0.0.1"}, {"tcp6", "::1"}} {
		c, err := dialIn(ctx, path, to.network, net.JoinHostPort(to.host, strconv.Itoa(port)))
		if err == nil {
			return c.(*net.TCPConn), nil
		}
		errs = append(errs, err)
		if ctx.Err() != nil {
			break
		}
	}
	return nil, fmt.Errorf("connect to port %d on the pod's localhost: %w", port, errors.Join(errs...))
}

func dialIn(ctx context.Context, path, network, address string) (net.Conn, error) {
	d := net.Dialer{Timeout: dialTimeout, KeepAlive: -1}
	if path == "" {
		return d.DialContext(ctx, network, address)
	}
	// A dialer makes the socket of a literal address in the goroutine that calls
	// it.
	var c net.Conn
	err := netns.Do(path, func() (err error) {
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// forward copies both ways until both ends are done, or the client's connection
// ended. Each way is half-closed on its own. Nothing runs on when it returns.
func forward(ctx context.Context, client io.ReadWriteCloser, pod *net.TCPConn) {
	stop := context.AfterFunc(ctx, func() {
		pod.Close()
		abandon(client)
	})
	defer stop()

	var heard atomic.Int64 // bytes from the client
	toPod := make(chan struct{})
	go func() {
		defer close(toPod)
		_, err := io.Copy(&counted{pod, &heard}, client)
		if err != nil {
			pod.Close() // a client that broke off is not one that is done sending
			return
		}
		pod.CloseWrite()
	}()

	_, err := io.Copy(struct{ io.Writer }{client}, pod)
	if _, half := client.(resetter); err == nil && half {
		client.Close() // half: the client may still send
		await(toPod, &heard)
	}
	pod.Close()
	select {
	case <-toPod:
	default:
		abandon(client)
		<-toPod
	}
}

// await waits until done, or until the count stands still for a while.
func await(done <-chan struct{}, count *atomic.Int64) {
	tick := time.NewTicker(lingering)
	defer tick.Stop()
	for last := count.Load(); ; last = count.Load() {
		select {
		case <-done:
			return
		case <-tick.C:
			if count.Load() == last {
				return
			}
		}
	}
}

// resetter is a SPDY stream: Close closes one half, Reset both. A WebSocket
// stream has no halves: its peer learns of the end when the connection ends.
type resetter interface{ Reset() error }

// abandon unblocks whoever reads the client's stream.
func abandon(client io.Closer) {
	if r, ok := client.(resetter); ok {
		r.Reset()
		return
	}
	client.Close()
}

type counted struct {
	w io.Writer
	n *atomic.Int64
}

func (c *counted) Write(p []byte) (int, error) {
	n, err := c.w.Write(p)
	c.n.Add(int64(n))
	return n, err
}
