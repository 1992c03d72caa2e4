package effects

import (
	"testing"

	"github.com/containerd/errdefs"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/stdio"
)

func TestLogLimits(t *testing.T) {
	limited := stdio.LogOptions{MaxSize: 1 << 20, MaxFiles: 5, Rate: 1000}
	for _, tc := range []struct {
		node        stdio.LogOptions
		annotations map[string]string
		want        stdio.LogOptions
	}{
		{limited, nil, limited},
		{stdio.LogOptions{MaxFiles: 5}, map[string]string{annotationLogMaxSize: "10Mi", annotationLogRate: "2k"}, stdio.LogOptions{MaxSize: 10 << 20, MaxFiles: 5, Rate: 2000}},
		{limited, map[string]string{annotationLogMaxSize: "10Mi", annotationLogMaxFiles: "9", annotationLogRate: "1G"}, limited},
		{limited, map[string]string{annotationLogMaxSize: "64Ki", annotationLogMaxFiles: "2", annotationLogRate: "10"}, stdio.LogOptions{MaxSize: 64 << 10, MaxFiles: 2, Rate: 10}},
	} {
		got, err := logLimits(tc.node, &runtime.PodSandboxConfig{Annotations: tc.annotations})
		if err != nil || got != tc.want {
			t.Errorf("%+v with %v: %+v, %v; want %+v", tc.node, tc.annotations, got, err, tc.want)
		}
	}
	for _, bad := range []string{"", "0", "-1", "much"} {
		if _, err := logLimits(limited, &runtime.PodSandboxConfig{Annotations: map[string]string{annotationLogRate: bad}}); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%q: %v", bad, err)
		}
	}
}
