package network

import (
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// The directory is looked at anew in every call: it may appear, change, break and
// vanish.
func TestConfDir(t *testing.T) {
	r := newRig(t)
	if err := os.Remove(r.conf.ConfDir); err != nil {
		t.Fatal(err)
	}
	name := func() string {
		t.Helper()
		n, err := r.s.networks("")
		if err != nil {
			return err.Error()
		}
		if len(n) != 1 {
			t.Fatalf("%d networks", len(n))
		}
		return n[0].list.Name
	}
	expect := func(what, want string) {
		t.Helper()
		if got := name(); !strings.Contains(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	expect("no directory", "no CNI configuration")
	if err := os.Mkdir(r.conf.ConfDir, 0o755); err != nil {
		t.Fatal(err)
	}
	expect("empty directory", "no CNI configuration")
	file := func(n, content string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(r.conf.ConfDir, n), []byte(content), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	file("README", "not one")
	expect("other files", "no CNI configuration")
	file("00-broken.conflist", `{"name":"x"`)
	expect("only a broken one", "00-broken.conflist")
	r.write("50-b.conflist", "netb", conf{"type": "bridge"})
	expect("broken before good", "netb")
	file("40-one.conf", `{"cniVersion":"0.3.1","name":"one","type":"bridge"}`)
	expect("single plugin", "one")
	file("30-noname.conflist", `{"cniVersion":"1.0.0","name":"a/b","plugins":[{"type":"bridge"}]}`)
	file("31-noplugins.conflist", `{"cniVersion":"1.0.0","name":"ab","plugins":[]}`)
	file("32-version.conflist", `{"cniVersion":"x.y","name":"ab","plugins":[{"type":"bridge"}]}`)
	expect("invalid ones first", "one")
	if problems := strings.Join(r.s.Info().Problems, "\n"); strings.Count(problems, "passed over") != 4 {
		t.Errorf("problems: %s", problems)
	}
	r.write("10-a.conflist", "neta", conf{"type": "bridge"})
	expect("new first", "neta")
	r.write("10-a.conflist", "netA", conf{"type": "bridge"})
	expect("same size, changed", "netA")
	if err := os.RemoveAll(r.conf.ConfDir); err != nil {
		t.Fatal(err)
	}
	expect("vanished", "no CNI configuration")
	if err := os.MkdirAll(filepath.Join(r.conf.ConfDir, "netc"), 0o755); err != nil {
		t.Fatal(err)
	}
	file("10-c.conflist", `{"cniVersion":"1.1.0","name":"netc"}`)
	expect("plugins in a folder, none yet", "no plugin configs found")
	file("netc/10.conf", `{"type":"bridge"}`)
	expect("plugins in a folder", "netc")

	// A handler's own directory, without the default network.
	other := filepath.Join(r.top, "other")
	r.s.conf.Default = &Default{}
	if _, err := r.s.networks(other); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("handler's empty directory: %v", err)
	}
}

func TestStatus(t *testing.T) {
	r := newRig(t)
	status := func() string {
		t.Helper()
		if err := r.s.Status(t.Context()); err != nil {
			return err.Error()
		}
		return "ready"
	}
	if got := status(); !strings.Contains(got, "no CNI configuration in "+r.conf.ConfDir) {
		t.Error(got)
	}
	r.write("10-a.conflist", "st", conf{"type": "nosuch", "ipam": conf{"type": "nosuchipam"}}, conf{"type": "bridge"})
	if got := status(); !strings.Contains(got, "nosuch, nosuchipam of network st are not in") {
		t.Error(got)
	}
	r.write("10-a.conflist", "st", r.bridgeConf())
	if got := status(); got != "ready" {
		t.Error(got)
	}
	if info := r.s.Info(); len(info.Networks) != 1 || info.Networks[0].Name != "st" || !strings.Contains(string(info.Networks[0].Config), r.bridge) {
		t.Errorf("%+v", info)
	}

	// Plugins of CNI 1.1 speak for themselves.
	r.order("STATUS", "fail")
	r.writeVersion("1.1.0", "10-a.conflist", "st11", r.bridgeConf(), r.stubConf("a"))
	if got := status(); !strings.Contains(got, "plugin stub of network st11 is not ready") || !strings.Contains(got, "told to fail") {
		t.Error(got)
	}
	// One that hangs delays nobody, and what it last said holds.
	r.order("STATUS", "hang")
	r.s.probes.mu.Lock()
	for _, p := range r.s.probes.of {
		p.at = time.Time{}
	}
	r.s.probes.mu.Unlock()
	begin := time.Now()
	if got := status(); !strings.Contains(got, "told to fail") {
		t.Error(got)
	}
	if took := time.Since(begin); took > 5*time.Second {
		t.Errorf("took %s", took)
	}
	r.wait("stub hangs", func() bool { return len(r.hanging()) == 2 })
	for _, pid := range r.hanging() {
		if n, err := strconv.Atoi(pid); err == nil {
			_ = syscall.Kill(n, syscall.SIGKILL)
		}
	}
	r.order("STATUS", "")
	r.wait("ready", func() bool {
		r.s.probes.mu.Lock()
		for _, p := range r.s.probes.of {
			if p.done == nil {
				p.at = time.Time{}
			}
		}
		r.s.probes.mu.Unlock()
		return status() == "ready"
	})
}

func TestDefaultNetwork(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Default = &Default{Bridge: "tdef0", IPv6: true} })
	r.s.conf.Default.DataDir = filepath.Join(r.top, "hl")
	r.bridge = "tdef0"
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "tdef0").Run() })
	if err := r.s.Status(t.Context()); err != nil {
		t.Fatal(err)
	}
	p := r.pod()
	res := r.setup(p)
	if len(res.IPs) != 2 || !strings.HasPrefix(res.IPs[0], "10.88.") || !strings.HasPrefix(res.IPs[1], "fd00:10:88:") {
		t.Fatalf("addresses %v", res.IPs)
	}
	rules, err := exec.Command("nft", "list", "table", "inet", "berth").Output()
	if err != nil || !strings.Contains(string(rules), "ip saddr 10.88.0.0/16") || strings.Count(string(rules), "masquerade") != 2 {
		t.Errorf("rules: %s, %v", rules, err)
	}
	// Out into the world: another machine sees the host's address.
	world := r.pod()
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ip", args...).CombinedOutput(); err != nil {
			t.Fatalf("ip %v: %v: %s", args, err, out)
		}
	}
	run("link", "add", "up0", "type", "veth", "peer", "name", "up1")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "up0").Run() })
	run("addr", "add", "192.0.2.1/24", "dev", "up0")
	run("link", "set", "up0", "up")
	run("link", "set", "up1", "netns", world.NetNS)
	in(t, world.NetNS, "ip", "addr", "add", "192.0.2.2/24", "dev", "up1")
	in(t, world.NetNS, "ip", "link", "set", "up1", "up")
	var l net.Listener
	enter(t, world.NetNS, func() (err error) { l, err = net.Listen("tcp4", "192.0.2.2:80"); return err })
	defer l.Close()
	enter(t, p.NetNS, func() error {
		c, err := net.DialTimeout("tcp4", "192.0.2.2:80", 20*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if got := c.RemoteAddr().String(); !strings.HasPrefix(got, "192.0.2.1:") {
		t.Errorf("the world sees %s, want the host", got)
	}
	r.teardown(p)
	r.clean("berth")

	// A pod CIDR takes the default network's place and outlives a restart.
	if err := r.s.SetPodCIDR("nonsense"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("%v", err)
	}
	if err := r.s.SetPodCIDR("10.99.3.0/24"); err != nil {
		t.Fatal(err)
	}
	r.s = r.restart()
	n, err := r.s.networks("")
	if err != nil {
		t.Fatal(err)
	}
	p = r.pod()
	if res := r.setup(p); len(res.IPs) != 1 || !strings.HasPrefix(res.IPs[0], "10.99.3.") {
		t.Errorf("addresses %v", res.IPs)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", strings.Replace(n[0].list.Name, "_", "-", 1)).Run() })
	r.teardown(p)
	if err := os.Remove(filepath.Join(r.conf.CacheDir, podCIDRFile)); err != nil {
		t.Error(err)
	}
	r.clean(n[0].list.Name)

	// A configuration of the admin's ends the default.
	r.write("10-a.conflist", "admin", r.bridgeConf())
	if n, err := r.s.networks(""); err != nil || n[0].list.Name != "admin" {
		t.Errorf("%v", err)
	}
}

// Without nft and iptables pods still start, and Info says what they lack.
func TestNoFirewallTools(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Default = &Default{Bridge: "tdef1"} })
	r.s.conf.Default.DataDir = filepath.Join(r.top, "hl")
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", "tdef1").Run() })
	p := r.pod()
	t.Setenv("PATH", t.TempDir())
	r.setup(p)
	if got := strings.Join(r.s.Info().Problems, "\n"); !strings.Contains(got, "nft") || !strings.Contains(got, "iptables") {
		t.Errorf("problems: %q", got)
	}
	r.teardown(p)
	if got := r.addresses("berth"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

// iptables does as well as nft, and its rules are there once.
func TestIptables(t *testing.T) {
	r := newRig(t)
	r.s.conf.Default = &Default{Subnets: []string{"10.66.0.0/16", "fd00:66::/64"}}
	n, err := r.s.defaultNetwork()
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := r.s.iptables(t.Context(), n); err != nil {
			t.Fatal(err)
		}
	}
	for tool, subnet := range map[string]string{"iptables": "10.66.0.0/16", "ip6tables": "fd00:66::/64"} {
		out, err := exec.Command(tool, "-t", "nat", "-S", "POSTROUTING").Output()
		if err != nil || strings.Count(string(out), "-j MASQUERADE") != 1 || !strings.Contains(string(out), "-s "+subnet+" ! -d "+subnet) {
			t.Errorf("%s: %s, %v", tool, out, err)
		}
	}
}
