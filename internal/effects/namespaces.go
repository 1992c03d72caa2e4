package effects

import (
	"context"
	"os"
	"path/filepath"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/namespaces"
	"berth/internal/ocispec"
	"berth/internal/pod"
)

// pinned is the pod's own namespaces.
type pinned struct{ m *Machine }

func (m *Machine) ns(pod string) string { return filepath.Join(m.runtime(pod), "ns") }

// pidNS is where the shim pins a PID namespace that the pod's containers share.
func (m *Machine) pidNS(pod string) string { return filepath.Join(m.runtime(pod), "pidns") }

// Take makes them, with host name and sysctls.
func (n *pinned) Take(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	cfg, err := podConfig(j)
	if err != nil {
		return nil, err
	}
	uids, gids, err := ocispec.IDMappings(nsOptions(cfg))
	if err != nil {
		return nil, err
	}
	r := &namespaces.Request{
		Dir: n.m.ns(j.Pod.ID),
		Net: !hostNetwork(cfg), IPC: !hostIPC(cfg), UTS: !hostNetwork(cfg),
		Sysctls: cfg.GetLinux().GetSysctls(),
	}
	if r.UTS {
		r.Hostname = hostname(cfg)
	}
	if len(uids) > 0 {
		r.User = &namespaces.UserMapping{UIDs: mappings(uids), GIDs: mappings(gids)}
	}
	p, err := namespaces.Create(ctx, r)
	if err != nil {
		return nil, err
	}
	return taken(p)
}

// hostname is the pod's name for itself; a pod without one has the host's.
func hostname(cfg *runtime.PodSandboxConfig) string {
	if h := cfg.GetHostname(); h != "" {
		return h
	}
	h, err := os.Hostname()
	if err != nil {
		return ""
	}
	return h
}

func mappings(ms []specs.LinuxIDMapping) []namespaces.IDMapping {
	var out []namespaces.IDMapping
	for _, m := range ms {
		out = append(out, namespaces.IDMapping{HostID: m.HostID, ContainerID: m.ContainerID, Length: m.Size})
	}
	return out
}

// Probe makes what is missing.
func (n *pinned) Probe(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	return n.Take(ctx, j)
}

// Give unpins them; the kernel ends each with its last process.
func (n *pinned) Give(ctx context.Context, j *keeper.Job) (*keeper.Exit, error) {
	return nil, namespaces.Remove(ctx, n.m.ns(j.Pod.ID))
}

// joined are the namespaces that the pod's containers join.
func (m *Machine) joined(j *keeper.Job) (map[specs.LinuxNamespaceType]string, error) {
	p, err := holding[namespaces.Paths](j.Pod.Holdings, pod.Namespaces)
	if err != nil {
		return nil, err
	}
	cfg, err := podConfig(j)
	if err != nil {
		return nil, err
	}
	out := map[specs.LinuxNamespaceType]string{}
	for t, path := range map[specs.LinuxNamespaceType]string{
		specs.NetworkNamespace: p.Net, specs.IPCNamespace: p.IPC, specs.UTSNamespace: p.UTS, specs.UserNamespace: p.User,
	} {
		if path != "" {
			out[t] = path
		}
	}
	if sharedPID(cfg) {
		out[specs.PIDNamespace] = m.pidNS(j.Pod.ID)
	}
	return out, nil
}

// interfaceSysctls are those that can be written only once CNI has made the
// pod's interfaces.
func interfaceSysctls(cfg *runtime.PodSandboxConfig) map[string]string {
	out := map[string]string{}
	for k, v := range cfg.GetLinux().GetSysctls() {
		n := strings.ReplaceAll(k, "/", ".")
		if strings.HasPrefix(n, "net.ipv4.conf.") || strings.HasPrefix(n, "net.ipv6.conf.") ||
			strings.HasPrefix(n, "net.ipv4.neigh.") || strings.HasPrefix(n, "net.ipv6.neigh.") {
			out[k] = v
		}
	}
	return out
}
