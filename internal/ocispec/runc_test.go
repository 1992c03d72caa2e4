package ocispec

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// runcBinary is the runc under test: $BERTH_RUNC, the one that make built, or
// the one in the PATH.
func runcBinary(t *testing.T) string {
	t.Helper()
	for _, p := range []string{os.Getenv("BERTH_RUNC"), "../../bin/runc", "runc"} {
		if p == "" {
			continue
		}
		if found, err := exec.LookPath(p); err == nil {
			if found, err = filepath.Abs(found); err == nil {
				return found
			}
		}
	}
	t.Fatal("no runc: set BERTH_RUNC or run make")
	return ""
}

var containers atomic.Int64

// runRequest is a request whose container runc can run: busybox, and a cgroup
// that runc removes with it.
func runRequest(t *testing.T, script string) *Request {
	t.Helper()
	r := testRequest(t)
	busybox, err := exec.LookPath("busybox")
	if err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(busybox)
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"bin", "etc", "proc", "sys", "dev", "tmp"} {
		if err := os.Mkdir(filepath.Join(r.Rootfs, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(r.Rootfs+"/bin/busybox", data, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"sh", "id", "cat", "grep", "hostname", "ls", "touch", "mknod", "stat", "sleep", "env", "head", "pwd", "sysctl", "tty", "mkdir"} {
		if err := os.Symlink("busybox", r.Rootfs+"/bin/"+name); err != nil {
			t.Fatal(err)
		}
	}
	writeFile(t, r.Rootfs+"/etc/passwd", testPasswd)
	writeFile(t, r.Rootfs+"/etc/group", testGroup)
	r.ContainerID = fmt.Sprintf("ocispec-test-%d-%d", os.Getpid(), containers.Add(1))
	r.CgroupsPath = "/" + r.ContainerID
	r.Container.Command = []string{"/bin/sh", "-c", script}
	return r
}

// bundle writes the spec that Build makes.
func bundle(t *testing.T, r *Request) (dir string, spec *specs.Spec) {
	t.Helper()
	spec = mustBuild(t, r)
	dir = t.TempDir()
	writeFile(t, filepath.Join(dir, "config.json"), jsonOf(t, spec))
	return dir, spec
}

// run runs the container to its end and returns its output.
func run(t *testing.T, r *Request) string {
	t.Helper()
	dir, _ := bundle(t, r)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, runcBinary(t), "--root", filepath.Join(t.TempDir(), "runc"), "run", "--bundle", dir, r.ContainerID)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("runc: %v\n%s", err, out)
	}
	return string(out)
}

// wantLines checks that out has each of the lines.
func wantLines(t *testing.T, out string, lines ...string) {
	t.Helper()
	for _, l := range lines {
		if !strings.Contains("\n"+out, "\n"+l+"\n") {
			t.Errorf("no line %q in\n%s", l, out)
		}
	}
}

func TestRunProcess(t *testing.T) {
	r := runRequest(t, `id; pwd; hostname; env; cat /etc/hosts; grep -E 'CapEff|CapBnd|CapInh|CapAmb|Seccomp:|NoNewPrivs' /proc/self/status
		cat /proc/self/oom_score_adj; touch /x || echo readonly; sysctl -n kernel.shm_rmid_forced net.ipv4.ip_unprivileged_port_start; stat -f -c %T /dev/shm; touch /dev/shm/y`)
	shm := t.TempDir()
	mountTmpfs(t, shm)
	r.Files = Files{Hosts: writeFile(t, t.TempDir()+"/hosts", "10.0.0.1 web-0\n"), Shm: shm}
	r.Container.WorkingDir = "/tmp"
	r.Container.Envs = []*runtime.KeyValue{{Key: "WHO", Value: []byte("me")}}
	r.Container.Linux.Resources = &runtime.LinuxContainerResources{OomScoreAdj: 500, MemoryLimitInBytes: 64 << 20, CpuShares: 10}
	r.Pod.Linux.Sysctls = map[string]string{"kernel.shm_rmid_forced": "1", "net.ipv4.ip_unprivileged_port_start": "77"}
	sc := r.context()
	sc.RunAsUser, sc.SupplementalGroups = value(1000), []int64{4321}
	sc.ReadonlyRootfs, sc.NoNewPrivs, sc.Seccomp = true, true, &runtime.SecurityProfile{}
	out := run(t, r)
	wantLines(t, out,
		"uid=1000(alice) gid=1001(alice) groups=1(bin),1001(alice),4321,50000(dev)",
		"/tmp", "web-0", "HOSTNAME=web-0", "WHO=me", strings.TrimSpace(defaultPath), "10.0.0.1 web-0",
		"CapInh:\t0000000000000000", "CapEff:\t0000000000000000", "CapBnd:\t00000000a80425fb", "CapAmb:\t0000000000000000",
		"NoNewPrivs:\t1", "Seccomp:\t2", "500", "readonly", "1", "77", "tmpfs")
	if _, err := os.Stat(shm + "/y"); err != nil {
		t.Errorf("the pod's /dev/shm: %v", err)
	}
}

func TestRunCapabilities(t *testing.T) {
	r := runRequest(t, `grep -E 'CapEff|CapAmb|Seccomp:' /proc/self/status`)
	r.context().Capabilities = &runtime.Capability{DropCapabilities: []string{"ALL"}, AddCapabilities: []string{"KILL"}, AddAmbientCapabilities: []string{"NET_RAW"}}
	r.context().RunAsUser = value(1000)
	wantLines(t, run(t, r), "CapEff:\t0000000000002000", "CapAmb:\t0000000000002000", "Seccomp:\t0")
}

func TestRunSeccompLocalhost(t *testing.T) {
	r := runRequest(t, `mkdir /tmp/d || echo refused`)
	r.context().Seccomp = &runtime.SecurityProfile{
		ProfileType:  runtime.SecurityProfile_Localhost,
		LocalhostRef: writeFile(t, t.TempDir()+"/p.json", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["mkdir","mkdirat"],"action":"SCMP_ACT_ERRNO"}]}`),
	}
	wantLines(t, run(t, r), "refused")
}

func TestRunMaskedPaths(t *testing.T) {
	r := runRequest(t, `head -c1 /proc/kcore | grep -q . || echo masked; (echo 1 > /proc/sys/kernel/pid_max) 2>&1 | grep -o 'Read-only file system'; touch /sys/x 2>&1 | grep -o 'Read-only file system'`)
	r.Container.Linux.SecurityContext = nil
	wantLines(t, run(t, r), "masked", "Read-only file system\nRead-only file system")
}

func TestRunPrivileged(t *testing.T) {
	r := runRequest(t, `grep -E 'CapEff|Seccomp:' /proc/self/status; ls /dev/kmsg /dev/fuse; touch /sys/fs/cgroup/x; grep ' /sys sysfs' /proc/mounts`)
	r.Pod.Linux.SecurityContext.Privileged, r.context().Privileged = true, true
	out := run(t, r)
	wantLines(t, out, "Seccomp:\t0", "/dev/kmsg", "/dev/fuse", "sysfs /sys sysfs rw,nosuid,nodev,noexec,relatime 0 0")
	own, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := bytes.Cut(own, []byte("CapEff:\t"))
	wantLines(t, out, "CapEff:\t"+string(rest[:16]))
}

func TestRunMounts(t *testing.T) {
	dir := t.TempDir()
	sub := filepath.Join(dir, "sub")
	if err := os.Mkdir(sub, 0o755); err != nil {
		t.Fatal(err)
	}
	mountTmpfs(t, sub)
	script := writeFile(t, dir+"/script", "#!/bin/sh\necho ran\n")
	if err := os.Chmod(script, 0o755); err != nil {
		t.Fatal(err)
	}
	r := runRequest(t, `for d in rw ro rro; do
			touch /$d/x 2>/dev/null && echo $d top || echo $d not top
			touch /$d/sub/x 2>/dev/null && echo $d sub || echo $d not sub
		done
		/rw/script; /noexec/script 2>/dev/null || echo not run`)
	r.Container.Mounts = []*runtime.Mount{
		{ContainerPath: "/rw", HostPath: dir},
		{ContainerPath: "/ro", HostPath: dir, Readonly: true},
		{ContainerPath: "/rro", HostPath: dir, Readonly: true, RecursiveReadOnly: true},
		{ContainerPath: "/noexec", HostPath: dir, MountOptions: []string{"noexec", "nosuid", "nodev"}},
	}
	wantLines(t, run(t, r), "rw top", "rw sub", "ro not top", "ro sub", "rro not top", "rro not sub", "ran", "not run")
}

func TestRunDevices(t *testing.T) {
	r := runRequest(t, `stat -c '%t:%T %F' /dev/log0; head -c1 /dev/log0 2>&1 | grep -o 'Operation not permitted'
		mknod /tmp/mem c 1 1; (head -c1 /tmp/mem) 2>&1 | grep -o 'Operation not permitted'; head -c1 /dev/zero >/dev/null && echo zero`)
	r.Container.Devices = []*runtime.Device{{HostPath: "/dev/kmsg", ContainerPath: "/dev/log0", Permissions: "w"}}
	wantLines(t, run(t, r), "1:b character special file\nOperation not permitted\nOperation not permitted", "zero")
}

// holdUserNamespace runs a process in a user namespace until the test ends.
func holdUserNamespace(t *testing.T, host, length int) string {
	t.Helper()
	m := []syscall.SysProcIDMap{{HostID: host, Size: length}}
	cmd := exec.Command("busybox", "sleep", "300")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER, UidMappings: m, GidMappings: m, GidMappingsEnableSetgroups: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
	})
	return fmt.Sprintf("/proc/%d/ns/user", cmd.Process.Pid)
}

func TestRunUserNamespace(t *testing.T) {
	const host, length = 200000, 65536
	r := runRequest(t, `id -u; cat /proc/self/uid_map; stat -c '%u:%g' /mapped/file /plain/file /etc/hosts; cat /mapped/secret; touch /mapped/new; touch /dev/shm/x && echo shm; grep CapEff /proc/self/status`)
	dir := t.TempDir()
	writeFile(t, dir+"/file", "x")
	if err := os.WriteFile(dir+"/secret", []byte("secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r.Files.Hosts = writeFile(t, t.TempDir()+"/hosts", "")
	if err := filepath.WalkDir(r.Rootfs, func(p string, _ os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		return os.Lchown(p, host, host)
	}); err != nil {
		t.Fatal(err)
	}
	// The namespace's root must reach the root file system.
	if err := os.Chmod(filepath.Dir(r.Rootfs), 0o711); err != nil {
		t.Fatal(err)
	}
	useUserNamespace(r, host, length)
	r.Namespaces[specs.UserNamespace] = holdUserNamespace(t, host, length)
	m := []*runtime.IDMapping{{HostId: host, Length: length}}
	r.Container.Mounts = []*runtime.Mount{
		{ContainerPath: "/mapped", HostPath: dir, UidMappings: m, GidMappings: m},
		{ContainerPath: "/plain", HostPath: dir, Readonly: true},
	}
	out := run(t, r)
	wantLines(t, out, "0\n         0     200000      65536\n0:0\n65534:65534\n0:0\nsecret\nshm", "CapEff:\t00000000a80425fb")
	var st unix.Stat_t
	if err := unix.Stat(dir+"/new", &st); err != nil || st.Uid != 0 {
		t.Errorf("file made through the mapping: uid %d, %v", st.Uid, err)
	}
}

// An exec'd process is confined like the first one.
func TestRunExec(t *testing.T) {
	r := runRequest(t, `sleep 300`)
	sc := r.context()
	sc.RunAsUser, sc.SupplementalGroups, sc.NoNewPrivs = value(1000), []int64{4321}, true
	sc.Seccomp = &runtime.SecurityProfile{}
	dir, spec := bundle(t, r)
	runc, root := runcBinary(t), filepath.Join(t.TempDir(), "runc")
	start := exec.Command(runc, "--root", root, "run", "--detach", "--bundle", dir, r.ContainerID)
	if err := start.Run(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if out, err := exec.Command(runc, "--root", root, "delete", "--force", r.ContainerID).CombinedOutput(); err != nil {
			t.Errorf("runc delete: %v\n%s", err, out)
		}
	})
	p, err := json.Marshal(ExecProcess(spec, []string{"/bin/sh", "-c", "id; grep -E 'Seccomp:|NoNewPrivs|CapBnd' /proc/self/status"}, false))
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command(runc, "--root", root, "exec", "--process", writeFile(t, dir+"/exec.json", string(p)), r.ContainerID).CombinedOutput()
	if err != nil {
		t.Fatalf("runc exec: %v\n%s", err, out)
	}
	wantLines(t, string(out), "uid=1000(alice) gid=1001(alice) groups=1(bin),1001(alice),4321,50000(dev)",
		"NoNewPrivs:\t1", "Seccomp:\t2", "CapBnd:\t00000000a80425fb")
}
