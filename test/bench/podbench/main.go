// Podbench drives CRI runtimes over their sockets and measures whole pod life
// cycles: how long each call takes, how long a pod takes from the first call to
// its first log line, and what an idle pod costs in memory. With two sockets it
// takes turns between them and prints the ratios of the first to the second.
//
//	podbench -a unix:///run/berth/berthd.sock -b unix:///run/containerd/containerd.sock
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"strconv"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	endpointA = flag.String("a", "unix:///run/berth/berthd.sock", "CRI socket")
	endpointB = flag.String("b", "", "CRI socket to compare with")
	handler   = flag.String("handler", "", "runtime handler")
	image     = flag.String("image", "bench.local/e2e-test-images/busybox:1.29-2", "image with sh")
	n         = flag.Int("n", 30, "pods, of each runtime")
	c         = flag.Int("c", 1, "pods in flight")
	rounds    = flag.Int("rounds", 3, "turns that the pods are split into")
	idle      = flag.Int("idle", 0, "measure instead the memory of this many idle pods")
	logs      = flag.String("logs", "/tmp/podbench-logs", "log folder for pods")
)

// subject is a runtime under measurement.
type subject struct {
	rt      cri.RuntimeServiceClient
	name    string
	samples *samples
	busy    time.Duration
	failed  int
}

type samples struct {
	mu sync.Mutex
	m  map[string][]time.Duration
}

func (s *samples) add(k string, d time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.m[k] = append(s.m[k], d)
}

func main() {
	flag.Parse()
	ctx := context.Background()
	var subjects []*subject
	for _, e := range []string{*endpointA, *endpointB} {
		if e == "" {
			continue
		}
		s, err := connect(ctx, e)
		if err != nil {
			log.Fatalf("%s: %v", e, err)
		}
		subjects = append(subjects, s)
	}
	if *idle > 0 {
		for _, s := range subjects {
			s.idle(ctx, *idle)
		}
		return
	}
	for r := range *rounds {
		for _, s := range subjects {
			s.round(ctx, r)
		}
	}
	for _, s := range subjects {
		s.report()
	}
	if len(subjects) == 2 {
		compare(subjects[0], subjects[1])
	}
}

// connect dials, pulls the image and runs one pod that is not counted: it warms
// caches on both sides.
func connect(ctx context.Context, endpoint string) (*subject, error) {
	conn, err := grpc.NewClient(endpoint, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return nil, err
	}
	s := &subject{rt: cri.NewRuntimeServiceClient(conn), samples: &samples{m: map[string][]time.Duration{}}}
	v, err := s.rt.Version(ctx, &cri.VersionRequest{})
	if err != nil {
		return nil, err
	}
	s.name = v.RuntimeName + " " + v.RuntimeVersion
	if _, err := cri.NewImageServiceClient(conn).PullImage(ctx, &cri.PullImageRequest{Image: &cri.ImageSpec{Image: *image}}); err != nil {
		return nil, fmt.Errorf("pull %s: %w", *image, err)
	}
	return s, s.cycle(ctx, "warm", &samples{m: map[string][]time.Duration{}})
}

// round runs this turn's share of the pods.
func (s *subject) round(ctx context.Context, r int) {
	var wg sync.WaitGroup
	work := make(chan int)
	var mu sync.Mutex
	begin := time.Now()
	for range *c {
		wg.Go(func() {
			for i := range work {
				if err := s.cycle(ctx, strconv.Itoa(i), s.samples); err != nil {
					log.Print(err)
					mu.Lock()
					s.failed++
					mu.Unlock()
				}
			}
		})
	}
	for i := r; i < *n; i += *rounds {
		work <- i
	}
	close(work)
	wg.Wait()
	s.busy += time.Since(begin)
}
