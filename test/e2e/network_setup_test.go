package e2e

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

const (
	subnet4 = "10.89.%d.0/24"
	subnet6 = "fd00:10:89:%x::/64"
)

// writeNetwork makes the run's own network: its bridge, its addresses, its
// folder of reservations.
func writeNetwork() error {
	n := os.Getpid() % 250
	conf := fmt.Sprintf(`{"cniVersion": "1.0.0", "name": %q, "plugins": [
 {"type": "bridge", "bridge": %q, "isGateway": true, "hairpinMode": true,
  "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": %q}], [{"subnet": %q}]], "routes": [{"dst": "0.0.0.0/0"}, {"dst": "::/0"}]}},
 {"type": "portmap", "capabilities": {"portMappings": true}}]}`,
		runTag, bridge, addressDir(), fmt.Sprintf(subnet4, n), fmt.Sprintf(subnet6, n))
	if err := os.MkdirAll(work+"/net.d", 0o755); err != nil {
		return err
	}
	return os.WriteFile(work+"/net.d/10-e2e.conflist", []byte(conf), 0o644)
}

func addressDir() string { return work + "/addresses" }

// addresses are those that are reserved now.
func addresses() ([]string, error) {
	es, err := os.ReadDir(addressDir() + "/" + runTag)
	if os.IsNotExist(err) {
		return nil, nil
	}
	var out []string
	for _, e := range es {
		if n := e.Name(); n != "lock" && !strings.HasPrefix(n, "last_reserved_ip") {
			out = append(out, n)
		}
	}
	return out, err
}

// portmapChains are the chains that the portmap plugin makes once and keeps, as
// far as they are on the machine now.
func portmapChains() map[string]bool {
	out := map[string]bool{}
	for _, tool := range []string{"iptables", "ip6tables"} {
		b, _ := exec.Command(tool, "-w", "-t", "nat", "-S").Output()
		for _, c := range topChains {
			if strings.Contains(string(b), "-N "+c+"\n") {
				out[tool+c] = true
			}
		}
	}
	return out
}

var topChains = []string{"CNI-HOSTPORT-DNAT", "CNI-HOSTPORT-MASQ", "CNI-HOSTPORT-SETMARK"}

// removeNetwork takes the bridge away, and the portmap plugin's chains that were
// not there before, unless somebody else's rules are in them by now.
func removeNetwork(before map[string]bool) {
	exec.Command("ip", "link", "del", bridge).Run()
	for _, tool := range []string{"iptables", "ip6tables"} {
		b, _ := exec.Command(tool, "-w", "-t", "nat", "-S").Output()
		rules := string(b)
		if before[tool+topChains[0]] || strings.Contains(rules, "-A "+topChains[0]) {
			continue
		}
		for _, r := range strings.Split(rules, "\n") {
			for _, c := range topChains {
				if strings.HasPrefix(r, "-A ") && strings.HasSuffix(r, "-j "+c) {
					exec.Command(tool, append([]string{"-w", "-t", "nat"}, strings.Fields(strings.Replace(r, "-A ", "-D ", 1))...)...).Run()
				}
			}
		}
		for _, c := range topChains {
			exec.Command(tool, "-w", "-t", "nat", "-F", c).Run()
		}
		for _, c := range topChains {
			exec.Command(tool, "-w", "-t", "nat", "-X", c).Run()
		}
	}
}
