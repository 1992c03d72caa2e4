package cri

import (
	"fmt"
	"log/slog"

	"google.golang.org/grpc"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/keeper"
	"berth/internal/ocispec"
)

// maxMessage bounds what a client may send, in bytes: what the kubelet and
// containerd allow each other.
const maxMessage = 16 << 20

// Deps is what the front stands on.
type Deps struct {
	Keeper  keeper.API
	Images  Images
	Streams Streams
	Stats   Stats
	Network Network
	// Host is what this machine can do.
	Host *ocispec.Host

	// Handlers are the configured runtime handlers; Default is the name of the
	// one that an empty handler means.
	Handlers []Handler
	Default  string
	// CgroupDriver is "cgroupfs" or "systemd". The kubelet asks once: it must
	// not change while the kubelet lives.
	CgroupDriver string
	// Version of berthd: semver, as CRI asks.
	Version string
	// Root and State are berthd's folders; Config is its configuration, for
	// Status' verbose info. It is marshalled as JSON.
	Root, State string
	Config      any
	Log         *slog.Logger
}

// Handler is a runtime handler and what it can do.
type Handler struct {
	Name string
	Kind string // "process" or "vm"
	// RecursiveReadOnly: the kernel and the runtime binary know rro mounts.
	RecursiveReadOnly bool
	// UserNamespaces: user namespaces and idmapped mounts work.
	UserNamespaces bool
}

// Service answers CRI. It has no lock: all that changes is elsewhere.
type Service struct {
	// A call that is missing must not compile.
	runtime.UnsafeRuntimeServiceServer
	runtime.UnsafeImageServiceServer

	d        *Deps
	keeper   keeper.API
	images   Images
	log      *slog.Logger
	handlers map[string]*Handler
}

// New checks d and returns the service.
func New(d *Deps) (*Service, error) {
	s := &Service{d: d, keeper: d.Keeper, images: d.Images, log: d.Log, handlers: map[string]*Handler{}}
	if s.log == nil {
		s.log = slog.Default()
	}
	for i := range d.Handlers {
		s.handlers[d.Handlers[i].Name] = &d.Handlers[i]
	}
	if s.handlers[d.Default] == nil {
		return nil, fmt.Errorf("the default runtime %q is not among the handlers", d.Default)
	}
	return s, nil
}

// ServerOptions are what a gRPC server for this service needs: the border,
// where errors become codes, and the size of messages.
func (s *Service) ServerOptions() []grpc.ServerOption {
	return []grpc.ServerOption{
		grpc.ChainUnaryInterceptor(s.unaryBorder),
		grpc.ChainStreamInterceptor(s.streamBorder),
		grpc.MaxRecvMsgSize(maxMessage),
	}
}

// Register adds both CRI services to g, which must have been made with
// ServerOptions.
func (s *Service) Register(g *grpc.Server) {
	runtime.RegisterRuntimeServiceServer(g, s)
	runtime.RegisterImageServiceServer(g, s)
}

// handler finds the handler that a request names; "" is the default one.
func (s *Service) handler(field, name string) (*Handler, error) {
	if name == "" {
		name = s.d.Default
	}
	h := s.handlers[name]
	if h == nil {
		return nil, invalid(field, "%q is not configured", name)
	}
	return h, nil
}
