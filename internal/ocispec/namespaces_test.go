package ocispec

import (
	"maps"
	"slices"
	"testing"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const (
	podMode  = runtime.NamespaceMode_POD
	ownMode  = runtime.NamespaceMode_CONTAINER
	nodeMode = runtime.NamespaceMode_NODE
	toTarget = runtime.NamespaceMode_TARGET
)

func TestNamespaces(t *testing.T) {
	paths := map[specs.LinuxNamespaceType]string{
		specs.NetworkNamespace: "/ns/net", specs.IPCNamespace: "/ns/ipc",
		specs.UTSNamespace: "/ns/uts", specs.PIDNamespace: "/ns/pid",
	}
	const own = "(own)"
	for name, tc := range map[string]struct {
		pod, container *runtime.NamespaceOption
		paths          map[specs.LinuxNamespaceType]string
		v2, privileged bool
		target         string
		want           map[specs.LinuxNamespaceType]string // missing = the host's
	}{
		"pod": {
			pod: &runtime.NamespaceOption{Pid: ownMode}, paths: paths,
			want: map[specs.LinuxNamespaceType]string{"network": "/ns/net", "ipc": "/ns/ipc", "uts": "/ns/uts", "pid": own},
		},
		"shared pid": {
			pod: &runtime.NamespaceOption{}, paths: paths,
			want: map[specs.LinuxNamespaceType]string{"network": "/ns/net", "ipc": "/ns/ipc", "uts": "/ns/uts", "pid": "/ns/pid"},
		},
		"own pid in a pod that shares": {
			pod: &runtime.NamespaceOption{}, container: &runtime.NamespaceOption{Pid: ownMode}, paths: paths,
			want: map[specs.LinuxNamespaceType]string{"network": "/ns/net", "ipc": "/ns/ipc", "uts": "/ns/uts", "pid": own},
		},
		"pod's pid in a pod that does not share": {
			pod: &runtime.NamespaceOption{Pid: ownMode}, container: &runtime.NamespaceOption{Pid: podMode}, paths: paths,
			want: map[specs.LinuxNamespaceType]string{"network": "/ns/net", "ipc": "/ns/ipc", "uts": "/ns/uts", "pid": own},
		},
		"nothing pinned": {
			pod:  &runtime.NamespaceOption{Pid: ownMode},
			want: map[specs.LinuxNamespaceType]string{"network": own, "ipc": own, "uts": own, "pid": own},
		},
		"host": {
			pod:  &runtime.NamespaceOption{Network: nodeMode, Ipc: nodeMode, Pid: nodeMode},
			want: map[specs.LinuxNamespaceType]string{},
		},
		"a container does not leave its pod": {
			pod:       &runtime.NamespaceOption{Pid: ownMode},
			container: &runtime.NamespaceOption{Network: nodeMode, Ipc: nodeMode, Pid: nodeMode}, paths: paths,
			want: map[specs.LinuxNamespaceType]string{"network": "/ns/net", "ipc": "/ns/ipc", "uts": "/ns/uts", "pid": own},
		},
		"target": {
			pod: &runtime.NamespaceOption{Pid: ownMode}, container: &runtime.NamespaceOption{Pid: toTarget, TargetId: "x"},
			paths: paths, target: "/pinned/pid",
			want: map[specs.LinuxNamespaceType]string{"network": "/ns/net", "ipc": "/ns/ipc", "uts": "/ns/uts", "pid": "/pinned/pid"},
		},
		"cgroup v2": {
			pod: &runtime.NamespaceOption{Pid: ownMode}, paths: paths, v2: true,
			want: map[specs.LinuxNamespaceType]string{"network": "/ns/net", "ipc": "/ns/ipc", "uts": "/ns/uts", "pid": own, "cgroup": own},
		},
		"cgroup v2, privileged": {
			pod: &runtime.NamespaceOption{Pid: ownMode}, paths: paths, v2: true, privileged: true,
			want: map[specs.LinuxNamespaceType]string{"network": "/ns/net", "ipc": "/ns/ipc", "uts": "/ns/uts", "pid": own},
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			r.Pod.Linux.SecurityContext.NamespaceOptions = tc.pod
			r.context().NamespaceOptions = tc.container
			r.Namespaces, r.TargetPIDNS, r.Host.CgroupV2 = tc.paths, tc.target, tc.v2
			r.Pod.Linux.SecurityContext.Privileged, r.context().Privileged = tc.privileged, tc.privileged
			got := map[specs.LinuxNamespaceType]string{}
			for _, ns := range mustBuild(t, r).Linux.Namespaces {
				if got[ns.Type] = ns.Path; ns.Path == "" {
					got[ns.Type] = own
				}
			}
			if got["mount"] != own {
				t.Error("no mount namespace of its own")
			}
			delete(got, "mount")
			if !maps.Equal(got, tc.want) {
				t.Errorf("namespaces %v, want %v", got, tc.want)
			}
		})
	}
}

func TestNamespacesMissing(t *testing.T) {
	r := testRequest(t)
	r.Pod.Linux.SecurityContext.NamespaceOptions.Pid = podMode
	if _, err := Build(t.Context(), r); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("shared pid without a namespace: %v", err)
	}
	r = testRequest(t)
	r.context().NamespaceOptions = &runtime.NamespaceOption{Pid: toTarget}
	wantInvalid(t, r, "target_id")
	r.context().NamespaceOptions.TargetId = "x"
	if _, err := Build(t.Context(), r); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("target without a process: %v", err)
	}
	r.context().NamespaceOptions = &runtime.NamespaceOption{Network: toTarget}
	wantInvalid(t, r, "namespace_options.network")
}

func TestUserNamespace(t *testing.T) {
	r := testRequest(t)
	useUserNamespace(r, 100000, 65536)
	r.Files.Hosts, r.Files.Shm = "/run/hosts", "/run/shm"
	r.Host.IDMap = true
	s := mustBuild(t, r)
	want := specs.LinuxIDMapping{HostID: 100000, Size: 65536}
	if l := s.Linux; len(l.UIDMappings)+len(l.GIDMappings) > 0 {
		t.Error("mappings beside the path of the namespace")
	}
	uids, gids, err := IDMappings(r.Pod.Linux.SecurityContext.NamespaceOptions)
	if err != nil || !slices.Equal(uids, []specs.LinuxIDMapping{want}) || !slices.Equal(gids, uids) {
		t.Errorf("mappings %v %v, %v", uids, gids, err)
	}
	for _, m := range s.Mounts {
		if mapped := len(m.UIDMappings) == 1; mapped != (m.Destination == "/etc/hosts") {
			t.Errorf("%s: id mapped: %v", m.Destination, mapped)
		}
	}
	r.context().RunAsUser = value(65536)
	wantInvalid(t, r, "run_as_user")
	r.context().RunAsUser = nil
	r.context().SupplementalGroups = []int64{70000}
	wantInvalid(t, r, "gid 70000")

	for name, m := range map[string][]*runtime.IDMapping{
		"none":      nil,
		"two":       {{HostId: 1, Length: 2}, {HostId: 10, ContainerId: 5, Length: 2}},
		"not root":  {{HostId: 1, ContainerId: 1, Length: 2}},
		"empty":     {{HostId: 1}},
		"past last": {{HostId: 1<<32 - 10, Length: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			useUserNamespace(r, 100000, 65536)
			r.Pod.Linux.SecurityContext.NamespaceOptions.UsernsOptions.Gids = m
			wantInvalid(t, r, "userns_options.gids")
		})
	}
	r = testRequest(t)
	useUserNamespace(r, 100000, 65536)
	r.context().NamespaceOptions = &runtime.NamespaceOption{UsernsOptions: &runtime.UserNamespace{Mode: nodeMode}}
	wantInvalid(t, r, "userns_options")
	r.Pod.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtime.UserNamespace{Mode: ownMode}
	wantInvalid(t, r, "userns_options.mode")
}

func TestSysctls(t *testing.T) {
	r := testRequest(t)
	r.Pod.Linux.Sysctls = map[string]string{"net.ipv4.ip_forward": "1", "kernel.shm_rmid_forced": "1", "fs/mqueue/msg_max": "9"}
	r.Namespaces = map[specs.LinuxNamespaceType]string{specs.NetworkNamespace: "/ns/net"}
	got := mustBuild(t, r).Linux.Sysctl
	if want := map[string]string{"kernel.shm_rmid_forced": "1", "fs/mqueue/msg_max": "9"}; !maps.Equal(got, want) {
		t.Errorf("sysctls %v, want those of the container's own namespaces: %v", got, want)
	}
	r.Pod.Linux.Sysctls["vm.swappiness"] = "1"
	wantInvalid(t, r, "vm.swappiness")
	delete(r.Pod.Linux.Sysctls, "vm.swappiness")
	r.Pod.Linux.SecurityContext.NamespaceOptions.Network = nodeMode
	wantInvalid(t, r, "net.ipv4.ip_forward")
}
