package stream

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestPortForward(t *testing.T) {
	noLeaks(t)
	for name, address := range map[string]string{"IPv4": "127.0.0.1:0", "IPv6": "[::1]:0"} {
		t.Run(name, func(t *testing.T) {
			shim := newShim(t)
			netns, port := inNetNS(t, address, echo)
			shim.netns["pod"] = netns
			f := dialForward(t, serve(t, shim, nil), "pod")
			data, failure, err := f.open(port)
			if err != nil {
				t.Fatal(err)
			}
			// The client's half-close reaches the pod, and the pod's the client.
			fmt.Fprint(data, "hello")
			data.Close()
			got, err := io.ReadAll(data)
			if err != nil || string(got) != "hello-seen-the-end" {
				t.Errorf("%q %v", got, err)
			}
			if msg, _ := io.ReadAll(failure); len(msg) > 0 {
				t.Errorf("an error: %s", msg)
			}
			f.close(data, failure)
		})
	}
}

// The pod may be done sending before the client is.
func TestPortForwardPodDoneFirst(t *testing.T) {
	noLeaks(t)
	shim := newShim(t)
	took := make(chan string, 1)
	netns, port := inNetNS(t, "127.0.0.1:0", func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "greeting")
		_ = c.CloseWrite()
		b, _ := io.ReadAll(c)
		took <- string(b)
	})
	shim.netns["pod"] = netns
	f := dialForward(t, serve(t, shim, nil), "pod")
	data, failure, err := f.open(port)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := io.ReadAll(data); err != nil || string(got) != "greeting" {
		t.Errorf("%q %v", got, err)
	}
	fmt.Fprint(data, "late words")
	data.Close()
	if got := <-took; got != "late words" {
		t.Errorf("the pod got %q", got)
	}
	f.close(data, failure)
}

// A host network pod is dialled on the host.
func TestPortForwardHostNetwork(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := server(t, l, echo)
	shim := newShim(t)
	shim.netns["host"] = ""
	f := dialForward(t, serve(t, shim, nil), "host")
	data, failure, err := f.open(port)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(data, "x")
	data.Close()
	if got, _ := io.ReadAll(data); string(got) != "x-seen-the-end" {
		t.Errorf("%q", got)
	}
	f.close(data, failure)
}

// A port that nobody listens on is one connection's trouble; the message reaches
// the client, and the next connection works.
func TestPortForwardRefused(t *testing.T) {
	noLeaks(t)
	shim := newShim(t)
	netns, port := inNetNS(t, "127.0.0.1:0", echo)
	shim.netns["pod"] = netns
	shim.netns["gone"] = "/nonexistent/netns"
	s := serve(t, shim, nil)
	f := dialForward(t, s, "pod")
	// The failure may come before the client has opened both streams.
	data, failure, err := f.open(1)
	if failure == nil {
		t.Fatal(err)
	}
	msg, _ := io.ReadAll(failure)
	for _, want := range []string{"port 1 ", "127.0.0.1:1", "[::1]:1", "connection refused"} {
		if !strings.Contains(string(msg), want) {
			t.Errorf("message %q lacks %q", msg, want)
		}
	}
	if err == nil {
		f.close(data, failure)
	}
	data, failure, err = f.open(port)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(data, "x")
	data.Close()
	if got, _ := io.ReadAll(data); string(got) != "x-seen-the-end" {
		t.Errorf("after the failure: %q", got)
	}
	f.close(data, failure)
	for pod, want := range map[string]string{"gone": "no such file", "unknown": "not found"} {
		_, failure, err := dialForward(t, s, pod).open(port)
		if failure == nil {
			t.Fatal(err)
		}
		if msg, _ := io.ReadAll(failure); !strings.Contains(string(msg), want) {
			t.Errorf("%s: %q", pod, msg)
		}
	}
}

// A thousand connections, twenty at a time, then nothing is left; threads of the
// pod's namespace are gone too.
func TestPortForwardMany(t *testing.T) {
	noLeaks(t)
	shim := newShim(t)
	netns, port := inNetNS(t, "127.0.0.1:0", echo)
	shim.netns["pod"] = netns
	s := serve(t, shim, nil)
	f := dialForward(t, s, "pod")
	before := openFiles(t)
	payload := bytes.Repeat([]byte("payload "), 1000)
	work := make(chan int)
	var wg sync.WaitGroup
	for range 20 {
		wg.Go(func() {
			for i := range work {
				if err := f.roundTrip(port, payload, i%5 == 0); err != nil {
					t.Errorf("connection %d: %v", i, err)
				}
			}
		})
	}
	for i := range 1000 {
		work <- i
	}
	close(work)
	wg.Wait()
	eventually(t, "all files are closed", func() bool { return openFiles(t) <= before })
	threads, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	if len(threads) > 100 {
		t.Errorf("%d threads", len(threads))
	}
	pod, err := os.Readlink(netns)
	if err != nil {
		t.Fatal(err)
	}
	var inside []string
	for _, th := range threads {
		if ns, err := os.Readlink("/proc/self/task/" + th.Name() + "/ns/net"); err == nil && ns == pod {
			inside = append(inside, th.Name())
		}
	}
	if len(inside) != 1 { // the one that holds the namespace for the test
		t.Errorf("threads %v are in the pod's namespace", inside)
	}
}

// roundTrip sends payload through a connection of its own; rude breaks off
// instead.
func (f *forwarder) roundTrip(port int, payload []byte, rude bool) error {
	data, failure, err := f.open(port)
	if err != nil {
		return err
	}
	defer f.close(data, failure)
	if _, err := data.Write(payload); err != nil {
		return err
	}
	if rude {
		return nil
	}
	data.Close()
	got, err := io.ReadAll(data)
	if err != nil {
		return err
	}
	if want := string(payload) + "-seen-the-end"; string(got) != want {
		return fmt.Errorf("got %d bytes of %d", len(got), len(want))
	}
	return nil
}

// The end of the client's connection ends what it forwards, whatever the pod
// does: here it neither sends nor closes.
func TestPortForwardClientGone(t *testing.T) {
	noLeaks(t)
	shim := newShim(t)
	ended := make(chan error, 1)
	netns, port := inNetNS(t, "127.0.0.1:0", func(c *net.TCPConn) {
		b := make([]byte, 1)
		_, err := io.ReadFull(c, b)
		if err == nil {
			_, err = c.Read(b) // the half-close
		}
		if errors.Is(err, io.EOF) {
			ended <- nil
			// Held open until the forwarding side goes away for good.
			for err = nil; err == nil; time.Sleep(10 * time.Millisecond) {
				_, err = c.Write([]byte("x"))
			}
		}
		ended <- err
	})
	shim.netns["pod"] = netns
	f := dialForward(t, serve(t, shim, nil), "pod")
	data, _, err := f.open(port)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprint(data, "x")
	data.Close()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	f.conn.Close()
	select {
	case err := <-ended:
		if err == nil {
			t.Error("ended without an error")
		}
	case <-time.After(15 * time.Second):
		t.Fatal("the pod's connection outlived the client")
	}
}

// Over WebSocket there are no halves: the end of the pod's connection ends the
// client's.
func TestPortForwardWebSocket(t *testing.T) {
	noLeaks(t)
	shim := newShim(t)
	netns, port := inNetNS(t, "127.0.0.1:0", func(c *net.TCPConn) {
		b := make([]byte, 5)
		if _, err := io.ReadFull(c, b); err == nil {
			_, _ = c.Write(bytes.ToUpper(b))
		}
	})
	shim.netns["pod"] = netns
	s := serve(t, shim, nil)
	resp, err := s.PortForward(&cri.PortForwardRequest{PodSandboxId: "pod", Port: []int32{int32(port), 1}})
	if err != nil {
		t.Fatal(err)
	}
	d := websocket.Dialer{Subprotocols: []string{"v4.channel.k8s.io"}}
	ws, _, err := d.DialContext(t.Context(), strings.Replace(resp.Url, "http", "ws", 1), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer ws.Close()
	if err := ws.WriteMessage(websocket.BinaryMessage, []byte("\x00hello")); err != nil {
		t.Fatal(err)
	}
	got := map[byte]string{}
	for {
		_, m, err := ws.ReadMessage()
		if err != nil {
			break
		}
		if len(m) > 0 {
			got[m[0]] += string(m[1:])
		}
	}
	number := func(p int) string { return string([]byte{byte(p), byte(p >> 8)}) }
	if want := number(port) + "HELLO"; got[0] != want {
		t.Errorf("data %q, want %q", got[0], want)
	}
	if !strings.HasPrefix(got[3], number(1)) || !strings.Contains(got[3], "connection refused") {
		t.Errorf("failure of the other port: %q", got[3])
	}
}

// A client that is gone is not dialled for.
func TestDialLocalGivesUp(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := dialLocal(ctx, "", 1); !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}
