package shim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/containerd/errdefs"
)

// BundleStateFile is what the shim leaves in a stock bundle for the delete
// command, which must clean up when the shim is dead.
const BundleStateFile = "berth.json"

// BundleState is its content.
type BundleState struct {
	Options HostOptions `json:"options"`
	Socket  string      `json:"socket,omitempty"` // of the shim
	Pid     int         `json:"pid,omitempty"`    // of the init, once there is one
}

// WriteBundleState puts s into a bundle, whole or not at all. It need not
// outlive the machine: bundles do not.
func WriteBundleState(bundle string, s *BundleState) error {
	b, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode %s: %w", BundleStateFile, err)
	}
	path := filepath.Join(bundle, BundleStateFile)
	if err := os.WriteFile(path+".new", b, 0o600); err != nil {
		return fmt.Errorf("note runtime in bundle: %w", err)
	}
	if err := os.Rename(path+".new", path); err != nil {
		return fmt.Errorf("note runtime in bundle: %w", err)
	}
	return nil
}

// ReadBundleState reads it. NotFound when the shim never came to write it.
func ReadBundleState(bundle string) (*BundleState, error) {
	b, err := os.ReadFile(filepath.Join(bundle, BundleStateFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("bundle %s has no %s: %w", bundle, BundleStateFile, errdefs.ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("read runtime from bundle: %w", err)
	}
	s := &BundleState{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read runtime from bundle %s: %w: %w", bundle, errdefs.ErrDataLoss, err)
	}
	return s, nil
}
