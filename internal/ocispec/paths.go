package ocispec

import (
	"context"

	"github.com/opencontainers/runtime-spec/specs-go"
)

// PathUse says what a path of the host is wanted for.
type PathUse string

const (
	// UseMount: made as a directory if nothing is there, symlinks resolved.
	UseMount PathUse = "mount"
	// UseDevice: a device node, or a folder of them.
	UseDevice PathUse = "device"
	// UseFile: a regular file, read whole.
	UseFile PathUse = "file"
)

// HostPath is a path of the host that a caller named. It may be on a file
// system that hangs.
type HostPath struct {
	// Field is the CRI field, for errors.
	Field string  `json:"field"`
	Path  string  `json:"path"`
	Use   PathUse `json:"use"`
	// Propagation asks for the propagation of the mount that Path is on.
	Propagation bool `json:"propagation,omitempty"`
	// Label, if any, is the SELinux label to give Path and all below it.
	Label string `json:"label,omitempty"`
	// Target is the device's path in the container.
	Target string `json:"target,omitempty"`
	// MaxSize bounds a file, in bytes.
	MaxSize int64 `json:"maxSize,omitempty"`
}

// PathInfo is what was found at a HostPath.
type PathInfo struct {
	// Source is the path without symlinks.
	Source string `json:"source"`
	// MountPoint is where the mount is that Source is on; Shared and Slave are
	// its propagation. Set when it was asked for.
	MountPoint string `json:"mountPoint,omitempty"`
	Shared     bool   `json:"shared,omitempty"`
	Slave      bool   `json:"slave,omitempty"`
	// Devices are the device nodes, with paths in the container.
	Devices []specs.LinuxDevice `json:"devices,omitempty"`
	// Data is the file's content.
	Data []byte `json:"data,omitempty"`
}

// PathProber looks at paths of the host, which may hang. It answers for all
// paths in order, or fails; the error names field and path. A path that does
// not answer in time is DeadlineExceeded.
type PathProber interface {
	Prepare(context.Context, []HostPath) ([]PathInfo, error)
}
