package ocispec

import (
	"context"
	"fmt"
	"slices"

	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// cdi injects the CDI devices that the config names, in CDI_devices and in the
// annotations that came before that field. It may add environment, mounts,
// hooks, groups and devices to the spec.
func (b *builder) cdi(context.Context) error {
	var names []string
	for _, d := range b.Container.GetCDIDevices() {
		names = append(names, d.GetName())
	}
	_, fromAnnotations, err := cdi.ParseAnnotations(b.Container.GetAnnotations())
	if err != nil {
		return invalid("annotations", "%v", err)
	}
	var unique []string
	for _, n := range append(names, fromAnnotations...) {
		if !slices.Contains(unique, n) {
			unique = append(unique, n)
		}
	}
	if len(unique) == 0 {
		return nil
	}
	// Read anew each time: vendors' tools change these files at run time, and a
	// watch on their folders would be one more thing to go wrong. A broken file
	// of one vendor does not matter to the devices of another.
	cache, err := cdi.NewCache(cdi.WithSpecDirs(b.Host.CDIDirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return fmt.Errorf("read CDI specs: %w", err)
	}
	if _, err := cache.InjectDevices(b.spec, unique...); err != nil {
		return invalid("CDI_devices", "%v", err)
	}
	return nil
}
