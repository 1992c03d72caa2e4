//go:build linux

package boot

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	bootapi "github.com/containerd/containerd/api/runtime/bootstrap/v1"
	"github.com/containerd/containerd/api/types/runc/options"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
)

const (
	// defaultSockets is where containerd's shims put their sockets.
	defaultSockets = "/run/containerd/s"
	// maxInput bounds what start reads.
	maxInput = 10 << 20
	// maxPath is what a unix socket's path can have.
	maxPath = 106
)

// groupLabels name the pod that a container belongs to, in order of precedence.
var groupLabels = [...]string{"io.containerd.runc.v2.group", "io.kubernetes.cri.sandbox-id"}

// request is what start was asked, in whichever form.
type request struct {
	modern    bool // containerd 2.3 and later: protobuf both ways
	plain     bool // containerd 1.6 and earlier: an address and nothing else
	address   string
	ttrpc     string
	socketDir string
	debug     bool
	options   options.Options
}

// readRequest tells from stdin who asks: parameters that name this very
// instance are containerd's of 2.3 and later; anything else is runtime options,
// or nothing, of an older one. (Old options can decode as parameters by accident.)
func readRequest(a *args, stdin io.Reader) (*request, error) {
	in, err := io.ReadAll(io.LimitReader(stdin, maxInput))
	if err != nil {
		return nil, fmt.Errorf("read parameters: %w", err)
	}
	r := &request{address: a.address, ttrpc: a.ttrpc, socketDir: defaultSockets, debug: a.debug}
	var p bootapi.BootstrapParams
	if proto.Unmarshal(in, &p) == nil && p.InstanceID == a.id && p.Namespace == a.namespace {
		r.modern = true
		r.debug = r.debug || p.LogLevel <= bootapi.LogLevel_LOG_LEVEL_DEBUG
		if p.ContainerdGrpcAddress != "" {
			r.address = p.ContainerdGrpcAddress
		}
		if p.ContainerdTtrpcAddress != "" {
			r.ttrpc = p.ContainerdTtrpcAddress
		}
		if d := p.GetSocketDir(); d != "" {
			r.socketDir = d
		}
		for _, e := range p.Extensions {
			if v := e.GetValue(); v != nil && v.MessageIs(&r.options) {
				if err := proto.Unmarshal(v.Value, &r.options); err != nil {
					return nil, fmt.Errorf("runtime options: %w", err)
				}
			}
		}
		return r, nil
	}
	r.plain = os.Getenv("MAX_SHIM_VERSION") == ""
	var legacy anypb.Any
	if proto.Unmarshal(in, &legacy) == nil && legacy.MessageIs(&r.options) {
		if err := proto.Unmarshal(legacy.Value, &r.options); err != nil {
			return nil, fmt.Errorf("runtime options: %w", err)
		}
	}
	return r, nil
}

// answer says where the shim is, in the form of who asked.
func (r *request) answer(address string) ([]byte, error) {
	switch {
	case r.modern:
		return proto.Marshal(&bootapi.BootstrapResult{Version: 3, Address: address, Protocol: "ttrpc"})
	case r.plain:
		return []byte(address), nil
	default:
		// Version 3 in this form is refused by 1.7, and nothing tells 1.7 from
		// 2.0 to 2.2, which take 2 as well.
		return json.Marshal(map[string]any{"version": 2, "address": address, "protocol": "ttrpc"})
	}
}

// group is the pod's id when the bundle in the working directory names one.
func group(id string) (string, error) {
	f, err := os.Open("config.json")
	if errors.Is(err, os.ErrNotExist) {
		return id, nil // a sandbox without a spec
	}
	if err != nil {
		return "", err
	}
	defer f.Close()
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	if err := json.NewDecoder(f).Decode(&spec); err != nil {
		return "", fmt.Errorf("read config.json: %w", err)
	}
	for _, label := range groupLabels {
		if g := spec.Annotations[label]; g != "" {
			return g, nil
		}
	}
	return id, nil
}

// start makes the pod's shim, unless it lives, and answers where it is.
func start(a *args, stdin io.Reader, stdout io.Writer) error {
	r, err := readRequest(a, stdin)
	if err != nil {
		return err
	}
	g, err := group(a.id)
	if err != nil {
		return err
	}
	name := sha256.Sum256([]byte(filepath.Join(r.address, a.namespace, g)))
	path := fmt.Sprintf("%s/%x", r.socketDir, name)
	l, err := listen(path)
	if err != nil {
		return err
	}
	if l != nil { // else the shim of this pod is alive
		if err := spawn(a, r, g, path, l); err != nil {
			_ = os.Remove(path)
			return err
		}
	}
	address := "unix://" + path
	if !r.modern {
		if err := os.WriteFile("address", []byte(address), 0o600); err != nil {
			return err
		}
	}
	out, err := r.answer(address)
	if err != nil {
		return err
	}
	_, err = stdout.Write(out)
	return err
}

// listen makes a socket at path. It returns nil when somebody listens there.
func listen(path string) (*net.UnixListener, error) {
	if len(path) > maxPath {
		return nil, fmt.Errorf("socket path %s has %d bytes, allowed are %d", path, len(path), maxPath)
	}
	for try := 0; ; try++ {
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		switch {
		case err == nil:
			l.SetUnlinkOnClose(false)
			if err := os.Chmod(path, 0o600); err != nil {
				l.Close()
				return nil, errors.Join(err, os.Remove(path))
			}
			return l, nil
		case errors.Is(err, os.ErrNotExist) && try == 0:
			if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
				return nil, fmt.Errorf("folder of the socket: %w", err)
			}
		case errors.Is(err, syscall.EADDRINUSE) && try < 3:
			if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
				c.Close()
				return nil, nil
			}
			if err := os.Remove(path); err != nil && !errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("socket of a dead shim: %w", err)
			}
		default:
			return nil, fmt.Errorf("listen: %w", err)
		}
	}
}

// spawn starts the server process on l. The socket takes connections already.
func spawn(a *args, r *request, group, path string, l *net.UnixListener) error {
	f, err := l.File()
	if err != nil {
		return err
	}
	defer f.Close()
	defer l.Close()
	null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer null.Close()
	// containerd reads the log fifo of the bundle. Open for reading too, it is
	// never without a reader; without blocking, a full one drops.
	log, err := os.OpenFile("log", os.O_RDWR|syscall.O_NONBLOCK, 0)
	if err != nil {
		log = null
	} else {
		defer log.Close()
	}
	argv := []string{os.Args[0], "-namespace", a.namespace, "-id", group, "-address", r.address}
	if r.debug {
		argv = append(argv, "-debug")
	}
	argv = append(argv, actionServe)
	pid, err := syscall.ForkExec(self(), argv, &syscall.ProcAttr{
		Dir:   "/",
		Env:   serveEnv(r.ttrpc, path),
		Files: []uintptr{null.Fd(), null.Fd(), log.Fd(), f.Fd()},
		Sys:   &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		return fmt.Errorf("start the server: %w", err)
	}
	// The server is not waited for: whoever inherits it reaps it.
	if cg := r.options.ShimCgroup; cg != "" {
		if err := joinCgroup(cg, pid); err != nil {
			_ = syscall.Kill(pid, syscall.SIGKILL)
			return err
		}
	}
	// A shim is to be killed before its containerd, and after everything else.
	if score, err := oomScore(os.Getppid()); err == nil {
		_ = setOOMScore(strconv.Itoa(pid), min(score+1, 1000))
	}
	return nil
}

// self is this binary.
func self() string {
	if exe, err := os.Executable(); err == nil {
		if _, err := os.Stat(exe); err == nil {
			return exe
		}
	}
	return "/proc/self/exe" // it was replaced
}

// serveEnv is the server's environment: what a runtime binary may need, and
// what keeps the Go runtime small and quiet.
func serveEnv(ttrpc, socket string) []string {
	env := []string{procs, "TTRPC_ADDRESS=" + ttrpc, "BERTH_SOCKET=" + socket}
	for _, kv := range os.Environ() {
		k, _, _ := strings.Cut(kv, "=")
		switch k {
		case "GOMAXPROCS", "TTRPC_ADDRESS", "GRPC_ADDRESS", "MAX_SHIM_VERSION", "BERTH_SOCKET":
		default:
			env = append(env, kv)
		}
	}
	return env
}
