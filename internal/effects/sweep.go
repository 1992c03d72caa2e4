package effects

import (
	"context"
	"strings"

	"berth/internal/keeper"
)

// Sweep removes the root file systems that no container has: a pod whose journal
// was damaged may have forgotten some. It is called once, and only when every
// journal was read: a pod that is not known is not a dead one. pods is asked
// after the root file systems: one that is made meanwhile belongs to a container
// that pods tells.
func (m *Machine) Sweep(ctx context.Context, pods func() []*keeper.Pod) {
	keys := m.d.Images.RootfsKeys()
	known := map[string]bool{}
	for _, p := range pods() {
		for _, c := range p.Containers {
			known[c.ID] = true
		}
	}
	for _, k := range keys {
		container, _, _ := strings.Cut(k, imageInfix)
		if known[container] {
			continue
		}
		m.d.Logger.Warn("a root file system belongs to no container and is removed", "key", k)
		if err := m.d.Images.RemoveRootfs(ctx, k); err != nil {
			m.d.Logger.Warn("a stray root file system stays", "key", k, "err", err)
		}
	}
}
