package shim

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
)

// bundleSpec is the little of a bundle's config.json that a shim must know. The
// rest is the runtime's.
type bundleSpec struct {
	Process struct {
		Terminal bool `json:"terminal"`
		User     struct {
			UID uint32 `json:"uid"`
			GID uint32 `json:"gid"`
		} `json:"user"`
	} `json:"process"`
	Linux struct {
		Namespaces  []specs.LinuxNamespace `json:"namespaces"`
		UIDMappings []specs.LinuxIDMapping `json:"uidMappings"`
		GIDMappings []specs.LinuxIDMapping `json:"gidMappings"`
	} `json:"linux"`
}

// maxSpec bounds a config.json.
const maxSpec = 16 << 20

func readBundle(dir string) (*bundleSpec, error) {
	path := filepath.Join(dir, "config.json")
	if st, err := os.Stat(path); err == nil && st.Size() > maxSpec {
		return nil, fmt.Errorf("%s has %d bytes, allowed are %d: %w", path, st.Size(), maxSpec, errdefs.ErrInvalidArgument)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read bundle: %w", err)
	}
	s := &bundleSpec{}
	if err := json.Unmarshal(b, s); err != nil {
		return nil, fmt.Errorf("read bundle %s: %w: %w", path, errdefs.ErrInvalidArgument, err)
	}
	return s, nil
}

// privatePID tells whether the container has a pid namespace of its own, which
// the kernel empties when its init ends.
func (s *bundleSpec) privatePID() bool {
	for _, ns := range s.Linux.Namespaces {
		if ns.Type == specs.PIDNamespace {
			return ns.Path == ""
		}
	}
	return false
}

// owner is the host id of the container's user.
func (s *bundleSpec) owner() (uid, gid int) {
	return hostID(s.Process.User.UID, s.Linux.UIDMappings), hostID(s.Process.User.GID, s.Linux.GIDMappings)
}

func hostID(id uint32, maps []specs.LinuxIDMapping) int {
	for _, m := range maps {
		if id >= m.ContainerID && id-m.ContainerID < m.Size {
			return int(m.HostID + (id - m.ContainerID))
		}
	}
	return int(id)
}

// safeID tells whether an id can name a file and be an argument.
func safeID(id string) bool {
	return id != "" && len(id) <= 255 && id[0] != '.' && id[0] != '-' && !strings.ContainsAny(id, "/\\\x00")
}
