package cri

import (
	"context"
	"encoding/json"
	"slices"
	"strings"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/image"
	"berth/internal/keeper"
	"berth/internal/pod"
	"berth/internal/record"
)

// Reasons of ended containers for which the keeper knows no better one. The
// kubelet compares them as they are.
const (
	reasonCompleted = "Completed"
	reasonError     = "Error"
)

func containerState(c *keeper.Container) runtime.ContainerState {
	switch c.Status() {
	case pod.ContainerStateCreated:
		return runtime.ContainerState_CONTAINER_CREATED
	case pod.ContainerStateRunning:
		return runtime.ContainerState_CONTAINER_RUNNING
	case pod.ContainerStateExited:
		return runtime.ContainerState_CONTAINER_EXITED
	}
	return runtime.ContainerState_CONTAINER_UNKNOWN
}

// translator makes messages of containers. It looks each image up once, so one
// is made for each call that lists; it is not for use by two goroutines.
type translator struct {
	ctx    context.Context
	images Images
	seen   map[string]*image.Image
}

func (s *Service) translator(ctx context.Context) *translator {
	return &translator{ctx: ctx, images: s.images, seen: map[string]*image.Image{}}
}

// item is c as lists have it.
func (t *translator) item(c *keeper.Container) *runtime.Container {
	r := containerRecord(c)
	spec, ref := t.image(r)
	return &runtime.Container{
		Id:           c.ID,
		PodSandboxId: c.PodID,
		Metadata:     r.Config.Metadata,
		Image:        spec,
		ImageRef:     ref,
		ImageId:      r.ImageID,
		State:        containerState(c),
		CreatedAt:    nanos(c.CreatedAt),
		Labels:       r.Config.Labels,
		Annotations:  r.Config.Annotations,
	}
}

// statuses are all containers of p that a client may see.
func (t *translator) statuses(p *keeper.Pod) []*runtime.ContainerStatus {
	var out []*runtime.ContainerStatus
	for _, c := range p.Containers {
		if c.IsCreated() {
			out = append(out, t.status(c))
		}
	}
	return out
}

// status is c in full.
func (t *translator) status(c *keeper.Container) *runtime.ContainerStatus {
	r := containerRecord(c)
	spec, ref := t.image(r)
	st := &runtime.ContainerStatus{
		Id:          c.ID,
		Metadata:    r.Config.Metadata,
		State:       containerState(c),
		CreatedAt:   nanos(c.CreatedAt),
		StartedAt:   nanos(c.StartedAt),
		Image:       spec,
		ImageRef:    ref,
		ImageId:     r.ImageID,
		Message:     c.Message,
		Labels:      r.Config.Labels,
		Annotations: r.Config.Annotations,
		Mounts:      mounts(r),
		LogPath:     r.LogPath,
		User:        &runtime.ContainerUser{Linux: rootfs(c).User},
	}
	if v, ok := parseSignal(r.StopSignal); ok {
		st.StopSignal = v
	}
	if l := linuxResources(c, r); l != nil {
		st.Resources = &runtime.ContainerResources{Linux: l}
	}
	if st.State == runtime.ContainerState_CONTAINER_EXITED {
		st.FinishedAt = nanos(c.FinishedAt)
		st.ExitCode = c.ExitCode
		st.Reason = c.Reason
		switch {
		case st.Reason != "":
		case c.ExitCode == 0:
			st.Reason = reasonCompleted
		default:
			st.Reason = reasonError
		}
	}
	return st
}

// image is how the container's image is called: the name that the caller used
// if the image has it, else its first one; and the digest under the same name.
// Where the image has no names (any more), both are its id.
func (t *translator) image(r *record.Container) (spec *runtime.ImageSpec, ref string) {
	img, ok := t.seen[r.ImageID]
	if !ok {
		img, _ = t.images.Get(t.ctx, r.ImageID) // not there any more: nil
		t.seen[r.ImageID] = img
	}
	asked := r.Config.GetImage()
	if img == nil {
		return asked, r.ImageID
	}
	name := pick(img.Tags, r.ImageRef, "")
	if ref = pick(img.Digests, r.ImageRef, repository(name)+"@"); ref == "" {
		ref = r.ImageID
	}
	if name == "" {
		return asked, ref
	}
	return &runtime.ImageSpec{
		Image:              name,
		Annotations:        asked.GetAnnotations(),
		UserSpecifiedImage: asked.GetUserSpecifiedImage(),
		RuntimeHandler:     asked.GetRuntimeHandler(),
	}, ref
}

// pick chooses one of a thing's names: the one that was asked for, else the
// first with a prefix, else the first.
func pick(names []string, asked, prefix string) string {
	if slices.Contains(names, asked) {
		return asked
	}
	for _, n := range names {
		if strings.HasPrefix(n, prefix) {
			return n
		}
	}
	if len(names) > 0 {
		return names[0]
	}
	return ""
}

// repository is a name without its tag.
func repository(name string) string {
	if i := strings.LastIndexByte(name, ':'); i > strings.LastIndexByte(name, '/') {
		return name[:i]
	}
	return name
}

// mounts are the config's. A mount of an image says which image it was: the
// kubelet reports it like a container's image id.
func mounts(r *record.Container) []*runtime.Mount {
	if len(r.ImageVolumes) == 0 {
		return r.Config.Mounts
	}
	out := make([]*runtime.Mount, len(r.Config.Mounts))
	for i, m := range r.Config.Mounts {
		if id, ok := r.ImageVolumes[i]; ok {
			m = proto.CloneOf(m)
			m.Image.ImageRef = id
		}
		out[i] = m
	}
	return out
}

// linuxResources are the last ones that were set.
func linuxResources(c *keeper.Container, r *record.Container) *runtime.LinuxContainerResources {
	if len(c.Resources) > 0 {
		l := &runtime.LinuxContainerResources{}
		if (protojson.UnmarshalOptions{DiscardUnknown: true}).Unmarshal(c.Resources, l) == nil {
			return l
		}
	}
	return r.Config.GetLinux().GetResources()
}

// rootfs is what the ledger says about the container's root file system; empty
// when it has none.
func rootfs(c *keeper.Container) *record.Rootfs {
	r := &record.Rootfs{}
	if h := c.Holdings[pod.Rootfs]; h.Phase == pod.Held && json.Unmarshal(h.Data, r) != nil {
		return &record.Rootfs{}
	}
	return r
}
