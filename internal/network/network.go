// Package network connects pods to networks through CNI plugins.
//
// It promises: what a plugin may have taken is on disk before the plugin runs,
// so that Teardown undoes it with the very configuration and arguments of the
// ADD, after any crash, also when the configuration changed or the namespace is
// gone; Teardown can be repeated until it succeeds and lets no plugin's failure
// keep the others from giving back what is theirs; no plugin runs for longer
// than its deadline, and none holds up another pod's.
//
// Calls for one pod follow one another; calls for different pods run side by
// side. It knows nothing of pods beyond the arguments of a call. The keeper's
// effects and the CRI front (Status, SetPodCIDR) import it.
package network

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/utils"
)

// Config is how the service works.
type Config struct {
	// ConfDir holds *.conflist, *.conf and *.json. It is looked at in every
	// call, so it may appear, change and vanish at any time.
	ConfDir string
	// BinDirs are searched for plugins in this order.
	BinDirs []string
	// CacheDir keeps one small file for each connected pod. It must survive a
	// reboot, for some plugins' addresses do.
	CacheDir string
	// MaxConfNum is how many configurations, in lexical order of their files,
	// a pod is connected to (eth0, eth1, …). 0 is 1.
	MaxConfNum int
	// Default is the network to use while ConfDir holds no configuration. Nil:
	// then there is none.
	Default *Default
	// Timeout bounds one call of one plugin; then its process group is killed.
	// 0 is a minute.
	Timeout time.Duration
	// MaxPlugins bounds how many plugins run at once, ADD and DEL each for
	// themselves. 0 is 64.
	MaxPlugins int
}

// Pod is what plugins are told of a pod.
type Pod struct {
	ID, Name, Namespace, UID string
	// NetNS is the path of the pod's network namespace. Teardown takes "",
	// and a path that is gone, too.
	NetNS        string
	CgroupParent string
	// Ports with HostPort 0 are ignored: 0 asks for none.
	Ports       []PortMapping
	DNS         *DNS
	Bandwidth   *Bandwidth
	Annotations map[string]string
	// ConfDir replaces Config.ConfDir (and Config.Default), if set.
	ConfDir string
}

// PortMapping makes a port of the pod reachable on the host. The JSON forms here
// are those of the CNI conventions.
type PortMapping struct {
	HostPort      int32  `json:"hostPort"`
	ContainerPort int32  `json:"containerPort"`
	Protocol      string `json:"protocol"` // tcp, udp, sctp
	HostIP        string `json:"hostIP,omitempty"`
}

// DNS is the pod's resolver configuration, for plugins that want it.
type DNS struct {
	Servers  []string `json:"servers,omitempty"`
	Searches []string `json:"searches,omitempty"`
	Options  []string `json:"options,omitempty"`
}

// Bandwidth limits traffic into and out of the pod: rates in bits a second,
// bursts in bits. A rate of 0 is no limit.
type Bandwidth struct {
	IngressRate  uint64 `json:"ingressRate,omitempty"`
	IngressBurst uint64 `json:"ingressBurst,omitempty"`
	EgressRate   uint64 `json:"egressRate,omitempty"`
	EgressBurst  uint64 `json:"egressBurst,omitempty"`
}

// Result is what a pod got.
type Result struct {
	// IPs of eth0 in the order in which the plugins gave them. The first one
	// is the pod's primary address.
	IPs        []string    `json:"ips"`
	Interfaces []Interface `json:"interfaces,omitempty"`
	// Raw is the CNI result of the first network.
	Raw json.RawMessage `json:"raw,omitempty"`
}

// Interface is one that a plugin made. Sandbox is empty for those on the host.
type Interface struct {
	Name    string `json:"name"`
	Mac     string `json:"mac,omitempty"`
	Sandbox string `json:"sandbox,omitempty"`
}

// Service connects pods.
type Service struct {
	conf   Config
	boot   string // this boot of the machine
	run    string // this Service
	adds   *runner
	dels   *runner
	others *runner // STATUS, and tools of the default network

	confs    confCache
	defaults defaults
	masq     masquerading
	probes   probes

	mu   sync.Mutex
	busy map[string]chan struct{} // by pod: closed when its call is over
	cidr []string                 // of SetPodCIDR
}

// New makes a service. It touches nothing but CacheDir.
func New(c *Config) (*Service, error) {
	s := &Service{conf: *c, busy: map[string]chan struct{}{}}
	if s.conf.MaxConfNum <= 0 {
		s.conf.MaxConfNum = 1
	}
	if s.conf.MaxPlugins <= 0 {
		s.conf.MaxPlugins = 64
	}
	if s.conf.Timeout <= 0 {
		s.conf.Timeout = time.Minute
	}
	if err := os.MkdirAll(s.conf.CacheDir, 0o700); err != nil {
		return nil, fmt.Errorf("network cache: %w", err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read boot id: %w", err)
	}
	s.boot = strings.TrimSpace(string(boot))
	s.run = fmt.Sprintf("%d.%d", os.Getpid(), time.Now().UnixNano())
	s.adds = newRunner(s.conf.Timeout, s.conf.MaxPlugins)
	s.dels = newRunner(s.conf.Timeout, s.conf.MaxPlugins)
	s.others = newRunner(min(s.conf.Timeout, 10*time.Second), s.conf.MaxPlugins)
	s.masq.turn = make(chan struct{}, 1)
	return s, s.loadPodCIDR()
}

// claim makes the caller the only one that works on the pod. Another call for
// the same pod is waited for, no longer than ctx.
func (s *Service) claim(ctx context.Context, id string) (release func(), err error) {
	for {
		s.mu.Lock()
		other, taken := s.busy[id]
		if !taken {
			mine := make(chan struct{})
			s.busy[id] = mine
			s.mu.Unlock()
			return func() {
				s.mu.Lock()
				delete(s.busy, id)
				s.mu.Unlock()
				close(mine)
			}, nil
		}
		s.mu.Unlock()
		select {
		case <-other:
		case <-ctx.Done():
			return nil, fmt.Errorf("wait for another call about the network of pod %s: %w", id, ctx.Err())
		}
	}
}

// check refuses what plugins would stumble over half way.
func (p *Pod) check() error {
	if err := utils.ValidateContainerID(p.ID); err != nil {
		return fmt.Errorf("pod id %q: %w: %w", p.ID, err, errdefs.ErrInvalidArgument)
	}
	for i, m := range p.Ports {
		if m.HostPort == 0 {
			continue
		}
		switch {
		case m.HostPort < 0 || m.HostPort > 65535:
			return fmt.Errorf("port_mappings[%d].host_port: %d: %w", i, m.HostPort, errdefs.ErrInvalidArgument)
		case m.ContainerPort <= 0 || m.ContainerPort > 65535:
			return fmt.Errorf("port_mappings[%d].container_port: %d: %w", i, m.ContainerPort, errdefs.ErrInvalidArgument)
		}
		switch strings.ToLower(m.Protocol) {
		case "tcp", "udp", "sctp":
		default:
			return fmt.Errorf("port_mappings[%d].protocol: %q: %w", i, m.Protocol, errdefs.ErrInvalidArgument)
		}
	}
	return nil
}

// args are the CNI_ARGS of the pod, as the kubelet's own network code gave them.
func (p *Pod) args() [][2]string {
	return [][2]string{
		{"IgnoreUnknown", "1"},
		{"K8S_POD_NAMESPACE", p.Namespace},
		{"K8S_POD_NAME", p.Name},
		{"K8S_POD_INFRA_CONTAINER_ID", p.ID},
		{"K8S_POD_UID", p.UID},
	}
}

// capabilities are what plugins get that declare them. What the pod does not ask
// for is absent.
func (s *Service) capabilities(p *Pod) map[string]any {
	c := map[string]any{}
	var ports []PortMapping
	for _, m := range p.Ports {
		if m.HostPort > 0 {
			m.Protocol = strings.ToLower(m.Protocol)
			ports = append(ports, m)
		}
	}
	if len(ports) > 0 {
		c[capPorts] = ports
	}
	if b := p.Bandwidth; b != nil && *b != (Bandwidth{}) {
		c[capBandwidth] = b
	}
	if p.DNS != nil {
		c["dns"] = p.DNS
	}
	if len(p.Annotations) > 0 {
		c["io.kubernetes.cri.pod-annotations"] = p.Annotations
	}
	if p.CgroupParent != "" {
		c["cgroupPath"] = p.CgroupParent
	}
	if ranges := s.ipRanges(); len(ranges) > 0 {
		c["ipRanges"] = ranges
	}
	return c
}

const (
	capPorts     = "portMappings"
	capBandwidth = "bandwidth"
)

func (s *Service) recordPath(id string) string {
	return filepath.Join(s.conf.CacheDir, id+".json")
}
