package cri

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// eventually waits until cond holds.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not within 20 s", what)
		}
	}
}

func subscribe(t *testing.T, ctx context.Context, r *rig, rc runtime.RuntimeServiceClient) runtime.RuntimeService_GetContainerEventsClient {
	t.Helper()
	n := r.keeper.subscribers()
	st, err := rc.GetContainerEvents(ctx, &runtime.GetEventsRequest{})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "subscription", func() bool { return r.keeper.subscribers() == n+1 })
	return st
}

func TestEventsCarryThePod(t *testing.T) {
	r := newRig(t)
	rc, _ := r.dial(t)
	ctx, cancel := context.WithCancel(t.Context())
	st := subscribe(t, ctx, r, rc)
	p := r.keeper.pods[0]
	for _, e := range []*keeper.Event{
		{At: at(1), Type: keeper.EventCreated, ContainerID: ctrMade, Pod: p},
		{At: at(2), Type: keeper.EventStarted, ContainerID: ctrRun, Pod: p},
		{At: at(3), Type: keeper.EventStopped, ContainerID: ctrDone, Pod: p},
		{At: at(4), Type: keeper.EventDeleted, ContainerID: podA},
		{At: at(5), Type: keeper.EventDeleted, ContainerID: podA},
	} {
		r.keeper.publish(e, time.Second)
		m, err := st.Recv()
		if err != nil {
			t.Fatal(err)
		}
		if m.ContainerId != e.ContainerID || m.CreatedAt != nanos(e.At) || int(m.ContainerEventType) != int(e.Type) {
			t.Errorf("event %v", m)
		}
		switch nanos(e.At) {
		case 4: // gone, but the kubelet wants to know which pod it was
			if m.PodSandboxStatus.GetMetadata().GetUid() != "uid-a" || m.PodSandboxStatus.State != runtime.PodSandboxState_SANDBOX_NOTREADY || len(m.ContainersStatuses) != 0 {
				t.Errorf("removed pod: %v", m)
			}
		case 5: // and after that it is forgotten
			if m.PodSandboxStatus != nil {
				t.Errorf("a pod that was gone: %v", m)
			}
		default:
			if m.PodSandboxStatus.State != runtime.PodSandboxState_SANDBOX_READY || len(m.ContainersStatuses) != 3 {
				t.Errorf("event %v", m)
			}
		}
	}
	cancel()
	if _, err := st.Recv(); status.Code(err) != codes.Canceled {
		t.Errorf("after cancel: %v", err)
	}
	eventually(t, "end of the subscription", func() bool { return r.keeper.subscribers() == 0 })
}

// A client that reads nothing is cut. It delays neither the keeper nor another
// client.
func TestASlowEventClientIsCut(t *testing.T) {
	r := newRig(t)
	big := readyPod()
	podConfig(big).Annotations = map[string]string{"big": strings.Repeat("x", 64<<10)}
	rc, _ := r.dial(t)
	slow := subscribe(t, t.Context(), r, rc)
	rc2, _ := r.dial(t) // a connection of its own: HTTP/2 shares flow control
	fastCtx, cancel := context.WithCancel(t.Context())
	defer cancel()
	fast := subscribe(t, fastCtx, r, rc2)

	const n = eventBacklog + 200
	got := make(chan error, 1)
	var fastAt atomic.Int64
	go func() {
		for i := range n {
			m, err := fast.Recv()
			if err == nil && m.ContainerId != fmt.Sprint(i) {
				err = fmt.Errorf("event %s where %d is due", m.ContainerId, i)
			}
			if err != nil {
				got <- err
				return
			}
			fastAt.Add(1)
		}
		got <- nil
	}()
	for i := range n {
		e := &keeper.Event{At: at(int64(i)), ContainerID: fmt.Sprint(i), Pod: big}
		if r.keeper.publish(e, 5*time.Second) {
			t.Fatalf("event %d: the keeper was made to wait", i)
		}
		// The fast client keeps up; the slow one is far behind by then.
		eventually(t, "the fast client", func() bool { return len(got) > 0 || int64(i)-fastAt.Load() < 64 })
	}
	if err := <-got; err != nil {
		t.Fatalf("the fast client: %v", err)
	}
	eventually(t, "cut of the slow client", func() bool { return r.keeper.subscribers() == 1 })
	seen := 0
	for {
		_, err := slow.Recv()
		if err == nil {
			seen++
			continue
		}
		if status.Code(err) != codes.ResourceExhausted {
			t.Errorf("the slow client was cut with %v", err)
		}
		break
	}
	if seen >= n {
		t.Errorf("the slow client missed nothing: it was not slow")
	}
}

// The keeper cuts who is too slow for it by closing the channel.
func TestAClosedSubscriptionEndsTheStream(t *testing.T) {
	r := newRig(t)
	rc, _ := r.dial(t)
	st := subscribe(t, t.Context(), r, rc)
	r.keeper.mu.Lock()
	close(r.keeper.subs[0])
	r.keeper.mu.Unlock()
	if _, err := st.Recv(); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("%v", err)
	}
}
