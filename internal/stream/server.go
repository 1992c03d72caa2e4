// Package stream serves exec, attach and port-forward to clients that came with
// a URL which CRI handed out, and runs ExecSync. It promises that a session is
// the client's alone: one that stalls or leaves costs itself, a client that is
// gone is noticed (the shim then hangs up its process), and nothing of a session
// is left when it ended.
//
// Processes live in the pod's shim: every session is one connection to it. The
// wire formats (SPDY, WebSocket) and the single-use tokens are the library's.
//
// The CRI front imports it.
package stream

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/url"
	"os"
	"sync"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/cri-streaming/pkg/streaming"
)

// Options say where sessions are served.
type Options struct {
	// Address is ip:port; port 0 picks a free one. "" is 127.0.0.1:0.
	Address string
	// TLS, nil for none.
	TLS *tls.Config
	// IdleTimeout ends a session without traffic; CreationTimeout is how long a
	// SPDY client may take to open its streams. 0 for the library's: 4h, 30s.
	IdleTimeout, CreationTimeout time.Duration
	// Drain is how long the output of an ended exec is waited for while others
	// hold it open. 0 for the shim's own.
	Drain time.Duration
}

// Target is a container that a session can be opened in.
type Target struct {
	SessionSocket string
	ContainerID   string
	// Spec is what the container was created with.
	Spec *specs.Spec
	// TTY: the container's own process has a terminal. Stdin: it has one to
	// attach to.
	TTY, Stdin bool
}

// Containers finds what a request names. Errors carry errdefs classes: NotFound,
// FailedPrecondition for what does not run.
type Containers interface {
	// Session finds a running container.
	Session(ctx context.Context, containerID string) (*Target, error)
	// NetNS is the path of a ready pod's network namespace, "" for the host's.
	NetNS(ctx context.Context, podID string) (string, error)
}

// Server serves sessions.
type Server struct {
	drain    time.Duration
	listener *listener
	http     *http.Server
	lib      streaming.Server
	tickets  *tickets
	wg       sync.WaitGroup
	// containers is set by Start, before the first connection is accepted.
	containers Containers
}

// New listens, and serves nobody until Start.
func New(o *Options) (*Server, error) {
	addr := o.Address
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	l, err := net.Listen("tcp", addr)
	if err != nil {
		return nil, fmt.Errorf("listen for streams: %w", err)
	}
	s := &Server{drain: o.Drain, listener: newListener(l), tickets: newTickets()}
	cfg := streaming.DefaultConfig
	cfg.Addr = l.Addr().String()
	cfg.BaseURL = &url.URL{Scheme: "http", Host: cfg.Addr}
	if o.TLS != nil {
		cfg.BaseURL.Scheme = "https"
	}
	if o.IdleTimeout > 0 {
		cfg.StreamIdleTimeout = o.IdleTimeout
	}
	if o.CreationTimeout > 0 {
		cfg.StreamCreationTimeout = o.CreationTimeout
	}
	if s.lib, err = streaming.NewServer(cfg, (*library)(s)); err != nil {
		l.Close()
		return nil, fmt.Errorf("make streaming server: %w", err)
	}
	s.http = &http.Server{
		Handler:           s,
		TLSConfig:         o.TLS,
		ReadHeaderTimeout: 10 * time.Second,
		ConnContext:       connContext,
		ErrorLog:          slog.NewLogLogger(slog.Default().Handler(), slog.LevelDebug),
	}
	return s, nil
}

// Start serves in the background; c finds what requests name.
func (s *Server) Start(c Containers) {
	s.containers = c
	s.wg.Go(func() {
		var err error
		if s.http.TLSConfig != nil {
			err = s.http.ServeTLS(s.listener, "", "")
		} else {
			err = s.http.Serve(s.listener)
		}
		if !errors.Is(err, http.ErrServerClosed) {
			slog.Error("streaming server ended", "error", err)
		}
	})
}

// Stop serves no more and ends the sessions that are open.
func (s *Server) Stop() error {
	err := s.http.Close()
	s.listener.Close() // not the http server's before Start
	s.listener.cut()
	s.wg.Wait()
	return err
}

// Address is where the server listens.
func (s *Server) Address() string { return s.listener.Addr().String() }

// ServeHTTP serves one session and returns when it ended.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	done := s.tickets.open(r)
	defer done()
	s.lib.ServeHTTP(w, r)
}

// Exec answers with the URL of a session.
func (s *Server) Exec(r *runtime.ExecRequest) (*runtime.ExecResponse, error) {
	key, t := s.tickets.issue(ticket{id: r.ContainerId, stdin: r.Stdin, stdout: r.Stdout, stderr: r.Stderr})
	resp, err := s.lib.GetExec(&runtime.ExecRequest{
		ContainerId: keep(r.ContainerId, key), Cmd: r.Cmd, Tty: r.Tty, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
	})
	if err != nil {
		s.tickets.drop(key)
		return nil, err
	}
	s.tickets.name(t, resp.Url)
	return resp, nil
}

// Attach answers with the URL of a session.
func (s *Server) Attach(r *runtime.AttachRequest) (*runtime.AttachResponse, error) {
	key, t := s.tickets.issue(ticket{id: r.ContainerId, stdin: r.Stdin, stdout: r.Stdout, stderr: r.Stderr})
	resp, err := s.lib.GetAttach(&runtime.AttachRequest{
		ContainerId: keep(r.ContainerId, key), Tty: r.Tty, Stdin: r.Stdin, Stdout: r.Stdout, Stderr: r.Stderr,
	})
	if err != nil {
		s.tickets.drop(key)
		return nil, err
	}
	s.tickets.name(t, resp.Url)
	return resp, nil
}

// PortForward answers with the URL of a session.
func (s *Server) PortForward(r *runtime.PortForwardRequest) (*runtime.PortForwardResponse, error) {
	key, t := s.tickets.issue(ticket{id: r.PodSandboxId})
	resp, err := s.lib.GetPortForward(&runtime.PortForwardRequest{PodSandboxId: keep(r.PodSandboxId, key), Port: r.Port})
	if err != nil {
		s.tickets.drop(key)
		return nil, err
	}
	s.tickets.name(t, resp.Url)
	return resp, nil
}

// keep lets the library see that an id is missing.
func keep(id, key string) string {
	if id == "" {
		return ""
	}
	return key
}

// TLS loads a server's certificate and, when clientCA is not "", demands one of
// that authority from clients.
func TLS(cert, key, clientCA string) (*tls.Config, error) {
	pair, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("load streaming certificate: %w", err)
	}
	c := &tls.Config{
		Certificates: []tls.Certificate{pair},
		MinVersion:   tls.VersionTLS12,
		NextProtos:   []string{"http/1.1"}, // sessions upgrade a connection of their own
	}
	if clientCA == "" {
		return c, nil
	}
	pem, err := os.ReadFile(clientCA)
	if err != nil {
		return nil, fmt.Errorf("load streaming client authority: %w", err)
	}
	c.ClientCAs = x509.NewCertPool()
	if !c.ClientCAs.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("load streaming client authority: no certificate in %s", clientCA)
	}
	c.ClientAuth = tls.RequireAndVerifyClientCert
	return c, nil
}
