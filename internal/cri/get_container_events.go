package cri

import (
	"fmt"

	"github.com/containerd/errdefs"
	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
)

// eventBacklog is how many events wait for a client that does not read. They
// are pointers to snapshots, which live for as long as they wait.
const eventBacklog = 512

// GetContainerEvents sends what changes from now on. Nobody waits for a client:
// one that falls behind is cut with ResourceExhausted and must list anew.
func (s *Service) GetContainerEvents(_ *runtime.GetEventsRequest, st grpc.ServerStreamingServer[runtime.ContainerEventResponse]) error {
	events, cancel := s.keeper.Subscribe()
	defer cancel()
	// The receiving half never blocks; the sending half may, in gRPC's flow
	// control. A blocked Send ends when this function returns: so the sender is
	// not waited for.
	queue := make(chan *keeper.Event, eventBacklog)
	defer close(queue)
	sent := make(chan error, 1)
	go func() { sent <- s.sendEvents(queue, st) }()
	for {
		select {
		case <-st.Context().Done():
			return st.Context().Err()
		case err := <-sent:
			return err
		case e, ok := <-events:
			if !ok {
				return tooSlow()
			}
			select {
			case queue <- e:
			default:
				return tooSlow()
			}
		}
	}
}

func tooSlow() error {
	return fmt.Errorf("the client does not keep up with events; list pods and containers, then ask for events again: %w", errdefs.ErrResourceExhausted)
}

// sendEvents sends what comes from queue until that is closed or the client is
// gone.
func (s *Service) sendEvents(queue <-chan *keeper.Event, st grpc.ServerStreamingServer[runtime.ContainerEventResponse]) error {
	// A pod that was removed has no snapshot any more, but the kubelet drops
	// events without one: the last that was seen serves.
	last := map[string]*keeper.Pod{}
	for _, p := range s.keeper.Pods() {
		last[p.ID] = p
	}
	t := s.translator(st.Context())
	for e := range queue {
		p := e.Pod
		if p != nil {
			last[p.ID] = p
		} else {
			p = last[e.ContainerID]
			delete(last, e.ContainerID)
		}
		if err := st.Send(t.event(e, p)); err != nil {
			return err
		}
		clear(t.seen) // images change while the stream lives
	}
	return nil
}

// event is e about p, which is nil when nobody knows the pod any more.
func (t *translator) event(e *keeper.Event, p *keeper.Pod) *runtime.ContainerEventResponse {
	m := &runtime.ContainerEventResponse{
		ContainerId: e.ContainerID,
		CreatedAt:   nanos(e.At),
	}
	switch e.Type {
	case keeper.EventCreated:
		m.ContainerEventType = runtime.ContainerEventType_CONTAINER_CREATED_EVENT
	case keeper.EventStarted:
		m.ContainerEventType = runtime.ContainerEventType_CONTAINER_STARTED_EVENT
	case keeper.EventStopped:
		m.ContainerEventType = runtime.ContainerEventType_CONTAINER_STOPPED_EVENT
	case keeper.EventDeleted:
		m.ContainerEventType = runtime.ContainerEventType_CONTAINER_DELETED_EVENT
	}
	if p == nil {
		return m
	}
	m.PodSandboxStatus = podStatus(p)
	if e.Pod == nil { // it is gone: the snapshot is from before
		m.PodSandboxStatus.State = runtime.PodSandboxState_SANDBOX_NOTREADY
		return m
	}
	m.ContainersStatuses = t.statuses(p)
	return m
}
