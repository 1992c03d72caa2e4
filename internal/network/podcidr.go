package network

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// SetPodCIDR tells which addresses the pods of this node are to have: a subnet,
// or one of each family with a comma between. It is for the default network and
// for plugins that take ranges; it holds for pods to come, and over restarts.
func (s *Service) SetPodCIDR(cidr string) error {
	subnets, err := splitCIDR(cidr)
	if err != nil {
		return err
	}
	path := filepath.Join(s.conf.CacheDir, podCIDRFile)
	if err := os.WriteFile(path+".new", []byte(cidr), 0o600); err != nil {
		return fmt.Errorf("keep pod CIDR: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("keep pod CIDR: %w", err)
	}
	s.mu.Lock()
	s.cidr = subnets
	s.mu.Unlock()
	return nil
}

const podCIDRFile = "pod-cidr"

func (s *Service) loadPodCIDR() error {
	data, err := os.ReadFile(filepath.Join(s.conf.CacheDir, podCIDRFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read pod CIDR: %w", err)
	}
	if s.cidr, err = splitCIDR(string(data)); err != nil {
		log.L.WithError(err).Warn("kept pod CIDR is damaged and ignored")
	}
	return nil
}

func splitCIDR(cidr string) ([]string, error) {
	var subnets []string
	for _, part := range strings.Split(cidr, ",") {
		prefix, err := netip.ParsePrefix(strings.TrimSpace(part))
		if err != nil {
			return nil, fmt.Errorf("pod_cidr %q: %w: %w", cidr, err, errdefs.ErrInvalidArgument)
		}
		subnets = append(subnets, prefix.Masked().String())
	}
	return subnets, nil
}

func (s *Service) podCIDR() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cidr
}

// ipRanges is the pod CIDR in the form of the ipRanges capability.
func (s *Service) ipRanges() [][]map[string]string {
	var ranges [][]map[string]string
	for _, subnet := range s.podCIDR() {
		ranges = append(ranges, []map[string]string{{"subnet": subnet}})
	}
	return ranges
}
