package faults

import (
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
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

const image = "faults.local/sleep:1"

var (
	bin    string // folder of the binaries
	daemon string // berthd with faults
)

// node is a daemon's folders, and the daemon that runs on them, if one does.
type node struct {
	dir  string
	cmd  *exec.Cmd
	died chan struct{}
	conn *grpc.ClientConn
	rt   cri.RuntimeServiceClient
}

// newNode makes the folders, with an image in them.
func newNode(t *testing.T) *node {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("the suite needs root")
	}
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	top := filepath.Dir(filepath.Dir(wd))
	if bin = os.Getenv("BERTH_BIN"); bin == "" {
		bin = filepath.Join(top, "bin")
	}
	dir, err := os.MkdirTemp("/tmp", "bf-") // short: it holds sockets
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(dir, 0o711); err != nil {
		t.Fatal(err)
	}
	n := &node{dir: dir}
	bridge := fmt.Sprintf("bf%d", os.Getpid())
	t.Cleanup(func() {
		n.stop(syscall.SIGKILL)
		_ = exec.Command("ip", "link", "del", bridge).Run()
		os.RemoveAll(dir)
	})
	if daemon = os.Getenv("BERTH_FAULTS_DAEMON"); daemon == "" {
		daemon = dir + "/berthd"
		n.tool(t, top, "go", "build", "-tags", "faults", "-o", daemon, "./cmd/berthd")
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"sleep": string(busybox),
		"net.d/10-faults.conflist": fmt.Sprintf(`{"cniVersion": "1.0.0", "name": "faults", "plugins": [{"type": "bridge", "bridge": %q, "isGateway": true,
 "ipam": {"type": "host-local", "dataDir": %q, "ranges": [[{"subnet": "10.88.%d.0/24"}]]}}]}`, bridge, dir+"/addresses", os.Getpid()%250),
		"config.toml": fmt.Sprintf("restrict_oom_score_adj = true\nshim = %q\n[cni]\nconf_dir = %q\nbin_dirs = [%q]\n[image]\nsync = false\n", bin+"/containerd-shim-berth-v1", dir+"/net.d", bin+"/cni"),
	} {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.tool(t, top, "go", "run", "./demo/pack", "-program", dir+"/sleep", "-name", image, "-o", dir+"/image.tar")
	n.start(t, "")
	n.tool(t, top, bin+"/berth", "--socket", n.sock(), "import", dir+"/image.tar")
	n.stop(syscall.SIGTERM)
	return n
}

func (n *node) sock() string { return n.dir + "/s/berthd.sock" }

func (n *node) tool(t *testing.T, dir string, args ...string) {
	t.Helper()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", args, err, out)
	}
}

// start runs a daemon that has fault in its environment.
func (n *node) start(t *testing.T, fault string) {
	t.Helper()
	log, err := os.OpenFile(n.dir+"/berthd.log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	fmt.Fprintf(log, "--- BERTH_FAULT=%s\n", fault)
	cmd := exec.Command(daemon, "--config", n.dir+"/config.toml", "--root", n.dir+"/r", "--state", n.dir+"/s")
	cmd.Env = append(os.Environ(), "BERTH_FAULT="+fault, "PATH="+bin+":"+os.Getenv("PATH"))
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	died := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(died)
	}()
	n.cmd, n.died = cmd, died
	n.conn, err = grpc.NewClient("unix://"+n.sock(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	n.rt = cri.NewRuntimeServiceClient(n.conn)
	for until := time.Now().Add(30 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if n.dead() {
			return // the fault may be in its recovery
		}
		if c, err := net.Dial("unix", n.sock()); err == nil {
			c.Close()
			return
		}
		if time.Now().After(until) {
			t.Fatalf("berthd does not listen:\n%s", n.tail())
		}
	}
}

func (n *node) dead() bool {
	select {
	case <-n.died:
		return true
	default:
		return false
	}
}

// stop ends the daemon, and only it.
func (n *node) stop(sig syscall.Signal) {
	if n.cmd == nil {
		return
	}
	n.conn.Close()
	_ = n.cmd.Process.Signal(sig)
	<-n.died
	n.cmd = nil
}

func (n *node) tail() string {
	b, err := os.ReadFile(n.dir + "/berthd.log")
	if err != nil {
		return err.Error()
	}
	l := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(l[max(0, len(l)-40):], "\n")
}
