package network

import (
	"context"
	"fmt"
	"os/exec"
	"strings"
	"sync"
	"time"

	"github.com/containerd/errdefs"
	"github.com/containerd/log"
)

// masqueradeEvery is how often the rules are written again, should something
// (a firewall's reload) have swept them away.
const masqueradeEvery = time.Minute

// masquerading is the state of the host's rules for the default network.
type masquerading struct {
	// turn is held by the one who sees to the rules.
	turn chan struct{}

	mu sync.Mutex
	// at is when they were last seen to, for the network of that name;
	// problem is what came in the way.
	at      time.Time
	network string
	problem error
}

// masquerade sees to it that what pods of the default network send elsewhere
// leaves with the host's address. Pods start without it, too: a failure is
// logged and told by Status.
func (s *Service) masquerade(ctx context.Context, networks []*network) {
	for _, n := range networks {
		if len(n.masquerade) == 0 {
			continue
		}
		select {
		case s.masq.turn <- struct{}{}:
		case <-ctx.Done():
			return
		}
		s.masqueradeOnce(ctx, n)
		<-s.masq.turn
	}
}

// masqueradeOnce runs with the turn held, so that many pods at once cause one
// run of the tool.
func (s *Service) masqueradeOnce(ctx context.Context, n *network) {
	s.masq.mu.Lock()
	fresh := s.masq.network == n.list.Name && time.Since(s.masq.at) < masqueradeEvery
	s.masq.mu.Unlock()
	if fresh {
		return
	}
	err := s.writeRules(ctx, n)
	if ctx.Err() != nil {
		return // says nothing of the host
	}
	s.masq.mu.Lock()
	news := err != nil && (s.masq.problem == nil || s.masq.problem.Error() != err.Error())
	s.masq.at, s.masq.network, s.masq.problem = time.Now(), n.list.Name, err
	s.masq.mu.Unlock()
	if news {
		log.G(ctx).WithError(err).Warn("pods of the default network cannot reach other machines")
	}
}

// writeRules uses nft, or iptables where nft is missing or fails.
func (s *Service) writeRules(ctx context.Context, n *network) error {
	nft, nftErr := exec.LookPath("nft")
	if nftErr == nil {
		_, nftErr = s.others.run(ctx, []string{nft, "-f", "-"}, []byte(nftRules(n)), nil)
		if nftErr == nil {
			return nil
		}
	}
	if err := s.iptables(ctx, n); err != nil {
		return fmt.Errorf("masquerading needs nft (%w) or iptables (%w): %w", nftErr, err, errdefs.ErrUnavailable)
	}
	return nil
}

// nftRules replaces a table of our own in one transaction.
func nftRules(n *network) string {
	var b strings.Builder
	fmt.Fprintf(&b, "add table inet %s\ndelete table inet %[1]s\ntable inet %[1]s {\n\tchain postrouting {\n\t\ttype nat hook postrouting priority 100; policy accept;\n", n.list.Name)
	for _, subnet := range n.masquerade {
		family, multicast := "ip", "224.0.0.0/4"
		if strings.Contains(subnet, ":") {
			family, multicast = "ip6", "ff00::/8"
		}
		fmt.Fprintf(&b, "\t\t%s saddr %s %[1]s daddr != { %[2]s, %[3]s } masquerade\n", family, subnet, multicast)
	}
	b.WriteString("\t}\n}\n")
	return b.String()
}

// iptables adds the same rules to the nat table, if they are not there.
func (s *Service) iptables(ctx context.Context, n *network) error {
	for _, subnet := range n.masquerade {
		tool, multicast := "iptables", "224.0.0.0/4"
		if strings.Contains(subnet, ":") {
			tool, multicast = "ip6tables", "ff00::/8"
		}
		path, err := exec.LookPath(tool)
		if err != nil {
			return err
		}
		for _, rule := range [][]string{
			{"-s", subnet, "-d", multicast, "-j", "RETURN"},
			{"-s", subnet, "!", "-d", subnet, "-j", "MASQUERADE"},
		} {
			rule = append(rule, "-m", "comment", "--comment", n.list.Name)
			do := func(verb string) error {
				_, err := s.others.run(ctx, append([]string{path, "-w", "-t", "nat", verb, "POSTROUTING"}, rule...), nil, nil)
				return err
			}
			if do("-C") == nil {
				continue
			}
			if err := do("-A"); err != nil {
				return fmt.Errorf("%s: %w", tool, err)
			}
		}
	}
	return nil
}
