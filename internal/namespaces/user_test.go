package namespaces

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestUserNamespace(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ns")
	p, err := Create(t.Context(), &Request{
		Dir: dir, Net: true, IPC: true, UTS: true, Hostname: "pod-u",
		Sysctls: map[string]string{"net.ipv4.ip_unprivileged_port_start": "80", "kernel.shm_rmid_forced": "1"},
		User: &UserMapping{
			UIDs: []IDMapping{{HostID: 100000, Length: 1000}, {HostID: 300000, ContainerID: 1000, Length: 2000}},
			GIDs: []IDMapping{{HostID: 200000, Length: 65536}},
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	for command, want := range map[string]string{
		"hostname":                  "pod-u",
		"cat /proc/self/uid_map":    "0 100000 1000 1000 300000 2000",
		"cat /proc/self/gid_map":    "0 200000 65536",
		"cat /proc/self/setgroups":  "allow",
		"id -u":                     "0",
		"ip -o -4 addr show dev lo": "1: lo inet 127.0.0.1/8 scope host lo\\ valid_lft forever preferred_lft forever",
		"cat /proc/sys/net/ipv4/ip_unprivileged_port_start": "80",
		"cat /proc/sys/kernel/shm_rmid_forced":              "1",
		"ip link add d0 type bridge":                        "", // root inside rules the network
	} {
		if got := strings.Join(strings.Fields(in(t, p, strings.Fields(command)...)), " "); got != want {
			t.Errorf("%s = %q, want %q", command, got, want)
		}
	}
	for _, path := range []string{p.Net, p.IPC, p.UTS} {
		f, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		owner, err := unix.IoctlRetInt(int(f.Fd()), unix.NS_GET_USERNS)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		var st unix.Stat_t
		err = unix.Fstat(owner, &st)
		unix.Close(owner)
		if err != nil || st.Ino != inode(t, p.User) {
			t.Errorf("%s is owned by %d (%v), want %d", path, st.Ino, err, inode(t, p.User))
		}
	}
	// An IPC sysctl is written as another user; that must not show.
	if got, err := unix.PrctlRetInt(unix.PR_GET_DUMPABLE, 0, 0, 0, 0); err != nil || got != 1 {
		t.Errorf("dumpable %d, %v; want 1", got, err)
	}
	if err := Tune(t.Context(), p, map[string]string{"fs.mqueue.msg_max": "77", "kernel.domainname": "u.test"}); err != nil {
		t.Error(err)
	}
	if got := in(t, p, "cat", "/proc/sys/fs/mqueue/msg_max", "/proc/sys/kernel/domainname"); got != "77\nu.test" {
		t.Errorf("tuned to %q", got)
	}
	waitNoHolders(t)
}

// A user namespace alone, for a pod on the host's network.
func TestUserNamespaceAlone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ns")
	m := []IDMapping{{HostID: 100000, Length: 65536}}
	p, err := Create(t.Context(), &Request{Dir: dir, User: &UserMapping{m, m}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	if *p != (Paths{User: dir + "/user"}) {
		t.Errorf("%+v", p)
	}
}

// A binary that forgot Main is told so; it is not started again.
func TestNoHook(t *testing.T) {
	hooked.Store(false)
	defer hooked.Store(true)
	dir := filepath.Join(t.TempDir(), "ns")
	m := []IDMapping{{HostID: 100000, Length: 65536}}
	if _, err := Create(t.Context(), &Request{Dir: dir, User: &UserMapping{m, m}}); err == nil || !strings.Contains(err.Error(), "namespaces.Main") {
		t.Errorf("%v", err)
	}
	remove(t, dir)
}

func BenchmarkCreateRemove(b *testing.B) {
	m := []IDMapping{{HostID: 100000, Length: 65536}}
	for name, user := range map[string]*UserMapping{"host-user": nil, "user": {m, m}} {
		b.Run(name, func(b *testing.B) {
			dir := filepath.Join(b.TempDir(), "ns")
			for b.Loop() {
				if _, err := Create(b.Context(), &Request{Dir: dir, Net: true, IPC: true, UTS: true, Hostname: "bench", User: user}); err != nil {
					b.Fatal(err)
				}
				if err := Remove(b.Context(), dir); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
