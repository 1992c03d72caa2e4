package cri

import (
	"context"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/network"
)

// Images is what the front needs of an image.Service. Get and List answer from
// memory.
type Images interface {
	Get(ctx context.Context, ref string) (*image.Image, error)
	List(ctx context.Context) []*image.Image
	Pull(ctx context.Context, ref string, o *image.PullOptions) (*image.Image, error)
	Remove(ctx context.Context, ref string) error
	Usage(ctx context.Context) (*image.Usage, error)
}

// Streams is what the front needs of a stream.Server. The ids that it is given
// are full ids of what runs.
type Streams interface {
	Exec(*runtime.ExecRequest) (*runtime.ExecResponse, error)
	Attach(*runtime.AttachRequest) (*runtime.AttachResponse, error)
	PortForward(*runtime.PortForwardRequest) (*runtime.PortForwardResponse, error)
	ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (*runtime.ExecSyncResponse, error)
}

// Stats is what the front needs of a stats.Collector. It asks no shim.
type Stats interface {
	Container(ctx context.Context, id string) (*runtime.ContainerStats, error)
	Pod(ctx context.Context, id string) (*runtime.PodSandboxStats, error)
	Metrics(ctx context.Context) ([]*runtime.PodSandboxMetrics, error)
	Descriptors() []*runtime.MetricDescriptor
}

// Network is what the front needs of a network.Service.
type Network interface {
	Status(ctx context.Context) error
	SetPodCIDR(cidrs string) error
	Info() *network.Info
}
