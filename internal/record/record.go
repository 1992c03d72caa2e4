// Package record is what berthd keeps of a pod's and a container's config, and
// what the effects leave in the ledger for others to read. The journal holds
// these records as JSON; the CRI front writes them, the effects act on them.
//
// Messages of CRI are kept in protobuf's JSON form, so that a journal can be
// read by people and an unknown field of a newer version does no harm.
package record

import (
	"encoding/json"
	"fmt"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Pod is a pod's record (keeper.PodRequest.Config).
type Pod struct {
	Config *runtime.PodSandboxConfig
}

// Container is a container's record (keeper.ContainerRequest.Config).
type Container struct {
	Config *runtime.ContainerConfig
	// ImageID is the image's id (sha256:…); ImageRef what the caller named.
	ImageID  string
	ImageRef string
	// LogPath is absolute, "" for none.
	LogPath string
	// StopSignal is the signal's name, config before image before SIGTERM.
	StopSignal string
	// ImageVolumes are the ids of images that the config mounts, by the
	// position in Config.Mounts.
	ImageVolumes map[int]string
}

// Rootfs is what pod.Rootfs holds (its ledger data).
type Rootfs struct {
	Bundle      string                      `json:"bundle"`      // OCI bundle: config.json and rootfs
	Rootfs      string                      `json:"rootfs"`      // where the root file system is mounted
	Snapshot    string                      `json:"snapshot"`    // its key in the snapshotter
	Volumes     string                      `json:"volumes"`     // folder of image VOLUMEs
	ImageMounts map[string]string           `json:"imageMounts"` // container path → where the image is mounted
	CgroupsPath string                      `json:"cgroupsPath"` // as in the OCI spec
	User        *runtime.LinuxContainerUser `json:"user,omitempty"`
}

var (
	marshal   = protojson.MarshalOptions{}
	unmarshal = protojson.UnmarshalOptions{DiscardUnknown: true}
)

type podJSON struct {
	Config json.RawMessage `json:"config"`
}

// MarshalJSON writes the CRI message in protobuf's JSON form.
func (p *Pod) MarshalJSON() ([]byte, error) {
	c, err := marshal.Marshal(p.Config)
	if err != nil {
		return nil, fmt.Errorf("encode pod config: %w", err)
	}
	return json.Marshal(&podJSON{Config: c})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (p *Pod) UnmarshalJSON(b []byte) error {
	var j podJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	p.Config = &runtime.PodSandboxConfig{}
	return decode(j.Config, p.Config)
}

type containerJSON struct {
	Config       json.RawMessage `json:"config"`
	ImageID      string          `json:"imageID"`
	ImageRef     string          `json:"imageRef,omitempty"`
	LogPath      string          `json:"logPath,omitempty"`
	StopSignal   string          `json:"stopSignal,omitempty"`
	ImageVolumes map[int]string  `json:"imageVolumes,omitempty"`
}

// MarshalJSON writes the CRI message in protobuf's JSON form.
func (c *Container) MarshalJSON() ([]byte, error) {
	cfg, err := marshal.Marshal(c.Config)
	if err != nil {
		return nil, fmt.Errorf("encode container config: %w", err)
	}
	return json.Marshal(&containerJSON{cfg, c.ImageID, c.ImageRef, c.LogPath, c.StopSignal, c.ImageVolumes})
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Container) UnmarshalJSON(b []byte) error {
	var j containerJSON
	if err := json.Unmarshal(b, &j); err != nil {
		return err
	}
	*c = Container{&runtime.ContainerConfig{}, j.ImageID, j.ImageRef, j.LogPath, j.StopSignal, j.ImageVolumes}
	return decode(j.Config, c.Config)
}

func decode(b []byte, m proto.Message) error {
	if err := unmarshal.Unmarshal(b, m); err != nil {
		return fmt.Errorf("decode %T: %w", m, err)
	}
	return nil
}
