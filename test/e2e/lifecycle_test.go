package e2e

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A pod and a container from their making to their end: what is told of each
// state, and when.
func TestLifecycle(t *testing.T) {
	t.Parallel()
	begin := time.Now().UnixNano()
	p := shared.pod(t, func(c *cri.PodSandboxConfig) {
		c.Labels["a"], c.Annotations = "b", map[string]string{"x": "y"}
	})
	s := p.status()
	if s.State != cri.PodSandboxState_SANDBOX_READY || s.CreatedAt < begin || s.CreatedAt > time.Now().UnixNano() || s.Network.Ip == "" {
		t.Errorf("pod: %v", s)
	}
	if s.Labels["a"] != "b" || s.Annotations["x"] != "y" || s.Metadata.Name != p.cfg.Metadata.Name || handler != "" && s.RuntimeHandler != handler {
		t.Errorf("pod: %v", s)
	}
	c := p.create("c", forever, func(c *cri.ContainerConfig) {
		c.Labels, c.Annotations = map[string]string{"l": "1"}, map[string]string{"n": "2"}
	})
	st := c.status()
	if st.State != cri.ContainerState_CONTAINER_CREATED || st.CreatedAt < s.CreatedAt || st.StartedAt != 0 || st.FinishedAt != 0 || st.ExitCode != 0 || st.Reason != "" {
		t.Errorf("created: %v", st)
	}
	if st.Image.Image != baseImage || st.ImageId != ids[baseImage] || st.Labels["l"] != "1" || st.Annotations["n"] != "2" || st.LogPath != c.log {
		t.Errorf("created: %v", st)
	}
	if err := c.tryStart(); err != nil {
		t.Fatal(err)
	}
	st = c.status()
	if st.State != cri.ContainerState_CONTAINER_RUNNING || st.StartedAt < st.CreatedAt || st.FinishedAt != 0 {
		t.Errorf("running: %v", st)
	}
	started := st.StartedAt
	c.stop(10)
	st = c.status()
	if st.State != cri.ContainerState_CONTAINER_EXITED || st.StartedAt != started || st.FinishedAt < started || st.ExitCode != 0 || st.Reason != "Completed" {
		t.Errorf("stopped: %v", st)
	}
	c.stop(10) // and again
	c.remove()
	c.remove()
	_, err := c.tryStatus()
	wantCode(t, "status of a removed container", err, codes.NotFound, c.id)

	ctx, rt := t.Context(), shared.rt
	for range 2 {
		if _, err := rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
	}
	if s := p.status(); s.State != cri.PodSandboxState_SANDBOX_NOTREADY {
		t.Errorf("stopped pod: %v", s)
	}
	for range 2 {
		if _, err := rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: p.id}); err != nil {
			t.Fatal(err)
		}
	}
	_, err = rt.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: p.id})
	wantCode(t, "status of a removed pod", err, codes.NotFound, p.id)
}

func TestNamesInUse(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	other := p.cfg
	other = cloneOf(other)
	other.Annotations = map[string]string{"another": "config"}
	_, err := shared.rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: other, RuntimeHandler: handler})
	wantCode(t, "a pod's name", err, codes.AlreadyExists, p.id)
	c := p.create("c", forever)
	cfg := p.config("c", []string{"true"})
	_, err = p.tryCreate(cfg)
	wantCode(t, "a container's name", err, codes.AlreadyExists, c.id)
	if _, err := p.tryCreate(p.config("c", forever, attempt(1))); err != nil {
		t.Errorf("the next attempt: %v", err)
	}
	c.remove()
	if _, err := p.tryCreate(cfg); err != nil {
		t.Errorf("after it was removed: %v", err)
	}
}

func TestUnknownIDs(t *testing.T) {
	t.Parallel()
	ctx, rt := t.Context(), shared.rt
	const id = "00000000000000000000000000000000000000000000000000000000000000ff"
	_, err := rt.PodSandboxStatus(ctx, &cri.PodSandboxStatusRequest{PodSandboxId: id})
	wantCode(t, "PodSandboxStatus", err, codes.NotFound)
	_, err = rt.CreateContainer(ctx, &cri.CreateContainerRequest{PodSandboxId: id, Config: &cri.ContainerConfig{Metadata: &cri.ContainerMetadata{Name: "x"}, Image: &cri.ImageSpec{Image: baseImage}}})
	wantCode(t, "CreateContainer", err, codes.NotFound)
	_, err = rt.StartContainer(ctx, &cri.StartContainerRequest{ContainerId: id})
	wantCode(t, "StartContainer", err, codes.NotFound)
	_, err = rt.ContainerStatus(ctx, &cri.ContainerStatusRequest{ContainerId: id})
	wantCode(t, "ContainerStatus", err, codes.NotFound)
	_, err = rt.ExecSync(ctx, &cri.ExecSyncRequest{ContainerId: id, Cmd: []string{"true"}})
	wantCode(t, "ExecSync", err, codes.NotFound)
	_, err = rt.Exec(ctx, &cri.ExecRequest{ContainerId: id, Cmd: []string{"true"}, Stdout: true})
	wantCode(t, "Exec", err, codes.NotFound)
	_, err = rt.Attach(ctx, &cri.AttachRequest{ContainerId: id, Stdout: true})
	wantCode(t, "Attach", err, codes.NotFound)
	_, err = rt.PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: id, Port: []int32{80}})
	wantCode(t, "PortForward", err, codes.NotFound)
	_, err = rt.UpdateContainerResources(ctx, &cri.UpdateContainerResourcesRequest{ContainerId: id, Linux: &cri.LinuxContainerResources{CpuShares: 2}})
	wantCode(t, "UpdateContainerResources", err, codes.NotFound)
	_, err = rt.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: id})
	wantCode(t, "ReopenContainerLog", err, codes.NotFound)
	_, err = rt.ContainerStats(ctx, &cri.ContainerStatsRequest{ContainerId: id})
	wantCode(t, "ContainerStats", err, codes.NotFound)
	_, err = rt.PodSandboxStats(ctx, &cri.PodSandboxStatsRequest{PodSandboxId: id})
	wantCode(t, "PodSandboxStats", err, codes.NotFound)

	// What is to be gone is gone.
	_, err = rt.StopContainer(ctx, &cri.StopContainerRequest{ContainerId: id})
	wantCode(t, "StopContainer", err, codes.OK)
	_, err = rt.RemoveContainer(ctx, &cri.RemoveContainerRequest{ContainerId: id})
	wantCode(t, "RemoveContainer", err, codes.OK)
	_, err = rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id})
	wantCode(t, "StopPodSandbox", err, codes.OK)
	_, err = rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id})
	wantCode(t, "RemovePodSandbox", err, codes.OK)
}

func TestWrongState(t *testing.T) {
	t.Parallel()
	ctx, rt := t.Context(), shared.rt
	p := shared.pod(t)
	c := p.run("c", forever)
	wantCode(t, "start twice", c.tryStart(), codes.FailedPrecondition, c.id)
	d := p.create("d", forever)
	_, err := d.try(5, "true")
	wantCode(t, "exec before the start", err, codes.FailedPrecondition)
	c.stop(5)
	wantCode(t, "start after the end", c.tryStart(), codes.FailedPrecondition)
	_, err = c.try(5, "true")
	wantCode(t, "ExecSync after the end", err, codes.FailedPrecondition)
	_, err = rt.Exec(ctx, &cri.ExecRequest{ContainerId: c.id, Cmd: []string{"true"}, Stdout: true})
	wantCode(t, "Exec after the end", err, codes.FailedPrecondition)
	_, err = rt.Attach(ctx, &cri.AttachRequest{ContainerId: c.id, Stdout: true})
	wantCode(t, "Attach after the end", err, codes.FailedPrecondition)
	_, err = rt.ReopenContainerLog(ctx, &cri.ReopenContainerLogRequest{ContainerId: c.id})
	wantCode(t, "ReopenContainerLog after the end", err, codes.FailedPrecondition)

	if _, err := rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: p.id}); err != nil {
		t.Fatal(err)
	}
	_, err = p.tryCreate(p.config("e", forever))
	wantCode(t, "create in a stopped pod", err, codes.FailedPrecondition, p.id)
	wantCode(t, "start in a stopped pod", d.tryStart(), codes.FailedPrecondition)
	_, err = rt.PortForward(ctx, &cri.PortForwardRequest{PodSandboxId: p.id, Port: []int32{80}})
	wantCode(t, "PortForward to a stopped pod", err, codes.FailedPrecondition)
}

// A bad spec is an error that names the field, and leaves nothing.
func TestBadSpecs(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	for _, b := range []struct {
		field  string
		change containerOption
		code   codes.Code
	}{
		{"metadata", func(c *cri.ContainerConfig) { c.Metadata = nil }, codes.InvalidArgument},
		{"metadata.name", func(c *cri.ContainerConfig) { c.Metadata.Name = "" }, codes.InvalidArgument},
		{"image", func(c *cri.ContainerConfig) { c.Image = nil }, codes.InvalidArgument},
		{"image", func(c *cri.ContainerConfig) { c.Image.Image = "e2e.example/no-such:1" }, codes.NotFound},
		{"log_path", func(c *cri.ContainerConfig) { c.LogPath = "../../etc/x" }, codes.InvalidArgument},
		{"mounts[0].container_path", func(c *cri.ContainerConfig) { c.Mounts = []*cri.Mount{{HostPath: "/tmp"}} }, codes.InvalidArgument},
		{"mounts[0]", func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{HostPath: "/tmp", ContainerPath: "/x", RecursiveReadOnly: true}}
		}, codes.InvalidArgument},
		{"mounts[0].image_sub_path", func(c *cri.ContainerConfig) {
			c.Mounts = []*cri.Mount{{ContainerPath: "/x", Image: &cri.ImageSpec{Image: filesImage}, ImageSubPath: "../.."}}
		}, codes.InvalidArgument},
		{"run_as_group", security(func(s *cri.LinuxContainerSecurityContext) { s.RunAsGroup = &cri.Int64Value{Value: 5} }), codes.InvalidArgument},
		{"capabilities", security(func(s *cri.LinuxContainerSecurityContext) {
			s.Capabilities = &cri.Capability{AddCapabilities: []string{"NO_SUCH"}}
		}), codes.InvalidArgument},
		{"seccomp", security(func(s *cri.LinuxContainerSecurityContext) {
			s.Seccomp = &cri.SecurityProfile{ProfileType: cri.SecurityProfile_Localhost, LocalhostRef: "relative.json"}
		}), codes.InvalidArgument},
		{"network", security(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &cri.NamespaceOption{Network: cri.NamespaceMode_NODE, Pid: cri.NamespaceMode_CONTAINER}
		}), codes.InvalidArgument},
		{"target_id", security(func(s *cri.LinuxContainerSecurityContext) {
			s.NamespaceOptions = &cri.NamespaceOption{Pid: cri.NamespaceMode_TARGET}
		}), codes.InvalidArgument},
		{"devices[0]", func(c *cri.ContainerConfig) {
			c.Devices = []*cri.Device{{HostPath: "/dev/null", ContainerPath: "dev/x", Permissions: "rwm"}}
		}, codes.InvalidArgument},
	} {
		_, err := p.tryCreate(p.config("bad", forever, b.change))
		wantCode(t, b.field, err, b.code, b.field)
	}
	for _, b := range []struct {
		field  string
		change podOption
	}{
		{"metadata", func(c *cri.PodSandboxConfig) { c.Metadata = nil }},
		{"metadata.uid", func(c *cri.PodSandboxConfig) { c.Metadata.Uid = "" }},
		{"metadata.name", func(c *cri.PodSandboxConfig) { c.Metadata.Name = "a/b" }},
		{"hostname", func(c *cri.PodSandboxConfig) { c.Hostname = strings.Repeat("h", 65) }},
		{"log_directory", func(c *cri.PodSandboxConfig) { c.LogDirectory = "logs" }},
		{"port_mappings[0]", func(c *cri.PodSandboxConfig) {
			c.PortMappings = []*cri.PortMapping{{ContainerPort: 1, HostPort: 70000}}
		}},
		{"dns_config.servers[0]", func(c *cri.PodSandboxConfig) { c.DnsConfig = &cri.DNSConfig{Servers: []string{"a\nb"}} }},
		{"sysctls", func(c *cri.PodSandboxConfig) { c.Linux.Sysctls = map[string]string{"vm.swappiness": "1"} }},
	} {
		cfg := shared.podConfig(t, b.change)
		_, err := shared.rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: cfg, RuntimeHandler: handler})
		wantCode(t, b.field, err, codes.InvalidArgument, b.field)
	}
	_, err := shared.rt.RunPodSandbox(t.Context(), &cri.RunPodSandboxRequest{Config: shared.podConfig(t), RuntimeHandler: "no-such"})
	if err == nil || !strings.Contains(err.Error(), "no-such") {
		t.Errorf("unknown handler: %v", err)
	}

	// Nothing half-made stays.
	l := must[*cri.ListContainersResponse](t)(shared.rt.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: &cri.ContainerFilter{PodSandboxId: p.id}}))
	if len(l.Containers) != 0 {
		t.Errorf("containers were made: %v", l.Containers)
	}
	pods := must[*cri.ListPodSandboxResponse](t)(shared.rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{LabelSelector: map[string]string{"test": t.Name()}}}))
	if len(pods.Items) != 1 {
		t.Errorf("pods were made: %v", pods.Items)
	}
}

// A container that was made and never started can be stopped and removed, with
// its pod too.
func TestNeverStarted(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.create("c", forever)
	c.stop(3)
	if st := c.status(); st.State != cri.ContainerState_CONTAINER_EXITED || st.StartedAt != 0 || st.Reason == "Completed" {
		t.Errorf("stopped before its start: %v", st)
	}
	c.remove()
	p.create("d", forever) // goes with the pod
}

func TestLists(t *testing.T) {
	t.Parallel()
	p, q := shared.pod(t), shared.pod(t)
	a := p.run("a", forever, func(c *cri.ContainerConfig) { c.Labels = map[string]string{"k": "a", "t": t.Name()} })
	b := q.create("b", forever, func(c *cri.ContainerConfig) { c.Labels = map[string]string{"k": "b", "t": t.Name()} })
	for _, f := range []struct {
		filter *cri.ContainerFilter
		want   []string
	}{
		{&cri.ContainerFilter{Id: a.id}, []string{a.id}},
		{&cri.ContainerFilter{Id: a.id[:20]}, []string{a.id}},
		{&cri.ContainerFilter{PodSandboxId: q.id}, []string{b.id}},
		{&cri.ContainerFilter{LabelSelector: map[string]string{"t": t.Name()}}, []string{a.id, b.id}},
		{&cri.ContainerFilter{LabelSelector: map[string]string{"t": t.Name(), "k": "b"}}, []string{b.id}},
		{&cri.ContainerFilter{LabelSelector: map[string]string{"t": t.Name()}, State: &cri.ContainerStateValue{State: cri.ContainerState_CONTAINER_RUNNING}}, []string{a.id}},
		{&cri.ContainerFilter{Id: a.id, PodSandboxId: q.id}, nil},
	} {
		r := must[*cri.ListContainersResponse](t)(shared.rt.ListContainers(t.Context(), &cri.ListContainersRequest{Filter: f.filter}))
		var got []string
		for _, c := range r.Containers {
			got = append(got, c.Id)
		}
		sameSet(t, f.filter.String(), got, f.want)
	}
	r := must[*cri.ListPodSandboxResponse](t)(shared.rt.ListPodSandbox(t.Context(), &cri.ListPodSandboxRequest{Filter: &cri.PodSandboxFilter{
		LabelSelector: map[string]string{"test": t.Name()}, State: &cri.PodSandboxStateValue{State: cri.PodSandboxState_SANDBOX_READY},
	}}))
	var got []string
	for _, i := range r.Items {
		got = append(got, i.Id)
	}
	sameSet(t, "pods", got, []string{p.id, q.id})
}

// Verbose info is JSON as containerd's tools read it.
func TestVerboseInfo(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	cr := must[*cri.ContainerStatusResponse](t)(shared.rt.ContainerStatus(t.Context(), &cri.ContainerStatusRequest{ContainerId: c.id, Verbose: true}))
	var ci struct {
		Pid         int `json:"pid"`
		RuntimeSpec struct {
			Process struct {
				Args []string `json:"args"`
			} `json:"process"`
		} `json:"runtimeSpec"`
		Config struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
		} `json:"config"`
	}
	if err := json.Unmarshal([]byte(cr.Info["info"]), &ci); err != nil {
		t.Fatalf("%v: %.300s", err, cr.Info["info"])
	}
	if ci.Config.Metadata.Name != "c" || len(ci.RuntimeSpec.Process.Args) != 3 {
		t.Errorf("container info: %.400s", cr.Info["info"])
	}
	if env, err := os.ReadFile("/proc/" + itoa(ci.Pid) + "/environ"); err != nil || !strings.Contains(string(env), runTag) {
		t.Errorf("pid %d is not the container's process (%v)", ci.Pid, err)
	}
	pr := must[*cri.PodSandboxStatusResponse](t)(shared.rt.PodSandboxStatus(t.Context(), &cri.PodSandboxStatusRequest{PodSandboxId: p.id, Verbose: true}))
	var pi struct {
		RuntimeSpec struct {
			Linux struct {
				Namespaces []struct{ Type, Path string } `json:"namespaces"`
			} `json:"linux"`
		} `json:"runtimeSpec"`
	}
	if err := json.Unmarshal([]byte(pr.Info["info"]), &pi); err != nil {
		t.Fatal(err)
	}
	net := ""
	for _, n := range pi.RuntimeSpec.Linux.Namespaces {
		if n.Type == "network" {
			net = n.Path
		}
	}
	if _, err := os.Stat(net); err != nil {
		t.Errorf("network namespace: %v in %.400s", err, pr.Info["info"])
	}
	status := must[*cri.StatusResponse](t)(shared.rt.Status(t.Context(), &cri.StatusRequest{Verbose: true}))
	for _, want := range []string{"RuntimeReady", "NetworkReady"} {
		found := false
		for _, c := range status.Status.Conditions {
			found = found || c.Type == want && c.Status
		}
		if !found {
			t.Errorf("%s is not true: %v", want, status.Status)
		}
	}
	v := must[*cri.VersionResponse](t)(shared.rt.Version(t.Context(), &cri.VersionRequest{}))
	if v.RuntimeApiVersion != "v1" || v.RuntimeName == "" || v.RuntimeVersion == "" {
		t.Errorf("version: %v", v)
	}
	rc := must[*cri.RuntimeConfigResponse](t)(shared.rt.RuntimeConfig(t.Context(), &cri.RuntimeConfigRequest{}))
	if rc.Linux == nil {
		t.Errorf("runtime config: %v", rc)
	}
}
