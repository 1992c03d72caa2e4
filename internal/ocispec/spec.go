// Package ocispec turns what CRI says about a container into an OCI runtime
// spec. It promises that the same request gives the same spec, that a request
// it cannot honour is an error that names the CRI field (errdefs class
// InvalidArgument for the caller's mistakes, FailedPrecondition for what this
// host cannot do), and that nothing is left out silently where security is
// concerned: a profile that cannot be loaded is an error, never no profile.
//
// It knows nothing of running pods and mounts nothing. It reads the mounted
// root file system (through os.Root, so that an image's symlinks cannot lead
// out of it), fills image VOLUMEs, and has paths of the host that the caller
// names looked at by a child process that can be killed: see PathProber.
//
// Only what builds or updates containers may import it: cri, keeper's effects,
// and mains, which must call PathMain first.
package ocispec

import (
	"context"
	"fmt"
	"path"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// Files are the pod's own files that its containers see. An empty path means
// that the pod has no such file.
type Files struct {
	Hostname, Hosts, ResolvConf string
	// Shm is the pod's mounted /dev/shm. It is not used where the container
	// shares the host's IPC namespace: that one gets the host's /dev/shm.
	Shm string
}

// Request is all that Build needs to know.
type Request struct {
	PodID, ContainerID string
	Pod                *runtime.PodSandboxConfig
	Container          *runtime.ContainerConfig
	// Image is the image's config; nil for an image without any.
	Image *imagespec.ImageConfig
	// Rootfs is where the root file system is mounted. Absolute.
	Rootfs string
	// Namespaces are the files of the pod's namespaces, which the container
	// joins when CRI says POD. A namespace that is missing here is made new for
	// the container, except pid and user, which a pod that shares them must
	// have. TargetPIDNS is the PID namespace that is joined when CRI says TARGET: a
	// pinned file, for the spec is used later, when a pid may be another's.
	Namespaces  map[specs.LinuxNamespaceType]string
	TargetPIDNS string
	Files       Files
	// ImageVolumes says for the container path of each mount that names an image
	// where that image is mounted on the host (its root; sub-paths are applied
	// here), with ids already mapped for a user namespace.
	ImageVolumes map[string]string
	// VolumeDir is where directories for the image's VOLUMEs are made. It
	// belongs to this container.
	VolumeDir string
	// CgroupsPath, when not empty, is used as it is. Otherwise it is made from
	// the pod's cgroup parent, see CgroupsPath.
	CgroupsPath string
	// Systemd says that the runtime drives cgroups through systemd.
	Systemd bool
	// PrivilegedWithoutHostDevices keeps the host's devices out of privileged
	// containers.
	PrivilegedWithoutHostDevices bool
	// DefaultSeccomp gives containers for which CRI names no seccomp profile the
	// default one. Without it they run unconfined, as CRI says.
	DefaultSeccomp bool
	// Host is what this machine can do, from Probe.
	Host *Host
	// Paths looks at paths of the host; nil means the process's own prober, for
	// which main must have called PathMain.
	Paths PathProber
}

// builder carries one Build.
type builder struct {
	*Request
	sc         *runtime.LinuxContainerSecurityContext
	image      *imagespec.ImageConfig
	privileged bool
	uids, gids []specs.LinuxIDMapping // of the user namespace; nil without one
	mountLabel string
	paths      *preparedPaths
	spec       *specs.Spec
}

// Build makes the spec of a container. The spec's seccomp profile may be shared
// with other specs: change a copy, not the profile.
//
// Errors are InvalidArgument (the request), FailedPrecondition (this host or
// this pod cannot do it), DeadlineExceeded (a path of the host does not
// answer; the error names it) or what the file system said.
func Build(ctx context.Context, r *Request) (*specs.Spec, error) {
	if r.Host == nil {
		return nil, fmt.Errorf("build spec of container %q without a probed host: %w", r.ContainerID, errdefs.ErrFailedPrecondition)
	}
	if !path.IsAbs(r.Rootfs) {
		return nil, invalid("rootfs", "%q is not absolute", r.Rootfs)
	}
	if err := Validate(r.Pod, r.Container); err != nil {
		return nil, err
	}
	b := &builder{
		Request: r,
		sc:      r.Container.GetLinux().GetSecurityContext(),
		image:   r.Image,
		spec: &specs.Spec{
			Version: specs.Version,
			Root:    &specs.Root{Path: r.Rootfs},
			Process: &specs.Process{},
			Linux:   &specs.Linux{},
		},
	}
	if b.image == nil {
		b.image = &imagespec.ImageConfig{}
	}
	b.privileged = b.sc.GetPrivileged()
	var err error
	if b.uids, b.gids, err = IDMappings(b.podNamespaces()); err != nil {
		return nil, err
	}
	if err := b.labels(); err != nil {
		return nil, err
	}
	if err := b.preparePaths(ctx); err != nil {
		return nil, err
	}
	// Capabilities stand before seccomp, whose default profile depends on them;
	// namespaces before mounts and sysctls; CDI last, because what it adds to
	// env, hooks, mounts and devices must not be overwritten.
	for _, step := range []func(context.Context) error{
		b.process, b.user, b.capabilities, b.namespaces, b.sysctls, b.mounts,
		b.resources, b.devices, b.appArmor, b.seccomp, b.cdi,
	} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	b.spec.Root.Readonly = b.sc.GetReadonlyRootfs()
	b.maskPaths()
	b.spec.Annotations = b.annotations()
	return b.spec, nil
}

// invalid is an InvalidArgument error that names a CRI field.
func invalid(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrInvalidArgument)
}

// unsupported is a FailedPrecondition error that names a CRI field.
func unsupported(field, format string, args ...any) error {
	return fmt.Errorf("%s: %s: %w", field, fmt.Sprintf(format, args...), errdefs.ErrFailedPrecondition)
}
