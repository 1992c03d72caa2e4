package stdio

import (
	"context"
	"strings"

	"github.com/containerd/errdefs"
)

// classes are the errors whose class survives the way through a session.
var classes = []struct {
	code string
	err  error
}{
	{"invalid-argument", errdefs.ErrInvalidArgument},
	{"not-found", errdefs.ErrNotFound},
	{"already-exists", errdefs.ErrAlreadyExists},
	{"permission-denied", errdefs.ErrPermissionDenied},
	{"resource-exhausted", errdefs.ErrResourceExhausted},
	{"failed-precondition", errdefs.ErrFailedPrecondition},
	{"conflict", errdefs.ErrConflict},
	{"not-modified", errdefs.ErrNotModified},
	{"aborted", errdefs.ErrAborted},
	{"out-of-range", errdefs.ErrOutOfRange},
	{"not-implemented", errdefs.ErrNotImplemented},
	{"internal", errdefs.ErrInternal},
	{"unavailable", errdefs.ErrUnavailable},
	{"data-loss", errdefs.ErrDataLoss},
	{"unauthenticated", errdefs.ErrUnauthenticated},
	{"deadline-exceeded", context.DeadlineExceeded},
	{"canceled", context.Canceled},
}

// encodeError makes the payload of an error frame.
func encodeError(err error) *failure {
	f := &failure{Code: "unknown", Message: err.Error()}
	resolved := errdefs.Resolve(err)
	for _, c := range classes {
		if resolved == c.err {
			f.Code = c.code
		}
	}
	if len(f.Message) > maxMessage {
		f.Message = strings.ToValidUTF8(f.Message[:maxMessage], "") + "…"
	}
	return f
}

// remoteError is an error of the other side: its words, its class.
type remoteError struct {
	message string
	class   error
}

func (e *remoteError) Error() string { return e.message }
func (e *remoteError) Unwrap() error { return e.class }

func (f *failure) err() error {
	e := &remoteError{message: f.Message, class: errdefs.ErrUnknown}
	for _, c := range classes {
		if c.code == f.Code {
			e.class = c.err
		}
	}
	return e
}
