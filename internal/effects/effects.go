// Package effects takes from the machine what a pod needs, and gives it back:
// it is the keeper's Machine. One file a resource, each with Take, Probe and
// Give, which can all be repeated and interrupted.
//
//	dir.go         folders, /etc files, /dev/shm
//	namespaces.go  pinned namespaces
//	network.go     addresses, by CNI
//	shim.go        the shim process, and the watch of it
//	rootfs.go      a container's root file system, volumes and OCI bundle
//	task.go        a container's processes
//
// It knows CRI's configs (internal/record) and joins the services for images,
// networks, namespaces and shims. Only cmd/berthd imports it.
package effects

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"path/filepath"
	"time"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/keeper"
	"berth/internal/network"
	"berth/internal/ocispec"
	"berth/internal/pod"
	"berth/internal/record"
	"berth/internal/shims"
	"berth/internal/stdio"
)

// Handler is how pods of a runtime handler are run.
type Handler struct {
	// Runtime is the OCI runtime's binary, absolute; Root where it keeps its state.
	Runtime, Root string
	// Systemd: it drives cgroups through systemd.
	Systemd bool
	// Host is what the machine and the runtime can do together.
	Host *ocispec.Host
	// CNIConfDir replaces the network's, if not empty.
	CNIConfDir string
	// PrivilegedWithoutHostDevices as in containerd.
	PrivilegedWithoutHostDevices bool
}

// Deps are what effects work with.
type Deps struct {
	// Root outlives a reboot, State does not.
	Root, State string
	Images      *image.Service
	Network     *network.Service
	Shims       *shims.Manager
	Handlers    map[string]*Handler // by name
	Default     string              // the handler of pods that name none
	// DefaultSeccomp: see ocispec.Request.
	DefaultSeccomp bool
	// Drain is how long a container's output may outlast its exit.
	Drain time.Duration
	// Log is the template of all container logs; Path is filled in.
	Log    stdio.LogOptions
	Logger *slog.Logger
}

// Machine implements keeper.Machine.
type Machine struct {
	d         *Deps
	resources map[pod.Resource]keeper.Resource
}

// New returns the machine.
func New(d *Deps) *Machine {
	m := &Machine{d: d}
	m.resources = map[pod.Resource]keeper.Resource{
		pod.Dir:        &dir{m},
		pod.Namespaces: &pinned{m},
		pod.Network:    &addresses{m},
		pod.Shim:       &shim{m},
		pod.Rootfs:     &rootfs{m},
		pod.Task:       &task{m},
	}
	return m
}

// Resource implements keeper.Machine.
func (m *Machine) Resource(r pod.Resource) keeper.Resource { return m.resources[r] }

// persistent, runtime and bundle are a pod's folders: what outlives a reboot,
// what does not, and a container's OCI bundle.
func (m *Machine) persistent(pod string) string { return filepath.Join(m.d.Root, "pods", pod) }
func (m *Machine) runtime(pod string) string    { return filepath.Join(m.d.State, "pods", pod) }
func (m *Machine) bundle(pod, container string) string {
	return filepath.Join(m.runtime(pod), "containers", container)
}

// handler is the pod's handler.
func (m *Machine) handler(j *keeper.Job) (*Handler, error) {
	name := j.Pod.Handler
	if name == "" {
		name = m.d.Default
	}
	h := m.d.Handlers[name]
	if h == nil {
		return nil, fmt.Errorf("runtime handler %q is not configured: %w", name, errdefs.ErrNotFound)
	}
	return h, nil
}

func podConfig(j *keeper.Job) (*runtime.PodSandboxConfig, error) {
	r, ok := j.Pod.Decoded.(*record.Pod)
	if !ok {
		return nil, fmt.Errorf("the config of pod %s cannot be read: %w", j.Pod.ID, errdefs.ErrDataLoss)
	}
	return r.Config, nil
}

func containerRecord(j *keeper.Job) (*record.Container, error) {
	r, ok := j.Container.Decoded.(*record.Container)
	if !ok {
		return nil, fmt.Errorf("the config of container %s cannot be read: %w", j.Container.ID, errdefs.ErrDataLoss)
	}
	return r, nil
}

// holding decodes what another resource left in the pod's ledger.
func holding[T any](m map[pod.Resource]pod.Holding, r pod.Resource) (*T, error) {
	h := m[r]
	if h.Phase != pod.Held {
		return nil, fmt.Errorf("%s is not held: %w", r, errdefs.ErrFailedPrecondition)
	}
	return decode[T](h.Data)
}

func decode[T any](b json.RawMessage) (*T, error) {
	v := new(T)
	if err := json.Unmarshal(b, v); err != nil {
		return nil, fmt.Errorf("read the ledger: %w", err)
	}
	return v, nil
}

func taken(v any) (*keeper.Taken, error) {
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("write the ledger: %w", err)
	}
	return &keeper.Taken{Data: b, At: time.Now()}, nil
}

// hostNetwork, hostIPC and sharedPID tell what the pod shares.
func nsOptions(c *runtime.PodSandboxConfig) *runtime.NamespaceOption {
	return c.GetLinux().GetSecurityContext().GetNamespaceOptions()
}

func hostNetwork(c *runtime.PodSandboxConfig) bool {
	return nsOptions(c).GetNetwork() == runtime.NamespaceMode_NODE
}

func hostIPC(c *runtime.PodSandboxConfig) bool {
	return nsOptions(c).GetIpc() == runtime.NamespaceMode_NODE
}

func sharedPID(c *runtime.PodSandboxConfig) bool {
	return nsOptions(c).GetPid() == runtime.NamespaceMode_POD
}
