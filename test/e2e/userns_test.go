package e2e

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const mappedIDs = 65536

// mapped gives a pod a user namespace of its own, from the host's id first on.
func mapped(first uint32) podOption {
	return podNamespaces(func(o *cri.NamespaceOption) {
		m := []*cri.IDMapping{{HostId: first, ContainerId: 0, Length: mappedIDs}}
		o.UsernsOptions = &cri.UserNamespace{Mode: cri.NamespaceMode_POD, Uids: m, Gids: m}
	})
}

func TestUserNamespace(t *testing.T) {
	t.Parallel()
	const first = 3 * mappedIDs
	p := shared.pod(t, mapped(first))
	dir := hostFolder(t)
	write(t, dir+"/f", "from the host\n")
	if err := os.Chown(dir+"/f", 1000, 1000); err != nil {
		t.Fatal(err)
	}
	volume := func(c *cri.ContainerConfig) {
		m := []*cri.IDMapping{{HostId: first, ContainerId: 0, Length: mappedIDs}}
		c.Mounts = []*cri.Mount{{HostPath: dir, ContainerPath: "/v", UidMappings: m, GidMappings: m}}
	}
	c := p.run("c", forever, volume)
	c.want("id -u; id -g", "0\n0")
	c.want("echo $(cat /proc/self/uid_map)", fmt.Sprintf("0 %d %d", first, mappedIDs))
	// Files of the image and of the volume have their ids inside; what root
	// makes is the mapped root's outside of idmapped mounts.
	c.want("stat -c '%u:%g' /bin/busybox /owned/file /v/f", "0:0\n1000:50000\n1000:1000")
	c.sh("echo x > /v/made; echo y > /made; chown 1000 /v/made")
	var st syscall.Stat_t
	if err := syscall.Stat(dir+"/made", &st); err != nil {
		t.Fatal(err)
	}
	if st.Uid != 1000 {
		t.Errorf("the volume's file belongs to %d", st.Uid)
	}
	var proc syscall.Stat_t
	if err := syscall.Stat(fmt.Sprintf("/proc/%d", c.pid()), &proc); err != nil {
		t.Fatal(err)
	}
	if proc.Uid != first {
		t.Errorf("the process is %d's on the host", proc.Uid)
	}
	// The pod's other namespaces are its user namespace's: root may use them.
	c.want("hostname", p.cfg.Hostname)
	if r, err := c.try(5, "sh", "-c", "echo 1 > /proc/sys/kernel/sysrq"); err == nil && r.ExitCode == 0 {
		t.Error("mapped root may write the host's sysctls")
	}
	user := p.run("user", forever, volume, security(func(s *cri.LinuxContainerSecurityContext) { s.RunAsUser = &cri.Int64Value{Value: 1000} }))
	user.want("id -u; cat /v/f", "1000\nfrom the host")

	// A second container joins the same namespace; in-place restart too.
	a, b := c.sh("readlink /proc/self/ns/user"), user.sh("readlink /proc/self/ns/user")
	if a != b || a == hostNamespace(t, "user") {
		t.Errorf("user namespaces %s and %s", a, b)
	}
	c.stop(2)
	c.remove()
	d := p.run("c", forever, volume, attempt(1))
	d.want("readlink /proc/self/ns/user", a)
	d.want("cat /v/made; test -e /made || echo new", "x\nnew")
}

// The whole of it with a shared PID namespace, where an init of ours is in it.
func TestUserNamespaceSharedPID(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, mapped(5*mappedIDs), podNamespaces(func(o *cri.NamespaceOption) { o.Pid = cri.NamespaceMode_POD }))
	a, b := p.run("a", []string{"sleep", "55551"}), p.run("b", forever)
	if ps := b.sh("ps"); !strings.Contains(ps, "55551") {
		t.Errorf("b sees %s", ps)
	}
	b.want("id -u", "0")
	a.stop(0)
	a.remove()
	p.run("a", []string{"sleep", "55552"}, attempt(1)).want("id -u", "0")
}

func TestUserNamespaceOverRestart(t *testing.T) {
	n := privateNode(t)
	p := n.pod(t, mapped(7*mappedIDs))
	c := p.run("c", forever)
	ns := c.sh("readlink /proc/self/ns/user")
	n.kill()
	n.restart(t)
	c.want("readlink /proc/self/ns/user", ns)
	c.stop(2)
	c.remove()
	d := p.run("c", forever, attempt(1))
	d.want("readlink /proc/self/ns/user; id -u", ns+"\n0")
	d.want("stat -c %u /bin/busybox", "0")
}
