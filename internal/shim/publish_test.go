package shim

import (
	"context"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	eventstypes "github.com/containerd/containerd/api/events"
	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"
)

// receiver is a containerd that takes events, and refuses the first few.
type receiver struct {
	mu     sync.Mutex
	refuse int
	got    []string
}

func (r *receiver) Forward(_ context.Context, q *eventsapi.ForwardRequest) (*emptypb.Empty, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse > 0 {
		r.refuse--
		return nil, context.DeadlineExceeded
	}
	var e eventstypes.TaskStart
	if err := proto.Unmarshal(q.Envelope.Event.Value, &e); err != nil || q.Envelope.Event.TypeUrl != "containerd.events.TaskStart" {
		return nil, fmt.Errorf("event %s: %w", q.Envelope.Event.TypeUrl, err)
	}
	r.got = append(r.got, q.Envelope.Namespace+q.Envelope.Topic+" "+e.ContainerID)
	return &emptypb.Empty{}, nil
}

func TestQueueKeepsOrderWhileNobodyListens(t *testing.T) {
	dir, err := os.MkdirTemp("", "q")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	socket := filepath.Join(dir, "s")
	q := NewQueue("unix://"+socket, "ns")
	var want []string
	for i := range 20 {
		q.Add(topicStart, &eventstypes.TaskStart{ContainerID: fmt.Sprint(i)})
		want = append(want, fmt.Sprintf("ns/tasks/start %d", i))
	}
	time.Sleep(150 * time.Millisecond) // some tries fail
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ttrpc.NewServer()
	if err != nil {
		t.Fatal(err)
	}
	r := &receiver{refuse: 1}
	eventsapi.RegisterTTRPCEventsService(s, r)
	go s.Serve(t.Context(), l)
	defer s.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	q.Flush(ctx)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !slices.Equal(r.got, want) {
		t.Errorf("got %q", r.got)
	}
}

func TestQueueIsBoundedAndFlushToo(t *testing.T) {
	q := NewQueue(filepath.Join(t.TempDir(), "nobody"), "ns")
	for range maxQueue + 10 {
		q.Add(topicStart, &eventstypes.TaskStart{})
	}
	q.mu.Lock()
	n := len(q.waiting)
	q.mu.Unlock()
	if n > maxQueue {
		t.Errorf("%d events wait, allowed are %d", n, maxQueue)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	begin := time.Now()
	q.Flush(ctx)
	if d := time.Since(begin); d > 5*time.Second {
		t.Errorf("flush without a listener took %v", d)
	}
}
