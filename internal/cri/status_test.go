package cri

import (
	"encoding/json"
	"errors"
	"os"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/pod"
)

func TestContainerStatus(t *testing.T) {
	r := newRig(t)
	base := func() *runtime.ContainerStatus {
		return &runtime.ContainerStatus{
			Image:    &runtime.ImageSpec{Image: "docker.io/library/busybox:2", UserSpecifiedImage: "docker.io/library/busybox:2"},
			ImageRef: "docker.io/library/busybox@sha256:d1", ImageId: imageID,
			Mounts: []*runtime.Mount{
				{HostPath: "/h", ContainerPath: "/c"},
				{ContainerPath: "/v", Readonly: true, Image: &runtime.ImageSpec{Image: "docker.io/library/vol:1", ImageRef: volID}},
			},
			Resources:  &runtime.ContainerResources{Linux: &runtime.LinuxContainerResources{CpuShares: 100, MemoryLimitInBytes: 1000}},
			User:       &runtime.ContainerUser{Linux: &runtime.LinuxContainerUser{Uid: 5, Gid: 6, SupplementalGroups: []int64{7}}},
			StopSignal: runtime.Signal_SIGNAL_SIGQUIT,
		}
	}
	for _, c := range []struct {
		id, name string
		want     *runtime.ContainerStatus
	}{
		{ctrRun, "app", &runtime.ContainerStatus{State: runtime.ContainerState_CONTAINER_RUNNING, CreatedAt: 200, StartedAt: 210}},
		{ctrDone, "init", &runtime.ContainerStatus{State: runtime.ContainerState_CONTAINER_EXITED, CreatedAt: 300, StartedAt: 310, FinishedAt: 320,
			ExitCode: 137, Reason: "OOMKilled", Message: "m"}},
		{ctrMade, "side", &runtime.ContainerStatus{State: runtime.ContainerState_CONTAINER_CREATED, CreatedAt: 400}},
	} {
		want := base()
		proto.Merge(want, c.want)
		want.Id = c.id
		want.Metadata = &runtime.ContainerMetadata{Name: c.name, Attempt: 2}
		want.Labels = map[string]string{"c": c.name}
		want.Annotations = map[string]string{"note": c.name}
		want.LogPath = "/var/log/pods/web/" + c.name + "/2.log"
		got, err := r.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: c.id[:10]})
		if err != nil {
			t.Fatal(err)
		}
		if !proto.Equal(got.Status, want) {
			t.Errorf("%s:\ngot  %v\nwant %v", c.name, got.Status, want)
		}
		if got.Info != nil {
			t.Errorf("%s: info without being asked", c.name)
		}
	}
	for id, is := range map[string]func(error) bool{ctrNot: errdefs.IsNotFound, "ffff": errdefs.IsNotFound, "": errdefs.IsInvalidArgument} {
		if _, err := r.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: id}); !is(err) {
			t.Errorf("container %.4q: %v", id, err)
		}
	}
}

func TestReasonsOfEndedContainers(t *testing.T) {
	for _, c := range []struct {
		code         int32
		reason, want string
	}{
		{0, "", "Completed"}, {3, "", "Error"}, {0, "Completed", "Completed"},
		{137, "OOMKilled", "OOMKilled"}, {128, "StartError", "StartError"}, {255, "Unknown", "Unknown"},
	} {
		r := newRig(t)
		k := container(ctrDone, "x", &pod.Container{CreatedAt: at(1), FinishedAt: at(2), ExitCode: c.code, Reason: c.reason})
		st := r.translator(t.Context()).status(k)
		if st.Reason != c.want || st.ExitCode != c.code || st.StartedAt != 0 || st.FinishedAt != 2 {
			t.Errorf("code %d reason %q: %v", c.code, c.reason, st)
		}
	}
}

func TestImagesAgreeEverywhere(t *testing.T) {
	for _, c := range []struct {
		what      string
		change    func(*rig)
		name, ref string
	}{
		{"the name that was asked for", func(*rig) {}, "docker.io/library/busybox:2", "docker.io/library/busybox@sha256:d1"},
		{"the first name, where the asked one went", func(r *rig) { r.images.images[0].Tags = []string{"docker.io/library/busybox:1"} },
			"docker.io/library/busybox:1", "docker.io/library/busybox@sha256:d1"},
		{"the digest of the same repository", func(r *rig) {
			r.images.images[0].Digests = []string{"a.io:5000/x@sha256:d0", "docker.io/library/busybox@sha256:d1"}
		}, "docker.io/library/busybox:2", "docker.io/library/busybox@sha256:d1"},
		{"no digest", func(r *rig) { r.images.images[0].Digests = nil }, "docker.io/library/busybox:2", imageID},
		{"no name", func(r *rig) { r.images.images[0].Tags, r.images.images[0].Digests = nil, nil }, imageID, imageID},
		{"no image", func(r *rig) { r.images.images = nil }, imageID, imageID},
	} {
		r := newRig(t)
		c.change(r)
		st, err := r.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: ctrRun})
		if err != nil {
			t.Fatal(err)
		}
		ls, err := r.ListContainers(t.Context(), &runtime.ListContainersRequest{Filter: &runtime.ContainerFilter{Id: ctrRun}})
		if err != nil || len(ls.Containers) != 1 {
			t.Fatal(ls, err)
		}
		l := ls.Containers[0]
		if l.ImageId != imageID || st.Status.ImageId != imageID || l.ImageRef != st.Status.ImageRef || !proto.Equal(l.Image, st.Status.Image) {
			t.Errorf("%s: list and status differ:\n%v\n%v", c.what, l, st.Status)
		}
		if l.Image.Image != c.name || l.ImageRef != c.ref {
			t.Errorf("%s: %s, %s", c.what, l.Image.Image, l.ImageRef)
		}
	}
}

func TestContainerStatusVerbose(t *testing.T) {
	r := newRig(t)
	dir := bundle(t, r.keeper.pods[0].Containers[0], `{"ociVersion":"1.2.0","process":{"cwd":"/w"}}`)
	resp, err := r.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: ctrRun, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct {
		SandboxID, SnapshotKey string
		Pid                    int
		Config                 struct {
			Metadata struct{ Name string }
			Linux    struct{ Resources map[string]any }
		}
		RuntimeSpec struct{ Process struct{ Cwd string } }
	}
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	if info.SandboxID != podA || info.SnapshotKey != "snap" || info.Pid != 99 || info.Config.Metadata.Name != "app" ||
		info.RuntimeSpec.Process.Cwd != "/w" || info.Config.Linux.Resources["cpu_shares"] != 100.0 {
		t.Errorf("info %s", resp.Info["info"])
	}
	// A bundle that went is no error: the status is what was asked for.
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: ctrRun, Verbose: true}); err != nil {
		t.Errorf("without a bundle: %v", err)
	}
}

func TestPodSandboxStatus(t *testing.T) {
	r := newRig(t)
	resp, err := r.PodSandboxStatus(t.Context(), &runtime.PodSandboxStatusRequest{PodSandboxId: podA[:4], Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	want := &runtime.PodSandboxStatus{
		Id: podA, Metadata: &runtime.PodSandboxMetadata{Name: "web", Namespace: "prod", Uid: "uid-a", Attempt: 1},
		State: runtime.PodSandboxState_SANDBOX_READY, CreatedAt: 100, RuntimeHandler: "runc",
		Network: &runtime.PodSandboxNetworkStatus{Ip: "10.0.0.5", AdditionalIps: []*runtime.PodIP{{Ip: "fd00::5"}}},
		Linux: &runtime.LinuxPodSandboxStatus{Namespaces: &runtime.Namespace{
			Options: &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER}}},
		Labels: map[string]string{"app": "web"}, Annotations: map[string]string{"note": "x"},
	}
	if !proto.Equal(resp.Status, want) {
		t.Errorf("got  %v\nwant %v", resp.Status, want)
	}
	if len(resp.ContainersStatuses) != 3 || resp.ContainersStatuses[1].Id != ctrDone || resp.Timestamp <= 0 {
		t.Errorf("containers %v at %d", resp.ContainersStatuses, resp.Timestamp)
	}
	var info struct {
		Pid         int
		Config      struct{ Metadata struct{ Uid string } }
		RuntimeSpec struct {
			Linux struct{ Namespaces []struct{ Type, Path string } }
		}
		CniResult struct{ CniVersion string }
	}
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil {
		t.Fatal(err)
	}
	if ns := info.RuntimeSpec.Linux.Namespaces; info.Pid != 77 || info.Config.Metadata.Uid != "uid-a" || len(ns) != 2 ||
		ns[0].Type != "network" || ns[0].Path != "/run/ns/net" || info.CniResult.CniVersion != "1.0.0" {
		t.Errorf("info %s", resp.Info["info"])
	}

	resp, err = r.PodSandboxStatus(t.Context(), &runtime.PodSandboxStatusRequest{PodSandboxId: podB})
	if err != nil {
		t.Fatal(err)
	}
	if resp.Status.State != runtime.PodSandboxState_SANDBOX_NOTREADY || resp.Status.Network.Ip != "" || resp.Info != nil {
		t.Errorf("stopped pod: %v", resp)
	}
	if _, err := r.PodSandboxStatus(t.Context(), &runtime.PodSandboxStatusRequest{PodSandboxId: "ffff"}); !errdefs.IsNotFound(err) {
		t.Errorf("unknown pod: %v", err)
	}
}

func TestPodsWhoseRecordCannotBeRead(t *testing.T) {
	r := newRig(t)
	r.keeper.pods[0].Decoded = nil
	r.keeper.pods[0].Containers[0].Decoded = nil
	p, err := r.PodSandboxStatus(t.Context(), &runtime.PodSandboxStatusRequest{PodSandboxId: podA, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if m := p.Status.Metadata; m.Name != "web" || m.Namespace != "prod" || m.Uid != "uid-a" || m.Attempt != 1 {
		t.Errorf("metadata %v", m)
	}
	c, err := r.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: ctrRun, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if m := c.Status.Metadata; m.Name != "app" || m.Attempt != 2 || c.Status.Image.Image == "" || c.Status.ImageRef == "" {
		t.Errorf("status %v", c.Status)
	}
}

func TestStatus(t *testing.T) {
	r := newRig(t)
	resp, err := r.Status(t.Context(), &runtime.StatusRequest{Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range resp.Status.Conditions {
		if !c.Status {
			t.Errorf("%v", c)
		}
	}
	names := ""
	for _, h := range resp.RuntimeHandlers {
		names += h.Name + ","
		if f := h.Features; f.UserNamespaces != (h.Name != "plain") || f.RecursiveReadOnlyMounts != (h.Name != "plain") {
			t.Errorf("handler %v", h)
		}
	}
	if names != ",runc,plain," {
		t.Errorf("handlers %q", names)
	}
	if f := resp.Features; !f.SupplementalGroupsPolicy || !f.MountOptions || f.UserNamespacesHostNetwork {
		t.Errorf("features %v", f)
	}
	var cfg struct {
		StateDir, RootDir string
		LogLevel          string `json:"log_level"`
	}
	if err := json.Unmarshal([]byte(resp.Info["config"]), &cfg); err != nil || cfg.StateDir != "/state-dir" || cfg.RootDir != "/root-dir" || cfg.LogLevel != "info" {
		t.Errorf("config %s, %v", resp.Info["config"], err)
	}
	if resp.Info["lastCNILoadStatus"] != `"OK"` || !strings.Contains(resp.Info["cniconfig"], "/conf-dir") || resp.Info["golang"] == "" {
		t.Errorf("info %v", resp.Info)
	}

	r.keeper.recovering, r.network.err = true, errors.New("no config")
	resp, err = r.Status(t.Context(), &runtime.StatusRequest{})
	if err != nil || resp.Info != nil {
		t.Fatal(resp, err)
	}
	if c := resp.Status.Conditions; c[0].Status || c[0].Reason != "Recovering" || c[1].Status || c[1].Reason != "NetworkPluginNotReady" || c[1].Message != "no config" {
		t.Errorf("conditions %v", c)
	}
}

func TestVersionAndRuntimeConfig(t *testing.T) {
	r := newRig(t)
	v, err := r.Version(t.Context(), &runtime.VersionRequest{})
	if err != nil || v.Version != "0.1.0" || v.RuntimeName != "berth" || v.RuntimeVersion != "1.2.3" || v.RuntimeApiVersion != "v1" {
		t.Error(v, err)
	}
	c, err := r.RuntimeConfig(t.Context(), &runtime.RuntimeConfigRequest{})
	if err != nil || c.Linux.CgroupDriver != runtime.CgroupDriver_SYSTEMD {
		t.Error(c, err)
	}
	r.d.CgroupDriver = "cgroupfs"
	if c, _ = r.RuntimeConfig(t.Context(), &runtime.RuntimeConfigRequest{}); c.Linux.CgroupDriver != runtime.CgroupDriver_CGROUPFS {
		t.Error(c)
	}
}

func TestUpdateRuntimeConfig(t *testing.T) {
	r := newRig(t)
	update := func(cidr string) error {
		_, err := r.UpdateRuntimeConfig(t.Context(), &runtime.UpdateRuntimeConfigRequest{RuntimeConfig: &runtime.RuntimeConfig{
			NetworkConfig: &runtime.NetworkConfig{PodCidr: cidr}}})
		return err
	}
	if err := update(""); err != nil || r.network.cidr != "" {
		t.Error(err, r.network.cidr)
	}
	if err := update("10.1.2.3/16, fd00::/64"); err != nil || r.network.cidr != "10.1.0.0/16,fd00::/64" {
		t.Error(err, r.network.cidr)
	}
	if err := update("10.1.0.0"); !errdefs.IsInvalidArgument(err) {
		t.Error(err)
	}
}
