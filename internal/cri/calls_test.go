package cri

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Every call of both services is there; three answer Unimplemented.
func TestEveryCallIsServed(t *testing.T) {
	r := newRig(t)
	rc, ic := r.dial(t)
	var missing []string
	n := 0
	for _, client := range []any{rc, ic} {
		v := reflect.ValueOf(client)
		for i := range v.NumMethod() {
			n++
			m := v.Type().Method(i)
			if m.Name == "GetContainerEvents" {
				continue // it has no end
			}
			req := reflect.New(v.Method(i).Type().In(1).Elem())
			out := v.Method(i).Call([]reflect.Value{reflect.ValueOf(t.Context()), req})
			err, _ := out[1].Interface().(error)
			if st, ok := out[0].Interface().(interface{ RecvMsg(any) error }); ok && err == nil {
				err = st.RecvMsg(&runtime.Image{})
			}
			if status.Code(err) == codes.Unimplemented {
				missing = append(missing, m.Name)
			}
		}
	}
	if n != 43 {
		t.Errorf("%d calls, want 37 and 6", n)
	}
	if want := []string{"CheckpointContainer", "CheckpointPod", "RestorePod"}; !slices.Equal(missing, want) {
		t.Errorf("unimplemented: %v, want %v", missing, want)
	}
}

// What is not there is success for Stop and Remove, and so is what goes while
// it is worked on.
func TestStopAndRemoveAreIdempotent(t *testing.T) {
	for _, gone := range []bool{false, true} {
		r := newRig(t)
		id, cid := "ffff", "ffff"
		if gone {
			r.keeper.err = fmt.Errorf("it went: %w", errdefs.ErrNotFound)
			id, cid = podA, ctrRun
		}
		_, e1 := r.StopPodSandbox(t.Context(), &runtime.StopPodSandboxRequest{PodSandboxId: id})
		_, e2 := r.RemovePodSandbox(t.Context(), &runtime.RemovePodSandboxRequest{PodSandboxId: id})
		_, e3 := r.StopContainer(t.Context(), &runtime.StopContainerRequest{ContainerId: cid})
		_, e4 := r.RemoveContainer(t.Context(), &runtime.RemoveContainerRequest{ContainerId: cid})
		if err := errors.Join(e1, e2, e3, e4); err != nil {
			t.Errorf("gone %t: %v", gone, err)
		}
		if n := len(r.keeper.noted()); (n == 4) != gone {
			t.Errorf("gone %t: %v", gone, r.keeper.noted())
		}
	}
	// An empty id, or one that means several, must not pass for "gone".
	r := newRig(t)
	r.keeper.pods[1].ID = "aaaa1"
	for _, id := range []string{"", "aaaa"} {
		if _, err := r.RemovePodSandbox(t.Context(), &runtime.RemovePodSandboxRequest{PodSandboxId: id}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("id %q: %v", id, err)
		}
	}
	if _, err := r.StopContainer(t.Context(), &runtime.StopContainerRequest{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("empty container id: %v", err)
	}
}

func TestCallsReachTheKeeperWithFullIDs(t *testing.T) {
	for _, c := range []struct {
		call func(*rig) error
		want string
	}{
		{func(r *rig) error {
			_, err := r.StopPodSandbox(t.Context(), &runtime.StopPodSandboxRequest{PodSandboxId: "aa"})
			return err
		}, "StopPod " + podA},
		{func(r *rig) error {
			_, err := r.RemovePodSandbox(t.Context(), &runtime.RemovePodSandboxRequest{PodSandboxId: "aa"})
			return err
		}, "RemovePod " + podA},
		{func(r *rig) error {
			_, err := r.StartContainer(t.Context(), &runtime.StartContainerRequest{ContainerId: "33"})
			return err
		}, "StartContainer " + ctrMade},
		{func(r *rig) error {
			_, err := r.StopContainer(t.Context(), &runtime.StopContainerRequest{ContainerId: "11", Timeout: 2})
			return err
		}, "StopContainer " + ctrRun + " SIGQUIT 2s"},
		{func(r *rig) error {
			_, err := r.StopContainer(t.Context(), &runtime.StopContainerRequest{ContainerId: "11", Timeout: math.MaxInt64})
			return err
		}, "StopContainer " + ctrRun + " SIGQUIT 2562047h47m16s"},
		{func(r *rig) error {
			_, err := r.RemoveContainer(t.Context(), &runtime.RemoveContainerRequest{ContainerId: "44"})
			return err
		}, "RemoveContainer " + ctrNot},
		{func(r *rig) error {
			_, err := r.ReopenContainerLog(t.Context(), &runtime.ReopenContainerLogRequest{ContainerId: "11"})
			return err
		}, "ReopenLog " + ctrRun},
	} {
		r := newRig(t)
		if err := c.call(r); err != nil {
			t.Errorf("%s: %v", c.want, err)
		}
		if got := r.keeper.noted(); len(got) != 1 || got[0] != c.want {
			t.Errorf("asked %v, want %s", got, c.want)
		}
	}
	r := newRig(t)
	if _, err := r.StopContainer(t.Context(), &runtime.StopContainerRequest{ContainerId: ctrRun, Timeout: -1}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("negative timeout: %v", err)
	}
}

// Calls that need running processes refuse others.
func TestNotRunning(t *testing.T) {
	r := newRig(t)
	for id, is := range map[string]func(error) bool{
		ctrDone: errdefs.IsFailedPrecondition, ctrMade: errdefs.IsFailedPrecondition, ctrNot: errdefs.IsNotFound, "ffff": errdefs.IsNotFound,
	} {
		_, e1 := r.ReopenContainerLog(t.Context(), &runtime.ReopenContainerLogRequest{ContainerId: id})
		_, e2 := r.Exec(t.Context(), &runtime.ExecRequest{ContainerId: id, Cmd: []string{"x"}, Stdout: true})
		_, e3 := r.ExecSync(t.Context(), &runtime.ExecSyncRequest{ContainerId: id, Cmd: []string{"x"}})
		_, e4 := r.Attach(t.Context(), &runtime.AttachRequest{ContainerId: id, Stdout: true})
		for i, err := range []error{e1, e2, e3, e4} {
			if !is(err) {
				t.Errorf("call %d on %.4s: %v", i, id, err)
			}
		}
	}
	if _, err := r.PortForward(t.Context(), &runtime.PortForwardRequest{PodSandboxId: podB}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("port-forward to a stopped pod: %v", err)
	}
	if _, err := r.UpdateContainerResources(t.Context(), &runtime.UpdateContainerResourcesRequest{ContainerId: ctrDone, Linux: &runtime.LinuxContainerResources{CpuShares: 2}}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("update of an ended container: %v", err)
	}
	if calls := r.keeper.noted(); len(calls) > 0 || r.streams.last != nil {
		t.Errorf("asked %v, %v", calls, r.streams.last)
	}
}

func TestStreamRequests(t *testing.T) {
	r := newRig(t)
	if _, err := r.Exec(t.Context(), &runtime.ExecRequest{ContainerId: "11", Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true}); err != nil {
		t.Fatal(err)
	}
	if want := (&runtime.ExecRequest{ContainerId: ctrRun, Cmd: []string{"sh"}, Tty: true, Stdin: true, Stdout: true}); !proto.Equal(r.streams.last.(proto.Message), want) {
		t.Errorf("exec %v", r.streams.last)
	}
	if _, err := r.Attach(t.Context(), &runtime.AttachRequest{ContainerId: "11", Stdout: true, Stderr: true}); err != nil {
		t.Fatal(err)
	}
	if want := (&runtime.AttachRequest{ContainerId: ctrRun, Stdout: true, Stderr: true}); !proto.Equal(r.streams.last.(proto.Message), want) {
		t.Errorf("attach %v", r.streams.last)
	}
	if _, err := r.PortForward(t.Context(), &runtime.PortForwardRequest{PodSandboxId: "aa", Port: []int32{80}}); err != nil {
		t.Fatal(err)
	}
	if want := (&runtime.PortForwardRequest{PodSandboxId: podA, Port: []int32{80}}); !proto.Equal(r.streams.last.(proto.Message), want) {
		t.Errorf("port-forward %v", r.streams.last)
	}
	for field, err := range map[string]error{
		"cmd":     second(r.Exec(t.Context(), &runtime.ExecRequest{ContainerId: ctrRun, Stdout: true})),
		"stdin":   second(r.Exec(t.Context(), &runtime.ExecRequest{ContainerId: ctrRun, Cmd: []string{"x"}})),
		"stderr":  second(r.Attach(t.Context(), &runtime.AttachRequest{ContainerId: ctrRun, Tty: true, Stderr: true})),
		"port[0]": second(r.PortForward(t.Context(), &runtime.PortForwardRequest{PodSandboxId: podA, Port: []int32{0}})),
		"timeout": second(r.ExecSync(t.Context(), &runtime.ExecSyncRequest{ContainerId: ctrRun, Cmd: []string{"x"}, Timeout: -1})),
	} {
		if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), field) {
			t.Errorf("%s: %v", field, err)
		}
	}
}

func second[T any](_ T, err error) error { return err }

func TestExecSync(t *testing.T) {
	r := newRig(t)
	rc, _ := r.dial(t)
	resp, err := rc.ExecSync(t.Context(), &runtime.ExecSyncRequest{ContainerId: "11", Cmd: []string{"true"}, Timeout: 3})
	if err != nil || string(resp.Stdout) != "out" || resp.ExitCode != 3 || r.streams.last != ctrRun+" [true] for 3s" {
		t.Error(resp, err, r.streams.last)
	}
	if _, err = rc.ExecSync(t.Context(), &runtime.ExecSyncRequest{ContainerId: "11", Cmd: []string{"hang"}, Timeout: 1}); status.Code(err) != codes.DeadlineExceeded {
		t.Errorf("a command that hangs: %v", err)
	}
}

func TestUpdateContainerResources(t *testing.T) {
	r := newRig(t)
	c := r.keeper.pods[0].Containers[0]
	update := func(l *runtime.LinuxContainerResources) {
		t.Helper()
		if _, err := r.UpdateContainerResources(t.Context(), &runtime.UpdateContainerResourcesRequest{ContainerId: "11", Linux: l}); err != nil {
			t.Fatal(err)
		}
		c.Resources = r.keeper.config
	}
	update(&runtime.LinuxContainerResources{CpuShares: 7, HugepageLimits: []*runtime.HugepageLimit{{PageSize: "2MB", Limit: 1}, {PageSize: "1GB", Limit: 1}}, Unified: map[string]string{"a": "1"}})
	if !strings.Contains(string(r.keeper.linux), `"shares":7`) || strings.Contains(string(r.keeper.linux), "1000") {
		t.Errorf("the runtime was told %s", r.keeper.linux)
	}
	update(&runtime.LinuxContainerResources{CpuQuota: -1, HugepageLimits: []*runtime.HugepageLimit{{PageSize: "2MB", Limit: 9}}, Unified: map[string]string{"b": "2"}})
	want := &runtime.LinuxContainerResources{
		CpuShares: 7, CpuQuota: -1, MemoryLimitInBytes: 1000,
		HugepageLimits: []*runtime.HugepageLimit{{PageSize: "2MB", Limit: 9}, {PageSize: "1GB", Limit: 1}},
		Unified:        map[string]string{"a": "1", "b": "2"},
	}
	st, err := r.ContainerStatus(t.Context(), &runtime.ContainerStatusRequest{ContainerId: ctrRun})
	if err != nil || !proto.Equal(st.Status.Resources.Linux, want) {
		t.Errorf("status %v, %v", st.GetStatus().GetResources(), err)
	}
	if _, err := r.UpdateContainerResources(t.Context(), &runtime.UpdateContainerResourcesRequest{ContainerId: "11", Linux: &runtime.LinuxContainerResources{CpusetCpus: "all"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("bad CPUs: %v", err)
	}
	n := len(r.keeper.noted())
	if _, err := r.UpdateContainerResources(t.Context(), &runtime.UpdateContainerResourcesRequest{ContainerId: ctrRun}); err != nil || len(r.keeper.noted()) != n {
		t.Errorf("an update of nothing: %v", err)
	}
}

func TestUpdatePodSandboxResources(t *testing.T) {
	r := newRig(t)
	res := &runtime.LinuxContainerResources{CpuShares: 5}
	if _, err := r.UpdatePodSandboxResources(t.Context(), &runtime.UpdatePodSandboxResourcesRequest{PodSandboxId: "aa", Resources: res}); err != nil {
		t.Fatal(err)
	}
	r.keeper.pods[0].State.Resources = r.keeper.config
	if over, got := decodePodResources(r.keeper.config); over != nil || !proto.Equal(got, res) {
		t.Errorf("recorded %s", r.keeper.config)
	}
	resp, err := r.PodSandboxStatus(t.Context(), &runtime.PodSandboxStatusRequest{PodSandboxId: podA, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	var info struct{ Resources json.RawMessage }
	if err := json.Unmarshal([]byte(resp.Info["info"]), &info); err != nil || !strings.Contains(string(info.Resources), "5") {
		t.Errorf("info %s, %v", info.Resources, err)
	}
	if _, err := r.UpdatePodSandboxResources(t.Context(), &runtime.UpdatePodSandboxResourcesRequest{PodSandboxId: podB}); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("update of a stopped pod: %v", err)
	}
}

func TestImages(t *testing.T) {
	r := newRig(t)
	uid := int64(7)
	r.images.images[1].UID, r.images.images[1].Pinned = &uid, true
	st, err := r.ImageStatus(t.Context(), &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: "docker.io/library/vol:1"}, Verbose: true})
	if err != nil {
		t.Fatal(err)
	}
	if i := st.Image; i.Id != volID || i.RepoTags[0] != "docker.io/library/vol:1" || i.Uid.GetValue() != 7 || !i.Pinned || !strings.Contains(st.Info["info"], "imageSpec") {
		t.Errorf("%v", st)
	}
	st, err = r.ImageStatus(t.Context(), &runtime.ImageStatusRequest{Image: &runtime.ImageSpec{Image: "gone"}})
	if err != nil || st.Image != nil {
		t.Errorf("an image that is not there: %v, %v", st, err)
	}
	all, _ := r.ListImages(t.Context(), &runtime.ListImagesRequest{})
	one, _ := r.ListImages(t.Context(), &runtime.ListImagesRequest{Filter: &runtime.ImageFilter{Image: &runtime.ImageSpec{Image: imageID}}})
	none, _ := r.ListImages(t.Context(), &runtime.ListImagesRequest{Filter: &runtime.ImageFilter{Image: &runtime.ImageSpec{Image: "gone"}}})
	if len(all.Images) != 2 || len(one.Images) != 1 || len(none.Images) != 0 || one.Images[0].Size != 12 {
		t.Errorf("%v\n%v\n%v", all, one, none)
	}
	p, err := r.PullImage(t.Context(), &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: "x:1", RuntimeHandler: "plain"}, Auth: &runtime.AuthConfig{
		Username: "u", Password: "p", Auth: "a", ServerAddress: "s", IdentityToken: "i", RegistryToken: "r"}})
	if err != nil || p.ImageRef != "sha256:pulled" || r.images.pulled != "x:1&{u p a s i r}" {
		t.Error(p, err, r.images.pulled)
	}
	if _, err := r.PullImage(t.Context(), &runtime.PullImageRequest{Image: &runtime.ImageSpec{Image: "x:1", RuntimeHandler: "no"}}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("unknown handler: %v", err)
	}
	if _, err := r.PullImage(t.Context(), &runtime.PullImageRequest{}); !errdefs.IsInvalidArgument(err) {
		t.Errorf("no name: %v", err)
	}
	r.images.err = errdefs.ErrNotFound
	if _, err := r.RemoveImage(t.Context(), &runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: "gone"}}); err != nil || r.images.removed != "gone" {
		t.Errorf("remove what is not there: %v", err)
	}
	r.images.err = errdefs.ErrUnavailable
	if _, err := r.RemoveImage(t.Context(), &runtime.RemoveImageRequest{Image: &runtime.ImageSpec{Image: "x"}}); !errdefs.IsUnavailable(err) {
		t.Errorf("remove that fails: %v", err)
	}
	r.images.err = nil
	fs, err := r.ImageFsInfo(t.Context(), &runtime.ImageFsInfoRequest{})
	if err != nil || len(fs.ImageFilesystems) != 1 || fs.ImageFilesystems[0].UsedBytes.Value != 7 || fs.ImageFilesystems[0].Timestamp != 5e9 {
		t.Error(fs, err)
	}
}

func TestStats(t *testing.T) {
	r := newRig(t)
	cs, err := r.ContainerStats(t.Context(), &runtime.ContainerStatsRequest{ContainerId: "11"})
	if err != nil || cs.Stats.Attributes.Id != ctrRun {
		t.Error(cs, err)
	}
	l, err := r.ListContainerStats(t.Context(), &runtime.ListContainerStatsRequest{Filter: &runtime.ContainerStatsFilter{PodSandboxId: "aa"}})
	if err != nil || len(l.Stats) != 1 || l.Stats[0].Attributes.Id != ctrRun {
		t.Error(l, err)
	}
	p, err := r.ListPodSandboxStats(t.Context(), &runtime.ListPodSandboxStatsRequest{})
	if err != nil || len(p.Stats) != 1 || p.Stats[0].Attributes.Id != podA {
		t.Error(p, err)
	}
	if _, err := r.PodSandboxStats(t.Context(), &runtime.PodSandboxStatsRequest{PodSandboxId: "ffff"}); !errdefs.IsNotFound(err) {
		t.Error(err)
	}
	d, _ := r.ListMetricDescriptors(t.Context(), &runtime.ListMetricDescriptorsRequest{})
	m, err := r.ListPodSandboxMetrics(t.Context(), &runtime.ListPodSandboxMetricsRequest{})
	if err != nil || len(d.Descriptors) != 1 || len(m.PodMetrics) != 1 {
		t.Error(d, m, err)
	}
}
