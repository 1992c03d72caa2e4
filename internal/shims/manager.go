//go:build linux

package shims

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	shimv1 "berth/api/shim/v1"
	"berth/internal/shim/exits"

	"github.com/containerd/errdefs"
)

// Options of a Manager.
type Options struct {
	Binary    string // the shim's
	SocketDir string // short: a socket's path has at most 106 bytes
	Debug     bool
}

// Manager starts and finds shims.
type Manager struct {
	opts Options

	mu    sync.Mutex
	shims map[string]*Shim // by socket
}

// NewManager makes a Manager. Nothing is touched before the first call.
func NewManager(o *Options) *Manager {
	return &Manager{opts: *o, shims: map[string]*Shim{}}
}

// StartRequest describes a pod's shim.
type StartRequest struct {
	ID        string // of the pod
	Namespace string // containerd namespace, "" = "k8s.io"
	Dir       string // the pod's run directory; the shim's working directory
	ExitDir   string // exit records, on a persistent file system

	Runtime       string // OCI runtime binary, absolute
	RuntimeRoot   string // its state directory, absolute, of this pod's runtime alone
	SystemdCgroup bool

	SharePID    bool   // hold a pid namespace with a tiny init
	UserNS      string // path of the user namespace that shall own it, "" = the host's
	PIDNS       string // where to pin it
	Cgroup      string // the pod's cgroup, for the holder
	OOMScoreAdj *int   // of the shim; nil leaves it

	Drain time.Duration // how long streams may hold back an exit, 0 = 2 s
}

func (r *StartRequest) proto() *shimv1.StartSandboxRequest {
	p := &shimv1.StartSandboxRequest{
		Id: r.ID, ExitDir: r.ExitDir, Runtime: r.Runtime, RuntimeRoot: r.RuntimeRoot, SystemdCgroup: r.SystemdCgroup,
		SharePid: r.SharePID, UserNs: r.UserNS, PidNs: r.PIDNS, Cgroup: r.Cgroup, Drain: int64(r.Drain),
	}
	if r.OOMScoreAdj != nil {
		n := int32(*r.OOMScoreAdj)
		p.OomScoreAdj = &n
	}
	return p
}

func (r *StartRequest) check() error {
	switch {
	case r.ID == "":
		return fmt.Errorf("shim without a pod id: %w", errdefs.ErrInvalidArgument)
	case !filepath.IsAbs(r.Dir) || !filepath.IsAbs(r.ExitDir):
		return fmt.Errorf("shim of pod %s: run directory %q and exit directory %q must be absolute: %w",
			r.ID, r.Dir, r.ExitDir, errdefs.ErrInvalidArgument)
	case r.SharePID && !filepath.IsAbs(r.PIDNS):
		return fmt.Errorf("shim of pod %s: place %q of the pid namespace must be absolute: %w", r.ID, r.PIDNS, errdefs.ErrInvalidArgument)
	}
	return nil
}

// Address names a living shim. It goes into the pod's journal.
type Address struct {
	Socket    string `json:"socket"`
	Sessions  string `json:"sessions"`
	Pid       int    `json:"pid"`
	StartTime uint64 `json:"startTime"` // clock ticks since boot
	Version   int    `json:"version"`   // of berth.shim.v1, as negotiated
	HolderPid int    `json:"holderPid,omitempty"`
}

// podFile is what the shim's delete command needs when the shim is dead.
const podFile = "shim.json"

func writePodFile(dir string, r *shimv1.StartSandboxRequest) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode %s: %w", podFile, err)
	}
	path := filepath.Join(dir, podFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("note shim of pod: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("note shim of pod: %w", err)
	}
	return nil
}

// sockets are the paths of a pod's sockets: short, and the same for each try.
func (m *Manager) sockets(id string) (tasks, sessions string) {
	base := filepath.Join(m.opts.SocketDir, id[:min(16, len(id))])
	return base, base + ".io"
}

// Shim is the connection to a shim. It dials at the first call, and again after
// a failure.
func (m *Manager) Shim(a *Address) *Shim {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.shims[a.Socket]
	if s == nil || s.addr.Pid != a.Pid || s.addr.StartTime != a.StartTime {
		if s != nil {
			go s.close() // a former shim of this pod
		}
		s = &Shim{addr: *a}
		m.shims[a.Socket] = s
	}
	return s
}

// forget drops the connection to a shim that is gone.
func (m *Manager) forget(socket string) {
	m.mu.Lock()
	s := m.shims[socket]
	delete(m.shims, socket)
	m.mu.Unlock()
	if s != nil {
		s.close()
	}
}

// Exits are the exits that a pod's shim recorded and nobody acknowledged, by
// container. It is what is known of containers whose shim is gone. Records that
// cannot be read are in the error; the others are returned with it.
func Exits(exitDir string) (map[string]Status, error) {
	records, err := exits.List(exitDir)
	all := make(map[string]Status, len(records))
	for _, r := range records {
		all[r.ID] = Status{
			ID: r.ID, Pid: r.Pid, State: StateExited, StartedAt: r.StartedAt, ExitedAt: r.At,
			ExitCode: r.Code, Signal: r.Signal, OOM: r.OOM, Reason: r.Reason,
		}
	}
	return all, err
}

// ErrGone: the shim's process is proven dead.
var ErrGone = errors.New("shim is gone")
