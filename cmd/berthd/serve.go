package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"time"

	"google.golang.org/grpc"

	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/node"
	"berth/internal/stream"
)

// stopGrace is how long calls that are under way may go on after SIGTERM. Their
// work goes on in any case, with the next daemon.
const stopGrace = 2 * time.Second

// serve runs the daemon until ctx ends. Pods live on after it.
func serve(ctx context.Context, cfg *config.Config) error {
	begin := time.Now()
	l, err := listen(cfg.Root, cfg.State, cfg.Socket())
	if err != nil {
		return err
	}
	defer l.Close()
	d, err := wire(ctx, cfg)
	if err != nil {
		return err
	}
	defer d.close()
	front, err := cri.New(d.cri)
	if err != nil {
		return err
	}
	// The metrics are around the border, where errors have become codes.
	s := grpc.NewServer(append(d.metrics.options(), front.ServerOptions()...)...)
	front.Register(s)
	node.New(d.images).Register(s)
	d.stream.Start(stream.FromKeeper(d.keeper))

	failed := make(chan error, 2)
	m, err := d.metrics.serve(cfg.Metrics.Address, failed)
	if err != nil {
		return err
	}
	if m != nil {
		defer m.Close()
	}
	go func() { failed <- s.Serve(l) }()
	slog.Info("serving", "socket", cfg.Socket(), "after", time.Since(begin).Round(time.Millisecond))
	// The API is open by now: calls wait for the journals, which takes
	// milliseconds; the pods' own recovery is not waited for.
	if err := d.keeper.Recover(ctx); err != nil {
		return fmt.Errorf("recover pods: %w", err)
	}
	if d.keeper.Whole() { // else what looks stray may be a living pod's
		d.machine.Sweep(ctx, d.keeper.Pods)
	}
	select {
	case <-ctx.Done():
		slog.Info("stopping; pods live on")
	case err := <-failed:
		if err != nil && !errors.Is(err, http.ErrServerClosed) {
			return fmt.Errorf("serve: %w", err)
		}
	}
	ended := make(chan struct{})
	go func() {
		s.GracefulStop()
		close(ended)
	}()
	select {
	case <-ended:
	case <-time.After(stopGrace):
		s.Stop()
	}
	return nil
}
