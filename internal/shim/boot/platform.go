//go:build linux

package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"berth/internal/host"
	"berth/internal/shim"

	"github.com/containerd/containerd/v2/core/mount"
	"golang.org/x/sys/unix"
)

// platform is what this machine does for the core.
type platform struct {
	id   string
	host func(*shim.HostOptions) (host.Host, error)
}

func (p *platform) Host(o *shim.HostOptions) (host.Host, error) { return p.host(o) }

func (p *platform) Mount(_ context.Context, mounts []shim.Mount, target string) error {
	if err := os.MkdirAll(target, 0o711); err != nil {
		return err
	}
	all := make([]mount.Mount, len(mounts))
	for i, m := range mounts {
		all[i] = mount.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options}
	}
	return mount.All(all, target)
}

// Unmount is patient first; then it detaches what is still used elsewhere.
func (p *platform) Unmount(_ context.Context, target string) error {
	var err error
	for range 5 {
		if err = mount.UnmountRecursive(target, unix.UMOUNT_NOFOLLOW); err == nil || errors.Is(err, os.ErrNotExist) {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	if e := mount.UnmountRecursive(target, unix.UMOUNT_NOFOLLOW|unix.MNT_DETACH); e == nil {
		return nil
	}
	return err
}

func (p *platform) Hold(ctx context.Context, r *shim.HoldRequest) (shim.Holder, error) {
	return hold(ctx, p.id, r)
}

func (p *platform) OOMScore(score int) error { return setOOMScore("self", score) }

// Stuck reads the state of a process and where in the kernel it waits.
func (p *platform) Stuck(pid int) string {
	dir := "/proc/" + strconv.Itoa(pid)
	b, err := os.ReadFile(dir + "/stat")
	if err != nil {
		return ""
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	if len(f) == 0 {
		return ""
	}
	s := fmt.Sprintf("pid %d is in state %s", pid, f[0])
	if w, err := os.ReadFile(dir + "/wchan"); err == nil && len(w) > 1 {
		s += " in " + string(w)
	}
	if f[0] == "D" {
		s += " (uninterruptible)"
	}
	return s
}
