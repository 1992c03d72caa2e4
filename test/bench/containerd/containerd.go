//go:build tools

// Package containerd pins, in its go.mod, the containerd that Berth is compared
// with and tested under. Nothing imports this.
package containerd

import (
	_ "github.com/containerd/containerd/v2/cmd/containerd"
	_ "github.com/containerd/containerd/v2/cmd/containerd-shim-runc-v2"
	_ "github.com/containerd/containerd/v2/cmd/ctr"
)
