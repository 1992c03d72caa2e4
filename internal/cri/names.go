package cri

import (
	"strconv"
	"strings"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// podName is the name that is unique on the node, as containerd makes it:
// name_namespace_uid_attempt.
func podName(m *runtime.PodSandboxMetadata) string {
	return strings.Join([]string{m.Name, m.Namespace, m.Uid, decimal(m.Attempt)}, "_")
}

// containerName is name_podname_namespace_poduid_attempt.
func containerName(m *runtime.ContainerMetadata, p *runtime.PodSandboxMetadata) string {
	return strings.Join([]string{m.Name, p.Name, p.Namespace, p.Uid, decimal(m.Attempt)}, "_")
}

func decimal(n uint32) string { return strconv.FormatUint(uint64(n), 10) }
