//go:build linux

package boot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"time"

	shimv1 "berth/api/shim/v1"
	"berth/internal/shim"
	"berth/internal/shim/exits"

	taskapi "github.com/containerd/containerd/api/runtime/task/v2"
	"github.com/containerd/containerd/api/types/runc/options"
	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"
)

const (
	// podFile is what berthd leaves in a pod's run directory before it starts
	// the shim: the StartSandboxRequest as JSON.
	podFile = "shim.json"
	// containersDir holds a pod's bundles.
	containersDir = "containers"
	// removeWait bounds the delete command. It can be run again.
	removeWait = 30 * time.Second
)

// remove is the delete command: it ends and gives back what a dead shim left,
// of one bundle (containerd) or of a whole pod (berthd).
func remove(a *args, cfg *Config, stdout io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), removeWait)
	defer cancel()
	dir := a.bundle
	if dir == "" {
		var err error
		if dir, err = os.Getwd(); err != nil {
			return fmt.Errorf("find bundle: %w", err)
		}
	}
	// The bundle goes away after this, and with it our working directory.
	_ = os.Chdir("/")
	b, err := os.ReadFile(filepath.Join(dir, podFile))
	if err == nil {
		var r shimv1.StartSandboxRequest
		if err := json.Unmarshal(b, &r); err != nil {
			return fmt.Errorf("read %s: %w", podFile, err)
		}
		return removePod(ctx, cfg, dir, &r)
	}
	out, err := removeBundle(ctx, a, cfg, dir)
	if err != nil {
		return err
	}
	b, err = proto.Marshal(out)
	if err != nil {
		return err
	}
	_, err = stdout.Write(b)
	return err
}

// removeBundle cleans up after a container of a stock containerd, and says how
// it ended: as the shim recorded it, else killed, now.
func removeBundle(ctx context.Context, a *args, cfg *Config, dir string) (*taskapi.DeleteResponse, error) {
	state, err := shim.ReadBundleState(dir)
	if errdefs.IsNotFound(err) {
		state = &shim.BundleState{Options: shim.RuncOptions(&options.Options{}, a.namespace)}
	} else if err != nil {
		return nil, err
	}
	h, err := cfg.Host(&state.Options)
	if err != nil {
		return nil, err
	}
	if err := h.Clean(ctx, a.id, dir); err != nil {
		return nil, fmt.Errorf("clean up container %s: %w", a.id, err)
	}
	at := time.Now()
	if state.Socket != "" && refused(state.Socket) {
		_ = os.Remove(state.Socket) // the pod's shim is dead
	}
	if err := (&platform{}).Unmount(ctx, filepath.Join(dir, "rootfs")); err != nil {
		fmt.Fprintf(os.Stderr, "unmount root file system: %v\n", err)
	}
	if r, err := exits.Read(exits.Path("", dir, a.id)); err == nil {
		return &taskapi.DeleteResponse{Pid: uint32(r.Pid), ExitStatus: uint32(r.Code), ExitedAt: timestamppb.New(r.At)}, nil
	}
	return &taskapi.DeleteResponse{Pid: uint32(state.Pid), ExitStatus: 137, ExitedAt: timestamppb.New(at)}, nil
}

// refused tells whether nobody listens on a socket that is there.
func refused(path string) bool {
	c, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		c.Close()
	}
	return errors.Is(err, syscall.ECONNREFUSED)
}

// removePod cleans up after a pod of berthd: all containers at once, then the
// holder. The ends of containers that ran leave a record.
func removePod(ctx context.Context, cfg *Config, dir string, r *shimv1.StartSandboxRequest) error {
	h, err := cfg.Host(&shim.HostOptions{Runtime: r.Runtime, Root: r.RuntimeRoot, SystemdCgroup: r.SystemdCgroup})
	if err != nil {
		return err
	}
	entries, err := os.ReadDir(filepath.Join(dir, containersDir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list containers: %w", err)
	}
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		errs error
	)
	for _, e := range entries {
		wg.Go(func() {
			id := e.Name()
			_, statErr := os.Stat(filepath.Join(r.RuntimeRoot, id))
			ran := r.RuntimeRoot == "" || statErr == nil
			err := h.Clean(ctx, id, filepath.Join(dir, containersDir, id))
			path := exits.Path(r.ExitDir, "", id)
			if _, e := exits.Read(path); err == nil && ran && errdefs.IsNotFound(e) {
				err = exits.Write(path, &exits.Record{
					ID: id, Code: 137, Signal: 9, At: time.Now(), Reason: exits.ReasonShimLost,
				})
			}
			if err != nil {
				mu.Lock()
				errs = errors.Join(errs, fmt.Errorf("clean up container %s: %w", id, err))
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	if r.SharePid {
		errs = errors.Join(errs, killHolders(ctx, r.Id))
		var groups []string
		for _, d := range cgroupDirs(r.Cgroup) {
			if r.Cgroup != "" {
				groups = append(groups, filepath.Join(d, holderCgroup))
			}
		}
		errs = errors.Join(errs, removeHolder(ctx, r.PidNs, groups))
	}
	return errs
}
