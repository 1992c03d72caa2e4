package stream

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"runtime"
	"strconv"
	"sync"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// newNetNS makes a network namespace with loopback and runs in inside of it. It
// lasts as long as the test.
func newNetNS(t *testing.T, in func() error) string {
	t.Helper()
	path, end, failed := make(chan string), make(chan struct{}), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // and never unlocked
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			var lo netlink.Link
			if lo, err = netlink.LinkByName("lo"); err == nil {
				err = netlink.LinkSetUp(lo)
			}
		}
		if err == nil {
			err = in()
		}
		if err != nil {
			failed <- err
			return
		}
		path <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), unix.Gettid())
		<-end
	}()
	select {
	case err := <-failed:
		t.Fatal(err)
		return ""
	case p := <-path:
		t.Cleanup(func() { close(end) })
		return p
	}
}

// server answers connections with handle, on the address that it listens on.
func server(t *testing.T, l net.Listener, handle func(*net.TCPConn)) int {
	t.Helper()
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				handle(c.(*net.TCPConn))
			})
		}
	})
	t.Cleanup(func() {
		l.Close()
		wg.Wait()
	})
	return l.Addr().(*net.TCPAddr).Port
}

// inNetNS listens in a namespace of its own.
func inNetNS(t *testing.T, address string, handle func(*net.TCPConn)) (netns string, port int) {
	t.Helper()
	netns = newNetNS(t, func() error {
		l, err := net.Listen("tcp", address)
		if err == nil {
			port = server(t, l, handle)
		}
		return err
	})
	return netns, port
}

// forwarder is a client's connection, over which it has many.
type forwarder struct {
	t      *testing.T
	conn   io.Closer
	create func(http.Header) (stream, error)
	mu     sync.Mutex
	n      int
}

// stream is one of a connection's. (Its package is deprecated, and still the
// one that the dialer has.)
type stream interface {
	io.ReadWriteCloser
	Reset() error
}

func dialForward(t *testing.T, s *Server, pod string) *forwarder {
	t.Helper()
	resp, err := s.PortForward(&cri.PortForwardRequest{PodSandboxId: pod})
	if err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(resp.Url)
	if err != nil {
		t.Fatal(err)
	}
	rt, upgrader, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	conn, _, err := spdy.NewDialer(upgrader, &http.Client{Transport: rt}, http.MethodPost, u).Dial("portforward.k8s.io")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return &forwarder{t: t, conn: conn, create: func(h http.Header) (stream, error) {
		st, err := conn.CreateStream(h)
		if err != nil {
			return nil, err
		}
		return forgotten{st, func() { conn.RemoveStreams(st) }}, nil
	}}
}

// forgotten is a stream that its connection forgets when it is reset.
type forgotten struct {
	stream
	forget func()
}

func (f forgotten) Reset() error {
	err := f.stream.Reset()
	f.forget()
	return err
}

// open opens one forwarded connection.
func (f *forwarder) open(port int) (data, failure stream, err error) {
	f.mu.Lock()
	f.n++
	h := http.Header{}
	h.Set("port", strconv.Itoa(port))
	h.Set("requestID", strconv.Itoa(f.n))
	f.mu.Unlock()
	h.Set("streamType", "error")
	if failure, err = f.create(h); err != nil {
		return nil, nil, err
	}
	failure.Close() // it is only read
	h.Set("streamType", "data")
	data, err = f.create(h)
	return data, failure, err
}

// close forgets a connection's streams, as clients do.
func (f *forwarder) close(data, failure stream) {
	_ = data.Reset()
	_ = failure.Reset()
}

// echo sends back what comes until the peer is done sending, then says so.
func echo(c *net.TCPConn) {
	_, _ = io.Copy(struct{ io.Writer }{c}, c)
	_, _ = io.WriteString(c, "-seen-the-end")
}
