package effects

import (
	"fmt"

	"github.com/containerd/errdefs"
	"k8s.io/apimachinery/pkg/api/resource"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/stdio"
)

// Annotations of a pod that limit the logs of its containers. Sizes are
// quantities of bytes, such as 10Mi. They can narrow what the node's
// configuration allows, never widen it.
const (
	annotationLogMaxSize  = "io.berth/log-max-size"
	annotationLogMaxFiles = "io.berth/log-max-files"
	annotationLogRate     = "io.berth/log-rate" // bytes a second
)

// logLimits are the node's limits with the pod's.
func logLimits(node stdio.LogOptions, pod *runtime.PodSandboxConfig) (stdio.LogOptions, error) {
	files := int64(node.MaxFiles)
	for _, l := range []struct {
		key     string
		to      *int64
		example string
	}{
		{annotationLogMaxSize, &node.MaxSize, "10Mi"},
		{annotationLogMaxFiles, &files, "3"},
		{annotationLogRate, &node.Rate, "1Mi"},
	} {
		v, ok := pod.GetAnnotations()[l.key]
		if !ok {
			continue
		}
		q, err := resource.ParseQuantity(v)
		if err != nil || q.Value() <= 0 {
			return node, fmt.Errorf("annotation %s: %q is no quantity above 0, such as %s: %w", l.key, v, l.example, errdefs.ErrInvalidArgument)
		}
		if *l.to <= 0 || q.Value() < *l.to {
			*l.to = q.Value()
		}
	}
	node.MaxFiles = int(files)
	return node, nil
}
