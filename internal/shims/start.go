//go:build linux

package shims

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"syscall"
	"time"

	shimv1 "berth/api/shim/v1"

	"github.com/containerd/errdefs"
)

const (
	// shimName and actionServe are the first and the last argument of a shim.
	shimName    = "containerd-shim-berth-v1"
	actionServe = "serve"

	defaultNamespace = "k8s.io"
	maxPath          = 106 // of a unix socket
	// infoWait bounds how long a shim may take to say who it is.
	infoWait = 5 * time.Second
)

var past = time.Unix(1, 0)

// Start starts the pod's shim and brings its sandbox up. A shim of that id that
// lives is taken as it is, so a second Start returns the same. When Start fails
// it ends what it began; when berthd dies in it, Probe finds and Finish ends it,
// and a shim without a sandbox ends by itself.
//
// It does what the binary's start command does for containerd, in this process:
// that command is one more program to execute, and it answers what is known here.
func (m *Manager) Start(ctx context.Context, r *StartRequest) (*Address, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	req := r.proto()
	if err := writePodFile(r.Dir, req); err != nil {
		return nil, err
	}
	tasks, sessions := m.sockets(r.ID)
	began := false
	l, err := listen(tasks)
	if err != nil {
		return nil, fmt.Errorf("shim of pod %s: %w", r.ID, err)
	}
	if l != nil {
		began = true
		if err := m.spawn(r, l, tasks, sessions); err != nil {
			return nil, errors.Join(fmt.Errorf("start shim of pod %s: %w", r.ID, err), os.Remove(tasks))
		}
	}
	addr, err := m.raise(ctx, req, tasks, sessions)
	if err != nil && began {
		// The caller may be gone; the work is not.
		clean, cancel := context.WithTimeout(context.WithoutCancel(ctx), finishWait)
		defer cancel()
		err = errors.Join(err, m.Finish(clean, r.ID, r.Dir, addr))
	}
	if err != nil {
		return nil, err
	}
	return addr, nil
}

// raise asks the shim behind a socket to bring the sandbox up.
func (m *Manager) raise(ctx context.Context, req *shimv1.StartSandboxRequest, tasks, sessions string) (*Address, error) {
	s := &Shim{addr: Address{Socket: tasks, Sessions: sessions}}
	c, err := s.client(ctx)
	if err != nil {
		return nil, fmt.Errorf("shim of pod %s: %w", req.Id, err)
	}
	resp, err := shimv1.NewShimClient(c).StartSandbox(ctx, req)
	if err != nil {
		s.close()
		return nil, fmt.Errorf("start sandbox %s: %w", req.Id, native(ctx, err))
	}
	addr := address(resp.Info, tasks, sessions)
	// The connection is kept: the next call is the first container.
	s.mu.Lock()
	s.addr = *addr
	s.mu.Unlock()
	m.mu.Lock()
	old := m.shims[tasks]
	if old == nil || old.addr != *addr {
		m.shims[tasks] = s
	} else {
		old = s
	}
	m.mu.Unlock()
	if old != nil {
		old.close()
	}
	return addr, nil
}

func address(i *shimv1.InfoResponse, tasks, sessions string) *Address {
	return &Address{
		Socket: tasks, Sessions: sessions, Pid: int(i.Pid), StartTime: i.StartTime,
		Version: int(i.Version), HolderPid: int(i.HolderPid),
	}
}

// listen makes a socket at path. It returns nil when somebody listens there.
func listen(path string) (*net.UnixListener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("socket path %s has %d bytes, allowed are %d: %w", path, len(path), maxPath, errdefs.ErrInvalidArgument)
	}
	for try := 0; ; try++ {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		switch {
		case err == nil:
			l.SetUnlinkOnClose(false)
			return l, nil
		case errors.Is(err, os.ErrNotExist) && try == 0:
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return nil, fmt.Errorf("folder of sockets: %w", err)
			}
		case errors.Is(err, syscall.EADDRINUSE) && try < 3:
			if alive(path) {
				return nil, nil
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("socket of a dead shim: %w", err)
			}
		default:
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
}

// alive tells whether a process holds the listening end of a socket. A dead one
// refuses at once.
func alive(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
	}
	return err == nil || !refused(err)
}

// refused tells whether a dial proves that nobody listens.
func refused(err error) bool {
	return errors.Is(err, syscall.ECONNREFUSED) || errors.Is(err, os.ErrNotExist)
}

// spawn starts the shim's process on l. Its sockets take connections already.
func (m *Manager) spawn(r *StartRequest, l *net.UnixListener, tasks, sessions string) error {
	defer l.Close()
	// A sessions socket without a shim is a left-over.
	if err := os.Remove(sessions); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	ls, err := listen(sessions)
	if err != nil {
		return err
	}
	defer ls.Close()
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	fs, err := ls.File()
	if err != nil {
		return err
	}
	defer fs.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	log, err := os.OpenFile(filepath.Join(r.Dir, "shim.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	ns := r.Namespace
	if ns == "" {
		ns = defaultNamespace
	}
	argv := []string{shimName, "-namespace", ns, "-id", r.ID, "-sessions"}
	if m.opts.Debug {
		argv = append(argv, "-debug")
	}
	p, err := os.StartProcess(m.opts.Binary, append(argv, actionServe), &os.ProcAttr{
		Dir:   r.Dir,
		Env:   append(shimEnv(), "BERTH_SOCKET="+tasks, "BERTH_SESSIONS="+sessions),
		Files: []*os.File{null, null, log, f, fs},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return errors.Join(err, os.Remove(sessions))
	}
	// It is our child for as long as we live; then somebody else reaps it.
	go func() { _, _ = p.Wait() }()
	return nil
}

// shimEnv is little: what a runtime binary needs, and what keeps the Go runtime
// of the shim small.
func shimEnv() []string {
	env := []string{"GOMAXPROCS=1"}
	for _, k := range []string{"PATH", "HOME", "TMPDIR", "XDG_RUNTIME_DIR", "DBUS_SYSTEM_BUS_ADDRESS", "BERTH_FAULT", "GORACE", "GOCOVERDIR"} {
		if v, ok := os.LookupEnv(k); ok {
			env = append(env, k+"="+v)
		}
	}
	return env
}

// Probe looks for the shim of a pod. false is proof that none serves its socket;
// one that does not answer in time is an error.
func (m *Manager) Probe(ctx context.Context, id, _ string) (*Address, bool, error) {
	tasks, sessions := m.sockets(id)
	s := &Shim{addr: Address{Socket: tasks, Sessions: sessions}}
	defer s.close()
	ctx, cancel := context.WithTimeout(ctx, infoWait)
	defer cancel()
	c, err := s.client(ctx)
	if errors.Is(err, ErrGone) {
		return nil, false, nil
	}
	if err != nil {
		return nil, false, fmt.Errorf("probe shim of pod %s: %w", id, err)
	}
	info, err := shimv1.NewShimClient(c).Info(ctx, &shimv1.InfoRequest{})
	if err != nil {
		err = native(ctx, err)
		if !alive(tasks) {
			return nil, false, nil // it ended meanwhile
		}
		return nil, false, fmt.Errorf("probe shim of pod %s: %w", id, err)
	}
	if info.Id != id {
		return nil, false, fmt.Errorf("socket %s serves pod %s, not %s: %w", tasks, info.Id, id, errdefs.ErrConflict)
	}
	return address(info, tasks, sessions), true, nil
}
