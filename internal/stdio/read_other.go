//go:build !unix

package stdio

// lazyReader does not exist here: reads are not told ready by a poller.
type lazyReader struct{}

func newLazyReader(any) *lazyReader { return nil }

func (*lazyReader) next() (*[]byte, int, error) { return nil, 0, nil }
