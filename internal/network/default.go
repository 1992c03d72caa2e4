package network

import (
	"encoding/json"
	"fmt"
	"hash/crc32"
	"net/netip"
	"os"
	"strings"
	"sync"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/libcni"
)

// Default describes the network that pods get on a machine without any CNI
// configuration: a bridge, addresses from host-local, port mappings.
type Default struct {
	// Bridge is the bridge's name, "" for berth0.
	Bridge string
	// Subnets to take addresses from, at most one of each family; empty is
	// 10.88.0.0/16. A pod CIDR, once set, replaces them.
	Subnets []string
	// IPv6 adds fd00:10:88::/64 to the built-in subnets, if the host has IPv6.
	IPv6 bool
	// DataDir is where host-local keeps its reservations, "" for its own
	// (/var/lib/cni/networks).
	DataDir string
}

const (
	defaultName = "berth"
	defaultV4   = "10.88.0.0/16"
	defaultV6   = "fd00:10:88::/64"
)

// defaults keeps the default network as it was last built, for those subnets.
type defaults struct {
	mu      sync.Mutex
	network *network
	subnets string
}

// defaultNetwork builds the network's plugin list.
//
// The bridge plugin is not asked to masquerade. It would make rules for every
// pod, with ten runs of iptables or nft a pod: more than the rest of the ADD and
// the DEL together. One rule for the subnet does the same and leaves nothing
// behind when a pod's namespace is gone before its DEL. See masquerade.
func (s *Service) defaultNetwork() (*network, error) {
	d := s.conf.Default
	name, bridge, subnets := defaultName, d.Bridge, d.Subnets
	if bridge == "" {
		bridge = "berth0"
	}
	if len(subnets) == 0 {
		subnets = []string{defaultV4}
		if d.IPv6 && hostHasIPv6() {
			subnets = append(subnets, defaultV6)
		}
	}
	if cidr := s.podCIDR(); len(cidr) > 0 {
		// A bridge has one IPv4 gateway address: pods of another subnet go
		// on another bridge and leave the older ones theirs.
		subnets = cidr
		sum := crc32.ChecksumIEEE([]byte(strings.Join(cidr, ",")))
		name, bridge = fmt.Sprintf("%s_%08x", defaultName, sum), fmt.Sprintf("%s-%08x", defaultName, sum)
	}

	key := strings.Join(subnets, ",")
	s.defaults.mu.Lock()
	known := s.defaults.network
	if s.defaults.subnets != key {
		known = nil
	}
	s.defaults.mu.Unlock()
	if known != nil {
		return known, nil
	}

	var ranges [][]map[string]string
	var routes []map[string]string
	for _, subnet := range subnets {
		prefix, err := netip.ParsePrefix(subnet)
		if err != nil {
			return nil, fmt.Errorf("subnet %q of the default network: %w: %w", subnet, err, errdefs.ErrInvalidArgument)
		}
		ranges = append(ranges, []map[string]string{{"subnet": prefix.Masked().String()}})
		all := "0.0.0.0/0"
		if prefix.Addr().Is6() {
			all = "::/0"
		}
		routes = append(routes, map[string]string{"dst": all})
	}
	ipam := map[string]any{"type": "host-local", "ranges": ranges, "routes": routes}
	if d.DataDir != "" {
		ipam["dataDir"] = d.DataDir
	}
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0",
		"name":       name,
		"plugins": []any{
			map[string]any{"type": "bridge", "bridge": bridge, "isGateway": true, "hairpinMode": true, "ipam": ipam},
			// Takes iptables or nft, whichever the host has.
			map[string]any{"type": "portmap", "capabilities": map[string]bool{capPorts: true}},
		},
	})
	if err != nil {
		return nil, fmt.Errorf("default network: %w", err)
	}
	list, err := libcni.NetworkConfFromBytes(conf)
	if err != nil {
		return nil, fmt.Errorf("default network: %w", err)
	}
	n := &network{list: list, masquerade: subnets}
	s.defaults.mu.Lock()
	s.defaults.network, s.defaults.subnets = n, key
	s.defaults.mu.Unlock()
	return n, nil
}

// hostHasIPv6 tells whether interfaces may have IPv6 addresses.
func hostHasIPv6() bool {
	off, err := os.ReadFile("/proc/sys/net/ipv6/conf/all/disable_ipv6")
	return err == nil && strings.TrimSpace(string(off)) == "0"
}
