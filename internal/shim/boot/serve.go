//go:build linux

package boot

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/signal"
	"runtime"
	"sync"
	"time"

	"berth/internal/shim"

	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"golang.org/x/sys/unix"
)

const (
	// flushWait bounds the delivery of the last events.
	flushWait = 2 * time.Second
	// partWait bounds how long the clients' last answers may take.
	partWait = 200 * time.Millisecond
)

// serve is the server process: descriptor 3 is its listener, 4 that for stdio
// sessions when berthd made it.
func serve(a *args, cfg *Config) error {
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("become subreaper: %w", err)
	}
	setLog(a.debug)
	signal.Ignore(unix.SIGPIPE, unix.SIGHUP)

	l, err := inherited(3, "tasks")
	if err != nil {
		return err
	}
	var sessions net.Listener
	if a.sessions {
		if sessions, err = inherited(4, "sessions"); err != nil {
			return err
		}
	}
	sockets := takeEnv("BERTH_SOCKET", "BERTH_SESSIONS")
	_ = os.Unsetenv("GOMAXPROCS") // ours alone
	start, err := startTime(os.Getpid())
	if err != nil {
		return fmt.Errorf("own start time: %w", err)
	}
	conf := &shim.Config{
		ID: a.id, Namespace: a.namespace, Build: cfg.Version, Pid: os.Getpid(), StartTime: start,
		Platform: &platform{id: a.id, host: cfg.Host},
	}
	if len(sockets) > 0 {
		conf.Socket = sockets[0]
	}
	var events *shim.Queue
	if a.ttrpc != "" {
		events = shim.NewQueue(a.ttrpc, a.namespace)
		conf.Events = events
	}
	core := shim.New(conf)
	calm := newCalm()
	server, err := ttrpc.NewServer(ttrpc.WithUnaryServerInterceptor(
		func(ctx context.Context, unmarshal ttrpc.Unmarshaler, _ *ttrpc.UnaryServerInfo, method ttrpc.Method) (any, error) {
			calm.active()
			defer calm.active()
			return method(ctx, unmarshal)
		}))
	if err != nil {
		return err
	}
	core.Register(server)
	tasks := &listener{Listener: l, touch: core.Touch, none: make(chan struct{}, 1)}
	go func() {
		if err := server.Serve(context.Background(), tasks); err != nil {
			log.L.WithError(err).Debug("server ended")
		}
	}()
	if sessions != nil {
		go func() {
			if err := core.ServeSessions(&listener{Listener: sessions, touch: calm.active, none: make(chan struct{}, 1)}); err != nil {
				log.L.WithError(err).Error("sessions ended")
			}
		}()
	}
	go handleSignals(core)

	<-core.Done()
	// Nobody shall find a shim that is about to end.
	for _, path := range sockets {
		_ = os.Remove(path)
	}
	if events != nil {
		ctx, cancel := context.WithTimeout(context.Background(), flushWait)
		events.Flush(ctx)
		cancel()
	}
	tasks.drained(partWait)
	return nil
}

// inherited makes a listener of a descriptor. Its socket's file is not its own:
// the spawner made it.
func inherited(fd uintptr, name string) (net.Listener, error) {
	f := os.NewFile(fd, name)
	l, err := net.FileListener(f)
	_ = f.Close()
	if err != nil {
		return nil, fmt.Errorf("inherited listener for %s: %w", name, err)
	}
	return l, nil
}

// takeEnv takes variables that are not meant for the programs we start.
func takeEnv(names ...string) []string {
	var values []string
	for _, name := range names {
		if v := os.Getenv(name); v != "" {
			values = append(values, v)
		}
		_ = os.Unsetenv(name)
	}
	return values
}

// handleSignals: a shim does not let go of containers because somebody asked
// its process to end; it ends when it keeps nothing.
func handleSignals(core *shim.Core) {
	ch := make(chan os.Signal, 8)
	signal.Notify(ch, unix.SIGTERM, unix.SIGINT, unix.SIGUSR1)
	for s := range ch {
		if s == unix.SIGUSR1 {
			dumpStacks()
			continue
		}
		log.L.Infof("%v: ending when there is nothing to keep", s)
		core.Shutdown(false)
	}
}

func dumpStacks() {
	buf := make([]byte, 256<<10)
	buf = buf[:runtime.Stack(buf, true)]
	log.L.Infof("stacks:\n%s", buf)
}

// listener counts connections, so that the end of the process can wait until
// the clients have their last answers and left.
type listener struct {
	net.Listener
	touch func()

	mu   sync.Mutex
	open int
	none chan struct{} // of one: there may be no connection left
}

func (l *listener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	l.touch()
	l.mu.Lock()
	l.open++
	l.mu.Unlock()
	return &countedConn{Conn: c, l: l}, nil
}

// drained waits until no connection is open, at most for wait.
func (l *listener) drained(wait time.Duration) {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	for {
		l.mu.Lock()
		open := l.open
		l.mu.Unlock()
		if open == 0 {
			return
		}
		select {
		case <-l.none:
		case <-timer.C:
			return
		}
	}
}

type countedConn struct {
	net.Conn
	l    *listener
	once sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() {
		c.l.mu.Lock()
		c.l.open--
		c.l.mu.Unlock()
		select {
		case c.l.none <- struct{}{}:
		default:
		}
	})
	return c.Conn.Close()
}
