package cri

import (
	"fmt"
	"path/filepath"
	"strings"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/ocispec"
	"berth/internal/pod"
)

// validateContainer checks a container's config against its pod and returns it
// as it will be recorded: namespace options completed, mounts of images
// read-only. The caller's message is not changed.
func (s *Service) validateContainer(p *keeper.Pod, c *runtime.ContainerConfig) (*runtime.ContainerConfig, error) {
	if c == nil {
		return nil, invalid("config", "it is missing")
	}
	if c.Metadata == nil {
		return nil, invalid("config.metadata", "it is missing")
	}
	if err := checkName("config.metadata.name", c.Metadata.Name); err != nil {
		return nil, err
	}
	if c.GetImage().GetImage() == "" {
		return nil, invalid("config.image.image", "it is empty")
	}
	if l := c.LogPath; l != "" && !filepath.IsLocal(l) {
		return nil, invalid("config.log_path", "%q does not stay in the pod's log directory", l)
	}
	for i, d := range c.Devices {
		if d.GetContainerPath() != "" && !filepath.IsAbs(d.GetContainerPath()) {
			return nil, invalid(fmt.Sprintf("config.devices[%d].container_path", i), "%q is not absolute", d.GetContainerPath())
		}
	}
	for i, d := range c.CDIDevices {
		if d.GetName() == "" {
			return nil, invalid(fmt.Sprintf("config.CDI_devices[%d].name", i), "it is empty")
		}
	}
	h := s.handlers[p.Handler]
	for i, m := range c.Mounts {
		if err := validateMount(fmt.Sprintf("config.mounts[%d]", i), m, h); err != nil {
			return nil, err
		}
	}
	c = proto.CloneOf(c)
	for _, m := range c.Mounts {
		if m.Image != nil {
			m.Readonly = true // by definition of image volumes
		}
	}
	if err := s.completeNamespaces(p, c); err != nil {
		return nil, err
	}
	return c, ocispec.Validate(podConfig(p), c)
}

// validateMount checks what depends on the handler, and that a sub-path stays in
// its image.
func validateMount(field string, m *runtime.Mount, h *Handler) error {
	if m.GetRecursiveReadOnly() && (h == nil || !h.RecursiveReadOnly) {
		return precondition("%s.recursive_read_only: the pod's runtime handler cannot do it on this host", field)
	}
	if p := m.GetImageSubPath(); p != "" && (!filepath.IsLocal(p) || strings.TrimSuffix(p, "/") != filepath.Clean(p)) {
		return invalid(field+".image_sub_path", "%q is not a clean path within an image", p)
	}
	return nil
}

// completeNamespaces gives c the namespace options that hold for it. Options
// that are missing are the pod's; so is a user namespace. What contradicts the
// pod is refused: a container joins its pod's network and IPC, whatever it asks.
func (s *Service) completeNamespaces(p *keeper.Pod, c *runtime.ContainerConfig) error {
	const field = "config.linux.security_context.namespace_options."
	of := podConfig(p).GetLinux().GetSecurityContext().GetNamespaceOptions()
	if c.Linux == nil {
		c.Linux = &runtime.LinuxContainerConfig{}
	}
	if c.Linux.SecurityContext == nil {
		c.Linux.SecurityContext = &runtime.LinuxContainerSecurityContext{}
	}
	sc := c.Linux.SecurityContext
	if sc.NamespaceOptions == nil {
		sc.NamespaceOptions = proto.CloneOf(of)
		return nil
	}
	o := sc.NamespaceOptions
	for _, f := range []struct {
		field     string
		mode, pod runtime.NamespaceMode
	}{{"network", o.Network, of.GetNetwork()}, {"ipc", o.Ipc, of.GetIpc()}} {
		if f.mode == runtime.NamespaceMode_NODE && f.pod != runtime.NamespaceMode_NODE {
			return invalid(field+f.field, "NODE in a pod that has its own")
		}
	}
	// POD is the zero value: what a client says that sets only other options.
	o.Network, o.Ipc = of.GetNetwork(), of.GetIpc()
	if o.UsernsOptions == nil {
		o.UsernsOptions = proto.CloneOf(of.GetUsernsOptions())
	}
	switch o.Pid {
	case runtime.NamespaceMode_POD:
		if of.GetPid() == runtime.NamespaceMode_CONTAINER {
			return invalid(field+"pid", "POD in a pod that shares no PID namespace")
		}
		o.Pid = of.GetPid()
	case runtime.NamespaceMode_NODE:
		if hasUserNamespace(of) {
			return invalid(field+"pid", "NODE cannot be had together with a user namespace")
		}
	case runtime.NamespaceMode_TARGET:
		return s.resolveTarget(field+"target_id", p, o)
	}
	return nil
}

// resolveTarget makes target_id a full id of a running container of the pod.
func (s *Service) resolveTarget(field string, p *keeper.Pod, o *runtime.NamespaceOption) error {
	if o.TargetId == "" {
		return invalid(field, "it is empty")
	}
	of, c, err := s.findCreated(o.TargetId)
	switch {
	case err != nil:
		return fmt.Errorf("%s: %w", field, err)
	case of.ID != p.ID:
		return invalid(field, "container %s is in another pod", c.ID)
	case c.Status() != pod.ContainerStateRunning:
		return precondition("%s: container %s is not running", field, c.ID)
	}
	o.TargetId = c.ID
	return nil
}
