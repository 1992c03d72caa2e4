package shim

import (
	"context"
	"net"
	"strings"
	"sync"
	"time"

	eventsapi "github.com/containerd/containerd/api/services/ttrpc/events/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/log"
	"github.com/containerd/ttrpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/timestamppb"
)

// Topics of containerd's task events.
const (
	topicCreate      = "/tasks/create"
	topicStart       = "/tasks/start"
	topicExit        = "/tasks/exit"
	topicOOM         = "/tasks/oom"
	topicDelete      = "/tasks/delete"
	topicPaused      = "/tasks/paused"
	topicResumed     = "/tasks/resumed"
	topicExecAdded   = "/tasks/exec-added"
	topicExecStarted = "/tasks/exec-started"
)

const (
	// maxQueue bounds the events that wait for a containerd that is away.
	maxQueue = 2048
	// maxAge is how long an event is worth a retry.
	maxAge = 5 * time.Minute
	// forwardWait bounds one delivery.
	forwardWait = 5 * time.Second
)

// Queue delivers events to a stock containerd in the order in which they came,
// each once it is accepted. Events are hints: when nobody listens they wait, at
// most maxQueue of them for maxAge each; nothing ever waits for them. Between
// events the queue holds neither a connection nor a goroutine.
type Queue struct {
	address, namespace string

	mu      sync.Mutex
	waiting []*types.Envelope
	working bool
	idle    chan struct{} // closed when the queue is empty
	dropped int
	stopped chan struct{}
}

// NewQueue makes a queue to containerd's ttrpc address (path, unix:// or not).
func NewQueue(address, namespace string) *Queue {
	q := &Queue{
		address: strings.TrimPrefix(address, "unix://"), namespace: namespace,
		idle: make(chan struct{}), stopped: make(chan struct{}),
	}
	close(q.idle)
	return q
}

// Add queues an event and returns.
func (q *Queue) Add(topic string, event proto.Message) {
	b, err := proto.Marshal(event)
	if err != nil {
		log.L.WithError(err).Errorf("encode event %s", topic)
		return
	}
	e := &types.Envelope{
		Timestamp: timestamppb.Now(), Namespace: q.namespace, Topic: topic,
		Event: &anypb.Any{TypeUrl: string(event.ProtoReflect().Descriptor().FullName()), Value: b},
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) >= maxQueue {
		q.waiting = q.waiting[1:]
		q.dropped++
	}
	q.waiting = append(q.waiting, e)
	if !q.working {
		q.working = true
		q.idle = make(chan struct{})
		go q.work()
	}
}

// Flush waits until the queue is empty or ctx ends, and then stops it.
func (q *Queue) Flush(ctx context.Context) {
	q.mu.Lock()
	idle := q.idle
	q.mu.Unlock()
	select {
	case <-idle:
	case <-ctx.Done():
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	select {
	case <-q.stopped:
	default:
		close(q.stopped)
	}
}

// work delivers until the queue is empty.
func (q *Queue) work() {
	var client *ttrpc.Client
	defer func() {
		if client != nil {
			client.Close()
		}
	}()
	wait := 100 * time.Millisecond
	for {
		e := q.head()
		if e == nil {
			return
		}
		err := q.forward(&client, e)
		if err == nil || time.Since(e.Timestamp.AsTime()) > maxAge {
			if err != nil {
				log.L.WithError(err).Warnf("event %s is given up", e.Topic)
			}
			q.pop(e)
			wait = 100 * time.Millisecond
			continue
		}
		log.L.WithError(err).Debugf("event %s waits", e.Topic)
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-q.stopped:
			timer.Stop()
			return
		}
		wait = min(2*wait, 10*time.Second)
	}
}

// head is the oldest event; without one the work is over.
func (q *Queue) head() *types.Envelope {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.dropped > 0 {
		log.L.Warnf("%d events were dropped: containerd is away", q.dropped)
		q.dropped = 0
	}
	if len(q.waiting) == 0 {
		q.waiting = nil
		q.working = false
		close(q.idle)
		return nil
	}
	return q.waiting[0]
}

// pop takes e off, unless it was dropped meanwhile.
func (q *Queue) pop(e *types.Envelope) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if len(q.waiting) > 0 && q.waiting[0] == e {
		q.waiting = q.waiting[1:]
	}
}

func (q *Queue) forward(client **ttrpc.Client, e *types.Envelope) error {
	ctx, cancel := context.WithTimeout(context.Background(), forwardWait)
	defer cancel()
	if *client == nil {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "unix", q.address)
		if err != nil {
			return err
		}
		*client = ttrpc.NewClient(conn)
	}
	_, err := eventsapi.NewTTRPCEventsClient(*client).Forward(ctx, &eventsapi.ForwardRequest{Envelope: e})
	if err != nil {
		(*client).Close()
		*client = nil
	}
	return err
}

func protoMounts(mounts []Mount) []*types.Mount {
	var all []*types.Mount
	for _, m := range mounts {
		all = append(all, &types.Mount{Type: m.Type, Source: m.Source, Target: m.Target, Options: m.Options})
	}
	return all
}
