package image

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"regexp"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/remotes/docker"
	remoteerrors "github.com/containerd/containerd/v2/core/remotes/errors"
	"github.com/containerd/errdefs"
)

// StallError says that a registry stayed silent for too long. It is a
// context.DeadlineExceeded.
type StallError struct {
	Host    string        // host:port that was asked
	Step    string        // what was waited for: connect, token, resolve, manifest, blob sha256:…
	Silence time.Duration // how long nothing came
	// Last is whether no other host is left to ask.
	Last bool
}

func (e *StallError) Error() string {
	return fmt.Sprintf("%s sent nothing for %s at %s", e.Host, e.Silence, e.Step)
}

// Unwrap makes a stall a deadline that passed.
func (e *StallError) Unwrap() error { return context.DeadlineExceeded }

// pullError is the error of a pull: which image, at which step, what each host
// said. It carries a class of errdefs and never a query or password of a URL.
type pullError struct {
	ref, step string
	cause     error
	class     error // of errdefs; nil if cause has one
	tried     []try
}

func (e *pullError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "pull %s: %s: %s", e.ref, e.step, e.cause)
	if len(e.tried) > 0 {
		b.WriteString(" (tried")
		for i, t := range e.tried {
			if i > 0 {
				b.WriteByte(';')
			}
			fmt.Fprintf(&b, " %s %s: %s", t.host, t.step, t.result)
		}
		b.WriteByte(')')
	}
	return withoutSecrets(b.String())
}

func (e *pullError) Unwrap() []error {
	if e.class == nil {
		return []error{e.cause}
	}
	return []error{e.class, e.cause}
}

var (
	urlQuery    = regexp.MustCompile(`(https?://[^\s"'?]+)\?[^\s"']*`)
	urlPassword = regexp.MustCompile(`(https?://)[^\s"'/@]+@`)
)

// withoutSecrets takes queries (signed redirects carry keys there) and
// passwords out of the URLs in a text.
func withoutSecrets(text string) string {
	return urlPassword.ReplaceAllString(urlQuery.ReplaceAllString(text, "$1?…"), "$1…@")
}

// classOf gives the errdefs class of a failed pull, nil if err has one already.
// The last host's answer decides: it is the registry itself, those before it
// are mirrors.
func classOf(err error, tried []try) error {
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled),
		errdefs.IsInvalidArgument(err), errdefs.IsDataLoss(err), errdefs.IsUnavailable(err):
		return nil
	}
	status := statusOf(err)
	if n := len(tried); n > 0 && tried[n-1].last && tried[n-1].status != 0 {
		status = tried[n-1].status
	}
	switch {
	case status == http.StatusNotFound:
		return errdefs.ErrNotFound
	case status == http.StatusUnauthorized, errors.Is(err, docker.ErrInvalidAuthorization):
		return errdefs.ErrUnauthenticated
	case status == http.StatusForbidden:
		return errdefs.ErrPermissionDenied
	case status == http.StatusTooManyRequests, status >= 500:
		return errdefs.ErrUnavailable
	}
	var netErr net.Error
	if errors.As(err, &netErr) && !errdefs.IsNotFound(err) {
		return errdefs.ErrUnavailable
	}
	return nil
}

// statusOf is the HTTP status that an error of containerd's resolver tells of,
// 0 if it tells of none.
func statusOf(err error) int {
	var e remoteerrors.ErrUnexpectedStatus
	if errors.As(err, &e) {
		return e.StatusCode
	}
	return 0
}
