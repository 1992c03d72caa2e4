package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/opencontainers/runtime-spec/specs-go/features"

	"berth/internal/config"
	"berth/internal/cri"
	"berth/internal/effects"
	"berth/internal/image"
	"berth/internal/keeper"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/record"
	"berth/internal/shims"
	"berth/internal/stats"
	"berth/internal/stdio"
	"berth/internal/stream"
	"berth/internal/version"
)

// daemon is everything that runs.
type daemon struct {
	images  *image.Service
	keeper  *keeper.Keeper
	stream  *stream.Server
	machine *effects.Machine
	metrics *metrics
	cri     *cri.Deps
	closers []func() error
}

// close ends everything, last made first.
func (d *daemon) close() {
	for i := len(d.closers) - 1; i >= 0; i-- {
		if err := d.closers[i](); err != nil {
			slog.Warn("could not close", "err", err)
		}
	}
}

// wire makes the parts and joins them.
func wire(ctx context.Context, cfg *config.Config) (_ *daemon, err error) {
	d := &daemon{}
	defer func() {
		if err != nil {
			d.close()
		}
	}()
	for _, p := range []string{cfg.Root, filepath.Join(cfg.Root, "pods"), filepath.Join(cfg.State, "pods")} {
		if err := os.MkdirAll(p, 0o711); err != nil {
			return nil, fmt.Errorf("create %s: %w", p, err)
		}
	}
	host, err := ocispec.Probe()
	if err != nil {
		return nil, err
	}
	if cfg.RestrictOOMScoreAdj {
		if own, err := ownOOMScoreAdj(); err == nil {
			host.MinOOMScoreAdj = max(host.MinOOMScoreAdj, own)
		}
	}
	handlers, fronts, err := handlers(ctx, cfg, host)
	if err != nil {
		return nil, err
	}
	shimPath, err := cfg.ShimPath()
	if err != nil {
		return nil, err
	}
	if d.images, err = image.New(ctx, &image.Config{
		Root: filepath.Join(cfg.Root, "images"), State: filepath.Join(cfg.State, "images"), Snapshotter: cfg.Image.Snapshotter,
		RegistryDirs: cfg.Registry.ConfigPath, StallTimeout: cfg.Image.StallTimeout.Duration,
		MaxConcurrentDownloads: cfg.Image.MaxConcurrentDownloads, SyncFS: cfg.Image.Sync,
		Pinned: cfg.Image.Pinned, DurableRootfs: cfg.Image.DurableRootfs,
	}); err != nil {
		return nil, err
	}
	d.closers = append(d.closers, d.images.Close)
	net, err := network.New(&network.Config{
		ConfDir: cfg.CNI.ConfDir, BinDirs: cfg.CNI.PluginDirs(), CacheDir: filepath.Join(cfg.Root, "network"),
		MaxConfNum: cfg.CNI.Networks(), Timeout: cfg.CNI.CallTimeout.Duration, Default: &network.Default{},
	})
	if err != nil {
		return nil, err
	}
	d.machine = effects.New(&effects.Deps{
		Root: cfg.Root, State: cfg.State, Images: d.images, Network: net,
		Shims:    shims.NewManager(&shims.Options{Binary: shimPath, SocketDir: filepath.Join(cfg.State, "s")}),
		Handlers: handlers, Default: cfg.DefaultRuntime, Drain: cfg.Timeouts.ExitDrain.Duration,
		Log:    stdio.LogOptions{MaxLine: cfg.Logs.MaxLineSize, MaxSize: cfg.Logs.MaxSize, MaxFiles: cfg.Logs.MaxFiles, Rate: cfg.Logs.Rate},
		Logger: slog.Default(),
	})
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		return nil, fmt.Errorf("read the boot id: %w", err)
	}
	if d.keeper, err = keeper.New(&keeper.Options{
		Journals: filepath.Join(cfg.Root, "journal"), Machine: d.machine, BootID: strings.TrimSpace(string(boot)),
		DecodePod: decoder[record.Pod], DecodeContainer: decoder[record.Container],
	}); err != nil {
		return nil, err
	}
	d.closers = append(d.closers, d.keeper.Close)
	if d.stream, err = streams(cfg); err != nil {
		return nil, err
	}
	d.closers = append(d.closers, d.stream.Stop)
	collector := stats.New(&stats.Options{Pods: d.keeper, Layer: d.images.RootfsUsage, Storage: filepath.Join(cfg.Root, "images")})
	d.metrics = newMetrics(d.keeper)
	d.cri = &cri.Deps{
		Keeper: d.keeper, Images: d.images, Streams: d.stream, Stats: collector, Network: net, Host: host,
		Handlers: fronts, Default: cfg.DefaultRuntime, CgroupDriver: cfg.Driver(), Version: version.Version,
		Root: cfg.Root, State: cfg.State, Config: cfg, Log: slog.Default(),
	}
	return d, nil
}

// handlers are the configured runtime handlers, for the effects and for the
// front. The runtimes are asked what they can do, side by side.
func handlers(ctx context.Context, cfg *config.Config, host *ocispec.Host) (map[string]*effects.Handler, []cri.Handler, error) {
	out := map[string]*effects.Handler{}
	var fronts []cri.Handler
	for name, r := range cfg.Runtimes {
		if r.Kind != config.KindProcess {
			return nil, nil, fmt.Errorf("runtimes.%s.kind: this version has no %q pods: use %q", name, r.Kind, config.KindProcess)
		}
		path, err := cfg.RuntimePath(name)
		if err != nil {
			return nil, nil, err
		}
		f, err := runtimeFeatures(ctx, path)
		if err != nil {
			return nil, nil, fmt.Errorf("runtimes.%s: %w", name, err)
		}
		if err := os.MkdirAll(cfg.RuntimeRoot(name), 0o700); err != nil {
			return nil, nil, fmt.Errorf("runtimes.%s: create the runtime's folder: %w", name, err)
		}
		h := host.Limit(f)
		out[name] = &effects.Handler{
			Runtime: path, Root: cfg.RuntimeRoot(name), Systemd: cfg.SystemdCgroup(name), Host: h, CNIConfDir: r.CNIConfDir,
		}
		fronts = append(fronts, cri.Handler{Name: name, Kind: r.Kind, RecursiveReadOnly: h.RecursiveReadOnly, UserNamespaces: h.IDMap})
	}
	return out, fronts, nil
}

// runtimeFeatures asks an OCI runtime what it can do; nil when it does not know
// the question.
func runtimeFeatures(ctx context.Context, path string) (*features.Features, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	b, err := exec.CommandContext(ctx, path, "features").Output()
	var exit *exec.ExitError
	if errors.As(err, &exit) && ctx.Err() == nil {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ask %s for its features: %w", path, err)
	}
	f := &features.Features{}
	if err := json.Unmarshal(b, f); err != nil {
		return nil, fmt.Errorf("read the features of %s: %w", path, err)
	}
	return f, nil
}

func streams(cfg *config.Config) (*stream.Server, error) {
	o := &stream.Options{
		Address:     cfg.Stream.Endpoint(),
		IdleTimeout: cfg.Stream.IdleTimeout.Duration, CreationTimeout: cfg.Stream.CreationTimeout.Duration,
		Drain: cfg.Timeouts.ExecDrain.Duration,
	}
	if cfg.Stream.CertFile != "" {
		t, err := stream.TLS(cfg.Stream.CertFile, cfg.Stream.KeyFile, cfg.Stream.ClientCAFile)
		if err != nil {
			return nil, err
		}
		o.TLS = t
	}
	return stream.New(o)
}

// decoder reads a record of the journal.
func decoder[T any](b json.RawMessage) (any, error) {
	v := new(T)
	if err := json.Unmarshal(b, v); err != nil {
		return nil, err
	}
	return v, nil
}

func ownOOMScoreAdj() (int, error) {
	b, err := os.ReadFile("/proc/self/oom_score_adj")
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(b)))
}
