package e2e

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/transport/spdy"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// forward opens a local port that leads to one of the pod's, over SPDY.
func (p *pod) forward(t *testing.T, port int) string {
	t.Helper()
	rt, up, err := spdy.RoundTripperFor(&rest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	dialer := spdy.NewDialer(up, &http.Client{Transport: rt}, http.MethodPost, p.forwardURL(t, port))
	stop, ready := make(chan struct{}), make(chan struct{})
	f := must[*portforward.PortForwarder](t)(portforward.NewOnAddresses(dialer, []string{"127.0.0.1"}, []string{fmt.Sprintf("0:%d", port)}, stop, ready, io.Discard, io.Discard))
	ended := make(chan error, 1)
	go func() { ended <- f.ForwardPorts() }()
	t.Cleanup(func() {
		close(stop)
		<-ended
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	case <-time.After(patience):
		t.Fatal("not ready")
	}
	ports := must[[]portforward.ForwardedPort](t)(f.GetPorts())
	return fmt.Sprintf("127.0.0.1:%d", ports[0].Local)
}

func (p *pod) forwardURL(t *testing.T, port int) *url.URL {
	t.Helper()
	r := must[*cri.PortForwardResponse](t)(p.n.rt.PortForward(t.Context(), &cri.PortForwardRequest{PodSandboxId: p.id, Port: []int32{int32(port)}}))
	return must[*url.URL](t)(url.Parse(r.Url))
}

// ask says data to an address and returns what comes back.
func ask(address string, data []byte) ([]byte, error) {
	c, err := net.DialTimeout("tcp", address, 5*time.Second)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(patience))
	sent := make(chan error, 1)
	go func() {
		_, err := c.Write(data)
		sent <- errors.Join(err, c.(*net.TCPConn).CloseWrite())
	}()
	b, err := io.ReadAll(c)
	return b, errors.Join(err, <-sent)
}

func TestPortForward(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	for i, listen := range []string{"127.0.0.1:7000", "[::1]:7001"} {
		c := p.run(fmt.Sprintf("c%d", i), []string{"probe", "echo", listen})
		c.waitLog("listening")
		to := p.forward(t, 7000+i)
		each(4, func(k int) {
			data := bytes.Repeat([]byte{byte('a' + k)}, 1<<20)
			got, err := ask(to, data)
			if err != nil || !bytes.Equal(got, data) {
				t.Errorf("%s: %d bytes came back of %d: %v", listen, len(got), len(data), err)
			}
		})
	}
	// Nobody listens: this connection fails, not the session.
	to := p.forward(t, 7002)
	if got, err := ask(to, []byte("x")); err == nil && len(got) > 0 {
		t.Errorf("an answer from nobody: %q", got)
	}
}

// Over WebSocket each message starts with its channel, 0 for data, and each
// channel with its port.
func TestPortForwardWebSocket(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", []string{"probe", "echo", "127.0.0.1:7000"})
	c.waitLog("listening")
	u := p.forwardURL(t, 7000)
	u.Scheme, u.RawQuery = "ws", "port=7000"
	conn, resp, err := (&websocket.Dialer{Subprotocols: []string{"v4.channel.k8s.io"}}).Dial(u.String(), nil)
	if err != nil {
		t.Fatalf("%v %v", err, resp)
	}
	defer conn.Close()
	conn.SetReadDeadline(time.Now().Add(patience))
	if err := conn.WriteMessage(websocket.BinaryMessage, []byte("\x00hello")); err != nil {
		t.Fatal(err)
	}
	var got []byte
	for len(got) < 2+len("hello") {
		_, m, err := conn.ReadMessage()
		if err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		switch {
		case len(m) > 0 && m[0] == 0:
			got = append(got, m[1:]...)
		case len(m) > 3:
			t.Fatalf("an error: %q", m[1:])
		}
	}
	if binary.LittleEndian.Uint16(got) != 7000 || string(got[2:]) != "hello" {
		t.Errorf("%q", got)
	}
}
