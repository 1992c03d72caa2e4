package effects

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"

	"github.com/containerd/errdefs"

	"berth/internal/keeper"
	"berth/internal/namespaces"
	"berth/internal/pod"
	"berth/internal/shims"
)

// shim is the pod's shim, with the sandbox in it.
type shim struct{ m *Machine }

// Take starts it.
func (s *shim) Take(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	cfg, err := podConfig(j)
	if err != nil {
		return nil, err
	}
	h, err := s.m.handler(j)
	if err != nil {
		return nil, err
	}
	ns, err := holding[namespaces.Paths](j.Pod.Holdings, pod.Namespaces)
	if err != nil {
		return nil, err
	}
	r := &shims.StartRequest{
		ID: j.Pod.ID, Namespace: "k8s.io", Dir: s.m.runtime(j.Pod.ID), ExitDir: s.m.exits(j.Pod.ID),
		Runtime: h.Runtime, RuntimeRoot: h.Root, SystemdCgroup: h.Systemd,
		Drain: s.m.d.Drain,
	}
	if sharedPID(cfg) {
		r.SharePID, r.PIDNS, r.UserNS = true, s.m.pidNS(j.Pod.ID), ns.User
	}
	a, err := s.m.d.Shims.Start(ctx, r)
	if err != nil {
		return nil, fmt.Errorf("start the shim: %w", err)
	}
	return taken(a)
}

func (m *Machine) exits(pod string) string { return filepath.Join(m.persistent(pod), "exits") }

// Probe looks for a living shim. One whose sandbox did not come up before berthd
// died brings it up now; one that cannot any more is ended.
func (s *shim) Probe(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	_, ok, err := s.m.d.Shims.Probe(ctx, j.Pod.ID, s.m.runtime(j.Pod.ID))
	if err != nil {
		return nil, fmt.Errorf("look for the shim: %w", err)
	}
	if ok {
		t, err := s.Take(ctx, j)
		if !errdefs.IsFailedPrecondition(err) {
			return t, err
		}
	}
	_, err = s.Give(ctx, j)
	return nil, err
}

// Give ends the sandbox, and what its containers left, and waits until the
// shim's process is gone.
func (s *shim) Give(ctx context.Context, j *keeper.Job) (*keeper.Exit, error) {
	a, _ := s.m.address(j)
	if err := s.m.d.Shims.Finish(ctx, j.Pod.ID, s.m.runtime(j.Pod.ID), a); err != nil {
		return nil, fmt.Errorf("end the shim: %w", err)
	}
	return nil, nil
}

// address is the shim's, as the ledger has it; nil when it holds none.
func (m *Machine) address(j *keeper.Job) (*shims.Address, error) {
	return holding[shims.Address](j.Pod.Holdings, pod.Shim)
}

// connect returns the client of the pod's shim.
func (m *Machine) connect(j *keeper.Job) (*shims.Shim, error) {
	a, err := m.address(j)
	if err != nil {
		return nil, err
	}
	return m.d.Shims.Shim(a), nil
}

// Watch implements keeper.Machine.
func (m *Machine) Watch(ctx context.Context, j *keeper.Job, report func(*keeper.TaskChange)) error {
	s, err := m.connect(j)
	if err != nil {
		return err
	}
	err = s.Watch(ctx, 0, func(_ int64, changes []shims.Status) error {
		for i := range changes {
			report(&keeper.TaskChange{Container: changes[i].ID, Exit: exit(&changes[i])})
		}
		return nil
	})
	if errors.Is(err, shims.ErrGone) {
		return fmt.Errorf("%w: %w", keeper.ErrGone, err)
	}
	return err
}
