package effects

import (
	"context"
	"fmt"
	"os"
	"strings"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/api/resource"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/namespaces"
	"berth/internal/network"
	"berth/internal/pod"
)

// addresses is the pod's connection to the network.
type addresses struct{ m *Machine }

// Take runs CNI's ADD, and then sets the sysctls of the interfaces it made.
func (a *addresses) Take(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	cfg, err := podConfig(j)
	if err != nil {
		return nil, err
	}
	p, err := a.pod(j)
	if err != nil {
		return nil, err
	}
	ns, err := holding[namespaces.Paths](j.Pod.Holdings, pod.Namespaces)
	if err != nil {
		return nil, err
	}
	p.NetNS = ns.Net
	res, err := a.m.d.Network.Setup(ctx, p)
	if err != nil {
		return nil, err
	}
	if s := interfaceSysctls(cfg); len(s) > 0 {
		if err := namespaces.Tune(ctx, ns, s); err != nil {
			return nil, err
		}
	}
	return taken(res)
}

// Probe undoes an ADD that may or may not have been made: CNI cannot be asked.
func (a *addresses) Probe(ctx context.Context, j *keeper.Job) (*keeper.Taken, error) {
	_, err := a.Give(ctx, j)
	return nil, err
}

// Give runs CNI's DEL, with no namespace if there is none any more.
func (a *addresses) Give(ctx context.Context, j *keeper.Job) (*keeper.Exit, error) {
	p, err := a.pod(j)
	if err != nil {
		return nil, err
	}
	if ns, err := holding[namespaces.Paths](j.Pod.Holdings, pod.Namespaces); err == nil {
		if _, err := os.Stat(ns.Net); err == nil {
			p.NetNS = ns.Net
		}
	}
	return nil, a.m.d.Network.Teardown(ctx, p)
}

// pod is what plugins are told.
func (a *addresses) pod(j *keeper.Job) (*network.Pod, error) {
	p := &network.Pod{ID: j.Pod.ID}
	cfg, err := podConfig(j)
	if err != nil {
		// A damaged journal: give back by id alone.
		return p, nil
	}
	if h, err := a.m.handler(j); err == nil {
		p.ConfDir = h.CNIConfDir
	}
	p.Name, p.Namespace, p.UID = cfg.GetMetadata().GetName(), cfg.GetMetadata().GetNamespace(), cfg.GetMetadata().GetUid()
	p.CgroupParent, p.Annotations = cfg.GetLinux().GetCgroupParent(), cfg.GetAnnotations()
	for _, m := range cfg.GetPortMappings() {
		if m.GetHostPort() > 0 {
			p.Ports = append(p.Ports, network.PortMapping{
				HostPort: m.GetHostPort(), ContainerPort: m.GetContainerPort(), Protocol: strings.ToLower(m.GetProtocol().String()), HostIP: m.GetHostIp(),
			})
		}
	}
	if d := cfg.GetDnsConfig(); d != nil {
		p.DNS = &network.DNS{Servers: d.GetServers(), Searches: d.GetSearches(), Options: d.GetOptions()}
	}
	p.Bandwidth, err = bandwidth(cfg)
	return p, err
}

// bandwidth reads the annotations that Kubernetes defines for it: quantities in
// bits a second.
func bandwidth(cfg *runtime.PodSandboxConfig) (*network.Bandwidth, error) {
	b := &network.Bandwidth{}
	for key, to := range map[string]*uint64{
		"kubernetes.io/ingress-bandwidth": &b.IngressRate, "kubernetes.io/egress-bandwidth": &b.EgressRate,
	} {
		v, ok := cfg.GetAnnotations()[key]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(v)
		if err != nil || q.Value() <= 0 {
			return nil, fmt.Errorf("annotation %s: %q is not a rate in bits a second, such as 10M: %w", key, v, errdefs.ErrInvalidArgument)
		}
		*to = uint64(q.Value())
	}
	if b.IngressRate == 0 && b.EgressRate == 0 {
		return nil, nil
	}
	// The plugin wants a burst; this is what other runtimes give.
	const burst = 2147483640
	if b.IngressRate > 0 {
		b.IngressBurst = burst
	}
	if b.EgressRate > 0 {
		b.EgressBurst = burst
	}
	return b, nil
}
