package cri

import (
	"context"

	"google.golang.org/protobuf/proto"
)

// A message of a streamed list has at most this many items, and no further one
// once it has this many bytes: well below what clients accept.
const (
	batchItems = 1000
	batchBytes = 1 << 20
)

// sendAll sends items in messages of several, each exactly once and in order.
// The stream's end follows when the call returns.
func sendAll[T proto.Message](ctx context.Context, items []T, send func([]T) error) error {
	for len(items) > 0 {
		if err := ctx.Err(); err != nil {
			return err
		}
		n, size := 0, 0
		for n < len(items) && n < batchItems && size < batchBytes {
			size += proto.Size(items[n])
			n++
		}
		if err := send(items[:n:n]); err != nil {
			return err
		}
		items = items[n:]
	}
	return nil
}
