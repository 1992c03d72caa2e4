package network

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
)

func TestSetupAndTeardown(t *testing.T) {
	r := newRig(t)
	bridge := r.bridgeConf()
	bridge["ipMasq"] = true
	r.write("10-a.conflist", "neta", bridge, portmapConf(), r.stubConf("a"))
	p := r.pod()
	p.Ports = []PortMapping{{HostPort: 18080, ContainerPort: 80, Protocol: "TCP"}, {HostPort: 0, ContainerPort: 81, Protocol: "udp"}}
	res := r.setup(p)
	if len(res.IPs) != 1 || !strings.HasPrefix(res.IPs[0], "10.77.") {
		t.Fatalf("addresses %v", res.IPs)
	}
	if got := in(t, p.NetNS, "ip", "-o", "-4", "addr", "show", "dev", "eth0"); !strings.Contains(got, res.IPs[0]+"/16") {
		t.Errorf("eth0: %s", got)
	}
	if !slices.ContainsFunc(res.Interfaces, func(i Interface) bool { return i.Name == "eth0" && i.Sandbox == p.NetNS && i.Mac != "" }) {
		t.Errorf("interfaces %+v", res.Interfaces)
	}
	rules := func() string {
		out, err := exec.Command("nft", "list", "ruleset").Output()
		if err != nil {
			t.Fatal(err)
		}
		return string(out)
	}
	if got := rules(); !strings.Contains(got, "18080") || strings.Contains(got, " 81") {
		t.Errorf("port mapping: %s", got)
	}
	want := "IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=n;K8S_POD_INFRA_CONTAINER_ID=" + p.ID + ";K8S_POD_UID=" + p.UID
	if calls := r.calls("ADD"); len(calls) != 1 || !strings.Contains(calls[0], want) || !strings.Contains(calls[0], "netns="+p.NetNS) {
		t.Errorf("%v, want %s", calls, want)
	}

	again := r.setup(p)
	if !slices.Equal(again.IPs, res.IPs) || len(r.calls("ADD")) != 1 {
		t.Errorf("second Setup: %v, %d calls", again.IPs, len(r.calls("ADD")))
	}
	r.s = r.restart()
	if again := r.setup(p); !slices.Equal(again.IPs, res.IPs) || len(r.calls("ADD")) != 1 {
		t.Errorf("Setup after a restart: %v, %d calls", again.IPs, len(r.calls("ADD")))
	}

	r.teardown(p)
	r.clean("neta")
	if got := rules(); strings.Contains(got, "18080") || strings.Contains(got, res.IPs[0]) {
		t.Errorf("rules left: %s", got)
	}
	if calls := r.calls("DEL"); len(calls) != 1 || !strings.Contains(calls[0], "prev=true") {
		t.Errorf("%v", calls)
	}
	r.teardown(p) // again
	r.clean("neta")
}

func TestDualStack(t *testing.T) {
	for name, subnets := range map[string][]string{
		"v4 first": {"10.78.0.0/16", "fd00:78::/64"},
		"v6 first": {"fd00:79::/64", "10.79.0.0/16"},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			r.write("10-a.conflist", "dual", r.bridgeConf(subnets...))
			p := r.pod()
			res := r.setup(p)
			if len(res.IPs) != 2 {
				t.Fatalf("addresses %v", res.IPs)
			}
			for i, ip := range res.IPs {
				if a := netip.MustParseAddr(ip); !netip.MustParsePrefix(subnets[i]).Contains(a) {
					t.Errorf("address %d is %s, not in %s", i, ip, subnets[i])
				}
			}
			r.teardown(p)
			r.clean("dual")
		})
	}
}

func TestParallelPods(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "many", r.bridgeConf(), portmapConf())
	var mu sync.Mutex
	seen := map[string]string{}
	pods := make([]*Pod, 30)
	for i := range pods {
		pods[i] = r.pod()
	}
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			res, err := r.s.Setup(t.Context(), p)
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			defer mu.Unlock()
			if other, taken := seen[res.IPs[0]]; taken {
				t.Errorf("%s given to %s and %s", res.IPs[0], other, p.ID)
			}
			seen[res.IPs[0]] = p.ID
		})
	}
	wg.Wait()
	if got := r.addresses("many"); len(got) != 30 || len(seen) != 30 {
		t.Errorf("%d reserved, %d given", len(got), len(seen))
	}
	for _, p := range pods {
		wg.Go(func() {
			if err := r.s.Teardown(t.Context(), p); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	r.clean("many")
}

// Two calls for one pod follow one another: one ADD, one answer.
func TestJoinedCalls(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "join", r.bridgeConf(), r.stubConf("a"))
	p := r.pod()
	var wg sync.WaitGroup
	got := make([]string, 4)
	for i := range got {
		wg.Go(func() {
			res, err := r.s.Setup(t.Context(), p)
			if err != nil {
				t.Error(err)
				return
			}
			got[i] = res.IPs[0]
		})
	}
	wg.Wait()
	if len(slices.Compact(got)) != 1 || len(r.calls("ADD")) != 1 {
		t.Errorf("answers %v after %d calls", got, len(r.calls("ADD")))
	}
	r.teardown(p)
	r.clean("join")
}

func TestTwoNetworks(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxConfNum = 2 })
	r.write("10-a.conflist", "first", r.bridgeConf())
	second := r.bridgeConf("10.76.0.0/24")
	second["bridge"] = r.bridge + "b"
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", r.bridge+"b").Run() })
	second["ipam"].(conf)["routes"] = []conf{}
	r.write("20-b.conflist", "second", second)
	r.write("30-c.conflist", "third", r.stubConf("c"))
	p := r.pod()
	res := r.setup(p)
	if len(res.IPs) != 1 || !strings.HasPrefix(res.IPs[0], "10.77.") {
		t.Errorf("addresses %v, want eth0's", res.IPs)
	}
	if got := in(t, p.NetNS, "ip", "-o", "-4", "addr", "show", "dev", "eth1"); !strings.Contains(got, "10.76.0.") {
		t.Errorf("eth1: %s", got)
	}
	r.teardown(p)
	r.clean("first")
	if got := r.addresses("second"); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
}

func TestBadPods(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "bad", r.bridgeConf(), r.stubConf("a"))
	good := r.pod()
	for name, change := range map[string]func(*Pod){
		"netns":                           func(p *Pod) { p.NetNS = filepath.Join(r.top, "conf") },
		"network namespace":               func(p *Pod) { p.NetNS = "" },
		"pod id":                          func(p *Pod) { p.ID = "../x" },
		"port_mappings[0].host_port":      func(p *Pod) { p.Ports = []PortMapping{{HostPort: 70000, ContainerPort: 1, Protocol: "tcp"}} },
		"port_mappings[0].container_port": func(p *Pod) { p.Ports = []PortMapping{{HostPort: 7, Protocol: "tcp"}} },
		"port_mappings[1].protocol":       func(p *Pod) { p.Ports = []PortMapping{{}, {HostPort: 7, ContainerPort: 7, Protocol: "icmp"}} },
	} {
		t.Run(name, func(t *testing.T) {
			p := *good
			change(&p)
			_, err := r.s.Setup(t.Context(), &p)
			if !errdefs.IsInvalidArgument(err) {
				t.Errorf("%v, want InvalidArgument", err)
			}
			if name != "netns" && !strings.Contains(fmt.Sprint(err), name) {
				t.Errorf("%v does not name %s", err, name)
			}
		})
	}
	if len(r.calls("ADD")) != 0 {
		t.Error("a plugin ran")
	}
	r.clean("bad")
}

func TestCapabilities(t *testing.T) {
	r := newRig(t)
	stub := r.stubConf("caps")
	stub["capabilities"] = conf{"portMappings": true, "bandwidth": true, "dns": true, "ipRanges": true, "io.kubernetes.cri.pod-annotations": true, "cgroupPath": true, "mac": true}
	r.write("10-a.conflist", "caps", r.bridgeConf(), stub, r.stubConf("none"))
	if err := r.s.SetPodCIDR("10.5.0.0/24, fd00:5::/64"); err != nil {
		t.Fatal(err)
	}
	p := r.pod()
	p.Ports = []PortMapping{{HostPort: 1, ContainerPort: 2, Protocol: "UDP", HostIP: "127.0.0.1"}}
	p.Bandwidth = &Bandwidth{IngressRate: 1000, IngressBurst: 2000}
	p.DNS = &DNS{Servers: []string{"192.0.2.1"}, Searches: []string{"a.test"}}
	p.Annotations = map[string]string{"k": "v"}
	p.CgroupParent = "/kubepods/x"
	r.setup(p)
	calls := r.calls("ADD")
	if len(calls) != 2 {
		t.Fatalf("%v", calls)
	}
	for _, want := range []string{
		`"portMappings":[{"hostPort":1,"containerPort":2,"protocol":"udp","hostIP":"127.0.0.1"}]`,
		`"bandwidth":{"ingressRate":1000,"ingressBurst":2000}`,
		`"dns":{"servers":["192.0.2.1"],"searches":["a.test"]}`,
		`"io.kubernetes.cri.pod-annotations":{"k":"v"}`,
		`"cgroupPath":"/kubepods/x"`,
		`"ipRanges":[[{"subnet":"10.5.0.0/24"}],[{"subnet":"fd00:5::/64"}]]`,
	} {
		if !strings.Contains(calls[0], want) {
			t.Errorf("no %s in %s", want, calls[0])
		}
	}
	if !strings.HasSuffix(calls[1], "runtime=") {
		t.Errorf("got what it did not declare: %s", calls[1])
	}
	r.teardown(p)
	// The same capabilities at DEL, of which SetPodCIDR may have changed since.
	if del := r.calls("DEL"); len(del) != 2 || !strings.Contains(del[1], `"subnet":"10.5.0.0/24"`) {
		t.Errorf("%v", del)
	}
	if err := os.Remove(filepath.Join(r.conf.CacheDir, podCIDRFile)); err != nil {
		t.Error(err)
	}
	r.clean("caps")
}

// portmap and bandwidth are called only for pods that want something of them, and
// then by ADD and DEL alike.
func TestIdlePluginsAreNotRun(t *testing.T) {
	r := newRig(t)
	for _, n := range []string{"portmap", "bandwidth"} {
		if err := os.Symlink(filepath.Join(r.top, "stubs", "stub"), filepath.Join(r.top, "stubs", n)); err != nil {
			t.Fatal(err)
		}
	}
	pm, bw := portmapConf(), conf{"type": "bandwidth", "capabilities": conf{"bandwidth": true}}
	pm["control"], bw["control"] = r.control, r.control
	r.write("10-a.conflist", "idle", r.bridgeConf(), pm, bw)
	ran := func() (verbs []string) {
		for _, v := range []string{"ADD", "DEL"} {
			for _, c := range r.calls(v) {
				verbs = append(verbs, strings.Join(strings.Fields(c)[:2], " "))
			}
		}
		_ = os.Remove(filepath.Join(r.control, "calls"))
		return verbs
	}
	for name, c := range map[string]struct {
		change func(*Pod)
		want   []string
	}{
		"neither":   {func(p *Pod) { p.Ports = []PortMapping{{ContainerPort: 80}} }, nil},
		"ports":     {func(p *Pod) { p.Ports = []PortMapping{{HostPort: 1, ContainerPort: 80, Protocol: "tcp"}} }, []string{"ADD portmap", "DEL portmap"}},
		"bandwidth": {func(p *Pod) { p.Bandwidth = &Bandwidth{EgressRate: 1, EgressBurst: 1} }, []string{"ADD bandwidth", "DEL bandwidth"}},
	} {
		p := r.pod()
		c.change(p)
		r.setup(p)
		// The DEL goes by the record, not by what the caller says now.
		r.teardown(&Pod{ID: p.ID, NetNS: p.NetNS})
		if got := ran(); !slices.Equal(got, c.want) {
			t.Errorf("%s: ran %v, want %v", name, got, c.want)
		}
	}
	bw["ingressRate"], bw["ingressBurst"] = 1000, 1000
	r.write("10-a.conflist", "idle", r.bridgeConf(), pm, bw)
	p := r.pod()
	r.setup(p)
	r.teardown(p)
	if got, want := ran(), []string{"ADD bandwidth", "DEL bandwidth"}; !slices.Equal(got, want) {
		t.Errorf("fixed rates: ran %v, want %v", got, want)
	}
	r.clean("idle")
}
