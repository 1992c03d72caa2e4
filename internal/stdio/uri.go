package stdio

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path/filepath"
	"sync/atomic"

	"github.com/containerd/errdefs"
)

// URIOptions say whose output a sink gets; a logging binary is told.
type URIOptions struct {
	ContainerID string
	Namespace   string
}

// OpenURI opens the sink that a stock containerd names for a process's outputs:
//
//	/path or fifo:///path    a FIFO that containerd made (or a file that exists)
//	file:///path             the raw output appended to a file, made when missing
//	binary:///path?k=v&…     a logging binary, run with k v … as arguments
//	binary-v2:///path?k=v&…  the same; it must say that it is ready
//
// as containerd's shims do. An empty URI discards. A logging binary takes both
// streams; stdout's URI names it. ctx bounds opening: for a logging binary,
// until it is ready.
//
// A FIFO is held open for reading as well, so a reader may go away and come
// back: meanwhile the pipe fills and then Write waits. What a FIFO holds at
// Close stays readable for up to ten minutes.
func OpenURI(ctx context.Context, stdoutURI, stderrURI string, o *URIOptions) (Sink, error) {
	k := &uriSink{}
	for s, uri := range []string{stdoutURI, stderrURI} {
		if uri == "" {
			continue
		}
		u, err := url.Parse(uri)
		if err != nil {
			k.abort()
			return nil, fmt.Errorf("parse URI of %s: %w: %w", Stream(s), err, errdefs.ErrInvalidArgument)
		}
		if isLogger(u) {
			if s == int(Stderr) && stdoutURI != "" {
				continue // stdout's decides
			}
			if err := k.startLogger(ctx, u, o); err != nil {
				return nil, err
			}
			return k, nil
		}
		if k.w[s], err = openWriter(u, uri); err != nil {
			k.abort()
			return nil, fmt.Errorf("open %s of container %s: %w", Stream(s), o.ContainerID, err)
		}
	}
	return k, nil
}

func isLogger(u *url.URL) bool { return u.Scheme == "binary" || u.Scheme == "binary-v2" }

// startLogger makes the sink a logging binary's two pipes.
func (k *uriSink) startLogger(ctx context.Context, u *url.URL, o *URIOptions) error {
	stdout, stderr, err := startLogger(ctx, u, o)
	if err != nil {
		return fmt.Errorf("start logging binary %s of container %s: %w", u.Path, o.ContainerID, err)
	}
	k.w[Stdout], k.w[Stderr] = stdout, stderr
	return nil
}

func openWriter(u *url.URL, raw string) (io.WriteCloser, error) {
	switch u.Scheme {
	case "":
		return openPath(raw)
	case "fifo":
		return openPath(u.Path)
	case "file":
		if err := os.MkdirAll(filepath.Dir(u.Path), dirMode); err != nil {
			return nil, err
		}
		return os.OpenFile(u.Path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o644)
	default:
		return nil, fmt.Errorf("stream URI scheme %q: %w", u.Scheme, errdefs.ErrNotImplemented)
	}
}

// uriSink is a Sink with a file, FIFO or pipe for each stream. Its writers
// return from a pending Write when they are closed.
type uriSink struct {
	w     [2]io.WriteCloser
	ended [2]atomic.Bool
}

func (k *uriSink) Write(s Stream, p []byte) error {
	if k.w[s] == nil {
		return nil
	}
	_, err := k.w[s].Write(p)
	return err
}

// endStream gives the stream's reader its end.
func (k *uriSink) endStream(s Stream) { _ = k.closeStream(s) }

func (k *uriSink) closeStream(s Stream) error {
	if k.w[s] == nil || k.ended[s].Swap(true) {
		return nil
	}
	return k.w[s].Close()
}

func (k *uriSink) Close() error {
	return errors.Join(k.closeStream(Stdout), k.closeStream(Stderr))
}

func (k *uriSink) abort() { _ = k.Close() }
