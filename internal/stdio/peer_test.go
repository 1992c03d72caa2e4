//go:build linux

package stdio

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func TestAcceptSessionRefuses(t *testing.T) {
	noLeaks(t)
	frame := func(kind byte, size int, body string) []byte {
		return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(size)), body...)
	}
	for name, c := range map[string]struct {
		in []byte
		is func(error) bool
	}{
		"too big":      {frame(frameRequest, maxRequest+1, ""), errdefs.IsInvalidArgument},
		"4 GiB":        {frame(frameRequest, -1, ""), errdefs.IsInvalidArgument},
		"no request":   {frame(frameStdin, 1, "x"), errdefs.IsInvalidArgument},
		"no JSON":      {frame(frameRequest, 1, "x"), errdefs.IsInvalidArgument},
		"no operation": {frame(frameRequest, 2, "{}"), errdefs.IsNotImplemented},
	} {
		client, server := net.Pipe()
		answer := make(chan []byte)
		go func() { _, _ = client.Write(c.in) }() // all of it is not read
		go func() {
			p, _ := io.ReadAll(client)
			answer <- p
		}()
		p, req, err := AcceptSession(t.Context(), server)
		if p != nil || req != nil || !c.is(err) {
			t.Errorf("%s: %v", name, err)
		}
		if got := <-answer; len(got) == 0 || got[0] != frameError {
			t.Errorf("%s: answer %q", name, got)
		}
		client.Close()
	}
	// A client that says nothing is ended by the context.
	client, server := net.Pipe()
	defer client.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, err := AcceptSession(ctx, server); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
}

// A client that sends more than it has credit for is cut off.
func TestStdinBeyondCredit(t *testing.T) {
	noLeaks(t)
	client, server := net.Pipe()
	defer client.Close()
	go func() {
		w := &frameWriter{conn: client}
		_ = w.sendJSON(frameRequest, &SessionRequest{Op: OpExec})
		for w.send(frameStdin, make([]byte, maxPayload)) == nil {
		}
	}()
	p, _, err := AcceptSession(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	release := make(chan struct{})
	if err := p.Stdin(func([]byte) error { <-release; return nil }, nil, nil); !errdefs.IsResourceExhausted(err) {
		t.Error(err)
	}
	p.Close()
	close(release)
}

// FuzzPeer feeds a shim any bytes: it answers with errors, and holds no memory
// beyond its bounds.
func FuzzPeer(f *testing.F) {
	f.Add([]byte("\x01\x00\x00\x00\x0d{\"op\":\"exec\"}\x04\x00\x00\x00\x02ab\x06\x00\x00\x00\x04abcd\x05\x00\x00\x00\x00\x63\x00\x00\x00\x01x\x0a\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, in []byte) {
		client, server := net.Pipe()
		go func() { _, _ = io.Copy(io.Discard, client) }()
		go func() { _, _ = client.Write(in); client.Close() }()
		p, _, err := AcceptSession(t.Context(), server)
		if err != nil {
			return
		}
		var n atomic.Int64
		_ = p.Stdin(func(b []byte) error { n.Add(int64(len(b))); return nil }, func() {}, func(Size) {})
		p.Close()
		if n.Load() > int64(len(in)) {
			t.Errorf("%d bytes of stdin out of %d", n.Load(), len(in))
		}
	})
}

// FuzzSession feeds a client any bytes.
func FuzzSession(f *testing.F) {
	f.Add([]byte("\x07\x00\x00\x00\x02ab\x08\x00\x00\x00\x01c\x0b\x00\x00\x00\x04\x00\x00\x00\x01\x63\x00\x00\x00\x01x\x09\x00\x00\x00\x0a{\"code\":1}"))
	f.Fuzz(func(t *testing.T, in []byte) {
		socket := serve(t, func(p *Peer, _ *SessionRequest) {
			_ = p.Started(1)
			_, _ = p.w.conn.Write(in)
		})
		s, err := DialSession(t.Context(), socket, &SessionRequest{Op: OpExec})
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		exit, err := s.Run(t.Context(), nil, &out, &out, nil)
		if (exit == nil) == (err == nil) || out.Len() > len(in) {
			t.Errorf("%+v, %v, %d bytes", exit, err, out.Len())
		}
	})
}
