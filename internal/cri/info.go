package cri

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"

	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/network"
	"berth/internal/pod"
)

// infoKey is the key of verbose info under which tools look for JSON.
const infoKey = "info"

// maxSpec bounds what is read of a bundle's config.json, in bytes.
const maxSpec = 16 << 20

// The fields of both are those of containerd's, as far as they mean something
// here: tools read pid, runtimeSpec and config out of them.
type podInformation struct {
	Pid            int                              `json:"pid"`
	ProcessStatus  string                           `json:"processStatus"`
	NetNSClosed    bool                             `json:"netNamespaceClosed"`
	RuntimeHandler string                           `json:"runtimeHandler"`
	RuntimeType    string                           `json:"runtimeType"`
	Config         *runtime.PodSandboxConfig        `json:"config"`
	RuntimeSpec    *specs.Spec                      `json:"runtimeSpec"`
	CNIResult      json.RawMessage                  `json:"cniResult,omitempty"`
	Overhead       *runtime.LinuxContainerResources `json:"overhead,omitempty"`
	Resources      *runtime.LinuxContainerResources `json:"resources,omitempty"`
	Reason         string                           `json:"reason,omitempty"`
	Trouble        string                           `json:"trouble,omitempty"`
	Holdings       map[pod.Resource]json.RawMessage `json:"holdings"`
}

type containerInformation struct {
	SandboxID   string                   `json:"sandboxID"`
	Pid         int                      `json:"pid"`
	Removing    bool                     `json:"removing"`
	SnapshotKey string                   `json:"snapshotKey"`
	RuntimeType string                   `json:"runtimeType"`
	Config      *runtime.ContainerConfig `json:"config"`
	RuntimeSpec *specs.Spec              `json:"runtimeSpec"`
	CgroupsPath string                   `json:"cgroupsPath,omitempty"`
	Bundle      string                   `json:"bundle,omitempty"`
}

// runtimeType is what containerd's tools call the shim.
const runtimeType = "io.berth.v1"

func info(v any, err error) (map[string]string, error) {
	if err != nil {
		return nil, err
	}
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode verbose info: %w", err)
	}
	return map[string]string{infoKey: string(b)}, nil
}

// podInfo makes up a runtime spec with the pod's namespaces: that is where tools
// look for the path of its network namespace.
func podInfo(p *keeper.Pod) (*podInformation, error) {
	i := &podInformation{
		Pid:            podPid(p),
		ProcessStatus:  "running",
		NetNSClosed:    !p.Traits.HostNetwork && p.Holdings[pod.Namespaces].Phase != pod.Held,
		RuntimeHandler: p.Handler,
		RuntimeType:    runtimeType,
		Config:         podConfig(p),
		RuntimeSpec:    &specs.Spec{Version: specs.Version, Hostname: podConfig(p).Hostname, Linux: &specs.Linux{Namespaces: namespaces(p)}},
		CNIResult:      cniResult(p),
		Reason:         p.Reason,
		Trouble:        p.Trouble,
		Holdings:       map[pod.Resource]json.RawMessage{},
	}
	if p.Holdings[pod.Shim].Phase != pod.Held {
		i.ProcessStatus = "deleted"
	}
	i.Overhead, i.Resources = decodePodResources(p.State.Resources)
	for r, h := range p.Holdings {
		if h.Phase == pod.Held {
			i.Holdings[r] = h.Data
		}
	}
	return i, nil
}

// cniResult is what the plugins answered.
func cniResult(p *keeper.Pod) json.RawMessage {
	var r network.Result
	if h := p.Holdings[pod.Network]; h.Phase != pod.Held || json.Unmarshal(h.Data, &r) != nil {
		return nil
	}
	return r.Raw
}

// podPid is a process that has the pod's network namespace: the one that holds
// its PID namespace, or a container's; 0 when there is none. The shim is not: it
// lives in the host's namespaces.
func podPid(p *keeper.Pod) int {
	var shim struct{ HolderPid int }
	if h := p.Holdings[pod.Shim]; h.Phase == pod.Held && json.Unmarshal(h.Data, &shim) == nil && shim.HolderPid > 0 {
		return shim.HolderPid
	}
	for _, c := range p.Containers {
		if c.Status() == pod.ContainerStateRunning {
			return c.Pid
		}
	}
	return 0
}

func namespaces(p *keeper.Pod) []specs.LinuxNamespace {
	var paths struct{ Net, IPC, UTS, User string }
	if h := p.Holdings[pod.Namespaces]; h.Phase != pod.Held || json.Unmarshal(h.Data, &paths) != nil {
		return nil
	}
	var out []specs.LinuxNamespace
	for _, n := range []specs.LinuxNamespace{
		{Type: specs.NetworkNamespace, Path: paths.Net},
		{Type: specs.IPCNamespace, Path: paths.IPC},
		{Type: specs.UTSNamespace, Path: paths.UTS},
		{Type: specs.UserNamespace, Path: paths.User},
	} {
		if n.Path != "" {
			out = append(out, n)
		}
	}
	return out
}

// containerInfo reads the container's spec from its bundle, which is on berthd's
// own state folder, in memory.
func containerInfo(p *keeper.Pod, c *keeper.Container) (*containerInformation, error) {
	fs := rootfs(c)
	i := &containerInformation{
		SandboxID:   p.ID,
		Removing:    c.Removing,
		SnapshotKey: fs.Snapshot,
		RuntimeType: runtimeType,
		Config:      containerRecord(c).Config,
		CgroupsPath: fs.CgroupsPath,
		Bundle:      fs.Bundle,
	}
	if c.Status() == pod.ContainerStateRunning {
		i.Pid = c.Pid
	}
	if fs.Bundle == "" {
		return i, nil
	}
	var err error
	i.RuntimeSpec, err = readSpec(fs.Bundle)
	if errors.Is(err, os.ErrNotExist) {
		err = nil // given back meanwhile, or lost with a reboot
	}
	return i, err
}

// readSpec reads a bundle's spec.
func readSpec(bundle string) (*specs.Spec, error) {
	f, err := os.Open(filepath.Join(bundle, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	defer f.Close()
	s := &specs.Spec{}
	b, err := io.ReadAll(io.LimitReader(f, maxSpec))
	if err == nil {
		err = json.Unmarshal(b, s)
	}
	if err != nil {
		return nil, fmt.Errorf("read the container's spec: %w", err)
	}
	return s, nil
}
