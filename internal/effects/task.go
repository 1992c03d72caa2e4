package effects

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/protobuf/encoding/protojson"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/ocispec"
	"berth/internal/pod"
	"berth/internal/record"
	"berth/internal/shims"
)

// Reasons of an exit as the kubelet knows them.
const (
	reasonCompleted = "Completed"
	reasonError     = "Error"
	reasonOOM       = "OOMKilled"
)

// task is a container's processes, in the shim.
type task struct{ m *Machine }

// Take creates and starts the container, in one call.
func (t *task) Take(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	rec, err := containerRecord(j)
	if err != nil {
		return nil, err
	}
	rfs, err := holding[record.Rootfs](j.Container.Holdings, pod.Rootfs)
	if err != nil {
		return nil, err
	}
	s, err := t.m.connect(j)
	if err != nil {
		return nil, err
	}
	if len(j.Container.Resources) > 0 {
		h, err := t.m.handler(j)
		if err != nil {
			return nil, err
		}
		if err := respec(rfs.Bundle, j.Container.Resources, h.Host); err != nil {
			return nil, err
		}
	}
	cfg, err := podConfig(j)
	if err != nil {
		return nil, err
	}
	log, err := logLimits(t.m.d.Log, cfg)
	if err != nil {
		return nil, err
	}
	log.Path = rec.LogPath
	st, err := s.Run(ctx, &shims.Task{
		ID: j.Container.ID, Bundle: rfs.Bundle, Terminal: rec.Config.GetTty(), Stdin: rec.Config.GetStdin(), StdinOnce: rec.Config.GetStdinOnce(),
		Log: log, StopSignal: rec.StopSignal,
	})
	var se *shims.ErrStart
	if errors.As(err, &se) {
		return nil, &keeper.StartError{Code: se.Code, Err: err}
	}
	if err != nil {
		return nil, fmt.Errorf("run the container: %w", err)
	}
	tk, err := taken(struct {
		Pid int `json:"pid"`
	}{st.Pid})
	if err == nil {
		tk.Pid, tk.At = st.Pid, st.StartedAt
	}
	return tk, err
}

// Probe runs it again: the shim gives the same answer for a container that it
// has already.
func (t *task) Probe(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	return t.Take(ctx, j)
}

// Give deletes the task, and with it acknowledges its exit. Where the shim is
// dead, what it left is killed; the exit it may have recorded is the truth.
func (t *task) Give(ctx context.Context, j *keeper.Job) (*keeper.Exit, error) {
	a, err := t.m.address(j)
	if err != nil || j.Pod.ShimLost || j.Pod.Rebooted {
		return t.bury(ctx, j, a)
	}
	st, err := t.m.d.Shims.Shim(a).Delete(ctx, j.Container.ID)
	if errors.Is(err, shims.ErrGone) {
		return t.bury(ctx, j, a)
	}
	if err != nil {
		return nil, fmt.Errorf("delete the task: %w", err)
	}
	if st == nil {
		return nil, nil
	}
	return exit(st), nil
}

// bury ends what a dead shim left. An exit that it recorded is the truth; without
// one the container was alive when the shim died, and was killed now, or the
// machine went down under it and nobody knows.
func (t *task) bury(ctx context.Context, j *keeper.Job, a *shims.Address) (*keeper.Exit, error) {
	if err := t.m.d.Shims.Finish(ctx, j.Pod.ID, t.m.runtime(j.Pod.ID), a); err != nil {
		return nil, fmt.Errorf("end what the dead shim left: %w", err)
	}
	exits, err := shims.Exits(t.m.exits(j.Pod.ID))
	if st, ok := exits[j.Container.ID]; ok {
		// Not acknowledged: the keeper has yet to write the exit down, and the
		// record goes with the pod's folder anyway.
		return exit(&st), nil
	}
	if err != nil {
		t.m.d.Logger.Warn("an exit record cannot be read", "pod", j.Pod.ID, "err", err)
	}
	switch {
	case j.Container.StartedAt.IsZero():
		return nil, nil
	case j.Pod.Rebooted:
		return &keeper.Exit{Code: pod.CodeUnknown, At: time.Now(), Reason: pod.ReasonUnknown, Message: "the machine was restarted while the container ran"}, nil
	}
	return &keeper.Exit{Code: 137, At: time.Now(), Reason: pod.ReasonShimLost, Message: "the pod's shim died, and the container was killed"}, nil
}

// exit is nil while the task runs.
func exit(s *shims.Status) *keeper.Exit {
	if s.ExitedAt.IsZero() {
		return nil
	}
	e := &keeper.Exit{Code: s.ExitCode, At: s.ExitedAt, Reason: s.Reason}
	switch {
	case s.OOM && s.ExitCode != 0:
		e.Reason = reasonOOM
	case e.Reason != "":
	case s.ExitCode == 0:
		e.Reason = reasonCompleted
	default:
		e.Reason = reasonError
	}
	return e
}

// Stop implements keeper.Machine.
func (m *Machine) Stop(ctx context.Context, j *keeper.Job, signal string, deadline time.Time) error {
	s, err := m.connect(j)
	if err != nil {
		return err
	}
	err = s.Stop(ctx, j.Container.ID, signal, max(0, time.Until(deadline)))
	if errdefs.IsNotFound(err) || errdefs.IsFailedPrecondition(err) {
		return nil // it has ended; the watch brings the exit
	}
	return err
}

// Update implements keeper.Machine.
func (m *Machine) Update(ctx context.Context, j *keeper.Job, linux json.RawMessage) error {
	s, err := m.connect(j)
	if err != nil {
		return err
	}
	r := &specs.LinuxResources{}
	if err := json.Unmarshal(linux, r); err != nil {
		return fmt.Errorf("read the resources: %w", err)
	}
	return s.Update(ctx, j.Container.ID, r)
}

// ReopenLog implements keeper.Machine.
func (m *Machine) ReopenLog(ctx context.Context, j *keeper.Job) error {
	s, err := m.connect(j)
	if err != nil {
		return err
	}
	return s.ReopenLog(ctx, j.Container.ID)
}

// respec writes resources that were updated before the container started (a CRI
// LinuxContainerResources in JSON) into its bundle.
func respec(bundle string, updated json.RawMessage, host *ocispec.Host) error {
	l := &runtime.LinuxContainerResources{}
	if err := (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(updated, l); err != nil {
		return fmt.Errorf("read the updated resources: %w", err)
	}
	r, err := ocispec.Resources(l, host)
	if err != nil {
		return err
	}
	path := filepath.Join(bundle, "config.json")
	b, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the OCI spec: %w", err)
	}
	spec := &specs.Spec{}
	if err := json.Unmarshal(b, spec); err != nil {
		return fmt.Errorf("read the OCI spec: %w", err)
	}
	if spec.Linux.Resources != nil {
		r.Devices = spec.Linux.Resources.Devices
	}
	spec.Linux.Resources = r
	if b, err = json.Marshal(spec); err != nil {
		return fmt.Errorf("encode the OCI spec: %w", err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		return fmt.Errorf("write the OCI spec: %w", err)
	}
	return nil
}
