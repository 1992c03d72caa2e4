package e2e

import (
	"bytes"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func (p *pod) addresses() []string {
	n := p.status().Network
	out := []string{n.Ip}
	for _, a := range n.AdditionalIps {
		out = append(out, a.Ip)
	}
	return out
}

// A pod has an address of each family, and others reach it there.
func TestNetwork(t *testing.T) {
	t.Parallel()
	p, q := shared.pod(t), shared.pod(t)
	server := p.run("server", []string{"probe", "echo", ":8000"})
	server.waitLog("listening")
	client := q.run("client", forever)
	as := p.addresses()
	if len(as) != 2 {
		t.Fatalf("addresses %v, want one of each family", as)
	}
	held := strings.Fields(strings.Join(must[[]string](t)(addresses()), " "))
	for i, a := range as {
		ip := must[netip.Addr](t)(netip.ParseAddr(a))
		if ip.Is4() != (i == 0) {
			t.Errorf("address %d is %s", i, a)
		}
		if !contains(strings.Join(held, " ")+" ", a+" ") {
			t.Errorf("%s is not reserved: %v", a, held)
		}
		at := net.JoinHostPort(a, "8000")
		eventually(t, patience, func() error { // IPv6 addresses are tentative for a while
			_, err := ask(at, nil)
			return err
		})
		client.want("probe dial "+at+" hello-"+strconv.Itoa(i), "hello-"+strconv.Itoa(i))
		if got, err := ask(at, []byte("from the host")); err != nil || string(got) != "from the host" {
			t.Errorf("from the host: %q, %v", got, err)
		}
		if !contains(server.sh("ip addr show eth0"), a+"/") {
			t.Errorf("%s is not on eth0", a)
		}
	}
	if server.sh("probe dial 127.0.0.1:8000 lo") != "lo" {
		t.Error("loopback is down")
	}
	if p.ip() == q.ip() {
		t.Error("both have the same address")
	}
	// A stopped pod has given its addresses back.
	if _, err := shared.rt.StopPodSandbox(t.Context(), &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatal(err)
	}
	for _, f := range as {
		if b, err := os.ReadFile(addressDir() + "/" + runTag + "/" + f); err == nil && bytes.Contains(b, []byte(p.id)) {
			t.Errorf("%s is still reserved", f)
		}
	}
	if s := p.status(); s.Network.GetIp() != "" {
		t.Errorf("a stopped pod has %s", s.Network.Ip)
	}
}

func freePort(t *testing.T) int {
	t.Helper()
	l := must[net.Listener](t)(net.Listen("tcp", "127.0.0.1:0"))
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// A host port leads to the pod, from the host's own addresses.
func TestPortMapping(t *testing.T) {
	t.Parallel()
	any, one := freePort(t), freePort(t)
	p := shared.pod(t, func(c *cri.PodSandboxConfig) {
		c.PortMappings = []*cri.PortMapping{{HostPort: int32(any), ContainerPort: 8000}, {HostPort: int32(one), ContainerPort: 8001, HostIp: "127.0.0.1"}}
	})
	for _, port := range []string{":8000", ":8001"} {
		p.run("server"+port[1:], []string{"probe", "echo", port}).waitLog("listening")
	}
	gateway := netip.MustParseAddr(p.ip()).As4()
	gateway[3] = 1 // of the bridge
	for at, data := range map[string]string{
		"127.0.0.1:" + strconv.Itoa(any):                            "loopback",
		netip.AddrFrom4(gateway).String() + ":" + strconv.Itoa(any): "bridge",
		"127.0.0.1:" + strconv.Itoa(one):                            "one address",
	} {
		if got, err := ask(at, []byte(data)); err != nil || string(got) != data {
			t.Errorf("%s (%s): %q, %v", at, data, got, err)
		}
	}
	if _, err := ask(netip.AddrFrom4(gateway).String()+":"+strconv.Itoa(one), []byte("x")); err == nil {
		t.Error("a mapping of one address works at another")
	}
	p.remove()
	if _, err := ask("127.0.0.1:"+strconv.Itoa(any), []byte("x")); err == nil {
		t.Error("the mapping outlives the pod")
	}
}

func TestDNS(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, func(c *cri.PodSandboxConfig) {
		c.DnsConfig = &cri.DNSConfig{Servers: []string{"192.0.2.53", "2001:db8::53"}, Searches: []string{"a.example", "b.example"}, Options: []string{"ndots:5", "edns0"}}
	})
	c := p.run("c", forever)
	c.want("cat /etc/resolv.conf", "search a.example b.example\nnameserver 192.0.2.53\nnameserver 2001:db8::53\noptions ndots:5 edns0")
	// /etc/hosts is the pod's, and each container may write it.
	c.sh("echo 192.0.2.9 extra >> /etc/hosts")
	p.run("d", forever).want("grep -c extra /etc/hosts", "1")
	host := must[[]byte](t)(os.ReadFile("/etc/resolv.conf"))
	q := shared.pod(t)
	if got := q.run("c", forever).sh("cat /etc/resolv.conf"); got != strings.TrimSpace(string(host)) {
		t.Errorf("without a DNS config: %q", got)
	}
}

func TestHostname(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, func(c *cri.PodSandboxConfig) { c.Hostname = "my-name" })
	c := p.run("c", script("hostname; cat /etc/hostname; echo $HOSTNAME"))
	if out := c.output(); out != "my-name\nmy-name\nmy-name\n" {
		t.Errorf("%q", out)
	}
}
