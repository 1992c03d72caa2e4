package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"berth/internal/namespaces"

	"golang.org/x/sys/unix"
)

const inside = "BERTH_TEST_INSIDE" // set in private network and mount namespaces

// TestMain runs the tests in a network namespace and a mount namespace of their
// own, which stand for the host: bridges, veths, firewall rules and pins never
// touch the machine. Under another name it is a stub plugin.
func TestMain(m *testing.M) {
	if base := filepath.Base(os.Args[0]); slices.Contains(stubNames, base) {
		os.Exit(stub())
	}
	if os.Getenv(inside) == "" {
		cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
		cmd.Env = append(os.Environ(), inside+"=1")
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
		cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: unix.CLONE_NEWNS | unix.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
		if err := cmd.Run(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	// iptables' lock lives in /run.
	if err := unix.Mount("tmpfs", "/run", "tmpfs", 0, ""); err != nil {
		fmt.Fprintln(os.Stderr, "tmpfs on /run:", err)
		os.Exit(1)
	}
	if out, err := exec.Command("ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		fmt.Fprintln(os.Stderr, "lo up:", err, string(out))
		os.Exit(1)
	}
	// Stubs of a race-checked binary would sleep for a second when they exit.
	os.Setenv("GORACE", "atexit_sleep_ms=0")
	os.Exit(m.Run())
}

// plugins is the folder of the real plugins.
func plugins(t testing.TB) string {
	t.Helper()
	for _, dir := range append(filepath.SplitList(os.Getenv("CNI_PATH")), "../../bin/cni", "/opt/cni/bin") {
		if _, err := os.Stat(filepath.Join(dir, "bridge")); err == nil {
			abs, err := filepath.Abs(dir)
			if err != nil {
				t.Fatal(err)
			}
			return abs
		}
	}
	t.Fatal("no CNI plugins: set CNI_PATH or build bin/cni")
	return ""
}

// rig is a host with a configuration directory, plugins, and stubs.
type rig struct {
	t       testing.TB
	s       *Service
	conf    Config
	top     string
	control string // of the stubs
	bridge  string
	pods    int
}

var bridges int

func newRig(t testing.TB, change ...func(*Config)) *rig {
	t.Helper()
	top := t.TempDir()
	bridges++
	r := &rig{t: t, top: top, control: filepath.Join(top, "control"), bridge: fmt.Sprintf("tbr%d", bridges)}
	for _, dir := range []string{"conf", "stubs", "control"} {
		if err := os.Mkdir(filepath.Join(top, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(top, "stubs", "stub")); err != nil {
		t.Fatal(err)
	}
	r.conf = Config{
		ConfDir:  filepath.Join(top, "conf"),
		BinDirs:  []string{filepath.Join(top, "stubs"), plugins(t)},
		CacheDir: filepath.Join(top, "cache"),
		Timeout:  20 * time.Second,
	}
	for _, c := range change {
		c(&r.conf)
	}
	r.s = r.restart()
	t.Cleanup(func() { _ = exec.Command("ip", "link", "del", r.bridge).Run() })
	return r
}

// restart makes another service on the same disk.
func (r *rig) restart() *Service {
	r.t.Helper()
	s, err := New(&r.conf)
	if err != nil {
		r.t.Fatal(err)
	}
	return s
}

// write puts a list into the configuration directory.
func (r *rig) write(file, name string, plugins ...any) {
	r.t.Helper()
	r.writeVersion("1.0.0", file, name, plugins...)
}

func (r *rig) writeVersion(version, file, name string, plugins ...any) {
	r.t.Helper()
	data, err := json.Marshal(map[string]any{"cniVersion": version, "name": name, "plugins": plugins})
	if err != nil {
		r.t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(r.conf.ConfDir, file), data, 0o644); err != nil {
		r.t.Fatal(err)
	}
}

type conf = map[string]any

// bridgeConf is a bridge with host-local addresses of the subnets.
func (r *rig) bridgeConf(subnets ...string) conf {
	if len(subnets) == 0 {
		subnets = []string{"10.77.0.0/16"}
	}
	var ranges [][]conf
	for _, s := range subnets {
		ranges = append(ranges, []conf{{"subnet": s}})
	}
	return conf{"type": "bridge", "bridge": r.bridge, "isGateway": true, "hairpinMode": true,
		"ipam": conf{"type": "host-local", "dataDir": filepath.Join(r.top, "hl"), "ranges": ranges, "routes": []conf{{"dst": "0.0.0.0/0"}}}}
}

func (r *rig) stubConf(mark string) conf {
	return conf{"type": "stub", "control": r.control, "mark": mark}
}

func portmapConf() conf {
	return conf{"type": "portmap", "capabilities": conf{"portMappings": true}}
}

// pod makes a pod with a network namespace.
func (r *rig) pod() *Pod {
	r.t.Helper()
	r.pods++
	id := fmt.Sprintf("%056x%08x", bridges, r.pods)
	dir := filepath.Join(r.top, "ns", id)
	p, err := namespaces.Create(r.t.Context(), &namespaces.Request{Dir: dir, Net: true})
	if err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { r.dropNS(id) })
	return &Pod{ID: id, Name: "n", Namespace: "ns", UID: "u-" + id, NetNS: p.Net}
}

func (r *rig) dropNS(id string) {
	if err := namespaces.Remove(contextOf(r.t), filepath.Join(r.top, "ns", id)); err != nil {
		r.t.Error(err)
	}
}

// addresses are host-local's reservations of a network.
func (r *rig) addresses(network string) []string {
	r.t.Helper()
	entries, err := os.ReadDir(filepath.Join(r.top, "hl", network))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		r.t.Fatal(err)
	}
	var got []string
	for _, e := range entries {
		if n := e.Name(); n != "lock" && !strings.HasPrefix(n, "last_reserved") {
			got = append(got, n)
		}
	}
	return got
}

// records are the cache's files.
func (r *rig) records() []string {
	r.t.Helper()
	files, err := filepath.Glob(filepath.Join(r.conf.CacheDir, "*"))
	if err != nil {
		r.t.Fatal(err)
	}
	return files
}

// veths are the interfaces on the rig's bridge.
func (r *rig) veths() string {
	out, _ := exec.Command("ip", "-o", "link", "show", "master", r.bridge).Output()
	return string(out)
}

func (r *rig) setup(p *Pod) *Result {
	r.t.Helper()
	res, err := r.s.Setup(r.t.Context(), p)
	if err != nil {
		r.t.Fatal(err)
	}
	return res
}

func (r *rig) teardown(p *Pod) {
	r.t.Helper()
	if err := r.s.Teardown(r.t.Context(), p); err != nil {
		r.t.Fatal(err)
	}
}

// clean fails unless everything was given back.
func (r *rig) clean(network string) {
	r.t.Helper()
	if got := r.addresses(network); len(got) != 0 {
		r.t.Errorf("addresses left: %v", got)
	}
	if got := r.records(); len(got) != 0 {
		r.t.Errorf("records left: %v", got)
	}
	if got := r.veths(); got != "" {
		r.t.Errorf("interfaces left: %s", got)
	}
}

// in runs a command in a network namespace.
func in(t testing.TB, netns string, command ...string) string {
	t.Helper()
	out, err := exec.Command("nsenter", append([]string{"--net=" + netns}, command...)...).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v: %s", command, err, out)
	}
	return string(out)
}

// enter runs f on a thread inside a network namespace; what f opens stays there.
func enter(t *testing.T, netns string, f func() error) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		fd, err := unix.Open(netns, unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			unix.Close(fd)
		}
		if err == nil {
			err = f()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}
