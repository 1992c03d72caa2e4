package namespaces

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

func TestCreate(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "pods", "a", "ns")
	r := &Request{
		Dir: dir, Net: true, IPC: true, UTS: true, Hostname: "pod-a",
		Sysctls: map[string]string{
			"net.ipv4.ip_unprivileged_port_start": "0",
			"net/ipv4/conf/lo/arp_ignore":         "2",
			"net.ipv4.conf.eth0/7.arp_ignore":     "1", // not there yet: left to Tune
			"kernel.shm_rmid_forced":              "1",
			"kernel.sem":                          "300 32000 32 200",
			"fs.mqueue.msg_max":                   "99",
			"kernel.domainname":                   "example.test",
		},
	}
	p, err := Create(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	if want := (Paths{Net: dir + "/net", IPC: dir + "/ipc", UTS: dir + "/uts"}); *p != want {
		t.Fatalf("paths %+v, want %+v", *p, want)
	}
	for path, host := range map[string]string{p.Net: "net", p.IPC: "ipc", p.UTS: "uts"} {
		if inode(t, path) == inode(t, "/proc/self/ns/"+host) {
			t.Errorf("%s is the host's", path)
		}
	}
	for command, want := range map[string]string{
		"hostname": "pod-a",
		"cat /proc/sys/net/ipv4/ip_unprivileged_port_start": "0",
		"cat /proc/sys/net/ipv4/conf/lo/arp_ignore":         "2",
		"cat /proc/sys/kernel/shm_rmid_forced":              "1",
		"cat /proc/sys/kernel/sem":                          "300\t32000\t32\t200",
		"cat /proc/sys/fs/mqueue/msg_max":                   "99",
		"cat /proc/sys/kernel/domainname":                   "example.test",
	} {
		if got := in(t, p, strings.Fields(command)...); got != want {
			t.Errorf("%s = %q, want %q", command, got, want)
		}
	}
	if got := in(t, p, "ip", "-o", "addr", "show", "dev", "lo"); !strings.Contains(got, "127.0.0.1/8") {
		t.Errorf("lo has no address: %q", got)
	}
	if got := in(t, p, "cat", "/sys/class/net/lo/operstate", "/proc/net/dev"); !strings.Contains(got, "lo:") {
		t.Errorf("no lo: %q", got)
	}
	for _, parent := range []string{filepath.Dir(dir), dir} {
		if fi, err := os.Stat(parent); err != nil || fi.Mode().Perm() != 0o711 {
			t.Errorf("%s: mode %v, %v; want 0711", parent, fi.Mode(), err)
		}
	}

	before := inode(t, p.Net)
	again, err := Create(t.Context(), r)
	if err != nil || *again != *p || inode(t, p.Net) != before {
		t.Errorf("created again: %+v, %v; want the same", again, err)
	}
	if less, err := Create(t.Context(), &Request{Dir: dir, Net: true}); err != nil || *less != (Paths{Net: p.Net}) {
		t.Errorf("created with less: %+v, %v", less, err)
	}
}

func TestTune(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ns")
	sysctls := map[string]string{"net.ipv4.conf.eth0/7.arp_ignore": "1", "net.ipv4.conf.eth0/7.arp_announce": "2"}
	p, err := Create(t.Context(), &Request{Dir: dir, Net: true, Sysctls: sysctls})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	if err := Tune(t.Context(), p, sysctls); !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), "arp_announce") {
		t.Errorf("before the interface is there: %v, want InvalidArgument with the name", err)
	}
	in(t, p, "ip", "link", "add", "eth0.7", "type", "bridge")
	if err := Tune(t.Context(), p, sysctls); err != nil {
		t.Fatal(err)
	}
	if got := in(t, p, "cat", "/proc/sys/net/ipv4/conf/eth0.7/arp_ignore"); got != "1" {
		t.Errorf("arp_ignore = %s", got)
	}
	if err := Tune(t.Context(), p, map[string]string{"kernel.sem": "1 2 3 4"}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("ipc sysctl without an ipc namespace: %v", err)
	}
}

// A set that an interruption left behind, in whatever shape, is undone.
func TestHalfMade(t *testing.T) {
	top := t.TempDir()
	donor, err := Create(t.Context(), &Request{Dir: filepath.Join(top, "donor"), Net: true, UTS: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, filepath.Join(top, "donor")) })
	for name, breakIt := range map[string]func(t *testing.T, dir string) error{
		"staged mounts": func(t *testing.T, dir string) error {
			if err := os.Mkdir(dir+stageSuffix, 0o711); err != nil {
				return err
			}
			return pin(donor.Net, dir+stageSuffix+"/net")
		},
		"staged file":      func(t *testing.T, dir string) error { return touch(dir+stageSuffix, "net") },
		"files, no mounts": func(t *testing.T, dir string) error { return touch(dir, "net", "uts") },
		"one of two": func(t *testing.T, dir string) error {
			if err := touch(dir, "uts"); err != nil {
				return err
			}
			return pin(donor.Net, dir+"/net")
		},
		"wrong kind": func(t *testing.T, dir string) error {
			if err := touch(dir); err != nil {
				return err
			}
			if err := pin(donor.Net, dir+"/uts"); err != nil {
				return err
			}
			return pin(donor.Net, dir+"/net")
		},
		"mounted twice": func(t *testing.T, dir string) error {
			if err := touch(dir); err != nil {
				return err
			}
			if err := pin(donor.Net, dir+"/net"); err != nil {
				return err
			}
			return unix.Mount(donor.Net, dir+"/net", "", unix.MS_BIND, "")
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ns")
			t.Cleanup(func() { remove(t, dir) })
			if err := breakIt(t, dir); err != nil {
				t.Fatal(err)
			}
			p, err := Create(t.Context(), &Request{Dir: dir, Net: true, UTS: true, Hostname: "whole"})
			if err != nil {
				t.Fatal(err)
			}
			if got := in(t, p, "hostname"); got != "whole" {
				t.Errorf("hostname %q", got)
			}
			if inode(t, p.Net) == inode(t, donor.Net) {
				t.Error("took over the namespace of a half-made set")
			}
			if got := mounts(t, dir); len(got) != 2 {
				t.Errorf("mounts %q, want 2", got)
			}
		})
	}
}

func touch(dir string, names ...string) error {
	if err := os.Mkdir(dir, 0o711); err != nil {
		return err
	}
	for _, n := range names {
		if err := os.WriteFile(filepath.Join(dir, n), nil, 0o444); err != nil {
			return err
		}
	}
	return nil
}

func TestLoad(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ns")
	if _, found, err := Load(dir); found || err != nil {
		t.Errorf("no dir: %v, %v", found, err)
	}
	if err := touch(dir, "net", "ipc"); err != nil {
		t.Fatal(err)
	}
	if p, found, err := Load(dir); found || err != nil || *p != (Paths{}) {
		t.Errorf("plain files: %+v, %v, %v", p, found, err)
	}
	want, err := Create(t.Context(), &Request{Dir: dir, Net: true, IPC: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { remove(t, dir) })
	if p, found, err := Load(dir); !found || err != nil || *p != *want {
		t.Errorf("%+v, %v, %v; want %+v", p, found, err, want)
	}
	if err := unix.Unmount(want.IPC, 0); err != nil {
		t.Fatal(err)
	}
	if p, found, err := Load(dir); !found || err != nil || *p != (Paths{Net: want.Net}) {
		t.Errorf("one unmounted: %+v, %v, %v", p, found, err)
	}
}

func TestRemove(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "ns")
	remove(t, dir) // never was
	p, err := Create(t.Context(), &Request{Dir: dir, Net: true, IPC: true, UTS: true})
	if err != nil {
		t.Fatal(err)
	}
	// Somebody inside, and a pin that somebody else added.
	sleeper := exec.Command("nsenter", "--net="+p.Net, "sleep", "60")
	if err := sleeper.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = sleeper.Process.Kill(); _ = sleeper.Wait() }()
	if err := pin("/proc/self/ns/pid", filepath.Join(dir, "pid")); err != nil {
		t.Fatal(err)
	}
	remove(t, dir)
	remove(t, dir)

	// What is mounted below and is not ours to walk stays unharmed.
	if err := os.MkdirAll(dir+"/tree/sub", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := Remove(t.Context(), dir); err == nil {
		t.Error("removed a tree")
	}
	if _, err := os.Stat(dir + "/tree/sub"); err != nil {
		t.Error(err)
	}
}

func remove(t *testing.T, dir string) {
	t.Helper()
	// Cleanups run after the test's context ended.
	if err := Remove(context.WithoutCancel(t.Context()), dir); err != nil {
		t.Errorf("remove: %v", err)
	}
	for _, d := range []string{dir, dir + stageSuffix} {
		if _, err := os.Lstat(d); !os.IsNotExist(err) {
			t.Errorf("%s is left: %v", d, err)
		}
	}
	if got := mounts(t, dir); len(got) != 0 {
		t.Errorf("mounts left: %q", got)
	}
}

func TestBadRequests(t *testing.T) {
	one := []IDMapping{{HostID: 100000, Length: 65536}}
	for name, c := range map[string]struct {
		r     Request
		field string
	}{
		"relative dir":        {Request{Dir: "ns", Net: true}, "dir"},
		"hostname, no uts":    {Request{Hostname: "x", Net: true}, "hostname"},
		"long hostname":       {Request{Hostname: strings.Repeat("x", 65), UTS: true}, "hostname"},
		"no such sysctl":      {Request{Net: true, Sysctls: map[string]string{"net.ipv4.nope": "1"}}, "net.ipv4.nope"},
		"bad value":           {Request{Net: true, Sysctls: map[string]string{"net.ipv4.ip_forward": "yes"}}, "net.ipv4.ip_forward"},
		"sysctl of the host":  {Request{Net: true, Sysctls: map[string]string{"kernel.panic": "1"}}, "kernel.panic"},
		"sysctl climbs out":   {Request{Net: true, Sysctls: map[string]string{"net/../kernel/panic": "1"}}, "net/../kernel/panic"},
		"hostname as sysctl":  {Request{UTS: true, Sysctls: map[string]string{"kernel.hostname": "a"}}, "kernel.hostname"},
		"net sysctl, no net":  {Request{IPC: true, Sysctls: map[string]string{"net.ipv4.ip_forward": "1"}}, "net.ipv4.ip_forward"},
		"ipc sysctl, no ipc":  {Request{Net: true, Sysctls: map[string]string{"fs.mqueue.msg_max": "9"}}, "fs.mqueue.msg_max"},
		"no uids":             {Request{User: &UserMapping{GIDs: one}}, "uids"},
		"no gids":             {Request{User: &UserMapping{UIDs: one}}, "gids"},
		"size 0":              {Request{User: &UserMapping{UIDs: []IDMapping{{}}, GIDs: one}}, "uids[0].length"},
		"host out of range":   {Request{User: &UserMapping{UIDs: []IDMapping{{HostID: 1 << 31, Length: 1 << 31}}, GIDs: one}}, "uids[0].host_id"},
		"inside out of range": {Request{User: &UserMapping{UIDs: append(one[:1:1], IDMapping{HostID: 1, ContainerID: 4294967295, Length: 1}), GIDs: one}}, "uids[1].container_id"},
		"root not mapped":     {Request{User: &UserMapping{UIDs: []IDMapping{{HostID: 1000, ContainerID: 1, Length: 1}}, GIDs: one}}, "uids"},
		"host ids overlap":    {Request{User: &UserMapping{UIDs: one, GIDs: append(one[:1:1], IDMapping{HostID: 165535, ContainerID: 65536, Length: 1})}}, "gids[1].host_id"},
		"inside ids overlap":  {Request{User: &UserMapping{UIDs: one, GIDs: append(one[:1:1], IDMapping{HostID: 1, ContainerID: 65535, Length: 9})}}, "gids[1].container_id"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "ns")
			if c.r.Dir == "" {
				c.r.Dir = dir
			}
			_, err := Create(t.Context(), &c.r)
			if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.field) {
				t.Errorf("%v; want InvalidArgument that names %s", err, c.field)
			}
			remove(t, dir)
		})
	}
	if p, err := Create(t.Context(), &Request{Dir: "/nonexistent/ns"}); err != nil || *p != (Paths{}) {
		t.Errorf("nothing asked for: %+v, %v", p, err)
	}
}

func FuzzSysctlName(f *testing.F) {
	for _, s := range []string{"net.ipv4.ip_forward", "net/../kernel/panic", "kernel.sem", "fs.mqueue.x", "net.", "/net", "net//x", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, name string) {
		k, err := sysctlKind(name)
		if err != nil {
			return
		}
		path := filepath.Join("/proc/sys", sysctlPath(name))
		ok := map[string][]string{"net": {"/proc/sys/net/"}, "ipc": {"/proc/sys/kernel/", "/proc/sys/fs/mqueue/"}, "uts": {"/proc/sys/kernel/domainname"}}
		for _, prefix := range ok[k.name] {
			if strings.HasPrefix(path, prefix) {
				return
			}
		}
		t.Errorf("%q (%s) leads to %s", name, k.name, path)
	})
}
