package cri

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/record"
)

func goodPod() *runtime.PodSandboxConfig {
	return &runtime.PodSandboxConfig{
		Metadata:     &runtime.PodSandboxMetadata{Name: "n", Namespace: "ns", Uid: "u", Attempt: 3},
		Hostname:     "h",
		LogDirectory: "/log",
		DnsConfig:    &runtime.DNSConfig{Servers: []string{"10.0.0.1"}, Searches: []string{"a.b"}, Options: []string{"ndots:5"}},
		PortMappings: []*runtime.PortMapping{{ContainerPort: 80, HostPort: 8080, HostIp: "::1"}, {ContainerPort: 81}, {}},
		Labels:       map[string]string{"l": "1"},
		Linux: &runtime.LinuxPodSandboxConfig{
			SecurityContext: &runtime.LinuxSandboxSecurityContext{NamespaceOptions: &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER}},
		},
	}
}

func TestRunPodSandboxDeclaresThePod(t *testing.T) {
	r := newRig(t)
	cfg := goodPod()
	cfg.Linux.SecurityContext.NamespaceOptions.Network = runtime.NamespaceMode_NODE
	resp, err := r.RunPodSandbox(t.Context(), &runtime.RunPodSandboxRequest{Config: cfg})
	if err != nil || resp.PodSandboxId != "new-pod" {
		t.Fatal(resp, err)
	}
	req := r.keeper.podReq
	if req.Name != "n_ns_u_3" || req.Handler != "runc" || !req.Traits.HostNetwork {
		t.Fatalf("declared %+v", req)
	}
	got := &record.Pod{}
	if err := got.UnmarshalJSON(req.Config); err != nil || !proto.Equal(got.Config, cfg) {
		t.Fatalf("recorded %v, %v", got.Config, err)
	}
	// The same request must look the same, or it would not join.
	if _, err := r.RunPodSandbox(t.Context(), &runtime.RunPodSandboxRequest{Config: proto.CloneOf(cfg), RuntimeHandler: "runc"}); err != nil {
		t.Fatal(err)
	}
	if string(r.keeper.podReq.Config) != string(req.Config) || r.keeper.podReq.Handler != req.Handler {
		t.Fatal("the same request was recorded in two ways")
	}
}

func TestRunPodSandboxRefusesBadConfigs(t *testing.T) {
	userns := func(c *runtime.PodSandboxConfig) *runtime.NamespaceOption {
		m := []*runtime.IDMapping{{HostId: 1000, Length: 65536}}
		o := c.Linux.SecurityContext.NamespaceOptions
		o.UsernsOptions = &runtime.UserNamespace{Uids: m, Gids: m}
		return o
	}
	for _, c := range []struct {
		field string // that the error must name
		spoil func(*runtime.PodSandboxConfig)
	}{
		{"config.metadata", func(c *runtime.PodSandboxConfig) { c.Metadata = nil }},
		{"config.metadata.name", func(c *runtime.PodSandboxConfig) { c.Metadata.Name = "" }},
		{"config.metadata.name", func(c *runtime.PodSandboxConfig) { c.Metadata.Name = "../x" }},
		{"config.metadata.name", func(c *runtime.PodSandboxConfig) { c.Metadata.Name = strings.Repeat("x", 300) }},
		{"config.metadata.namespace", func(c *runtime.PodSandboxConfig) { c.Metadata.Namespace = "" }},
		{"config.metadata.uid", func(c *runtime.PodSandboxConfig) { c.Metadata.Uid = "" }},
		{"config.hostname", func(c *runtime.PodSandboxConfig) { c.Hostname = strings.Repeat("h", 65) }},
		{"config.log_directory", func(c *runtime.PodSandboxConfig) { c.LogDirectory = "var/log" }},
		{"config.dns_config.servers[0]", func(c *runtime.PodSandboxConfig) { c.DnsConfig.Servers[0] = "1.1.1.1\noptions x" }},
		{"config.dns_config.searches[0]", func(c *runtime.PodSandboxConfig) { c.DnsConfig.Searches[0] = "" }},
		{"config.port_mappings[0].host_port", func(c *runtime.PodSandboxConfig) { c.PortMappings[0].HostPort = 65536 }},
		{"config.port_mappings[0].host_port", func(c *runtime.PodSandboxConfig) { c.PortMappings[0].HostPort = -1 }},
		{"config.port_mappings[0].container_port", func(c *runtime.PodSandboxConfig) { c.PortMappings[0].ContainerPort = 0 }},
		{"config.port_mappings[1].container_port", func(c *runtime.PodSandboxConfig) { c.PortMappings[1].ContainerPort = 70000 }},
		{"config.port_mappings[0].protocol", func(c *runtime.PodSandboxConfig) { c.PortMappings[0].Protocol = 9 }},
		{"config.port_mappings[0].host_ip", func(c *runtime.PodSandboxConfig) { c.PortMappings[0].HostIp = "localhost" }},
		{"namespace_options.pid", func(c *runtime.PodSandboxConfig) {
			c.Linux.SecurityContext.NamespaceOptions.Pid = runtime.NamespaceMode_TARGET
		}},
		{"namespace_options.network", func(c *runtime.PodSandboxConfig) { userns(c).Network = runtime.NamespaceMode_NODE }},
		{"namespace_options.pid", func(c *runtime.PodSandboxConfig) { userns(c).Pid = runtime.NamespaceMode_NODE }},
		{"namespace_options.ipc", func(c *runtime.PodSandboxConfig) { userns(c).Ipc = runtime.NamespaceMode_NODE }},
		{"userns_options.mode", func(c *runtime.PodSandboxConfig) { userns(c).UsernsOptions.Mode = runtime.NamespaceMode_CONTAINER }},
		{"userns_options.uids", func(c *runtime.PodSandboxConfig) { userns(c).UsernsOptions.Uids = nil }},
		{"linux.sysctls", func(c *runtime.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"vm.swappiness": "1"} }},
		{"run_as_group", func(c *runtime.PodSandboxConfig) { c.Linux.SecurityContext.RunAsGroup = &runtime.Int64Value{} }},
	} {
		r := newRig(t)
		cfg := goodPod()
		c.spoil(cfg)
		_, err := r.RunPodSandbox(t.Context(), &runtime.RunPodSandboxRequest{Config: cfg})
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v", c.field, err)
		}
		if calls := r.keeper.noted(); len(calls) > 0 {
			t.Errorf("%s: the keeper was asked: %v", c.field, calls)
		}
	}
	if err := validatePod(goodPod()); err != nil {
		t.Errorf("a good config was refused: %v", err)
	}
}

func TestRunPodSandboxAsksTheHandler(t *testing.T) {
	r := newRig(t)
	_, err := r.RunPodSandbox(t.Context(), &runtime.RunPodSandboxRequest{Config: goodPod(), RuntimeHandler: "gone"})
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "runtime_handler") {
		t.Errorf("unknown handler: %v", err)
	}
	cfg := goodPod()
	m := []*runtime.IDMapping{{HostId: 1000, Length: 65536}}
	cfg.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtime.UserNamespace{Uids: m, Gids: m}
	if _, err = r.RunPodSandbox(t.Context(), &runtime.RunPodSandboxRequest{Config: cfg, RuntimeHandler: "plain"}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("user namespace on a handler without: %v", err)
	}
	if _, err = r.RunPodSandbox(t.Context(), &runtime.RunPodSandboxRequest{Config: cfg}); err != nil {
		t.Errorf("user namespace on a handler with: %v", err)
	}
	if r.keeper.podReq.Handler != "runc" {
		t.Errorf("handler %q", r.keeper.podReq.Handler)
	}
}
