package stream

import (
	"context"
	"fmt"
	"time"

	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"

	"berth/internal/ocispec"
	"berth/internal/stdio"
)

const (
	// outputCap is what ExecSync keeps of a stream; the rest is read and thrown
	// away (CVE-2022-1708).
	outputCap = 16 << 20
	// answerCap is what both streams may have together: the kubelet and crictl
	// take messages of 16 MiB, and a bigger answer would be an error to them.
	answerCap = outputCap - 4<<10
	// shimSlack is how much later than its timeout an exec is given up when the
	// shim does not report that it ended it.
	shimSlack = 10 * time.Second
)

// ExecSync runs cmd in a running container and returns what it wrote and its
// exit code. Each stream is cut at 16 MiB, silently, and both to what fits one
// answer. After timeout (0 for none) the shim kills all that came from the
// command, and the error is a DeadlineExceeded one.
func (s *Server) ExecSync(ctx context.Context, containerID string, cmd []string, timeout time.Duration) (*runtime.ExecSyncResponse, error) {
	t, err := s.containers.Session(ctx, containerID)
	if err != nil {
		return nil, err
	}
	r, err := execRequest(t.ContainerID, ocispec.ExecProcess(t.Spec, cmd, false))
	if err != nil {
		return nil, err
	}
	r.Stdout, r.Stderr = true, true
	r.Timeout, r.Drain = timeout, s.drain
	if timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, timeout+s.drain+shimSlack)
		defer cancel()
	}
	session, err := stdio.DialSession(ctx, t.SessionSocket, r)
	if err != nil {
		return nil, err
	}
	var out, errOut capped
	exit, err := session.Run(ctx, nil, &out, &errOut, nil)
	if err != nil {
		return nil, err
	}
	if exit.TimedOut {
		return nil, fmt.Errorf("command %q did not end in %s: %w", cmd[0], timeout, context.DeadlineExceeded)
	}
	resp := &runtime.ExecSyncResponse{ExitCode: exit.Code}
	resp.Stdout, resp.Stderr = fit(out.b, errOut.b)
	return resp, nil
}

// fit cuts the ends of the streams so that both are in one answer. The shorter
// one stays whole if it takes no more than half.
func fit(a, b []byte) ([]byte, []byte) {
	if len(a)+len(b) <= answerCap {
		return a, b
	}
	room := max(answerCap/2, answerCap-len(b))
	a = a[:min(len(a), room)]
	return a, b[:answerCap-len(a)]
}

// capped keeps the first outputCap bytes.
type capped struct{ b []byte }

func (c *capped) Write(p []byte) (int, error) {
	take := min(len(p), outputCap-len(c.b))
	if n := len(c.b) + take; n > cap(c.b) && n > outputCap/16 {
		// Once, to the end: doubling would hold twice as much.
		b := make([]byte, len(c.b), outputCap)
		copy(b, c.b)
		c.b = b
	}
	c.b = append(c.b, p[:take]...)
	return len(p), nil
}
