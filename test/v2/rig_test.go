package v2

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	nodev1 "berth/api/node/v1"
)

const (
	mount = "/sys/fs/cgroup"
	image = "v2.example/base:1" // busybox and the end-to-end suite's probe

	patience = 60 * time.Second // the machine may be an emulated one
)

var (
	bin    string // folder of the binaries
	work   string
	daemon *node
	serial atomic.Int64
)

func TestMain(m *testing.M) { os.Exit(suite(m)) }

func suite(m *testing.M) int {
	fail := func(err error) int {
		fmt.Fprintln(os.Stderr, "v2:", err)
		return 1
	}
	if _, err := os.Stat(mount + "/cgroup.controllers"); err != nil {
		return fail(fmt.Errorf("this machine's cgroups are not v2 (use test/v2/run): %w", err))
	}
	if bin = os.Getenv("BERTH_BIN"); bin == "" {
		return fail(errors.New("BERTH_BIN must name the folder of the binaries"))
	}
	var err error
	if work, err = os.MkdirTemp("", "v2-"); err != nil {
		return fail(err)
	}
	defer os.RemoveAll(work)
	// The root of a user namespace has to get through.
	if err := os.Chmod(work, 0o755); err != nil {
		return fail(err)
	}
	if err := writeImage(work + "/image.tar"); err != nil {
		return fail(err)
	}
	if daemon, err = newNode(); err != nil {
		return fail(err)
	}
	defer daemon.stop(syscall.SIGTERM)
	if err := daemon.load(work + "/image.tar"); err != nil {
		return fail(err)
	}
	code := m.Run()
	if left := leftovers(); len(left) > 0 {
		return max(code, fail(fmt.Errorf("left over: %s", strings.Join(left, ", "))))
	}
	return code
}

// leftovers are cgroups of containers without a parent. What the tests make for
// pods they remove, which fails when something is in it.
func leftovers() (left []string) {
	for range 100 {
		left, _ = filepath.Glob(mount + "/berth-" + strings.Repeat("[0-9a-f]", 64))
		if len(left) == 0 {
			return nil
		}
		time.Sleep(50 * time.Millisecond)
	}
	return left
}

// writeImage makes an OCI archive with the image.
func writeImage(to string) error {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	folder := func(name string) error {
		return w.WriteHeader(&tar.Header{Name: name, Mode: 0o1777, Typeflag: tar.TypeDir})
	}
	if err := errors.Join(folder("bin/"), folder("tmp/"), folder("proc/"), folder("sys/"), folder("dev/")); err != nil {
		return err
	}
	for name, from := range map[string]string{"bin/busybox": "/bin/busybox", "bin/probe": bin + "/probe"} {
		b, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o755, Size: int64(len(b)), Typeflag: tar.TypeReg}); err != nil {
			return err
		}
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	applets, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		return err
	}
	for _, a := range strings.Fields(string(applets)) {
		if a == "busybox" {
			continue
		}
		if err := w.WriteHeader(&tar.Header{Name: "bin/" + a, Linkname: "busybox", Mode: 0o777, Typeflag: tar.TypeSymlink}); err != nil {
			return err
		}
	}
	if err := w.Close(); err != nil {
		return err
	}
	l, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, l)
	if err != nil {
		return err
	}
	img, err = mutate.ConfigFile(img, imageConfig(img))
	if err != nil {
		return err
	}
	dir := to + ".d"
	defer os.RemoveAll(dir)
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := p.AppendImage(img, layout.WithAnnotations(map[string]string{"io.containerd.image.name": image})); err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	a := tar.NewWriter(f)
	return errors.Join(a.AddFS(os.DirFS(dir)), a.Close())
}

func imageConfig(img v1.Image) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil {
		panic(err) // it was made in memory
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", "amd64"
	c.Config.Env = []string{"PATH=/bin"}
	return c
}

// node is a berthd on folders of its own.
type node struct {
	dir, sock string
	cmd       *exec.Cmd
	conn      *grpc.ClientConn
	rt        cri.RuntimeServiceClient
}

func newNode() (*node, error) {
	n := &node{dir: work, sock: work + "/s/berthd.sock"}
	config := fmt.Sprintf("[cni]\nconf_dir = %q\nbin_dirs = [%q]\n[image]\nsync = false\n", work+"/net.d", bin+"/cni")
	if err := os.WriteFile(n.dir+"/config.toml", []byte(config), 0o600); err != nil {
		return nil, err
	}
	return n, n.start()
}

func (n *node) start() error {
	log, err := os.OpenFile(n.dir+"/berthd.log", os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer log.Close()
	n.cmd = exec.Command(bin+"/berthd", "--config", n.dir+"/config.toml", "--root", n.dir+"/r", "--state", n.dir+"/s")
	n.cmd.Stdout, n.cmd.Stderr = log, log
	if err := n.cmd.Start(); err != nil {
		return err
	}
	n.conn, err = grpc.NewClient("unix://"+n.sock, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	n.rt = cri.NewRuntimeServiceClient(n.conn)
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.Dial("unix", n.sock)
		if err == nil {
			return c.Close()
		}
		if time.Now().After(until) {
			n.stop(syscall.SIGKILL)
			return fmt.Errorf("berthd does not listen: %w\n%s", err, n.tail())
		}
	}
}

func (n *node) stop(sig syscall.Signal) {
	n.conn.Close()
	n.cmd.Process.Signal(sig)
	n.cmd.Wait()
}

func (n *node) tail() string {
	b, err := os.ReadFile(n.dir + "/berthd.log")
	if err != nil {
		return err.Error()
	}
	l := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(l[max(0, len(l)-15):], "\n")
}

func (n *node) load(archive string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	b, err := os.ReadFile(archive)
	if err != nil {
		return err
	}
	s, err := nodev1.NewNodeClient(n.conn).Import(ctx)
	if err != nil {
		return err
	}
	for len(b) > 0 {
		k := min(len(b), 1<<20)
		if err := s.Send(&nodev1.ImportRequest{Chunk: b[:k]}); err != nil {
			break // the answer says why
		}
		b = b[k:]
	}
	_, err = s.CloseAndRecv()
	return err
}

func eventually(t *testing.T, f func() error) {
	t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("not in %v: %v", patience, err)
		}
	}
}
