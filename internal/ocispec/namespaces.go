package ocispec

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podNamespaces are the pod's namespace options. The pod decides about network,
// IPC and users: "POD" of a container means what the pod has, and a container
// cannot leave its pod for the node, as in containerd.
func (b *builder) podNamespaces() *runtime.NamespaceOption {
	return b.Pod.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

// pidMode is the container's PID mode: its own choice of CONTAINER or TARGET,
// else what the pod says.
func (b *builder) pidMode() runtime.NamespaceMode {
	if o := b.sc.GetNamespaceOptions(); o != nil {
		switch o.GetPid() {
		case runtime.NamespaceMode_CONTAINER, runtime.NamespaceMode_TARGET:
			return o.GetPid()
		}
	}
	return b.podNamespaces().GetPid()
}

// namespaces says which namespaces the container has of its own, which it
// joins, and which are the host's (those that are not listed).
func (b *builder) namespaces(context.Context) error {
	o := b.podNamespaces()
	l := b.spec.Linux
	add := func(t specs.LinuxNamespaceType, path string) {
		l.Namespaces = append(l.Namespaces, specs.LinuxNamespace{Type: t, Path: path})
	}
	add(specs.MountNamespace, "")
	if o.GetNetwork() != runtime.NamespaceMode_NODE {
		add(specs.NetworkNamespace, b.Namespaces[specs.NetworkNamespace])
	}
	if o.GetIpc() != runtime.NamespaceMode_NODE {
		add(specs.IPCNamespace, b.Namespaces[specs.IPCNamespace])
	}
	// CRI has no say about the host name; a pod on the host's network has the
	// host's, too, unless the pod was given a UTS namespace.
	if path, ok := b.Namespaces[specs.UTSNamespace]; ok || o.GetNetwork() != runtime.NamespaceMode_NODE {
		add(specs.UTSNamespace, path)
		if path == "" { // a pinned one has its name already
			b.spec.Hostname = b.Pod.GetHostname()
		}
	}
	switch b.pidMode() {
	case runtime.NamespaceMode_CONTAINER:
		add(specs.PIDNamespace, "")
	case runtime.NamespaceMode_POD:
		path := b.Namespaces[specs.PIDNamespace]
		if path == "" {
			return unsupported("linux.security_context.namespace_options.pid", "the pod has no PID namespace to share")
		}
		add(specs.PIDNamespace, path)
	case runtime.NamespaceMode_TARGET:
		if b.TargetPIDNS == "" {
			return unsupported("linux.security_context.namespace_options.target_id", "container %q has no process", b.sc.GetNamespaceOptions().GetTargetId())
		}
		add(specs.PIDNamespace, b.TargetPIDNS)
	}
	if b.uids != nil {
		path := b.Namespaces[specs.UserNamespace]
		if path == "" {
			return unsupported("linux.security_context.namespace_options.userns_options", "the pod has no user namespace")
		}
		// Only the path: runc warns of mappings beside it, and will refuse them.
		add(specs.UserNamespace, path)
	}
	// On v1 a cgroup namespace would hide nothing and break tools that expect
	// containerd's paths; a privileged container sees the host's tree.
	if b.Host.CgroupV2 && !b.privileged {
		add(specs.CgroupNamespace, "")
	}
	return nil
}

// owns says that the container has a new namespace of this kind.
func (b *builder) owns(t specs.LinuxNamespaceType) bool {
	return slices.Contains(b.spec.Linux.Namespaces, specs.LinuxNamespace{Type: t})
}

// sysctls sets the pod's sysctls that live in namespaces which are new for this
// container. Those of the pod's namespaces were set with them.
func (b *builder) sysctls(context.Context) error {
	for _, name := range slices.Sorted(maps.Keys(b.Pod.GetLinux().GetSysctls())) {
		t, ok := sysctlNamespace(name)
		if !ok || !b.owns(t) {
			continue
		}
		if b.spec.Linux.Sysctl == nil {
			b.spec.Linux.Sysctl = map[string]string{}
		}
		b.spec.Linux.Sysctl[name] = b.Pod.GetLinux().GetSysctls()[name]
	}
	return nil
}

// sysctlNamespace says which namespace a sysctl belongs to; false for one that
// is the whole host's. Both spellings (dots, slashes) are known.
func sysctlNamespace(name string) (specs.LinuxNamespaceType, bool) {
	n := strings.ReplaceAll(name, "/", ".")
	switch {
	case strings.HasPrefix(n, "net."):
		return specs.NetworkNamespace, true
	case strings.HasPrefix(n, "fs.mqueue."), strings.HasPrefix(n, "kernel.shm"),
		strings.HasPrefix(n, "kernel.msg"), n == "kernel.sem":
		return specs.IPCNamespace, true
	case n == "kernel.domainname", n == "kernel.hostname":
		return specs.UTSNamespace, true
	}
	return "", false
}

// IDMappings are the mappings of a pod's user namespace, checked: one range
// each, as the kubelet gives it, with root mapped. Both are nil without a user
// namespace. Errors are InvalidArgument.
func IDMappings(o *runtime.NamespaceOption) (uids, gids []specs.LinuxIDMapping, err error) {
	const field = "namespace_options.userns_options"
	u := o.GetUsernsOptions()
	if u == nil {
		return nil, nil, nil
	}
	switch u.GetMode() {
	case runtime.NamespaceMode_NODE:
		if len(u.GetUids())+len(u.GetGids()) > 0 {
			return nil, nil, invalid(field, "mappings with mode NODE")
		}
		return nil, nil, nil
	case runtime.NamespaceMode_POD:
	default:
		return nil, nil, invalid(field+".mode", "%s is not supported", u.GetMode())
	}
	if uids, err = idMapping(field+".uids", u.GetUids()); err != nil {
		return nil, nil, err
	}
	if gids, err = idMapping(field+".gids", u.GetGids()); err != nil {
		return nil, nil, err
	}
	return uids, gids, nil
}

func idMapping(field string, m []*runtime.IDMapping) ([]specs.LinuxIDMapping, error) {
	if len(m) != 1 {
		return nil, invalid(field, "%d mappings where one is supported", len(m))
	}
	r := m[0]
	if r.GetContainerId() != 0 {
		return nil, invalid(field, "id 0 of the container is not mapped")
	}
	if r.GetLength() == 0 {
		return nil, invalid(field, "empty range")
	}
	if uint64(r.GetHostId())+uint64(r.GetLength()) > 1<<32-1 { // 2^32-1 is "no id"
		return nil, invalid(field, "range of %d ids at %d is past the last id", r.GetLength(), r.GetHostId())
	}
	return []specs.LinuxIDMapping{{ContainerID: r.GetContainerId(), HostID: r.GetHostId(), Size: r.GetLength()}}, nil
}

// mapped says that a container's id exists in the mapping.
func mapped(m []specs.LinuxIDMapping, id uint32) bool {
	return slices.ContainsFunc(m, func(r specs.LinuxIDMapping) bool {
		return id >= r.ContainerID && id-r.ContainerID < r.Size
	})
}
