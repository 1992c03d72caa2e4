package cri

import (
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/record"
)

func goodContainer() *runtime.ContainerConfig {
	return &runtime.ContainerConfig{
		Metadata: &runtime.ContainerMetadata{Name: "c", Attempt: 4},
		Image:    &runtime.ImageSpec{Image: imageID, UserSpecifiedImage: "busybox:1"},
		LogPath:  "c/4.log",
		Mounts: []*runtime.Mount{
			{HostPath: "/h", ContainerPath: "/c", Readonly: true, RecursiveReadOnly: true, MountOptions: []string{"noexec"}},
			{ContainerPath: "/v", Image: &runtime.ImageSpec{Image: "docker.io/library/vol:1"}, ImageSubPath: "a/b"},
		},
		Linux: &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{}},
	}
}

func create(t *testing.T, r *rig, cfg *runtime.ContainerConfig) (*record.Container, error) {
	t.Helper()
	_, err := r.CreateContainer(t.Context(), &runtime.CreateContainerRequest{PodSandboxId: podA[:8], Config: cfg})
	if err != nil {
		return nil, err
	}
	rec := &record.Container{}
	if err := rec.UnmarshalJSON(r.keeper.ctrReq.Config); err != nil {
		t.Fatal(err)
	}
	return rec, nil
}

func TestCreateContainerRecordsWhatHolds(t *testing.T) {
	r := newRig(t)
	cfg := goodContainer()
	before := proto.CloneOf(cfg)
	rec, err := create(t, r, cfg)
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(cfg, before) {
		t.Error("the caller's message was changed")
	}
	if q := r.keeper.ctrReq; q.PodID != podA || q.Name != "c_web_prod_uid-a_4" {
		t.Errorf("declared %s in %s", q.Name, q.PodID)
	}
	if rec.ImageID != imageID || rec.ImageRef != "busybox:1" || rec.LogPath != "/var/log/pods/web/c/4.log" || rec.StopSignal != "SIGTERM" {
		t.Errorf("recorded %+v", rec)
	}
	if len(rec.ImageVolumes) != 1 || rec.ImageVolumes[1] != volID {
		t.Errorf("image volumes %v", rec.ImageVolumes)
	}
	if !rec.Config.Mounts[1].Readonly {
		t.Error("a mount of an image is writable")
	}
	// Options that the container does not have are its pod's.
	if o := rec.Config.Linux.SecurityContext.NamespaceOptions; o.GetPid() != runtime.NamespaceMode_CONTAINER {
		t.Errorf("namespace options %v", o)
	}
}

func TestCreateContainerNeedsAPodAndItsImages(t *testing.T) {
	for _, c := range []struct {
		pod   string
		is    func(error) bool
		spoil func(*runtime.ContainerConfig)
	}{
		{"ffff", errdefs.IsNotFound, nil},
		{"", errdefs.IsInvalidArgument, nil},
		{podB, errdefs.IsFailedPrecondition, nil},
		{podNew, errdefs.IsFailedPrecondition, nil},
		{podA, errdefs.IsNotFound, func(c *runtime.ContainerConfig) { c.Image.Image = "gone:1" }},
		{podA, errdefs.IsNotFound, func(c *runtime.ContainerConfig) { c.Mounts[1].Image.Image = "gone:1" }},
	} {
		r := newRig(t)
		cfg := goodContainer()
		if c.spoil != nil {
			c.spoil(cfg)
		}
		_, err := r.CreateContainer(t.Context(), &runtime.CreateContainerRequest{PodSandboxId: c.pod, Config: cfg})
		if !c.is(err) {
			t.Errorf("pod %.8q: %v", c.pod, err)
		}
		if calls := r.keeper.noted(); len(calls) > 0 {
			t.Errorf("pod %.8q: the keeper was asked: %v", c.pod, calls)
		}
	}
}

func TestCreateContainerRefusesBadConfigs(t *testing.T) {
	ns := func(c *runtime.ContainerConfig) *runtime.NamespaceOption {
		o := &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER}
		c.Linux.SecurityContext.NamespaceOptions = o
		return o
	}
	for _, c := range []struct {
		field string
		spoil func(*runtime.ContainerConfig)
	}{
		{"config.metadata", func(c *runtime.ContainerConfig) { c.Metadata = nil }},
		{"config.metadata.name", func(c *runtime.ContainerConfig) { c.Metadata.Name = "" }},
		{"config.image.image", func(c *runtime.ContainerConfig) { c.Image = nil }},
		{"config.log_path", func(c *runtime.ContainerConfig) { c.LogPath = "../../etc/passwd" }},
		{"config.log_path", func(c *runtime.ContainerConfig) { c.LogPath = "/etc/passwd" }},
		{"config.stop_signal", func(c *runtime.ContainerConfig) { c.StopSignal = 99 }},
		{"config.CDI_devices[0].name", func(c *runtime.ContainerConfig) { c.CDIDevices = []*runtime.CDIDevice{{}} }},
		{"config.devices[0].container_path", func(c *runtime.ContainerConfig) {
			c.Devices = []*runtime.Device{{HostPath: "/dev/null", ContainerPath: "dev/null"}}
		}},
		{"devices[0].host_path", func(c *runtime.ContainerConfig) { c.Devices = []*runtime.Device{{HostPath: "null"}} }},
		{"config.mounts[1].image_sub_path", func(c *runtime.ContainerConfig) { c.Mounts[1].ImageSubPath = "../x" }},
		{"config.mounts[1].image_sub_path", func(c *runtime.ContainerConfig) { c.Mounts[1].ImageSubPath = "/x" }},
		{"config.mounts[1].image_sub_path", func(c *runtime.ContainerConfig) { c.Mounts[1].ImageSubPath = "a/../b" }},
		{"mounts[0].image_sub_path", func(c *runtime.ContainerConfig) { c.Mounts[0].ImageSubPath = "a" }},
		{"mounts[1].host_path", func(c *runtime.ContainerConfig) { c.Mounts[1].HostPath = "/h" }},
		{"mounts[0].host_path", func(c *runtime.ContainerConfig) { c.Mounts[0].HostPath = "h" }},
		{"mounts[0].container_path", func(c *runtime.ContainerConfig) { c.Mounts[0].ContainerPath = "" }},
		{"mounts[0].recursive_read_only", func(c *runtime.ContainerConfig) { c.Mounts[0].Readonly = false }},
		{"mounts[0].recursive_read_only", func(c *runtime.ContainerConfig) {
			c.Mounts[0].Propagation = runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL
		}},
		{"mounts[0].mount_options", func(c *runtime.ContainerConfig) { c.Mounts[0].MountOptions = []string{"suid"} }},
		{"namespace_options.network", func(c *runtime.ContainerConfig) { ns(c).Network = runtime.NamespaceMode_NODE }},
		{"namespace_options.ipc", func(c *runtime.ContainerConfig) { ns(c).Ipc = runtime.NamespaceMode_NODE }},
		{"namespace_options.pid", func(c *runtime.ContainerConfig) { ns(c).Pid = runtime.NamespaceMode_POD }},
		{"namespace_options.target_id", func(c *runtime.ContainerConfig) { ns(c).Pid = runtime.NamespaceMode_TARGET }},
		{"userns_options", func(c *runtime.ContainerConfig) {
			m := []*runtime.IDMapping{{HostId: 1, Length: 10}}
			ns(c).UsernsOptions = &runtime.UserNamespace{Uids: m, Gids: m}
		}},
		{"run_as_group", func(c *runtime.ContainerConfig) { c.Linux.SecurityContext.RunAsGroup = &runtime.Int64Value{Value: 1} }},
		{"run_as_username", func(c *runtime.ContainerConfig) {
			c.Linux.SecurityContext.RunAsUser = &runtime.Int64Value{Value: 1}
			c.Linux.SecurityContext.RunAsUsername = "nobody"
		}},
		{"seccomp", func(c *runtime.ContainerConfig) {
			c.Linux.SecurityContext.Seccomp = &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Localhost, LocalhostRef: "profile.json"}
		}},
		{"envs[0]", func(c *runtime.ContainerConfig) { c.Envs = []*runtime.KeyValue{{Key: "A=B"}} }},
	} {
		r := newRig(t)
		cfg := goodContainer()
		c.spoil(cfg)
		_, err := create(t, r, cfg)
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), c.field) {
			t.Errorf("%s: %v", c.field, err)
		}
		if calls := r.keeper.noted(); len(calls) > 0 {
			t.Errorf("%s: the keeper was asked: %v", c.field, calls)
		}
	}
}

func TestCreateContainerNeedsTheHandlersFeatures(t *testing.T) {
	r := newRig(t)
	r.keeper.pods[0].Handler = "plain"
	if _, err := create(t, r, goodContainer()); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "recursive_read_only") {
		t.Errorf("recursive read-only without the feature: %v", err)
	}
}

func TestCreateContainerResolvesTheTarget(t *testing.T) {
	for _, c := range []struct {
		target string
		is     func(error) bool
	}{
		{ctrRun[:6], nil},
		{ctrDone, errdefs.IsFailedPrecondition},
		{"ffff", errdefs.IsNotFound},
		{ctrNot, errdefs.IsNotFound},
		{"5555", errdefs.IsInvalidArgument},
	} {
		r := newRig(t)
		other := container("5555", "other", r.keeper.pods[0].Containers[0].Container)
		r.keeper.pods[0].Containers[0] = container(ctrRun, "app", readyPod().Containers[0].Container)
		r.keeper.pods[1].Containers = append(r.keeper.pods[1].Containers, other)
		cfg := goodContainer()
		cfg.Linux.SecurityContext.NamespaceOptions = &runtime.NamespaceOption{Pid: runtime.NamespaceMode_TARGET, TargetId: c.target}
		rec, err := create(t, r, cfg)
		if c.is != nil {
			if !c.is(err) || !strings.Contains(err.Error(), "target_id") {
				t.Errorf("target %.8s: %v", c.target, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if got := rec.Config.Linux.SecurityContext.NamespaceOptions.TargetId; got != ctrRun {
			t.Errorf("target %s", got)
		}
	}
}

func TestContainersInheritThePodsNamespaces(t *testing.T) {
	m := []*runtime.IDMapping{{HostId: 1000, Length: 65536}}
	of := &runtime.NamespaceOption{
		Network: runtime.NamespaceMode_NODE, Ipc: runtime.NamespaceMode_NODE, Pid: runtime.NamespaceMode_NODE,
	}
	r := newRig(t)
	pod := func(o *runtime.NamespaceOption) *keeper.Pod {
		cfg := goodPod()
		cfg.Linux.SecurityContext.NamespaceOptions = o
		p := readyPod()
		p.Decoded = &record.Pod{Config: cfg}
		return p
	}
	// A container that sets only one option gets the pod's for the others.
	c := &runtime.ContainerConfig{Linux: &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{
		NamespaceOptions: &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER},
	}}}
	if err := r.completeNamespaces(pod(of), c); err != nil {
		t.Fatal(err)
	}
	o := c.Linux.SecurityContext.NamespaceOptions
	if o.Network != runtime.NamespaceMode_NODE || o.Ipc != runtime.NamespaceMode_NODE || o.Pid != runtime.NamespaceMode_CONTAINER {
		t.Errorf("options %v", o)
	}
	c = &runtime.ContainerConfig{}
	if err := r.completeNamespaces(pod(&runtime.NamespaceOption{UsernsOptions: &runtime.UserNamespace{Uids: m, Gids: m}}), c); err != nil {
		t.Fatal(err)
	}
	if u := c.Linux.SecurityContext.NamespaceOptions.GetUsernsOptions(); len(u.GetUids()) != 1 {
		t.Errorf("user namespace %v", u)
	}
	c.Linux.SecurityContext.NamespaceOptions.Pid = runtime.NamespaceMode_NODE
	if err := r.completeNamespaces(pod(&runtime.NamespaceOption{UsernsOptions: &runtime.UserNamespace{Uids: m, Gids: m}}), c); !errdefs.IsInvalidArgument(err) {
		t.Errorf("the host's PID namespace from a user namespace: %v", err)
	}
}

func TestStopSignals(t *testing.T) {
	for _, c := range []struct {
		config runtime.Signal
		image  string
		want   string
		shown  runtime.Signal
	}{
		{0, "", "SIGTERM", runtime.Signal_SIGNAL_SIGTERM},
		{0, "SIGQUIT", "SIGQUIT", runtime.Signal_SIGNAL_SIGQUIT},
		{0, "int", "SIGINT", runtime.Signal_SIGNAL_SIGINT},
		{0, "3", "SIGQUIT", runtime.Signal_SIGNAL_SIGQUIT},
		{0, "37", "SIGRTMIN+3", runtime.Signal_SIGNAL_SIGRTMINPLUS3},
		{0, "SIGRTMIN+3", "SIGRTMIN+3", runtime.Signal_SIGNAL_SIGRTMINPLUS3},
		{0, "nonsense", "SIGTERM", runtime.Signal_SIGNAL_SIGTERM},
		{runtime.Signal_SIGNAL_SIGUSR1, "SIGQUIT", "SIGUSR1", runtime.Signal_SIGNAL_SIGUSR1},
		{runtime.Signal_SIGNAL_SIGIOT, "", "SIGIOT", runtime.Signal_SIGNAL_SIGIOT},
		{runtime.Signal_SIGNAL_SIGRTMAXMINUS14, "", "SIGRTMAX-14", runtime.Signal_SIGNAL_SIGRTMAXMINUS14},
	} {
		got, err := stopSignal("f", c.config, c.image)
		if err != nil || got != c.want {
			t.Errorf("%v, %q: %q %v, want %q", c.config, c.image, got, err, c.want)
		}
		if v, ok := parseSignal(got); !ok || v != c.shown {
			t.Errorf("%q is shown as %v, want %v", got, v, c.shown)
		}
	}
}
