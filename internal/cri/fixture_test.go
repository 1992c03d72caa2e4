package cri

import (
	"encoding/json"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/pod"
	"berth/internal/record"
)

const (
	podA    = "aaaa0000000000000000000000000000000000000000000000000000000000aa"
	podB    = "bbbb0000000000000000000000000000000000000000000000000000000000bb"
	podNew  = "cccc0000000000000000000000000000000000000000000000000000000000cc"
	ctrRun  = "1111000000000000000000000000000000000000000000000000000000000011"
	ctrDone = "2222000000000000000000000000000000000000000000000000000000000022"
	ctrMade = "3333000000000000000000000000000000000000000000000000000000000033"
	ctrNot  = "4444000000000000000000000000000000000000000000000000000000000044"
	imageID = "sha256:1111111111111111111111111111111111111111111111111111111111111111"
	volID   = "sha256:2222222222222222222222222222222222222222222222222222222222222222"
)

// at is a time that is easy to tell in nanoseconds.
func at(n int64) time.Time { return time.Unix(0, n) }

// readyPod runs a container, has one that ended, one that waits to be started
// and one that is still being made.
func readyPod() *keeper.Pod {
	p := &keeper.Pod{
		State: &pod.State{
			ID: podA, Name: "web_prod_uid-a_1", Handler: "runc", CreatedAt: at(100), ReadyAt: at(110),
			Holdings: map[pod.Resource]pod.Holding{
				pod.Network:    {Phase: pod.Held, Data: json.RawMessage(`{"ips":["10.0.0.5","fd00::5"],"raw":{"cniVersion":"1.0.0"}}`)},
				pod.Shim:       {Phase: pod.Held, Data: json.RawMessage(`{"socket":"s","sessions":"/run/s.io","holderPid":77}`)},
				pod.Namespaces: {Phase: pod.Held, Data: json.RawMessage(`{"net":"/run/ns/net","ipc":"/run/ns/ipc"}`)},
			},
		},
		Decoded: &record.Pod{Config: &runtime.PodSandboxConfig{
			Metadata:     &runtime.PodSandboxMetadata{Name: "web", Namespace: "prod", Uid: "uid-a", Attempt: 1},
			Labels:       map[string]string{"app": "web"},
			Annotations:  map[string]string{"note": "x"},
			LogDirectory: "/var/log/pods/web",
			Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER},
			}},
		}},
	}
	p.Containers = []*keeper.Container{
		container(ctrRun, "app", &pod.Container{CreatedAt: at(200), StartedAt: at(210), Pid: 99}),
		container(ctrDone, "init", &pod.Container{CreatedAt: at(300), StartedAt: at(310), FinishedAt: at(320), ExitCode: 137, Reason: "OOMKilled", Message: "m", Pid: 98}),
		container(ctrMade, "side", &pod.Container{CreatedAt: at(400)}),
		container(ctrNot, "late", &pod.Container{}),
	}
	return p
}

func container(id, name string, c *pod.Container) *keeper.Container {
	c.ID, c.Name = id, name+"_web_prod_uid-a_2"
	c.Holdings = map[pod.Resource]pod.Holding{pod.Rootfs: {Phase: pod.Held, Data: json.RawMessage(
		`{"snapshot":"snap-` + name + `","cgroupsPath":"/k/` + name + `","user":{"uid":5,"gid":6,"supplemental_groups":[7]}}`)}}
	return &keeper.Container{Container: c, PodID: podA, Decoded: &record.Container{
		Config: &runtime.ContainerConfig{
			Metadata:    &runtime.ContainerMetadata{Name: name, Attempt: 2},
			Image:       &runtime.ImageSpec{Image: imageID, UserSpecifiedImage: "docker.io/library/busybox:2"},
			Labels:      map[string]string{"c": name},
			Annotations: map[string]string{"note": name},
			Mounts: []*runtime.Mount{
				{HostPath: "/h", ContainerPath: "/c"},
				{ContainerPath: "/v", Readonly: true, Image: &runtime.ImageSpec{Image: "docker.io/library/vol:1"}},
			},
			Linux: &runtime.LinuxContainerConfig{Resources: &runtime.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 1000}},
		},
		ImageID: imageID, ImageRef: "docker.io/library/busybox:2", LogPath: "/var/log/pods/web/" + name + "/2.log",
		StopSignal: "SIGQUIT", ImageVolumes: map[int]string{1: volID},
	}}
}

func stoppedPod() *keeper.Pod {
	return &keeper.Pod{
		State: &pod.State{ID: podB, Name: "db_prod_uid-b_0", Handler: "plain", CreatedAt: at(50), ReadyAt: at(60), Stopping: true, Reason: "asked for",
			Holdings: map[pod.Resource]pod.Holding{pod.Network: {}}},
		Decoded: &record.Pod{Config: &runtime.PodSandboxConfig{
			Metadata: &runtime.PodSandboxMetadata{Name: "db", Namespace: "prod", Uid: "uid-b"},
			Labels:   map[string]string{"app": "db"},
		}},
	}
}

// newPod is being made.
func newPod() *keeper.Pod {
	return &keeper.Pod{
		State:   &pod.State{ID: podNew, Name: "new_prod_uid-c_0", Handler: "runc", CreatedAt: at(500)},
		Decoded: &record.Pod{Config: &runtime.PodSandboxConfig{Metadata: &runtime.PodSandboxMetadata{Name: "new", Namespace: "prod", Uid: "uid-c"}}},
	}
}
