// Package process is the host of process pods: containers in namespaces of
// this machine, made by an OCI runtime binary (runc, or one with its command
// line). It promises that
//
//   - every exit is taken, once, with its real code, however short the process
//     lived, and no zombie stays;
//   - a signal never reaches a process that took over a pid;
//   - no runtime call lasts longer than its deadline, and what a failed or a
//     killed call left behind is undone before the caller hears of it;
//   - killing means the whole tree, and ends when the kernel says it is empty;
//   - nothing of a deleted container is left: no process, cgroup or runtime state.
//
// It makes its process a child subreaper and reaps all children of it. Hence
// nothing else in that process may wait for a child (os/exec.Cmd.Wait): the
// exit may be gone. Import it from the shim's wiring only.
package process

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"berth/internal/host"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	defaultCallTimeout = 30 * time.Second
	// makeFactor is how much longer a create may take than another call: it
	// mounts volumes and runs hooks.
	makeFactor = 4
)

// Options of a Host.
type Options struct {
	Runtime string // path of the runtime binary
	Root    string // the runtime's --root; its containers must be this host's alone
	// SystemdCgroup: cgroupsPath is "slice:prefix:name", and systemd makes the cgroups.
	SystemdCgroup bool
	// CallTimeout bounds a call of the runtime; 0 is 30 s. A create may take
	// four times that.
	CallTimeout time.Duration
}

// Host implements host.Host.
type Host struct {
	runtime string
	root    string
	systemd bool
	timeout time.Duration
	env     []string
	mounts  *mounts
	// subgroups: the runtime can put an exec into a cgroup below the container's.
	subgroups atomic.Bool

	mu         sync.Mutex
	containers map[string]*container // nil value: being made
	closed     bool
}

var _ host.Host = (*Host)(nil)

// New makes a host. It makes the process a subreaper and starts its reaper,
// which stays for the life of the process.
func New(o *Options) (*Host, error) {
	if !filepath.IsAbs(o.Runtime) || !filepath.IsAbs(o.Root) {
		return nil, fmt.Errorf("runtime %q and its root %q must be absolute paths: %w", o.Runtime, o.Root, errdefs.ErrInvalidArgument)
	}
	h := &Host{
		runtime: o.Runtime, root: o.Root, systemd: o.SystemdCgroup, timeout: o.CallTimeout,
		containers: make(map[string]*container),
	}
	if h.timeout <= 0 {
		h.timeout = defaultCallTimeout
	}
	for _, e := range os.Environ() {
		// These are this process's own: runc would wait for a notification, or
		// hand sockets to the container.
		switch name, _, _ := strings.Cut(e, "="); name {
		case "NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES":
		default:
			h.env = append(h.env, e)
		}
	}
	var err error
	if h.mounts, err = findMounts("/proc/self/mountinfo"); err != nil {
		return nil, err
	}
	// crun has the option, but no way to name a v1 controller in it.
	h.subgroups.Store(len(h.mounts.v1) == 0 || !strings.HasPrefix(filepath.Base(o.Runtime), "crun"))
	if err := os.MkdirAll(h.root, 0o711); err != nil {
		return nil, fmt.Errorf("make runtime root: %w", err)
	}
	// A container's init is an orphan once the runtime has returned, and has to
	// become this process's child.
	if err := unix.Prctl(unix.PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0); err != nil {
		return nil, fmt.Errorf("become child subreaper: %w", err)
	}
	reapers()
	return h, nil
}

// find gives a container that was made here and not deleted.
func (h *Host) find(id string) (*container, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c := h.containers[id]; c != nil {
		return c, nil
	}
	return nil, fmt.Errorf("container %s: %w", id, errdefs.ErrNotFound)
}

// reserve takes an id for a container that is being made.
func (h *Host) reserve(id string) error {
	// The runtime has its own rules; this one keeps the id below Root.
	if id == "" || id == "." || id == ".." || strings.ContainsAny(id, "/\x00") {
		return fmt.Errorf("container id %q: %w", id, errdefs.ErrInvalidArgument)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.closed {
		return fmt.Errorf("host is closed: %w", errdefs.ErrFailedPrecondition)
	}
	if _, ok := h.containers[id]; ok {
		return fmt.Errorf("container %s: %w", id, errdefs.ErrAlreadyExists)
	}
	h.containers[id] = nil
	return nil
}

// settle ends a reservation: with the container, or with nil for none.
func (h *Host) settle(id string, c *container) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if c == nil {
		delete(h.containers, id)
		return
	}
	h.containers[id] = c
}

// drop forgets a container that was given back.
func (h *Host) drop(c *container) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.containers[c.id] == c {
		delete(h.containers, c.id)
	}
}

// Update changes resources; what r does not name stays.
func (h *Host) Update(ctx context.Context, id string, r *specs.LinuxResources) error {
	b, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encode resources of %s: %w", id, err)
	}
	return h.ask(ctx, id, b, "update", "--resources", "-")
}

// Pause freezes the processes of a container.
func (h *Host) Pause(ctx context.Context, id string) error { return h.ask(ctx, id, nil, "pause") }

// Resume thaws the processes of a container.
func (h *Host) Resume(ctx context.Context, id string) error { return h.ask(ctx, id, nil, "resume") }

// ask makes a call about a running container.
func (h *Host) ask(ctx context.Context, id string, input []byte, sub string, args ...string) error {
	c, err := h.running(id)
	if err != nil {
		return err
	}
	err = h.call(ctx, &call{
		sub: sub, args: append(args, id), input: input,
		log: c.temp(sub) + ".log", timeout: h.timeout,
	})
	if err != nil {
		return fmt.Errorf("%s container %s: %w", sub, id, err)
	}
	return nil
}

// running gives a container whose init has not ended.
func (h *Host) running(id string) (*container, error) {
	c, err := h.find(id)
	if err != nil {
		return nil, err
	}
	select {
	case <-c.child.exited:
		return nil, fmt.Errorf("container %s has exited: %w", id, errdefs.ErrFailedPrecondition)
	default:
		return c, nil
	}
}

// Pids lists the processes of a container, those of child cgroups included. It
// is empty after the exit.
func (h *Host) Pids(_ context.Context, id string) ([]int, error) {
	c, err := h.find(id)
	if err != nil {
		return nil, err
	}
	return c.rec.cg.pids(), nil
}

// Clean ends and removes what a dead owner left. The bundle may be gone; then
// only what the runtime still knows is found.
func (h *Host) Clean(ctx context.Context, id, bundle string) error {
	h.mu.Lock()
	c := h.containers[id]
	h.mu.Unlock()
	if c != nil {
		return c.Delete(ctx)
	}
	if err := h.reserve(id); err != nil {
		return err
	}
	defer h.settle(id, nil)
	return h.clean(ctx, id, bundle, h.locate(id, bundle, 0))
}

// clean kills what is left of a container, has the runtime forget it, and
// removes its cgroups. Every step is taken, whatever became of those before.
func (h *Host) clean(ctx context.Context, id, bundle string, rec record) error {
	var errs []error
	if rec.pid > 0 && rec.start > 0 {
		// Not found through a cgroup when that is gone or was left.
		_ = signalPids([]int{rec.pid}, int(unix.SIGKILL), func() []int {
			if st, ok := readStat(rec.pid); ok && st.start == rec.start {
				return []int{rec.pid}
			}
			return nil
		})
	}
	errs = append(errs, rec.cg.killWait(ctx))
	state := filepath.Join(h.root, id)
	if exists(state) {
		if err := h.forget(ctx, id, bundle); err != nil {
			errs = append(errs, err)
		}
	}
	errs = append(errs, rec.cg.remove(ctx))
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("clean container %s: %w", id, err)
	}
	return nil
}

// forget has the runtime delete a container that has no process any more.
func (h *Host) forget(ctx context.Context, id, bundle string) error {
	dir := filepath.Join(h.root, id)
	for _, args := range [][]string{{id}, {"--force", id}} {
		log := filepath.Join(bundle, "delete-"+nonce()+".log")
		if bundle == "" || !exists(bundle) {
			log = filepath.Join(h.root, "delete-"+nonce()+".log")
		}
		err := h.call(ctx, &call{sub: "delete", args: args, log: log, timeout: h.timeout})
		if err == nil || !exists(dir) {
			return nil
		}
		if ctx.Err() != nil || errors.Is(err, context.DeadlineExceeded) || len(args) == 2 {
			// An aborted create leaves a directory without a state in it: no
			// runtime has more to say of it.
			if !exists(filepath.Join(dir, "state.json")) && !exists(filepath.Join(dir, "status")) {
				return os.RemoveAll(dir)
			}
			return err
		}
	}
	return nil
}

// Close ends all containers and the host.
func (h *Host) Close(ctx context.Context) error {
	h.mu.Lock()
	h.closed = true
	var all []*container
	for _, c := range h.containers {
		if c != nil {
			all = append(all, c)
		}
	}
	h.mu.Unlock()
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, c := range all {
		wg.Go(func() { errs[i] = c.Delete(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
