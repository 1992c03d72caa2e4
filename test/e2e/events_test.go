package e2e

import (
	"context"
	"fmt"
	"io"
	"slices"
	"testing"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// events collects what is told about a pod, until the test ends.
func (n *node) events(t *testing.T) func(pod string) []string {
	t.Helper()
	st := must[cri.RuntimeService_GetContainerEventsClient](t)(n.rt.GetContainerEvents(t.Context(), &cri.GetEventsRequest{}))
	ch := make(chan *cri.ContainerEventResponse, 10000)
	go func() {
		for {
			e, err := st.Recv()
			if err != nil {
				close(ch)
				return
			}
			ch <- e
		}
	}()
	var got []*cri.ContainerEventResponse
	return func(pod string) []string {
		for {
			select {
			case e, ok := <-ch:
				if ok {
					got = append(got, e)
					continue
				}
			default:
			}
			break
		}
		var out []string
		for _, e := range got {
			if e.PodSandboxStatus.GetId() == pod {
				name := e.PodSandboxStatus.Metadata.Name
				if e.ContainerId != pod {
					name = e.ContainerId
				}
				out = append(out, name+" "+e.ContainerEventType.String())
			}
		}
		return out
	}
}

func TestEvents(t *testing.T) {
	t.Parallel()
	told := shared.events(t)
	p := shared.pod(t)
	name := p.cfg.Metadata.Name
	c := p.create("c", script("sleep 0.2"))
	if err := c.tryStart(); err != nil {
		t.Fatal(err)
	}
	c.wait()
	c.remove()
	p.remove()
	want := []string{
		name + " CONTAINER_CREATED_EVENT", name + " CONTAINER_STARTED_EVENT",
		c.id + " CONTAINER_CREATED_EVENT", c.id + " CONTAINER_STARTED_EVENT", c.id + " CONTAINER_STOPPED_EVENT", c.id + " CONTAINER_DELETED_EVENT",
		name + " CONTAINER_STOPPED_EVENT", name + " CONTAINER_DELETED_EVENT",
	}
	eventually(t, patience, func() error {
		if got := told(p.id); !slices.Equal(got, want) {
			return fmt.Errorf("told %v\nwant %v", got, want)
		}
		return nil
	})
}

// A client that does not read holds up nobody: not the daemon, not the others.
func TestEventsSlowClient(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var slow []cri.RuntimeService_GetContainerEventsClient
	for range 3 {
		slow = append(slow, must[cri.RuntimeService_GetContainerEventsClient](t)(shared.rt.GetContainerEvents(ctx, &cri.GetEventsRequest{})))
	}
	told := shared.events(t)
	p := shared.pod(t)
	var last *container
	for i := range 15 {
		last = p.run(fmt.Sprintf("c%d", i), []string{"true"})
	}
	last.wait()
	eventually(t, patience, func() error {
		if got := told(p.id); !slices.Contains(got, last.id+" CONTAINER_STOPPED_EVENT") {
			return fmt.Errorf("the reader has %d events", len(got))
		}
		return nil
	})
	// The others get what they can, in order, once they read; or are told that
	// they were too slow.
	if _, err := slow[0].Recv(); err != nil && err != io.EOF {
		t.Logf("a slow one was cut: %v", err)
	}
}
