package image

import (
	"fmt"
	"strings"

	"github.com/containerd/errdefs"
	"github.com/distribution/reference"
	digest "github.com/opencontainers/go-digest"
)

// parseRef normalises a reference as docker does: "busybox" is
// docker.io/library/busybox:latest, and a tag beside a digest is dropped.
func parseRef(ref string) (reference.Named, error) {
	named, err := reference.ParseDockerRef(ref)
	if err != nil {
		return nil, fmt.Errorf("image reference %q: %w: %w", ref, err, errdefs.ErrInvalidArgument)
	}
	return named, nil
}

// refNames are the names under which an image that ref resolved to is recorded:
// the tag if ref has one, and always repository@digest.
func refNames(named reference.Named, target digest.Digest) []string {
	if _, ok := named.(reference.Canonical); ok {
		return []string{named.String()}
	}
	return []string{named.String(), named.Name() + "@" + target.String()}
}

// splitNames sorts record names into tags and digests. A name that is neither
// is left out; its image is reached by id.
func splitNames(names []string) (tags, digests []string) {
	for _, name := range names {
		parsed, err := reference.ParseAnyReference(name)
		if err != nil {
			continue
		}
		switch parsed.(type) {
		case reference.Canonical:
			digests = append(digests, name)
		case reference.Tagged:
			tags = append(tags, name)
		}
	}
	return tags, digests
}

// matchesAny reports whether a name is in patterns; a trailing * matches the rest.
func matchesAny(name string, patterns []string) bool {
	for _, p := range patterns {
		if prefix, ok := strings.CutSuffix(p, "*"); ok && strings.HasPrefix(name, prefix) || p == name {
			return true
		}
	}
	return false
}
