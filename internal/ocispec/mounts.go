package ocispec

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

// mounts sets the spec's mounts: the default ones that nothing overrides, then
// the config's, the image's volumes and the pod's files, shallow ones first, so
// that none hides another.
func (b *builder) mounts(context.Context) error {
	var binds []specs.Mount
	taken := map[string]bool{}
	for i, m := range b.Container.GetMounts() {
		bind, err := b.configMount(i, m)
		if err != nil {
			return err
		}
		binds = append(binds, bind)
		taken[bind.Destination] = true
	}
	volumes, err := b.volumes(taken)
	if err != nil {
		return err
	}
	files, err := b.files(taken)
	if err != nil {
		return err
	}
	binds = slices.Concat(binds, volumes, files)
	slices.SortStableFunc(binds, func(x, y specs.Mount) int {
		return cmp.Compare(strings.Count(x.Destination, "/"), strings.Count(y.Destination, "/"))
	})
	for _, m := range binds {
		taken[m.Destination] = true
	}
	for _, m := range b.defaultMounts() {
		if !taken[m.Destination] && (!taken["/dev"] || !strings.HasPrefix(m.Destination, "/dev/")) {
			b.spec.Mounts = append(b.spec.Mounts, m)
		}
	}
	b.spec.Mounts = append(b.spec.Mounts, binds...)
	return nil
}

// defaultMounts are what every container has.
func (b *builder) defaultMounts() []specs.Mount {
	access := "ro"
	if b.privileged {
		access = "rw"
	}
	sys := specs.Mount{
		Destination: "/sys", Type: "sysfs", Source: "sysfs",
		Options: []string{"nosuid", "noexec", "nodev", access},
	}
	if b.uids != nil && b.podNamespaces().GetNetwork() == runtime.NamespaceMode_NODE {
		// The kernel lets a user namespace mount sysfs only together with a
		// network namespace of its own.
		readonly := "ro"
		if b.Host.RecursiveReadOnly {
			readonly = "rro"
		}
		sys = specs.Mount{
			Destination: "/sys", Type: "bind", Source: "/sys",
			Options: []string{"rbind", readonly, "nosuid", "noexec", "nodev"},
		}
	}
	pts := []string{"nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"}
	if b.gids == nil || mapped(b.gids, 5) {
		pts = append(pts, "gid=5") // the group tty, everywhere
	}
	cgroup := []string{"nosuid", "noexec", "nodev", "relatime", access}
	if !b.owns(specs.CgroupNamespace) {
		cgroup = append(cgroup, b.Host.CgroupOptions...)
	}
	return []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/dev", Type: "tmpfs", Source: "tmpfs", Options: []string{"nosuid", "strictatime", "mode=755", "size=65536k"}},
		{Destination: "/dev/pts", Type: "devpts", Source: "devpts", Options: pts},
		{Destination: "/dev/shm", Type: "tmpfs", Source: "shm", Options: []string{"nosuid", "noexec", "nodev", "mode=1777", "size=65536k"}},
		{Destination: "/dev/mqueue", Type: "mqueue", Source: "mqueue", Options: []string{"nosuid", "noexec", "nodev"}},
		sys,
		{Destination: "/sys/fs/cgroup", Type: "cgroup", Source: "cgroup", Options: cgroup},
	}
}

// files are binds of the pod's files, except where the config or the image
// mounts something itself.
func (b *builder) files(taken map[string]bool) ([]specs.Mount, error) {
	shm, ours := b.Files.Shm, true
	if b.podNamespaces().GetIpc() == runtime.NamespaceMode_NODE {
		shm, ours = "/dev/shm", false
	}
	var list []specs.Mount
	for _, f := range []struct {
		target, source string
		ours, shm      bool
	}{
		{target: "/etc/hostname", source: b.Files.Hostname, ours: true},
		{target: "/etc/hosts", source: b.Files.Hosts, ours: true},
		{target: "/etc/resolv.conf", source: b.Files.ResolvConf, ours: true},
		{target: "/dev/shm", source: shm, ours: ours, shm: true},
	} {
		if f.source == "" || taken[f.target] {
			continue
		}
		m := specs.Mount{Destination: f.target, Source: f.source, Type: "bind", Options: []string{"rbind", "rprivate"}}
		switch {
		case f.shm: // born empty and open to all: needs no ids mapped
			m.Options = append(m.Options, "nosuid", "noexec", "nodev", "rw")
		case b.sc.GetReadonlyRootfs():
			m.Options = append(m.Options, "ro")
		default:
			m.Options = append(m.Options, "rw")
		}
		if b.uids != nil && b.Host.IDMap && !f.shm {
			m.UIDMappings, m.GIDMappings = b.uids, b.gids
		}
		if b.mountLabel != "" && f.ours {
			if err := relabel(f.source, b.mountLabel); err != nil {
				return nil, err
			}
		}
		list = append(list, m)
	}
	return list, nil
}

// checkMountSupport refuses what the host cannot do with the config's mounts,
// before any of their paths is touched.
func (b *builder) checkMountSupport() error {
	for i, m := range b.Container.GetMounts() {
		if m.GetRecursiveReadOnly() && !b.Host.RecursiveReadOnly {
			// The word in front is what the kubelet looks for.
			return fmt.Errorf("%w: mounts[%d].recursive_read_only: this host or its runtime cannot: %w",
				crierrors.ErrRROUnsupported, i, errdefs.ErrFailedPrecondition)
		}
		if len(m.GetUidMappings()) > 0 && m.GetImage() == nil && !b.Host.IDMap {
			return unsupported(fmt.Sprintf("mounts[%d].uidMappings", i), "this host or its runtime cannot map ids of mounts")
		}
	}
	return nil
}

// configMount is the bind for a mount of the config.
func (b *builder) configMount(i int, m *runtime.Mount) (specs.Mount, error) {
	field := fmt.Sprintf("mounts[%d]", i)
	bind := specs.Mount{
		Destination: path.Join("/", m.GetContainerPath()),
		Type:        "bind",
		Options:     []string{"rbind"},
	}
	if m.GetImage() != nil {
		source, err := b.imageVolume(field, m)
		if err != nil {
			return bind, fmt.Errorf("%w: %w", crierrors.ErrImageVolumeMountFailed, err)
		}
		bind.Source = source
	} else {
		bind.Source = b.paths.mounts[i].Source
		bind.UIDMappings = ociMapping(m.GetUidMappings())
		bind.GIDMappings = ociMapping(m.GetGidMappings())
	}
	propagation, err := b.propagation(field, i, m)
	if err != nil {
		return bind, err
	}
	access := "rw"
	switch {
	case m.GetRecursiveReadOnly():
		access = "rro"
	case m.GetReadonly(), m.GetImage() != nil: // images are read-only, said or not
		access = "ro"
	}
	bind.Options = append(bind.Options, propagation, access)
	bind.Options = append(bind.Options, m.GetMountOptions()...)
	return bind, nil
}

// propagation is the option for a mount's propagation. For what is to travel
// between host and container the host's mount must take part, and so must the
// container's root.
func (b *builder) propagation(field string, i int, m *runtime.Mount) (string, error) {
	info := b.paths.mounts[i]
	l := b.spec.Linux
	switch m.GetPropagation() {
	case runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL:
		if !info.Shared {
			return "", unsupported(field+".propagation", "%q is on %q, which is not a shared mount", info.Source, info.MountPoint)
		}
		l.RootfsPropagation = "rshared"
		return "rshared", nil
	case runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER:
		if !info.Shared && !info.Slave {
			return "", unsupported(field+".propagation", "%q is on %q, which is neither a shared nor a slave mount", info.Source, info.MountPoint)
		}
		if l.RootfsPropagation == "" {
			l.RootfsPropagation = "rslave"
		}
		return "rslave", nil
	}
	return "rprivate", nil // and the root's, by default
}

func ociMapping(m []*runtime.IDMapping) []specs.LinuxIDMapping {
	var list []specs.LinuxIDMapping
	for _, r := range m {
		list = append(list, specs.LinuxIDMapping{ContainerID: r.GetContainerId(), HostID: r.GetHostId(), Size: r.GetLength()})
	}
	return list
}

// preparedPaths are the answers about paths of the host.
type preparedPaths struct {
	mounts  map[int]PathInfo // by index in the config
	devices map[int][]specs.LinuxDevice
	seccomp []byte
}

// preparePaths has all paths of the host that the config names looked at, in
// one go: host paths of mounts (made if missing), devices, the seccomp profile.
func (b *builder) preparePaths(ctx context.Context) error {
	b.paths = &preparedPaths{mounts: map[int]PathInfo{}, devices: map[int][]specs.LinuxDevice{}}
	if err := b.checkMountSupport(); err != nil {
		return err
	}
	var list []HostPath
	var take []func(PathInfo)
	for i, m := range b.Container.GetMounts() {
		if m.GetImage() != nil {
			continue
		}
		p := HostPath{
			Field: fmt.Sprintf("mounts[%d].host_path", i), Path: m.GetHostPath(), Use: UseMount,
			Propagation: m.GetPropagation() != runtime.MountPropagation_PROPAGATION_PRIVATE,
		}
		if m.GetSelinuxRelabel() {
			p.Label = b.mountLabel
		}
		list = append(list, p)
		take = append(take, func(info PathInfo) { b.paths.mounts[i] = info })
	}
	for i, d := range b.Container.GetDevices() {
		list = append(list, HostPath{
			Field: fmt.Sprintf("devices[%d].host_path", i), Path: d.GetHostPath(), Use: UseDevice,
			Target: path.Join("/", cmp.Or(d.GetContainerPath(), d.GetHostPath())),
		})
		take = append(take, func(info PathInfo) { b.paths.devices[i] = info.Devices })
	}
	if p := b.seccompProfile(); p.GetProfileType() == runtime.SecurityProfile_Localhost {
		list = append(list, HostPath{Field: seccompField, Path: p.GetLocalhostRef(), Use: UseFile, MaxSize: maxSeccompFile})
		take = append(take, func(info PathInfo) { b.paths.seccomp = info.Data })
	}
	if len(list) == 0 {
		return nil
	}
	prober := b.Paths
	if prober == nil {
		prober = processProber()
	}
	infos, err := prober.Prepare(ctx, list)
	if err != nil {
		return err
	}
	if len(infos) != len(list) {
		return errors.New("path prober answered for too few paths")
	}
	for i, info := range infos {
		take[i](info)
	}
	return nil
}
