package stats

import (
	"context"
	"os"
	"slices"
	"time"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/netns"
)

// primary is the interface that CNI gives a pod.
const primary = "eth0"

// netUse is a reading of a network namespace's counters.
type netUse struct {
	at     time.Time
	ifaces []iface // without the loopback; the default one first
}

// network returns a reading that is at most a second old; nil without a
// namespace, or when it cannot be read.
func (c *Collector) network(ctx context.Context, path string) *netUse {
	if path == "" {
		return nil
	}
	c.mu.Lock()
	n := c.nets[path]
	c.mu.Unlock()
	if n != nil && time.Since(n.at) < fresh {
		return n
	}
	ch := c.flight.DoChan("net "+path, func() (any, error) {
		n, err := readNet(path)
		if err != nil {
			return (*netUse)(nil), nil // it goes while the pod is stopped
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.nets[path] = n
		return n, nil
	})
	select {
	case r := <-ch:
		return r.Val.(*netUse)
	case <-ctx.Done():
		return nil
	}
}

// readNet reads the counters of a namespace.
func readNet(path string) (*netUse, error) {
	n := &netUse{}
	err := netns.Do(path, func() error {
		n.at = time.Now()
		// /proc/net is the first thread's.
		b, err := os.ReadFile("/proc/thread-self/net/dev")
		n.ifaces = parseNetDev(b)
		return err
	})
	if err != nil {
		return nil, err
	}
	if i := slices.IndexFunc(n.ifaces, func(i iface) bool { return i.name == primary }); i > 0 {
		first := n.ifaces[i]
		n.ifaces = append([]iface{first}, slices.Delete(n.ifaces, i, i+1)...)
	}
	return n, nil
}

func networkMessage(n *netUse) *cri.NetworkUsage {
	if n == nil {
		return nil
	}
	out := &cri.NetworkUsage{Timestamp: n.at.UnixNano()}
	for i, f := range n.ifaces {
		m := &cri.NetworkInterfaceUsage{
			Name:    f.name,
			RxBytes: value(f.rxBytes), RxErrors: value(f.rxErrs),
			TxBytes: value(f.txBytes), TxErrors: value(f.txErrs),
		}
		if i == 0 {
			out.DefaultInterface = m
			continue
		}
		out.Interfaces = append(out.Interfaces, m)
	}
	return out
}
