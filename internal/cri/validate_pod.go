package cri

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/ocispec"
)

const (
	maxHostname = 64 // uts_namespaces(7): HOST_NAME_MAX
	maxName     = 253
	maxPort     = 65535
)

// validatePod checks what can be checked of a pod's config without the machine;
// what concerns specs is ocispec's to check.
func validatePod(c *runtime.PodSandboxConfig) error {
	if c == nil {
		return invalid("config", "it is missing")
	}
	m := c.Metadata
	if m == nil {
		return invalid("config.metadata", "it is missing")
	}
	for _, f := range []struct{ field, value string }{
		{"name", m.Name}, {"namespace", m.Namespace}, {"uid", m.Uid},
	} {
		if err := checkName("config.metadata."+f.field, f.value); err != nil {
			return err
		}
	}
	if len(c.Hostname) > maxHostname || strings.ContainsAny(c.Hostname, "/\x00\n\t ") {
		return invalid("config.hostname", "%q is no host name of at most %d bytes", c.Hostname, maxHostname)
	}
	if d := c.LogDirectory; d != "" && !filepath.IsAbs(d) {
		return invalid("config.log_directory", "%q is not absolute", d)
	}
	if err := validateDNS(c.DnsConfig); err != nil {
		return err
	}
	for i, p := range c.PortMappings {
		if err := validatePort(fmt.Sprintf("config.port_mappings[%d]", i), p); err != nil {
			return err
		}
	}
	if err := validatePodNamespaces(c.GetLinux().GetSecurityContext().GetNamespaceOptions()); err != nil {
		return err
	}
	return ocispec.Validate(c, nil)
}

// checkName checks a part of a name. It becomes part of the name that is unique
// on the node, and of file names.
func checkName(field, s string) error {
	switch {
	case s == "":
		return invalid(field, "it is empty")
	case len(s) > maxName:
		return invalid(field, "it has %d bytes; %d are allowed", len(s), maxName)
	case strings.ContainsAny(s, "/\x00\n"):
		return invalid(field, "%q has a slash, a newline or a zero byte", s)
	}
	return nil
}

// validateDNS keeps what would become lines of its own out of resolv.conf.
func validateDNS(d *runtime.DNSConfig) error {
	for _, f := range []struct {
		field  string
		values []string
	}{{"servers", d.GetServers()}, {"searches", d.GetSearches()}, {"options", d.GetOptions()}} {
		for i, v := range f.values {
			if v == "" || strings.ContainsAny(v, " \t\n\r\x00") {
				return invalid(fmt.Sprintf("config.dns_config.%s[%d]", f.field, i), "%q is empty or has white space", v)
			}
		}
	}
	return nil
}

func validatePort(field string, p *runtime.PortMapping) error {
	if _, known := runtime.Protocol_name[int32(p.GetProtocol())]; !known {
		return invalid(field+".protocol", "%d is not TCP, UDP or SCTP", p.GetProtocol())
	}
	if h := p.GetHostPort(); h < 0 || h > maxPort {
		return invalid(field+".host_port", "%d is not between 0 (none) and %d", h, maxPort)
	}
	// Without a host port the mapping says nothing.
	if c := p.GetContainerPort(); c < 0 || c > maxPort || c == 0 && p.GetHostPort() > 0 {
		return invalid(field+".container_port", "%d is not between 1 and %d", c, maxPort)
	}
	if ip := p.GetHostIp(); ip != "" {
		if _, err := netip.ParseAddr(ip); err != nil {
			return invalid(field+".host_ip", "%q is no address", ip)
		}
	}
	return nil
}

func validatePodNamespaces(o *runtime.NamespaceOption) error {
	const field = "config.linux.security_context.namespace_options."
	for _, f := range []struct {
		field string
		mode  runtime.NamespaceMode
	}{{"network", o.GetNetwork()}, {"pid", o.GetPid()}, {"ipc", o.GetIpc()}} {
		switch f.mode {
		case runtime.NamespaceMode_POD, runtime.NamespaceMode_NODE, runtime.NamespaceMode_CONTAINER:
		default:
			return invalid(field+f.field, "%s is nothing for a pod", f.mode)
		}
	}
	if !hasUserNamespace(o) {
		return nil
	}
	// A user namespace that does not own the pod's other namespaces cannot mount
	// what belongs to them. Status says that the host's network is not supported.
	for _, f := range []struct {
		field string
		mode  runtime.NamespaceMode
	}{{"network", o.GetNetwork()}, {"pid", o.GetPid()}, {"ipc", o.GetIpc()}} {
		if f.mode == runtime.NamespaceMode_NODE {
			return invalid(field+f.field, "NODE cannot be had together with a user namespace")
		}
	}
	return nil
}

func hasUserNamespace(o *runtime.NamespaceOption) bool {
	return o.GetUsernsOptions() != nil && o.GetUsernsOptions().GetMode() == runtime.NamespaceMode_POD
}
