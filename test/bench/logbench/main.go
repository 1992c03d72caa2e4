// Logbench drives CRI runtimes over their sockets and measures what becomes of a
// container's output: how much a second reaches the log, what it costs in CPU
// outside the container, how long a line takes from write(2) to the file, and
// what an exec takes. With two sockets it takes turns between them and prints
// the ratios of the first to the second.
//
//	logbench -a unix:///run/berth/berthd.sock -b unix:///run/containerd/containerd.sock
//
// The containers' program is logbench itself, mounted into them: build it with
// CGO_ENABLED=0.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"os"
	"time"
)

var (
	endpointA = flag.String("a", "unix:///run/berth/berthd.sock", "CRI socket")
	endpointB = flag.String("b", "", "CRI socket to compare with")
	handler   = flag.String("handler", "", "runtime handler")
	image     = flag.String("image", "bench.local/e2e-test-images/busybox:1.29-2", "image with true")
	rounds    = flag.Int("rounds", 5, "turns of each runtime")
	size      = flag.Int64("size", 256, "MiB that a container writes in blocks; a tenth of it line by line")
	lines     = flag.Int("lines", 200, "lines, one each 5 ms, whose latency is measured, a turn")
	execs     = flag.Int("execs", 20, "execs a turn")
	logs      = flag.String("logs", "/tmp/logbench-logs", "log folder for pods")
)

func main() {
	if len(os.Args) > 1 && os.Args[1] == "write" {
		write(os.Args[2:])
		return
	}
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
	for r := range *rounds {
		for _, s := range subjects {
			if err := s.round(ctx, r); err != nil {
				log.Fatalf("%s: %v", s.name, err)
			}
		}
	}
	for _, s := range subjects {
		s.report()
	}
	if len(subjects) == 2 {
		compare(subjects[0], subjects[1])
	}
}

// round is a pod in which everything is measured once.
func (s *subject) round(ctx context.Context, r int) error {
	p, err := s.pod(ctx, fmt.Sprintf("logbench-%d-%d", os.Getpid(), r))
	if err != nil {
		return err
	}
	defer p.remove()
	for _, w := range []struct {
		name  string
		bytes int64
		line  int
		block string
	}{
		{"lines of 100 B in blocks", *size << 20, 100, "blocks"},
		{"lines of 1 KiB in blocks", *size << 20, 1024, "blocks"},
		{"lines of 100 B, a write each", *size << 20 / 10, 100, "lines"},
	} {
		if err := p.throughput(ctx, w.name, w.bytes, w.line, w.block); err != nil {
			return fmt.Errorf("%s: %w", w.name, err)
		}
	}
	if err := p.latency(ctx); err != nil {
		return fmt.Errorf("latency: %w", err)
	}
	return p.execs(ctx)
}

func us(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1000 }
