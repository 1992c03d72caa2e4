package ocispec

// Keys of OCI annotations by which tools, and shims that are not ours, know a
// pod's containers. They are containerd's.
const (
	annotationType          = "io.kubernetes.cri.container-type"
	annotationSandboxID     = "io.kubernetes.cri.sandbox-id"
	annotationSandboxName   = "io.kubernetes.cri.sandbox-name"
	annotationSandboxNS     = "io.kubernetes.cri.sandbox-namespace"
	annotationSandboxUID    = "io.kubernetes.cri.sandbox-uid"
	annotationContainerName = "io.kubernetes.cri.container-name"
	annotationImageName     = "io.kubernetes.cri.image-name"
)

// annotations are the spec's annotations. Those of the pod and the container
// stay out: CRI says that they should not influence what the runtime does.
func (b *builder) annotations() map[string]string {
	pod := b.Pod.GetMetadata()
	image := b.Container.GetImage().GetUserSpecifiedImage()
	if image == "" {
		image = b.Container.GetImage().GetImage()
	}
	a := map[string]string{
		annotationType:          "container",
		annotationSandboxID:     b.PodID,
		annotationSandboxName:   pod.GetName(),
		annotationSandboxNS:     pod.GetNamespace(),
		annotationSandboxUID:    pod.GetUid(),
		annotationContainerName: b.Container.GetMetadata().GetName(),
		annotationImageName:     image,
	}
	for k, v := range b.spec.Annotations { // CDI may have added some
		a[k] = v
	}
	return a
}
