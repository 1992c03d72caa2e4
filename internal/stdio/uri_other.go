//go:build !linux

package stdio

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"os"

	"github.com/containerd/errdefs"
)

func openPath(path string) (io.WriteCloser, error) {
	return nil, fmt.Errorf("open FIFO %s: %w", path, errdefs.ErrNotImplemented)
}

func openSource(path string) (*os.File, io.Closer, error) {
	return nil, nil, fmt.Errorf("open FIFO %s: %w", path, errdefs.ErrNotImplemented)
}

func startLogger(context.Context, *url.URL, *URIOptions) (stdout, stderr io.WriteCloser, err error) {
	return nil, nil, errdefs.ErrNotImplemented
}
