//go:build linux

// Command containerd-shim-berth-v1 is the shim of Berth's pods: one process a
// pod, under berthd or under a stock containerd.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"berth/internal/host"
	"berth/internal/host/process"
	"berth/internal/shim"
	"berth/internal/shim/boot"
	"berth/internal/version"
)

func main() {
	os.Exit(boot.Main(os.Args[1:], &boot.Config{Version: version.Version, Host: newHost}))
}

func newHost(o *shim.HostOptions) (host.Host, error) {
	binary := o.Runtime
	if !filepath.IsAbs(binary) {
		if binary == "" {
			binary = "runc"
		}
		found, err := exec.LookPath(binary)
		if err != nil {
			return nil, fmt.Errorf("find runtime: %w", err)
		}
		if binary, err = filepath.Abs(found); err != nil {
			return nil, err
		}
	}
	return process.New(&process.Options{Runtime: binary, Root: o.Root, SystemdCgroup: o.SystemdCgroup})
}
