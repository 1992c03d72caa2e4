package e2e

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

var (
	bin     string // folder of the binaries
	handler string // of the pods
	work    string // scratch folder; short, because it holds sockets
	runTag  string // in the environment of every process of this run
	bridge  string // the run's own

	shared *node // of the tests that do not stop it

	patience = 30 * time.Second // for things that happen at once on an idle machine
)

const tagKey = "BERTH_E2E_RUN"

func TestMain(m *testing.M) {
	flag.Parse()
	// Most of a test is waiting for a container.
	if f := flag.Lookup("test.parallel"); f.Value.String() == f.DefValue {
		f.Value.Set("6")
	}
	os.Exit(suite(m))
}

func suite(m *testing.M) (code int) {
	if os.Geteuid() != 0 {
		return complain(errors.New("the suite needs root"))
	}
	if err := prepare(); err != nil {
		return complain(err)
	}
	defer os.RemoveAll(work)
	defer func() {
		if code != 0 {
			scrub()
		}
	}()
	defer removeNetwork(portmapChains())
	var err error
	if shared, err = newNode(); err != nil {
		return complain(err)
	}
	defer shared.end()
	if err := shared.warm(); err != nil {
		return complain(err)
	}
	before, err := look(shared)
	if err != nil {
		return complain(err)
	}
	code = m.Run()
	if err := before.compare(shared); err != nil {
		fmt.Fprintln(os.Stderr, "left over:", err)
		code = max(code, 1)
	}
	return code
}

func complain(err error) int {
	fmt.Fprintln(os.Stderr, "e2e:", err)
	return 1
}

func prepare() error {
	if bin = os.Getenv("BERTH_BIN"); bin == "" {
		wd, err := os.Getwd()
		if err != nil {
			return err
		}
		bin = filepath.Join(wd, "..", "..", "bin")
	}
	for _, p := range []string{"berthd", "containerd-shim-berth-v1", "runc", "cni/bridge"} {
		if _, err := os.Stat(filepath.Join(bin, p)); err != nil {
			return fmt.Errorf("%w: run make build, or set BERTH_BIN", err)
		}
	}
	handler = os.Getenv("BERTH_HANDLER")
	dir, err := os.MkdirTemp("/tmp", "be2e-")
	if err != nil {
		return err
	}
	work, runTag = dir, filepath.Base(dir)
	// The root of a user namespace must get through to its root file system.
	if err := os.Chmod(work, 0o711); err != nil {
		return err
	}
	bridge = fmt.Sprintf("e2e%d", os.Getpid())
	if err := writeNetwork(); err != nil {
		return err
	}
	return packImages()
}

// node is a berthd on folders of its own.
type node struct {
	dir, sock, log string
	metrics        string // address of its Prometheus endpoint
	certs          string // folder of hosts.toml folders
	cmd            *exec.Cmd
	dead           chan struct{} // closed when cmd has been waited for
	conn           *grpc.ClientConn
	rt             cri.RuntimeServiceClient
	im             cri.ImageServiceClient
}

// newNode starts a berthd that has the images.
func newNode() (*node, error) {
	dir, err := os.MkdirTemp(work, "n")
	if err != nil {
		return nil, err
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		return nil, err
	}
	n := &node{dir: dir, sock: dir + "/s/berthd.sock", log: dir + "/berthd.log", certs: dir + "/certs.d"}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	n.metrics = l.Addr().String()
	l.Close()
	config := fmt.Sprintf(`restrict_oom_score_adj = true
[registry]
config_path = [%q]
[cni]
conf_dir = %q
bin_dirs = [%q]
[metrics]
address = %q
[image]
sync = false
`, n.certs, work+"/net.d", filepath.Join(bin, "cni"), n.metrics)
	if p := os.Getenv("BERTH_CONFIG"); p != "" {
		more, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		config += string(more)
	}
	if err := os.WriteFile(dir+"/config.toml", []byte(config), 0o600); err != nil {
		return nil, err
	}
	if err := n.start(); err != nil {
		return nil, err
	}
	if err := n.importImages(); err != nil {
		n.end()
		return nil, err
	}
	return n, nil
}

// privateNode is a node that a test may stop. It must be empty when the test ends.
func privateNode(t *testing.T) *node {
	t.Helper()
	n, err := newNode()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if n.cmd == nil {
			if err := n.start(); err != nil {
				t.Error(err)
				return
			}
		}
		n.clear(t)
		n.end()
		os.RemoveAll(n.dir)
	})
	return n
}

func (n *node) start() error {
	log, err := os.OpenFile(n.log, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd := exec.Command(filepath.Join(bin, "berthd"), "--config", n.dir+"/config.toml", "--root", n.dir+"/r", "--state", n.dir+"/s")
	cmd.Env = append(os.Environ(), tagKey+"="+runTag)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // ^C is for the tests
	if err := cmd.Start(); err != nil {
		return err
	}
	dead := make(chan struct{})
	go func() {
		cmd.Wait()
		close(dead)
	}()
	n.cmd, n.dead = cmd, dead
	// A client of its own for each daemon: no backoff from the one before.
	n.conn, err = grpc.NewClient("unix://"+n.sock, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(16<<20))) // the kubelet's
	if err != nil {
		return err
	}
	n.rt, n.im = cri.NewRuntimeServiceClient(n.conn), cri.NewImageServiceClient(n.conn)
	for until := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		select {
		case <-dead:
			return fmt.Errorf("berthd ended at once:\n%s", n.tail(0, 20))
		default:
		}
		c, err := net.Dial("unix", n.sock)
		if err == nil {
			c.Close()
			return nil
		}
		if time.Now().After(until) {
			n.stop(syscall.SIGKILL)
			return fmt.Errorf("berthd does not listen:\n%s", n.tail(0, 20))
		}
	}
}

// stop ends the daemon, and only it.
func (n *node) stop(sig syscall.Signal) {
	if n.cmd == nil {
		return
	}
	n.conn.Close()
	n.cmd.Process.Signal(sig)
	<-n.dead
	n.cmd = nil
}

func (n *node) kill() { n.stop(syscall.SIGKILL) }

func (n *node) end() { n.stop(syscall.SIGTERM) }

func (n *node) restart(t *testing.T) {
	t.Helper()
	if err := n.start(); err != nil {
		t.Fatal(err)
	}
}

// clear removes all pods, and fails when it cannot.
func (n *node) clear(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*patience)
	defer cancel()
	l, err := n.rt.ListPodSandbox(ctx, &cri.ListPodSandboxRequest{})
	if err != nil {
		t.Errorf("list pods: %v", err)
		return
	}
	each(len(l.Items), func(i int) {
		id := l.Items[i].Id
		if _, err := n.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Errorf("stop pod %s: %v", id, err)
		}
		if _, err := n.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: id}); err != nil {
			t.Errorf("remove pod %s: %v", id, err)
		}
	})
}

// logOnFailure shows what the daemon said since now, if the test fails.
func (n *node) logOnFailure(t *testing.T) {
	var size int64
	if fi, err := os.Stat(n.log); err == nil {
		size = fi.Size()
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("berthd said:\n%s", n.tail(size, 30))
		}
	})
}

func (n *node) tail(from int64, lines int) string {
	b, err := os.ReadFile(n.log)
	if err != nil {
		return err.Error()
	}
	l := strings.Split(string(bytes.TrimSpace(b[min(from, int64(len(b))):])), "\n")
	return strings.Join(l[max(0, len(l)-lines):], "\n")
}

// eventually waits until f returns nil, and fails with its last error.
func eventually(t *testing.T, within time.Duration, f func() error) {
	t.Helper()
	until := time.Now().Add(within)
	for pause := 2 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("after %v: %v", within, err)
		}
		time.Sleep(pause)
	}
}

func wantCode(t *testing.T, what string, err error, want codes.Code, words ...string) {
	t.Helper()
	if status.Code(err) != want {
		t.Errorf("%s: %v, want %s", what, err, want)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q does not say %q", what, err, w)
		}
	}
}

func must[T any](t *testing.T) func(T, error) T {
	return func(v T, err error) T {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
}

// warm has a pod come and go: it makes the bridge, and the daemon open what it
// keeps open.
func (n *node) warm() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	r, err := n.rt.RunPodSandbox(ctx, &cri.RunPodSandboxRequest{RuntimeHandler: handler, Config: &cri.PodSandboxConfig{
		Metadata: &cri.PodSandboxMetadata{Name: "warm", Namespace: "e2e", Uid: runTag}, Linux: &cri.LinuxPodSandboxConfig{},
	}})
	if err != nil {
		return err
	}
	if _, err := n.rt.StopPodSandbox(ctx, &cri.StopPodSandboxRequest{PodSandboxId: r.PodSandboxId}); err != nil {
		return err
	}
	_, err = n.rt.RemovePodSandbox(ctx, &cri.RemovePodSandboxRequest{PodSandboxId: r.PodSandboxId})
	return err
}
