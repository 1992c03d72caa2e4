package e2e

import (
	"bytes"
	"fmt"
	"io"
	"net/url"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/tools/remotecommand"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// A client that is stopped while 100 MiB flow: the log gets all, the writer does
// not wait for it, and the end is known at once.
func TestStreamsAttachStopped(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	writer, start := withWriter(t)
	const count = 100 << 20
	c := p.run("c", script(awaitGo+fmt.Sprintf("echo going; /writer bytes %d; exit 3", count)), writer)
	client := exec.Command(filepath.Join(bin, "crictl"), "-r", "unix://"+shared.sock, "-i", "unix://"+shared.sock, "attach", c.id)
	out, err := client.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		client.Process.Kill()
		client.Wait()
	}()
	time.Sleep(time.Second) // it is attached; if not, it is dropped without being stopped
	if err := client.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	start()
	c.waitLogEnd("stalled ")
	if st := c.wait(); st.ExitCode != 3 {
		t.Errorf("%v", st)
	} else if late := time.Since(time.Unix(0, st.FinishedAt)); late > 2*time.Second {
		t.Errorf("its end was known after %v, 2 s are allowed", late)
	}
	n, stalled := 0, 0
	eachRecord(t, func(r record) {
		if !r.stdout {
			fmt.Sscanf(string(r.text), "stalled %d", &stalled)
		} else if !bytes.Equal(r.text, []byte("going")) {
			n += len(r.text)
		}
	}, c.log)
	if n != count {
		t.Errorf("the log has %d bytes, want %d", n, count)
	}
	if d := time.Duration(stalled) * time.Microsecond; d > time.Second {
		t.Errorf("the writer was held up for %v", d)
	}
	// The client goes on, and is told that it lost the rest.
	if err := client.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if saw, _ := io.Copy(io.Discard, out); saw == 0 || saw >= count {
		t.Errorf("the client saw %d bytes: it was not attached, or not dropped", saw)
	}
}

// Twenty clients, of whom some do not read: those that do see everything.
func TestStreamsAttachMany(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	const clients, count = 20, 500
	c := p.run("c", script(fmt.Sprintf("read x; seq 1 %d; head -c 4000000 /dev/zero; exit 3", count)), func(c *cri.ContainerConfig) { c.Stdin = true })
	outs := make([]buffer, clients)
	done := make(chan error, clients)
	stuck := make(chan struct{})
	for i := range clients {
		r := must[*cri.AttachResponse](t)(shared.rt.Attach(t.Context(), &cri.AttachRequest{ContainerId: c.id, Stdout: true, Stderr: true}))
		out := io.Writer(&outs[i])
		if i%5 == 0 {
			out = writerFunc(func(p []byte) (int, error) {
				<-stuck
				return len(p), nil
			})
		}
		e := executor(t, protocols[i%2], r.Url)
		go func() {
			done <- e.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: out, Stderr: io.Discard})
		}()
	}
	time.Sleep(time.Second)
	c.attach(t, &session{protocol: "spdy", stdin: strings.NewReader("go\n")})
	if st := c.wait(); st.ExitCode != 3 {
		t.Errorf("%v", st)
	}
	close(stuck)
	for range clients {
		<-done
	}
	var want strings.Builder
	for i := range count {
		fmt.Fprintln(&want, i+1)
	}
	for i := range outs {
		if got := outs[i].String(); i%5 != 0 && !strings.HasPrefix(got, want.String()) {
			t.Errorf("client %d saw %d bytes, from %.50q", i, len(got), got)
		}
	}
}

// With ?replay=N on its URL a client first sees the last lines of the log, and
// then what comes, without a gap.
func TestStreamsAttachReplay(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	const lines = "for i in $(seq 0 99); do echo line $i; done; read x; for i in $(seq 100 399); do echo line $i; done"
	c := p.run("c", script(lines), func(c *cri.ContainerConfig) { c.Stdin = true })
	c.waitLog("line 99\n")
	r := must[*cri.AttachResponse](t)(shared.rt.Attach(t.Context(), &cri.AttachRequest{ContainerId: c.id, Stdout: true, Stderr: true}))
	u := must[*url.URL](t)(url.Parse(r.Url))
	u.RawQuery = "replay=50"
	var out buffer
	done := make(chan error, 1)
	go func() {
		done <- executor(t, "spdy", u.String()).StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdout: &out, Stderr: io.Discard})
	}()
	var want strings.Builder
	saw := func(from, to int) {
		t.Helper()
		for i := from; i < to; i++ {
			fmt.Fprintln(&want, "line", i)
		}
		eventually(t, patience, func() error {
			if got := out.String(); got != want.String() {
				return fmt.Errorf("the client saw %q, want %q", got, want.String())
			}
			return nil
		})
	}
	saw(50, 100)
	c.attach(t, &session{protocol: "spdy", stdin: strings.NewReader("go\n")})
	saw(100, 400)
	c.wait()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// Thousands of connections whose client ends its half first: each gets its
// answer, and nothing of them is left.
func TestStreamsPortForward(t *testing.T) {
	n := privateNode(t)
	p := n.pod(t)
	c := p.run("c", []string{"probe", "echo", "127.0.0.1:7000"})
	c.waitLog("listening")
	before := held(t, n.cmd.Process.Pid)
	const clients = 50
	t.Run("connections", func(t *testing.T) {
		to := p.forward(t, 7000)
		// (client-go ends its whole session at the first of these.)
		if got, _ := ask(p.forward(t, 7009), []byte("x")); len(got) > 0 {
			t.Errorf("nobody answered %q", got)
		}
		each(clients, func(k int) {
			for i := range scaled(2000, 20000) / clients {
				data := bytes.Repeat(fmt.Appendf(nil, "%d %d ", k, i), 200)
				if got, err := ask(to, data); err != nil || !bytes.Equal(got, data) {
					t.Errorf("%d bytes came back of %d: %v", len(got), len(data), err)
				}
			}
		})
	})
	eventually(t, 10*time.Second, func() error {
		if now := held(t, n.cmd.Process.Pid); now.files > before.files+5 || now.threads > before.threads+clients+10 {
			return fmt.Errorf("berthd holds %+v, held %+v", now, before)
		}
		return nil
	})
}
