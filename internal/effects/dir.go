package effects

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/moby/sys/mountinfo"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// shmSize is the size of a pod's /dev/shm in bytes, as with every other runtime.
const shmSize = 64 << 20

// dir is a pod's folders: under Root its /etc files, volumes and exit records,
// under State its namespaces, /dev/shm, socket and bundles.
type dir struct{ m *Machine }

// files returns the paths of the pod's files on the host.
func (m *Machine) etc(pod, name string) string { return filepath.Join(m.persistent(pod), name) }
func (m *Machine) shm(pod string) string       { return filepath.Join(m.runtime(pod), "shm") }

// Take makes the folders and what is in them.
func (d *dir) Take(_ context.Context, j *keeper.Job) (*keeper.Taken, error) {
	cfg, err := podConfig(j)
	if err != nil {
		return nil, err
	}
	id := j.Pod.ID
	for _, p := range []string{
		d.m.persistent(id), filepath.Join(d.m.persistent(id), "exits"), filepath.Join(d.m.persistent(id), "containers"),
		d.m.runtime(id), filepath.Join(d.m.runtime(id), "containers"),
	} {
		// 0711: a root mapped to another user must reach its own root file system.
		if err := os.MkdirAll(p, 0o711); err != nil {
			return nil, fmt.Errorf("create the pod's folder: %w", err)
		}
	}
	if err := d.etcFiles(id, cfg); err != nil {
		return nil, err
	}
	if !hostIPC(cfg) {
		if err := mountShm(d.m.shm(id)); err != nil {
			return nil, err
		}
	}
	return taken(struct{}{})
}

func (d *dir) etcFiles(id string, cfg *runtime.PodSandboxConfig) error {
	hostname := cfg.GetHostname()
	if hostname == "" || hostNetwork(cfg) {
		h, err := os.Hostname()
		if err != nil {
			return fmt.Errorf("read the host's name: %w", err)
		}
		hostname = h
	}
	hosts, err := os.ReadFile("/etc/hosts")
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("read the host's /etc/hosts: %w", err)
	}
	resolv, err := resolvConf(cfg.GetDnsConfig())
	if err != nil {
		return err
	}
	for name, data := range map[string][]byte{"hostname": []byte(hostname + "\n"), "hosts": hosts, "resolv.conf": resolv} {
		if err := os.WriteFile(d.m.etc(id, name), data, 0o644); err != nil {
			return fmt.Errorf("write the pod's /etc/%s: %w", name, err)
		}
	}
	return nil
}

// resolvConf is the pod's /etc/resolv.conf: the host's where the pod says nothing.
func resolvConf(dns *runtime.DNSConfig) ([]byte, error) {
	if len(dns.GetServers())+len(dns.GetSearches())+len(dns.GetOptions()) == 0 {
		b, err := os.ReadFile("/etc/resolv.conf")
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, fmt.Errorf("read the host's /etc/resolv.conf: %w", err)
		}
		return b, nil
	}
	var b strings.Builder
	if s := dns.GetSearches(); len(s) > 0 {
		fmt.Fprintf(&b, "search %s\n", strings.Join(s, " "))
	}
	for _, s := range dns.GetServers() {
		fmt.Fprintf(&b, "nameserver %s\n", s)
	}
	if o := dns.GetOptions(); len(o) > 0 {
		fmt.Fprintf(&b, "options %s\n", strings.Join(o, " "))
	}
	return []byte(b.String()), nil
}

func mountShm(path string) error {
	if err := os.MkdirAll(path, 0o700); err != nil {
		return fmt.Errorf("create the pod's /dev/shm: %w", err)
	}
	if ok, err := mountinfo.Mounted(path); err == nil && ok {
		return nil
	}
	err := unix.Mount("shm", path, "tmpfs", unix.MS_NOEXEC|unix.MS_NOSUID|unix.MS_NODEV, fmt.Sprintf("mode=1777,size=%d", shmSize))
	if err != nil {
		return fmt.Errorf("mount the pod's /dev/shm on %s: %w", path, err)
	}
	return nil
}

// Probe makes what is missing.
func (d *dir) Probe(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) { return d.Take(ctx, j) }

// Give unmounts and removes. Nothing is removed through a mount that somebody
// left there.
func (d *dir) Give(_ context.Context, j *keeper.Job) (*keeper.Exit, error) {
	for _, p := range []string{d.m.runtime(j.Pod.ID), d.m.persistent(j.Pod.ID)} {
		if err := removeAll(p); err != nil {
			return nil, fmt.Errorf("remove the pod's folder: %w", err)
		}
	}
	return nil, nil
}

// removeAll removes a folder of ours, after it has detached every mount in it.
func removeAll(path string) error {
	if _, err := os.Lstat(path); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	ms, err := mountinfo.GetMounts(mountinfo.PrefixFilter(path))
	if err != nil {
		return fmt.Errorf("list the mounts in %s: %w", path, err)
	}
	for i := len(ms) - 1; i >= 0; i-- {
		if err := unix.Unmount(ms[i].Mountpoint, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && err != unix.EINVAL && err != unix.ENOENT {
			return fmt.Errorf("unmount %s: %w", ms[i].Mountpoint, err)
		}
	}
	return os.RemoveAll(path)
}
