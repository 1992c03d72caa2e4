package stdio

import "io"

// clientLimit is how far an attached client may lag behind.
const clientLimit = 1 << 20

// Client is one attached reader of a relay. It has its own buffer: at most
// 1 MiB, nothing while it keeps up.
type Client struct{ q *queue }

// NewClient returns a client that writes to the two writers, nil ones discard.
// It does nothing before Attach, and can be attached once.
func NewClient(stdout, stderr io.Writer) *Client {
	w := [2]io.Writer{stdout, stderr}
	return &Client{newQueue(clientLimit, func(s Stream, p []byte) error {
		if w[s] == nil {
			return nil
		}
		_, err := w[s].Write(p)
		return err
	})}
}

// Done is closed when the client gets no more: the relay ended and the client
// has everything, it was detached, it overflowed, or its writer failed. A Write
// that hangs meanwhile is not waited for: whoever owns the writer closes it.
func (c *Client) Done() <-chan struct{} { return c.q.done }

// Err is valid after Done: nil for a stream that came to its end or was
// detached, ResourceExhausted for a client that did not keep up, else what the
// writer reported.
func (c *Client) Err() error { return c.q.err }
