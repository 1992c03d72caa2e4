package e2e

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
	"k8s.io/utils/exec"
)

func (c *container) execURL(t *testing.T, r *cri.ExecRequest) string {
	t.Helper()
	r.ContainerId = c.id
	return must[*cri.ExecResponse](t)(c.p.n.rt.Exec(t.Context(), r)).Url
}

// slowReader reads in fits and starts, and hashes.
type slowReader struct {
	sum   hash.Hash
	n, at int
}

func (s *slowReader) Write(p []byte) (int, error) {
	s.sum.Write(p)
	if s.n += len(p); s.n >= s.at {
		s.at = s.n + 2<<20
		time.Sleep(100 * time.Millisecond)
	}
	return len(p), nil
}

// Two million lines to a client that reads slowly arrive whole, and then the
// exit code does.
func TestStreamsExecSlowReader(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	const count = 2000000
	want := sha256.New()
	for i := range count {
		fmt.Fprintln(want, i+1)
	}
	for i := range scaled(2, 20) {
		proto := protocols[i%2]
		u := c.execURL(t, &cri.ExecRequest{Cmd: []string{"sh", "-c", fmt.Sprintf("seq 1 %d; exit 9", count)}, Stdout: true})
		r := &slowReader{sum: sha256.New()}
		err := executor(t, proto, u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: r})
		var exit exec.ExitError
		if !errors.As(err, &exit) || exit.ExitStatus() != 9 {
			t.Errorf("%s: %v, want exit code 9", proto, err)
		}
		if got := r.sum.Sum(nil); string(got) != string(want.Sum(nil)) {
			t.Errorf("%s: %d bytes arrived, and they are not the right ones", proto, r.n)
		}
	}
}

// A gigabyte there and back again: byte for byte, and the end of stdin comes
// after all of it.
func TestStreamsExecCat(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	size := int64(scaled(128, 1024)) << 20
	u := c.execURL(t, &cri.ExecRequest{Cmd: []string{"sh", "-c", "cat; exit 5"}, Stdin: true, Stdout: true})
	sent, came := sha256.New(), sha256.New()
	counted := &counter{w: came}
	source := io.TeeReader(io.LimitReader(rand.NewChaCha8([32]byte{1}), size), sent)
	err := executor(t, "spdy", u).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: source, Stdout: counted})
	var exit exec.ExitError
	if !errors.As(err, &exit) || exit.ExitStatus() != 5 {
		t.Errorf("%v, want exit code 5", err)
	}
	if string(sent.Sum(nil)) != string(came.Sum(nil)) {
		t.Errorf("%d bytes came back of %d, and they are not the same", counted.n, size)
	}
}

type counter struct {
	w io.Writer
	n int64
}

func (c *counter) Write(p []byte) (int, error) {
	c.n += int64(len(p))
	return c.w.Write(p)
}

// Short outputs of a terminal are never cut.
func TestStreamsExecTerminalOutput(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	each(4, func(k int) {
		for i := range scaled(10, 125) {
			r := c.exec(t, &session{protocol: protocols[i%2], tty: true}, "echo", fmt.Sprint(k, " ", i))
			if want := fmt.Sprint(k, " ", i, "\r\n"); r.err != nil || r.out != want {
				t.Errorf("%+v, want %q", r, want)
			}
		}
	})
}

// Output that comes in bursts, to a client without stdin, is whole: the silence
// between two bursts is not the end.
func TestStreamsExecBursts(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	want := ""
	for range 5 {
		for i := range 2000 {
			want += fmt.Sprintln(i + 1)
		}
	}
	for _, protocol := range protocols {
		r := c.exec(t, &session{protocol: protocol}, "sh", "-c", "for i in 1 2 3 4 5; do seq 1 2000; sleep 0.4; done")
		if r.err != nil || r.out != want {
			t.Errorf("%v: %v, %d bytes, want %d", protocol, r.err, len(r.out), len(want))
		}
	}
}

// A process in the background that holds the streams holds nobody up: not an
// ExecSync, not a terminal, not a container's end.
func TestStreamsBackgroundChild(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	host := shared.pod(t, podNamespaces(func(o *cri.NamespaceOption) { o.Pid = cri.NamespaceMode_NODE }))
	c := p.run("c", forever)
	const command = "sleep 7101 & echo ok"
	soon := func(what string, f func()) {
		t.Helper()
		took := best(func() time.Duration {
			begin := time.Now()
			f()
			return time.Since(begin)
		})
		if took > time.Second {
			t.Errorf("%s took %v, 1 s is allowed", what, took)
		}
	}
	soon("ExecSync", func() {
		if r, err := c.try(60, "sh", "-c", command); err != nil || r.ExitCode != 0 || string(r.Stdout) != "ok\n" {
			t.Errorf("ExecSync: %v, %v", r, err)
		}
	})
	for _, tty := range []bool{false, true} {
		soon(fmt.Sprint("an exec, terminal ", tty), func() {
			r := c.exec(t, &session{protocol: "spdy", tty: tty}, "sh", "-c", command)
			if r.err != nil || r.code != 0 || strings.ReplaceAll(r.out, "\r", "") != "ok\n" {
				t.Errorf("terminal %t: %+v", tty, r)
			}
		})
	}
	for _, q := range []*pod{p, host} {
		soon("an init, pid namespace "+q.cfg.Linux.SecurityContext.NamespaceOptions.Pid.String(), func() {
			d := q.create(fmt.Sprint("d", time.Now().UnixNano()), script(command))
			if err := d.tryStart(); err != nil {
				t.Fatal(err)
			}
			if out := d.output(); out != "ok\n" {
				t.Errorf("%q", out)
			}
			d.remove()
		})
	}
	c.stop(0)
	eventually(t, 5*time.Second, func() error {
		if n := sleepers("7101"); n > 0 {
			return fmt.Errorf("%d processes are left", n)
		}
		return nil
	})
}

// Probes that take too long are failures of the right class, and leave nothing:
// not what moved to a session of its own, not where the pid namespace is the host's.
func TestStreamsProbeTimeouts(t *testing.T) {
	t.Parallel()
	count := scaled(20, 100)
	for name, change := range map[string]podOption{
		"own":  func(*cri.PodSandboxConfig) {},
		"host": podNamespaces(func(o *cri.NamespaceOption) { o.Pid = cri.NamespaceMode_NODE }),
	} {
		p := shared.pod(t, change)
		c := p.run("c", forever)
		seconds := map[string]string{"own": "7201", "host": "7202"}[name]
		each(10, func(k int) {
			for range count / 10 {
				_, err := c.try(1, "sh", "-c", "setsid sleep "+seconds+" & sleep "+seconds)
				wantCode(t, name, err, codes.DeadlineExceeded)
			}
		})
		took := best(func() time.Duration {
			begin := time.Now()
			_, err := c.try(1, "sleep", seconds)
			wantCode(t, name, err, codes.DeadlineExceeded)
			return time.Since(begin)
		})
		if took < time.Second || took > 1500*time.Millisecond {
			t.Errorf("%s: a timeout of 1 s took %v", name, took)
		}
		if n := sleepers(seconds); n > 0 {
			t.Errorf("%s: %d processes are left", name, n)
		}
		c.want("echo works", "works")
	}
}

// What a container in the host's pid namespace leaves is killed at its end.
func TestStreamsHostPIDChildren(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, podNamespaces(func(o *cri.NamespaceOption) { o.Pid = cri.NamespaceMode_NODE }))
	for i := range scaled(3, 50) {
		c := p.run(fmt.Sprint("c", i), script("setsid sleep 7301 & (setsid sleep 7301 &) ; exit 2"))
		if st := c.wait(); st.ExitCode != 2 {
			t.Errorf("%v", st)
		}
		if n := sleepers("7301"); n > 0 {
			t.Errorf("%d processes are left", n)
		}
	}
}

// A client that is gone: its process is hung up, and has a moment to deal with
// it; then it is killed, with all that came from it.
func TestStreamsExecClientGone(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	for _, tty := range []bool{false, true} {
		for name, trap := range map[string]string{"obeys": "trap 'echo hung up >>/tmp/said; exit' HUP", "ignores": "trap '' HUP"} {
			mark := fmt.Sprintf("74%d%d", len(name), map[bool]int{true: 1}[tty])
			u := c.execURL(t, &cri.ExecRequest{Cmd: []string{"sh", "-c", trap + "; : >/tmp/said; echo up; while :; do sleep " + mark + " & wait; done"}, Stdout: true, Tty: tty})
			ctx, leave := context.WithCancel(t.Context())
			var out buffer
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				executor(t, "spdy", u).StreamWithContext(ctx, remotecommand.StreamOptions{Stdout: &out, Tty: tty})
			}()
			eventually(t, patience, func() error {
				if sleepers(mark) == 0 || out.String() == "" {
					return errors.New("it does not run")
				}
				return nil
			})
			leave()
			<-gone
			eventually(t, patience, func() error {
				if n := sleepers(mark); n > 0 {
					return fmt.Errorf("%s, terminal %t: %d processes go on", name, tty, n)
				}
				return nil
			})
			if said := c.sh("cat /tmp/said"); (said == "hung up") != (name == "obeys") {
				t.Errorf("%s, terminal %t: it said %q", name, tty, said)
			}
		}
	}
}

// Thousands of failing probes, and commands that are not there, leave nothing
// in daemon and shim: no descriptor, goroutine, process or memory.
func TestStreamsManyProbes(t *testing.T) {
	n := privateNode(t)
	p := n.pod(t)
	c := p.run("c", forever)
	probe := func(count int) {
		each(4, func(k int) {
			for i := range count / 4 {
				if i%10 == 0 {
					if _, err := c.try(10, "/no/such/program"); err == nil {
						t.Error("it ran")
					}
					continue
				}
				if i%20 == 5 {
					p.create(fmt.Sprint("never-started-", k, "-", time.Now().UnixNano()), forever).remove()
				}
				if r, err := c.try(10, "sh", "-c", "echo bad >&2; exit 1"); err != nil || r.ExitCode != 1 || string(r.Stderr) != "bad\n" {
					t.Errorf("probe: %v, %v", r, err)
				}
			}
		})
	}
	daemon, shim := n.cmd.Process.Pid, p.shim()
	probe(200)
	time.Sleep(time.Second)
	routines := must[float64](t)(n.metric("go_goroutines"))
	d, s := held(t, daemon), held(t, shim)
	probe(scaled(1000, 20000))
	eventually(t, 10*time.Second, func() error {
		now, err := n.metric("go_goroutines")
		if err == nil && now > routines+5 {
			err = fmt.Errorf("berthd has %v goroutines, had %v", now, routines)
		}
		for what, h := range map[string][2]holds{"berthd": {d, held(t, daemon)}, "shim": {s, held(t, shim)}} {
			before, after := h[0], h[1]
			if after.files > before.files+3 || after.threads > before.threads+5 || after.memory > before.memory+16<<20 {
				err = errors.Join(err, fmt.Errorf("%s holds %+v, held %+v", what, after, before))
			}
		}
		return err
	})
	if l := c.processes(); len(l) > 2 {
		t.Errorf("processes: %v", l)
	}
}

// Two gigabytes of output, of which the answer has 16 MiB: the daemon does not
// take them.
func TestStreamsExecSyncCap(t *testing.T) {
	n := privateNode(t)
	p := n.pod(t)
	writer, _ := withWriter(t)
	c := p.run("c", forever, writer)
	c.want("echo works", "works")
	daemon := n.cmd.Process.Pid
	more := 0
	for try := range 3 { // when garbage is collected is not ours to say
		clearPeak(t, daemon)
		before := held(t, daemon).memory
		r, err := c.try(120, "/writer", "bytes", fmt.Sprint(2<<30))
		if err != nil || r.ExitCode != 0 || len(r.Stdout) > 16<<20 || len(r.Stdout) < 16<<20-8192 || !strings.HasPrefix(string(r.Stderr), "stalled") {
			t.Errorf("%d bytes, %q, %v", len(r.GetStdout()), r.GetStderr(), err)
		}
		more = held(t, daemon).peak - before
		t.Logf("%d: berthd took %d MiB more", try, more>>20)
		if more < 40<<20 {
			return
		}
	}
	t.Errorf("berthd took %d MiB more, at most 40 are allowed", more>>20)
}
