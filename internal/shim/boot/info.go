//go:build linux

package boot

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"time"

	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/runc/options"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	runtimeName = "io.containerd.berth.v1"
	// featuresType names OCI runtime features in an Any, as containerd does.
	featuresType = "types.containerd.io/opencontainers/runtime-spec/1/features/Features"
	featuresWait = 10 * time.Second
)

// info answers what the runtime can. The options on stdin choose it.
func info(cfg *Config, stdin io.Reader, stdout io.Writer) error {
	in, err := io.ReadAll(io.LimitReader(stdin, maxInput))
	if err != nil {
		return fmt.Errorf("read options: %w", err)
	}
	out := &types.RuntimeInfo{Name: runtimeName, Version: &types.RuntimeVersion{Version: cfg.Version}}
	var (
		o options.Options
		a anypb.Any
	)
	if len(in) > 0 && proto.Unmarshal(in, &a) == nil && a.MessageIs(&o) {
		if err := proto.Unmarshal(a.Value, &o); err != nil {
			return fmt.Errorf("runtime options: %w", err)
		}
		out.Options = &a
	}
	path, err := findRuntime(o.BinaryName)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), featuresWait)
	defer cancel()
	// A runtime without the command has features that nobody knows.
	if b, err := exec.CommandContext(ctx, path, "features").Output(); err == nil && json.Valid(b) {
		out.Features = &anypb.Any{TypeUrl: featuresType, Value: bytes.TrimSpace(b)}
	}
	b, err := proto.Marshal(out)
	if err != nil {
		return err
	}
	_, err = stdout.Write(b)
	return err
}

// findRuntime is the absolute path of a runtime binary; "" is runc.
func findRuntime(name string) (string, error) {
	if name == "" {
		name = "runc"
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find runtime: %w", err)
	}
	return path, nil
}
