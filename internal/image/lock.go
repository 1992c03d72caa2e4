package image

import (
	"context"
	"sync"
)

// keyLocks locks by name. It is what the unpacker asks for to do the same layer
// once (unpack.KeyedLocker). The zero value is ready.
type keyLocks struct {
	mu sync.Mutex
	m  map[string]chan struct{}
}

// Lock takes the lock on key or gives up when ctx ends.
func (k *keyLocks) Lock(ctx context.Context, key string) error {
	for {
		k.mu.Lock()
		held, busy := k.m[key]
		if !busy {
			if k.m == nil {
				k.m = map[string]chan struct{}{}
			}
			k.m[key] = make(chan struct{})
			k.mu.Unlock()
			return nil
		}
		k.mu.Unlock()
		select {
		case <-held:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// Unlock gives the lock on key back.
func (k *keyLocks) Unlock(key string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	close(k.m[key])
	delete(k.m, key)
}
