package effects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/pod"
)

// target pins the PID namespace of the container that c joins when CRI says
// TARGET, in c's bundle, and returns the file; "" when c joins none. A pid is
// not a name: it could be another process's, in the host's namespace even, by
// the time that c is started. So the namespace is pinned first, and then the
// shim is asked whether that pid is still the target's; if it is, it was so
// when its namespace was pinned.
func (m *Machine) target(ctx context.Context, j *keeper.Job, c *runtime.ContainerConfig) (string, error) {
	o := c.GetLinux().GetSecurityContext().GetNamespaceOptions()
	if o.GetPid() != runtime.NamespaceMode_TARGET {
		return "", nil
	}
	gone := fmt.Errorf("linux.security_context.namespace_options.target_id: container %q does not run in this pod: %w", o.GetTargetId(), errdefs.ErrInvalidArgument)
	i := slices.IndexFunc(j.Pod.Containers, func(k *keeper.Container) bool {
		return k.ID == o.GetTargetId() && k.Status() == pod.ContainerStateRunning
	})
	if i < 0 {
		return "", gone
	}
	t := j.Pod.Containers[i]
	path := filepath.Join(m.bundle(j.Pod.ID, j.Container.ID), "pidns")
	if err := pin("/proc/"+strconv.Itoa(t.Pid)+"/ns/pid", path); errors.Is(err, unix.ENOENT) {
		return "", gone
	} else if err != nil {
		return "", fmt.Errorf("pin the PID namespace of container %s: %w", t.ID, err)
	}
	s, err := m.connect(j)
	if err != nil {
		return "", err
	}
	pids, err := s.Pids(ctx, t.ID)
	if err != nil && !errdefs.IsNotFound(err) && !errdefs.IsFailedPrecondition(err) {
		return "", fmt.Errorf("ask for the processes of container %s: %w", t.ID, err)
	}
	if !slices.Contains(pids, t.Pid) {
		return "", gone
	}
	return path, nil
}

// pin binds a namespace to a file. What an earlier try bound is let go first;
// the last is let go with the bundle (removeAll).
func pin(ns, path string) error {
	if err := unix.Unmount(path, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
		return err
	}
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDONLY, 0o444)
	if err != nil {
		return err
	}
	f.Close()
	return unix.Mount(ns, path, "", unix.MS_BIND, "")
}
