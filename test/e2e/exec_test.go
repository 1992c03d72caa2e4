package e2e

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestExec(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever, func(c *cri.ContainerConfig) {
		c.WorkingDir = "/tmp"
		c.Envs = append(c.Envs, &cri.KeyValue{Key: "MINE", Value: []byte("a b")})
	})
	data := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	// A WebSocket client cannot say that its stdin has ended.
	read := map[string]string{"spdy": "cat", "websocket": fmt.Sprintf("head -c %d", len(data))}
	for _, proto := range protocols {
		t.Run(proto, func(t *testing.T) {
			r := c.exec(t, &session{protocol: proto}, "sh", "-c", "echo out; echo err >&2; exit 42")
			if r.err != nil || r.code != 42 || r.out != "out\n" || r.errOut != "err\n" {
				t.Errorf("exit code: %+v", r)
			}
			r = c.exec(t, &session{protocol: proto}, "sh", "-c", `echo "$MINE $FROM_IMAGE $(pwd)"`)
			if r.err != nil || r.out != "a b yes /tmp\n" {
				t.Errorf("environment: %+v", r)
			}
			r = c.exec(t, &session{protocol: proto, stdin: bytes.NewReader(data)}, "sh", "-c", read[proto]+" | sha256sum")
			if want := fmt.Sprintf("%x", sha256.Sum256(data)); r.err != nil || !strings.HasPrefix(r.out, want) {
				t.Errorf("stdin: %+v, want %s", r, want)
			}
			r = c.exec(t, &session{protocol: proto}, "sh", "-c", "kill -9 $$")
			if r.code != 137 {
				t.Errorf("killed: %+v", r)
			}
			r = c.exec(t, &session{protocol: proto}, "/no/such/program")
			if r.err == nil && r.code == 0 {
				t.Errorf("no such program: %+v", r)
			}
		})
	}
}

func TestExecLargeOutput(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	const size = 20 << 20
	want := strings.Fields(c.sh(fmt.Sprintf("yes 'a line of text' | head -c %d | sha256sum", size)))[0]
	for _, proto := range protocols {
		r := c.exec(t, &session{protocol: proto}, "sh", "-c", fmt.Sprintf("yes 'a line of text' | head -c %d; exit 3", size))
		if got := fmt.Sprintf("%x", sha256.Sum256([]byte(r.out))); r.err != nil || r.code != 3 || got != want {
			t.Errorf("%s: %d bytes, exit %d, %v", proto, len(r.out), r.code, r.err)
		}
	}
}

func TestExecTerminal(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	for _, proto := range protocols {
		q := &sizes{make(chan remotecommand.TerminalSize, 2)}
		q.ch <- remotecommand.TerminalSize{Width: 100, Height: 40}
		go func() {
			time.Sleep(time.Second)
			q.ch <- remotecommand.TerminalSize{Width: 81, Height: 25}
			close(q.ch)
		}()
		script := "test -t 0 && echo terminal; until test \"$(stty size 2>&1)\" = '40 100'; do sleep 0.01; done; echo first; trap 'stty size; exit 5' WINCH; while :; do sleep 0.05; done"
		r := c.exec(t, &session{protocol: proto, tty: true, stdin: blocked(t), resize: q}, "sh", "-c", script)
		if out := strings.ReplaceAll(r.out, "\r", ""); r.err != nil || r.code != 5 || out != "terminal\nfirst\n25 81\n" {
			t.Errorf("%s: %+v", proto, r)
		}
	}
}

// An exec is over when its process is, even if it left others with its output.
func TestExecBackground(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	for _, proto := range protocols {
		quickly(t, proto, 10*time.Second, func() {
			r := c.exec(t, &session{protocol: proto}, "sh", "-c", "sleep 1000 & echo started; exit 4")
			if r.err != nil || r.code != 4 || r.out != "started\n" {
				t.Errorf("%s: %+v", proto, r)
			}
		})
	}
	quickly(t, "ExecSync", 10*time.Second, func() {
		r, err := c.try(60, "sh", "-c", "sleep 1000 & echo started; exit 4")
		if err != nil || r.ExitCode != 4 || string(r.Stdout) != "started\n" {
			t.Errorf("ExecSync: %v, %v", r, err)
		}
	})
}

func TestExecSync(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	r, err := c.try(0, "sh", "-c", "echo out; echo err >&2; exit 9")
	if err != nil || r.ExitCode != 9 || string(r.Stdout) != "out\n" || string(r.Stderr) != "err\n" {
		t.Errorf("%v, %v", r, err)
	}
	if r, err := c.try(5, "/no/such/program"); err == nil {
		t.Errorf("no such program: %v", r)
	} else if !strings.Contains(err.Error(), "no such file") {
		t.Errorf("no such program: %v", err)
	}
	_, err = shared.rt.ExecSync(t.Context(), &cri.ExecSyncRequest{ContainerId: c.id})
	wantCode(t, "no command", err, codes.InvalidArgument, "cmd")

	// 16 MiB are kept; the command does not block on the rest.
	r, err = c.try(60, "sh", "-c", "head -c 30000000 /dev/zero; exit 6")
	if err != nil || r.ExitCode != 6 || len(r.Stdout) > 16<<20 || len(r.Stdout) < 16<<20-8192 {
		t.Errorf("large output: %d bytes, %v", len(r.GetStdout()), err)
	}
}

// An exec that takes too long is killed with all that it started.
func TestExecSyncTimeout(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	begin := time.Now()
	_, err := c.try(1, "sh", "-c", "trap '' TERM; sleep 4321 & setsid sleep 4321 & wait")
	wantCode(t, "timeout", err, codes.DeadlineExceeded)
	if d := time.Since(begin); d < time.Second || d > 10*time.Second {
		t.Errorf("it took %v, the timeout is 1 s", d)
	}
	eventually(t, 5*time.Second, func() error {
		var left []string
		for _, cmd := range c.processes() {
			if strings.Contains(cmd, "4321") {
				left = append(left, cmd)
			}
		}
		if len(left) > 0 {
			return fmt.Errorf("left: %v", left)
		}
		return nil
	})
	c.want("echo works", "works")
}

func TestExecManyAtOnce(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", forever)
	each(30, func(i int) {
		r, err := c.try(30, "sh", "-c", fmt.Sprintf("echo %d; exit %d", i, i))
		if err != nil || int(r.ExitCode) != i || string(r.Stdout) != itoa(i)+"\n" {
			t.Errorf("%d: %v, %v", i, r, err)
		}
	})
}
