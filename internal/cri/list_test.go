package cri

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"

	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/pod"
	"berth/internal/record"
)

func TestListPodSandbox(t *testing.T) {
	state := func(s runtime.PodSandboxState) *runtime.PodSandboxStateValue {
		return &runtime.PodSandboxStateValue{State: s}
	}
	for _, c := range []struct {
		what   string
		filter *runtime.PodSandboxFilter
		want   []string
	}{
		{"all, but the one that is being made", nil, []string{podA, podB}},
		{"by id", &runtime.PodSandboxFilter{Id: podB}, []string{podB}},
		{"by prefix", &runtime.PodSandboxFilter{Id: "bbbb"}, []string{podB}},
		{"by an id that is not there", &runtime.PodSandboxFilter{Id: "ffff"}, nil},
		{"by the id of one that is being made", &runtime.PodSandboxFilter{Id: podNew}, nil},
		{"ready", &runtime.PodSandboxFilter{State: state(runtime.PodSandboxState_SANDBOX_READY)}, []string{podA}},
		{"not ready", &runtime.PodSandboxFilter{State: state(runtime.PodSandboxState_SANDBOX_NOTREADY)}, []string{podB}},
		{"by label", &runtime.PodSandboxFilter{LabelSelector: map[string]string{"app": "db"}}, []string{podB}},
		{"by two labels", &runtime.PodSandboxFilter{LabelSelector: map[string]string{"app": "db", "x": ""}}, nil},
	} {
		r := newRig(t)
		resp, err := r.ListPodSandbox(t.Context(), &runtime.ListPodSandboxRequest{Filter: c.filter})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, p := range resp.Items {
			got = append(got, p.Id)
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", c.what, got)
		}
	}
	r := newRig(t)
	item := podItem(r.keeper.pods[0])
	if item.Metadata.Uid != "uid-a" || item.CreatedAt != 100 || item.Annotations["note"] != "x" || item.RuntimeHandler != "runc" {
		t.Errorf("item %v", item)
	}
}

// A pod whose making failed is listed until it is undone, or nobody could remove
// it.
func TestWhichPodsAreListed(t *testing.T) {
	for what, c := range map[string]struct {
		state pod.State
		want  bool
	}{
		"being made":          {pod.State{}, false},
		"ready":               {pod.State{ReadyAt: at(1)}, true},
		"failed while made":   {pod.State{Err: "cni", Stopping: true}, true},
		"stopped while made":  {pod.State{Stopping: true}, true},
		"stopped":             {pod.State{ReadyAt: at(1), Stopping: true}, true},
		"being removed":       {pod.State{ReadyAt: at(1), Stopping: true, Removing: true}, true},
		"removed":             {pod.State{ReadyAt: at(1), Stopping: true, Removed: true}, false},
		"failed and undone":   {pod.State{Err: "cni", Stopping: true, Removed: true}, false},
		"lost with its shim":  {pod.State{ReadyAt: at(1), Stopping: true, ShimLost: true}, true},
		"of an earlier reign": {pod.State{Stopping: true, Rebooted: true}, true},
	} {
		p := &keeper.Pod{State: &c.state}
		if listed(p) != c.want {
			t.Errorf("%s: listed %t", what, !c.want)
		}
	}
}

func TestListContainers(t *testing.T) {
	for _, c := range []struct {
		what   string
		filter *runtime.ContainerFilter
		want   []string
	}{
		{"all that were created", nil, []string{ctrRun, ctrDone, ctrMade}},
		{"by id", &runtime.ContainerFilter{Id: "22"}, []string{ctrDone}},
		{"one that is being created", &runtime.ContainerFilter{Id: ctrNot}, nil},
		{"by pod", &runtime.ContainerFilter{PodSandboxId: "aaaa"}, []string{ctrRun, ctrDone, ctrMade}},
		{"by another pod", &runtime.ContainerFilter{PodSandboxId: podB}, nil},
		{"by a pod that is not there", &runtime.ContainerFilter{PodSandboxId: "ffff"}, nil},
		{"by state", &runtime.ContainerFilter{State: &runtime.ContainerStateValue{State: runtime.ContainerState_CONTAINER_CREATED}}, []string{ctrMade}},
		{"by label", &runtime.ContainerFilter{LabelSelector: map[string]string{"c": "app"}}, []string{ctrRun}},
	} {
		r := newRig(t)
		resp, err := r.ListContainers(t.Context(), &runtime.ListContainersRequest{Filter: c.filter})
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, k := range resp.Containers {
			got = append(got, k.Id)
			if k.PodSandboxId != podA || k.CreatedAt == 0 || k.Metadata.Attempt != 2 || k.Labels["c"] != k.Metadata.Name {
				t.Errorf("%s: %v", c.what, k)
			}
		}
		if !slices.Equal(got, c.want) {
			t.Errorf("%s: %v", c.what, got)
		}
	}
}

// manyPods are n ready pods of one container each, as a kubelet makes them.
func manyPods(n int) []*keeper.Pod {
	pods := make([]*keeper.Pod, n)
	for i := range pods {
		p := readyPod()
		p.ID = fmt.Sprintf("%064x", i)
		p.Decoded = &record.Pod{Config: proto.CloneOf(podConfig(p))}
		c := p.Containers[0]
		c.ID, c.PodID = fmt.Sprintf("%064x", 1<<20+i), p.ID
		p.Containers = []*keeper.Container{c}
		pods[i] = p
	}
	return pods
}

func TestStreamedListsHaveEachItemOnce(t *testing.T) {
	r := newRig(t)
	r.keeper.pods = manyPods(2500)
	rc, ic := r.dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()

	pods, err := rc.StreamPodSandboxes(ctx, &runtime.StreamPodSandboxesRequest{})
	if err != nil {
		t.Fatal(err)
	}
	ids, messages := map[string]int{}, 0
	for {
		m, err := pods.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		messages++
		if len(m.PodSandboxes) == 0 || len(m.PodSandboxes) > batchItems {
			t.Errorf("a message of %d items", len(m.PodSandboxes))
		}
		for _, p := range m.PodSandboxes {
			ids[p.Id]++
		}
	}
	if len(ids) != 2500 || messages != 3 {
		t.Errorf("%d pods in %d messages", len(ids), messages)
	}
	for id, n := range ids {
		if n != 1 {
			t.Errorf("pod %s came %d times", id, n)
		}
	}

	for what, recv := range map[string]func() (int, error){
		"containers": func() (int, error) {
			st, err := rc.StreamContainers(ctx, &runtime.StreamContainersRequest{Filter: &runtime.ContainerFilter{PodSandboxId: fmt.Sprintf("%064x", 7)}})
			if err != nil {
				return 0, err
			}
			m, err := st.Recv()
			return len(m.GetContainers()), errors.Join(err, eof(st.Recv()))
		},
		"images": func() (int, error) {
			st, err := ic.StreamImages(ctx, &runtime.StreamImagesRequest{})
			if err != nil {
				return 0, err
			}
			m, err := st.Recv()
			return len(m.GetImages()) - 1, errors.Join(err, eof(st.Recv()))
		},
		"metrics": func() (int, error) {
			st, err := rc.StreamPodSandboxMetrics(ctx, &runtime.StreamPodSandboxMetricsRequest{})
			if err != nil {
				return 0, err
			}
			m, err := st.Recv()
			return len(m.GetPodSandboxMetrics()), errors.Join(err, eof(st.Recv()))
		},
		"container stats": func() (int, error) {
			st, err := rc.StreamContainerStats(ctx, &runtime.StreamContainerStatsRequest{Filter: &runtime.ContainerStatsFilter{Id: fmt.Sprintf("%064x", 1<<20+9)}})
			if err != nil {
				return 0, err
			}
			m, err := st.Recv()
			return len(m.GetContainerStats()), errors.Join(err, eof(st.Recv()))
		},
		"pod stats": func() (int, error) {
			st, err := rc.StreamPodSandboxStats(ctx, &runtime.StreamPodSandboxStatsRequest{Filter: &runtime.PodSandboxStatsFilter{Id: fmt.Sprintf("%064x", 9)}})
			if err != nil {
				return 0, err
			}
			m, err := st.Recv()
			return len(m.GetPodSandboxStats()), errors.Join(err, eof(st.Recv()))
		},
	} {
		if n, err := recv(); n != 1 || err != nil {
			t.Errorf("%s: %d, %v", what, n, err)
		}
	}
	// Nothing to send: no message, only the end.
	st, err := rc.StreamContainers(ctx, &runtime.StreamContainersRequest{Filter: &runtime.ContainerFilter{Id: "ffff"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := st.Recv(); !errors.Is(err, io.EOF) {
		t.Errorf("an empty list: %v", err)
	}
}

// eof is nil when a stream ended as it should.
func eof[T any](m T, err error) error {
	if errors.Is(err, io.EOF) {
		return nil
	}
	return fmt.Errorf("another message or error: %v, %w", m, err)
}

func TestStreamedMessagesAreBounded(t *testing.T) {
	items := make([]*runtime.Image, 10)
	for i := range items {
		items[i] = &runtime.Image{Id: fmt.Sprint(i), Username: strings.Repeat("x", 400<<10)}
	}
	var got []string
	var sizes []int
	err := sendAll(t.Context(), items, func(b []*runtime.Image) error {
		sizes = append(sizes, len(b))
		for _, i := range b {
			got = append(got, i.Id)
		}
		return nil
	})
	if err != nil || strings.Join(got, "") != "0123456789" || !slices.Equal(sizes, []int{3, 3, 3, 1}) {
		t.Errorf("%v in %v, %v", got, sizes, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := sendAll(ctx, items, func([]*runtime.Image) error { t.Error("sent to nobody"); return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func BenchmarkListContainers300(b *testing.B) {
	r := newRig(b)
	r.keeper.pods = manyPods(300)
	b.ReportAllocs()
	for b.Loop() {
		resp, err := r.ListContainers(b.Context(), &runtime.ListContainersRequest{})
		if err != nil || len(resp.Containers) != 300 {
			b.Fatal(len(resp.GetContainers()), err)
		}
	}
}

func BenchmarkListPodSandbox300(b *testing.B) {
	r := newRig(b)
	r.keeper.pods = manyPods(300)
	b.ReportAllocs()
	for b.Loop() {
		if resp, err := r.ListPodSandbox(b.Context(), &runtime.ListPodSandboxRequest{}); err != nil || len(resp.Items) != 300 {
			b.Fatal(err)
		}
	}
}

// With gRPC's own work, as a client sees it.
func BenchmarkListContainers300OverGRPC(b *testing.B) {
	r := newRig(b)
	r.keeper.pods = manyPods(300)
	rc, _ := r.dial(b)
	for b.Loop() {
		resp, err := rc.ListContainers(b.Context(), &runtime.ListContainersRequest{})
		if err != nil || len(resp.Containers) != 300 {
			b.Fatal(err)
		}
	}
}

func BenchmarkContainerStatus(b *testing.B) {
	r := newRig(b)
	b.ReportAllocs()
	for b.Loop() {
		if _, err := r.ContainerStatus(b.Context(), &runtime.ContainerStatusRequest{ContainerId: ctrRun}); err != nil {
			b.Fatal(err)
		}
	}
}
