package ocispec

import (
	"context"
	"slices"
	"strings"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// defaultCapabilities are what a container gets that asks for nothing:
// the set that Docker and containerd give.
var defaultCapabilities = []string{
	"CAP_AUDIT_WRITE", "CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_FSETID",
	"CAP_KILL", "CAP_MKNOD", "CAP_NET_BIND_SERVICE", "CAP_NET_RAW", "CAP_SETFCAP",
	"CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID", "CAP_SYS_CHROOT",
}

const capabilitiesField = "linux.security_context.capabilities"

// capabilities sets the process's capabilities. ALL in add or drop is applied
// first, so that the other names refine it.
//
// The inheritable set stays empty (CVE-2022-29162). So does the ambient one:
// Kubernetes has not defined what capabilities mean to a user that is not root,
// and containerd clears it. Only what add_ambient_capabilities asks for by name
// becomes ambient, for which the kernel wants it inheritable as well.
func (b *builder) capabilities(context.Context) error {
	all := b.Host.Capabilities
	if b.uids != nil {
		// A process in a user namespace has every capability there, whatever
		// its creator lacks outside.
		all = cap.Known()
	}
	caps, ambient := defaultCapabilities, []string(nil)
	if b.privileged {
		caps = all
	} else {
		c := b.sc.GetCapabilities()
		add, addAll, err := capabilityNames(capabilitiesField+".add_capabilities", c.GetAddCapabilities())
		if err != nil {
			return err
		}
		drop, dropAll, err := capabilityNames(capabilitiesField+".drop_capabilities", c.GetDropCapabilities())
		if err != nil {
			return err
		}
		ambient, _, err = capabilityNames(capabilitiesField+".add_ambient_capabilities", c.GetAddAmbientCapabilities())
		if err != nil {
			return err
		}
		add = append(add, ambient...)
		for _, name := range add {
			if !slices.Contains(all, name) {
				return unsupported(capabilitiesField, "this host cannot give %s", name)
			}
		}
		switch {
		case dropAll:
			caps = nil
		case addAll:
			caps = all
		}
		caps = slices.Concat(caps, add)
		caps = slices.DeleteFunc(caps, func(name string) bool { return slices.Contains(drop, name) })
		ambient = slices.DeleteFunc(ambient, func(name string) bool { return slices.Contains(drop, name) })
	}
	caps = slices.Clone(caps)
	slices.Sort(caps)
	caps = slices.Compact(caps)
	b.spec.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding:    caps,
		Effective:   caps,
		Permitted:   caps,
		Inheritable: ambient,
		Ambient:     ambient,
	}
	return nil
}

// capabilityNames turns CRI's names (NET_ADMIN, any case, CAP_ or not) into
// OCI's. A name that no kernel knows is an error: it would be ignored.
func capabilityNames(field string, names []string) (list []string, all bool, err error) {
	for _, n := range names {
		name := strings.ToUpper(n)
		if name == "ALL" {
			all = true
			continue
		}
		if !strings.HasPrefix(name, "CAP_") {
			name = "CAP_" + name
		}
		if !slices.Contains(cap.Known(), name) {
			return nil, false, invalid(field, "unknown capability %q", n)
		}
		list = append(list, name)
	}
	return list, all, nil
}
