package network

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
	"github.com/containernetworking/cni/pkg/invoke"
)

// Info is the network's state in words, for the verbose CRI status.
type Info struct {
	ConfDir  string        `json:"confDir"`
	BinDirs  []string      `json:"binDirs"`
	PodCIDR  []string      `json:"podCIDR,omitempty"`
	Networks []NetworkInfo `json:"networks"`
	// Problems do not keep pods from starting.
	Problems []string `json:"problems,omitempty"`
}

// NetworkInfo is one configuration in force.
type NetworkInfo struct {
	Name       string `json:"name"`
	File       string `json:"file"` // "" for the default network
	CNIVersion string `json:"cniVersion"`
	// Config is the list as plugins see it.
	Config json.RawMessage `json:"config"`
}

// Info describes what pods would be connected to now.
func (s *Service) Info() *Info {
	info := &Info{ConfDir: s.conf.ConfDir, BinDirs: s.conf.BinDirs, PodCIDR: s.podCIDR(), Networks: []NetworkInfo{}}
	networks, err := s.networks("")
	if err != nil {
		info.Problems = append(info.Problems, err.Error())
	}
	for _, n := range networks {
		info.Networks = append(info.Networks, NetworkInfo{Name: n.list.Name, File: n.file, CNIVersion: n.list.CNIVersion, Config: n.list.Bytes})
		s.masq.mu.Lock()
		if p := s.masq.problem; p != nil && s.masq.network == n.list.Name && len(n.masquerade) > 0 {
			info.Problems = append(info.Problems, "pods of the default network cannot reach other machines: "+p.Error())
		}
		s.masq.mu.Unlock()
	}
	if d, err := s.confs.read(s.conf.ConfDir, s.conf.MaxConfNum); err == nil {
		for _, err := range d.bad {
			info.Problems = append(info.Problems, "passed over: "+err.Error())
		}
	}
	return info
}

// Status returns nil if pods can be connected, else an error that names what is
// missing: a configuration, a plugin, or what a plugin itself reports (STATUS,
// CNI 1.1). It waits for plugins no longer than a second and then tells what they
// last said. FailedPrecondition or Unavailable.
func (s *Service) Status(ctx context.Context) error {
	networks, err := s.networks("")
	if err != nil {
		return err
	}
	for _, n := range networks {
		if err := s.complete(n); err != nil {
			return err
		}
	}
	for _, n := range networks {
		if !atLeast(n.list.CNIVersion, "1.1.0") {
			continue
		}
		if err := s.probe(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// complete tells whether all plugins of n are there.
func (s *Service) complete(n *network) error {
	var missing []string
	for _, p := range n.list.Plugins {
		for _, name := range []string{p.Network.Type, p.Network.IPAM.Type} {
			if name == "" || slices.Contains(missing, name) {
				continue
			}
			if _, err := invoke.FindInPath(name, s.conf.BinDirs); err != nil {
				missing = append(missing, name)
			}
		}
	}
	if len(missing) == 0 {
		return nil
	}
	return fmt.Errorf("CNI plugins %s of network %s are not in %s: %w",
		strings.Join(missing, ", "), n.list.Name, strings.Join(s.conf.BinDirs, ", "), errdefs.ErrFailedPrecondition)
}

const (
	probeEvery = 5 * time.Second
	probeWait  = time.Second
)

// probes keeps what plugins said to STATUS, by network. Status is called often
// and must not hang on a plugin that does.
type probes struct {
	mu sync.Mutex
	of map[*network]*probe
}

type probe struct {
	at   time.Time
	err  error
	done chan struct{} // closed when the running one is over; nil: none runs
}

// probe asks the plugins of n, if what they last said is old.
func (s *Service) probe(ctx context.Context, n *network) error {
	s.probes.mu.Lock()
	p := s.probes.of[n]
	if p == nil {
		p = &probe{err: fmt.Errorf("plugins of network %s have not reported yet: %w", n.list.Name, errdefs.ErrUnavailable)}
		if s.probes.of == nil || len(s.probes.of) >= s.conf.MaxConfNum {
			// Those of an older configuration are of no interest.
			s.probes.of = map[*network]*probe{}
		}
		s.probes.of[n] = p
	}
	if p.done == nil && time.Since(p.at) >= probeEvery {
		p.done = make(chan struct{})
		// It ends by the runner's deadline.
		go s.runProbe(context.WithoutCancel(ctx), n, p)
	}
	done := p.done
	s.probes.mu.Unlock()
	if done != nil {
		select {
		case <-done:
		case <-ctx.Done():
		case <-time.After(probeWait):
		}
	}
	s.probes.mu.Lock()
	defer s.probes.mu.Unlock()
	return p.err
}

func (s *Service) runProbe(ctx context.Context, n *network, p *probe) {
	var errs []error
	for _, plugin := range n.list.Plugins {
		if err := s.askStatus(ctx, n, plugin); err != nil {
			errs = append(errs, fmt.Errorf("plugin %s of network %s is not ready: %w: %w", plugin.Network.Type, n.list.Name, err, errdefs.ErrUnavailable))
		}
	}
	s.probes.mu.Lock()
	defer s.probes.mu.Unlock()
	p.at, p.err = time.Now(), errors.Join(errs...)
	close(p.done)
	p.done = nil
}

func (s *Service) askStatus(ctx context.Context, n *network, p *libcni.PluginConfig) error {
	conf, err := libcni.InjectConf(p, map[string]any{"name": n.list.Name, "cniVersion": n.list.CNIVersion})
	if err != nil {
		return err
	}
	path, err := s.others.FindInPath(p.Network.Type, s.conf.BinDirs)
	if err != nil {
		return err
	}
	args := &invoke.Args{Command: "STATUS", Path: strings.Join(s.conf.BinDirs, string(filepath.ListSeparator))}
	return invoke.ExecPluginWithoutResult(ctx, path, conf.Bytes, args, s.others)
}
