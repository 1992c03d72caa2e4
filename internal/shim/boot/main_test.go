//go:build linux

package boot

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// shimBinary is the shim, built once; runc and containerd (with ctr beside it) are
// the real ones.
var shimBinary, runc, containerd string

func TestMain(m *testing.M) {
	code, err := setUp(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUp(m *testing.M) (int, error) {
	for _, p := range []struct {
		path      *string
		name, env string
	}{{&runc, "runc", "BERTH_RUNC"}, {&containerd, "containerd", "BERTH_CONTAINERD"}} {
		if *p.path = os.Getenv(p.env); *p.path == "" {
			var err error
			if *p.path, err = exec.LookPath(p.name); err != nil {
				return 0, fmt.Errorf("set %s to a %s: %w", p.env, p.name, err)
			}
		}
	}
	dir, err := os.MkdirTemp("", "boot")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	shimBinary = filepath.Join(dir, "containerd-shim-berth-v1")
	build := exec.Command("go", "build", "-trimpath", "-ldflags=-s -w", "-tags", "no_grpc", "-o", shimBinary, "berth/cmd/containerd-shim-berth-v1")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build the shim: %w\n%s", err, out)
	}
	return m.Run(), nil
}
