package ocispec

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Validate checks all of a pod's and a container's config that can be checked
// without a host, an image or a file. The container may be nil: then only the
// pod's is checked, as for RunPodSandbox. Errors are InvalidArgument and name
// the CRI field.
func Validate(pod *runtime.PodSandboxConfig, c *runtime.ContainerConfig) error {
	if err := validatePod(pod); err != nil {
		return fmt.Errorf("sandbox_config: %w", err)
	}
	if c == nil {
		return nil
	}
	sc := c.GetLinux().GetSecurityContext()
	if sc.GetPrivileged() && !pod.GetLinux().GetSecurityContext().GetPrivileged() {
		return invalid("linux.security_context.privileged", "the pod is not privileged")
	}
	for i, kv := range c.GetEnvs() {
		if k := kv.GetKey(); k == "" || strings.ContainsAny(k, "=\x00") || slices.Contains(kv.GetValue(), 0) {
			return invalid(fmt.Sprintf("envs[%d]", i), "%q is not a variable", k)
		}
	}
	for i, m := range c.GetMounts() {
		if err := validateMount(fmt.Sprintf("mounts[%d]", i), m); err != nil {
			return err
		}
	}
	for i, d := range c.GetDevices() {
		field := fmt.Sprintf("devices[%d]", i)
		if !path.IsAbs(d.GetHostPath()) {
			return invalid(field+".host_path", "%q is not absolute", d.GetHostPath())
		}
		if strings.Trim(d.GetPermissions(), "rwm") != "" {
			return invalid(field+".permissions", "%q is not made of r, w and m", d.GetPermissions())
		}
	}
	if err := validateResources(c.GetLinux().GetResources()); err != nil {
		return err
	}
	return validateSecurity(pod, sc)
}

func validatePod(pod *runtime.PodSandboxConfig) error {
	l := pod.GetLinux()
	if p := l.GetCgroupParent(); strings.Contains("/"+p+"/", "/../") {
		return invalid("linux.cgroup_parent", "%q leads upwards", p)
	}
	for name := range l.GetSysctls() {
		t, ok := sysctlNamespace(name)
		o := l.GetSecurityContext().GetNamespaceOptions()
		switch {
		case !ok:
			return invalid("linux.sysctls", "%q belongs to no namespace", name)
		case t == specs.NetworkNamespace && o.GetNetwork() == runtime.NamespaceMode_NODE:
			return invalid("linux.sysctls", "%q needs a network namespace of the pod's own", name)
		case t == specs.IPCNamespace && o.GetIpc() == runtime.NamespaceMode_NODE:
			return invalid("linux.sysctls", "%q needs an IPC namespace of the pod's own", name)
		}
	}
	sc := l.GetSecurityContext()
	if sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil {
		return invalid("linux.security_context.run_as_group", "without run_as_user")
	}
	if err := checkSELinux("linux.security_context.selinux_options", sc.GetSelinuxOptions()); err != nil {
		return err
	}
	_, _, err := IDMappings(sc.GetNamespaceOptions())
	return err
}

func validateSecurity(pod *runtime.PodSandboxConfig, sc *runtime.LinuxContainerSecurityContext) error {
	const field = "linux.security_context."
	if sc.GetRunAsUser() != nil && sc.GetRunAsUsername() != "" {
		return invalid(field+"run_as_username", "run_as_user is set, too")
	}
	if sc.GetRunAsGroup() != nil && sc.GetRunAsUser() == nil && sc.GetRunAsUsername() == "" {
		return invalid(field+"run_as_group", "without run_as_user or run_as_username")
	}
	for name, v := range map[string]*runtime.Int64Value{"run_as_user": sc.GetRunAsUser(), "run_as_group": sc.GetRunAsGroup()} {
		if v != nil && (v.GetValue() < 0 || v.GetValue() > maxID) {
			return invalid(field+name, "%d is not between 0 and %d", v.GetValue(), maxID)
		}
	}
	for i, g := range sc.GetSupplementalGroups() {
		if g < 0 || g > maxID {
			return invalid(fmt.Sprintf("%ssupplemental_groups[%d]", field, i), "%d is not between 0 and %d", g, maxID)
		}
	}
	switch p := sc.GetSupplementalGroupsPolicy(); p {
	case runtime.SupplementalGroupsPolicy_Merge, runtime.SupplementalGroupsPolicy_Strict:
	default:
		return invalid(field+"supplemental_groups_policy", "unknown policy %d", p)
	}
	for name, paths := range map[string][]string{"masked_paths": sc.GetMaskedPaths(), "readonly_paths": sc.GetReadonlyPaths()} {
		for _, p := range paths {
			if !path.IsAbs(p) {
				return invalid(field+name, "%q is not absolute", p)
			}
		}
	}
	if err := checkSELinux(field+"selinux_options", sc.GetSelinuxOptions()); err != nil {
		return err
	}
	//nolint:staticcheck // the deprecated fields are part of CRI
	//lint:ignore SA1019 the deprecated field is part of CRI, and older kubelets set it
	if _, err := securityProfile(seccompField, sc.GetSeccomp(), sc.GetSeccompProfilePath()); err != nil {
		return err
	}
	//nolint:staticcheck // the deprecated fields are part of CRI
	//lint:ignore SA1019 the deprecated field is part of CRI, and older kubelets set it
	if _, err := securityProfile(apparmorField, sc.GetApparmor(), sc.GetApparmorProfile()); err != nil {
		return err
	}
	return validateNamespaces(pod, sc.GetNamespaceOptions())
}

func validateNamespaces(pod *runtime.PodSandboxConfig, o *runtime.NamespaceOption) error {
	const field = "linux.security_context.namespace_options."
	for name, m := range map[string]runtime.NamespaceMode{"network": o.GetNetwork(), "ipc": o.GetIpc()} {
		switch m {
		case runtime.NamespaceMode_POD, runtime.NamespaceMode_CONTAINER, runtime.NamespaceMode_NODE:
		default:
			return invalid(field+name, "%s is not supported", m)
		}
	}
	switch o.GetPid() {
	case runtime.NamespaceMode_POD, runtime.NamespaceMode_CONTAINER, runtime.NamespaceMode_NODE:
	case runtime.NamespaceMode_TARGET:
		if o.GetTargetId() == "" {
			return invalid(field+"target_id", "empty with pid TARGET")
		}
	default:
		return invalid(field+"pid", "%s is not supported", o.GetPid())
	}
	if o.GetUsernsOptions() == nil {
		return nil // the pod's
	}
	uids, gids, err := IDMappings(o)
	if err != nil {
		return fmt.Errorf("linux.security_context: %w", err)
	}
	podUIDs, podGIDs, err := IDMappings(pod.GetLinux().GetSecurityContext().GetNamespaceOptions())
	if err != nil {
		return fmt.Errorf("sandbox_config: %w", err)
	}
	same := func(a, b specs.LinuxIDMapping) bool { return a == b }
	if !slices.EqualFunc(uids, podUIDs, same) || !slices.EqualFunc(gids, podGIDs, same) {
		return invalid(field+"userns_options", "not the pod's")
	}
	return nil
}

// mountOptions are what mount_options may hold.
var mountOptions = []string{"noexec", "nodev", "nosuid"}

func validateMount(field string, m *runtime.Mount) error {
	if dst := path.Join("/", m.GetContainerPath()); m.GetContainerPath() == "" || dst == "/" {
		return invalid(field+".container_path", "%q cannot be mounted on", m.GetContainerPath())
	}
	switch {
	case m.GetImage() != nil && m.GetHostPath() != "":
		return invalid(field+".host_path", "an image is given, too")
	case m.GetImage() != nil && m.GetImage().GetImage() == "":
		return invalid(field+".image", "no image named")
	case m.GetImage() == nil && !path.IsAbs(m.GetHostPath()):
		return invalid(field+".host_path", "%q is not absolute", m.GetHostPath())
	case m.GetImage() == nil && m.GetImageSubPath() != "":
		return invalid(field+".image_sub_path", "no image given")
	}
	if m.GetRecursiveReadOnly() {
		if !m.GetReadonly() {
			return invalid(field+".recursive_read_only", "needs readonly")
		}
		if m.GetPropagation() != runtime.MountPropagation_PROPAGATION_PRIVATE {
			return invalid(field+".recursive_read_only", "needs private propagation, not %s", m.GetPropagation())
		}
	}
	switch m.GetPropagation() {
	case runtime.MountPropagation_PROPAGATION_PRIVATE,
		runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER,
		runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL:
	default:
		return invalid(field+".propagation", "unknown propagation %d", m.GetPropagation())
	}
	for _, o := range m.GetMountOptions() {
		if !slices.Contains(mountOptions, o) {
			return invalid(field+".mount_options", "%q is not one of %s", o, strings.Join(mountOptions, ", "))
		}
	}
	if (len(m.GetUidMappings()) == 0) != (len(m.GetGidMappings()) == 0) {
		return invalid(field+".uidMappings", "needs gidMappings, and they it")
	}
	for name, maps := range map[string][]*runtime.IDMapping{"uidMappings": m.GetUidMappings(), "gidMappings": m.GetGidMappings()} {
		for _, r := range maps {
			if r.GetLength() == 0 || uint64(r.GetHostId())+uint64(r.GetLength()) > 1<<32-1 || uint64(r.GetContainerId())+uint64(r.GetLength()) > 1<<32-1 {
				return invalid(field+"."+name, "range of %d ids is not one", r.GetLength())
			}
		}
	}
	return nil
}
