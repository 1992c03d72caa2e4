// Package namespaces makes the Linux namespaces of a pod and keeps them alive
// as bind mounts, so that a pod needs no process to hold them.
//
// It promises: what Create returns is complete (hostname set, sysctls written,
// loopback up) and stays until Remove, whoever dies meanwhile; Create and Remove
// can be called again after an interruption at any instruction; no thread, file
// descriptor or process of this package outlives a call.
//
// It knows nothing of pods: a directory in, paths out. The keeper's effects
// import it, and the mains of binaries that call Create with a user namespace
// (see Main).
package namespaces

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"

	"github.com/containerd/errdefs"
	"golang.org/x/sys/unix"
)

// Request says which namespaces to make.
type Request struct {
	// Dir is where the files are pinned. It is made by Create, appears whole
	// or not at all, and belongs to this package until Remove. A sibling
	// Dir+".new" is used on the way.
	Dir           string
	Net, IPC, UTS bool
	// Hostname is set in the new UTS namespace. Empty leaves the host's.
	Hostname string
	// Sysctls by name, with dots or slashes. Each must belong to a namespace
	// that is being made. See Tune for those of interfaces.
	Sysctls map[string]string
	// User asks for a user namespace that owns the others. Nil is the host's.
	User *UserMapping
}

// Paths are the pinned files. What was not asked for is empty.
type Paths struct {
	Net  string `json:"net,omitempty"`
	IPC  string `json:"ipc,omitempty"`
	UTS  string `json:"uts,omitempty"`
	User string `json:"user,omitempty"`
}

// kind is one sort of namespace: its name in /proc/<pid>/ns and in Dir, and its
// clone(2) flag.
type kind struct {
	name string
	flag int
}

var (
	netKind  = kind{"net", unix.CLONE_NEWNET}
	ipcKind  = kind{"ipc", unix.CLONE_NEWIPC}
	utsKind  = kind{"uts", unix.CLONE_NEWUTS}
	userKind = kind{"user", unix.CLONE_NEWUSER}
	kinds    = []kind{netKind, ipcKind, utsKind, userKind}
)

// at is where p keeps the path of a kind.
func (p *Paths) at(k kind) *string {
	switch k {
	case netKind:
		return &p.Net
	case ipcKind:
		return &p.IPC
	case utsKind:
		return &p.UTS
	default:
		return &p.User
	}
}

// wants are the kinds that r asks for.
func (r *Request) wants() []kind {
	var w []kind
	for _, k := range kinds {
		if (k == netKind && r.Net) || (k == ipcKind && r.IPC) || (k == utsKind && r.UTS) || (k == userKind && r.User != nil) {
			w = append(w, k)
		}
	}
	return w
}

// check refuses what could not work, before anything is taken.
func (r *Request) check() error {
	if !filepath.IsAbs(r.Dir) {
		return fmt.Errorf("dir %q of namespaces is not absolute: %w", r.Dir, errdefs.ErrInvalidArgument)
	}
	if r.Hostname != "" && !r.UTS {
		return fmt.Errorf("hostname %q needs a UTS namespace: %w", r.Hostname, errdefs.ErrInvalidArgument)
	}
	if len(r.Hostname) > 64 { // __NEW_UTS_LEN
		return fmt.Errorf("hostname %q is longer than 64 bytes: %w", r.Hostname, errdefs.ErrInvalidArgument)
	}
	for name := range r.Sysctls {
		k, err := sysctlKind(name)
		if err != nil {
			return err
		}
		if !(k == netKind && r.Net || k == ipcKind && r.IPC || k == utsKind && r.UTS) {
			return fmt.Errorf("sysctl %q needs a %s namespace of the pod's own: %w", name, k.name, errdefs.ErrInvalidArgument)
		}
	}
	if r.User != nil {
		return r.User.check()
	}
	return nil
}

// Create makes the namespaces of r and pins them under r.Dir. If they are there
// already it returns them as they are; what an interrupted Create left half made
// is undone first. On failure nothing is left. Asking for no namespace at all
// touches nothing.
//
// Errors: InvalidArgument names the field; Unavailable when the kernel's limit
// of user namespaces is reached.
func Create(ctx context.Context, r *Request) (*Paths, error) {
	if err := r.check(); err != nil {
		return nil, err
	}
	want := r.wants()
	if len(want) == 0 {
		return &Paths{}, nil
	}
	have, _, err := Load(r.Dir)
	if err != nil {
		return nil, err
	}
	if p, ok := have.pick(want); ok {
		return p, nil
	}
	if err := Remove(ctx, r.Dir); err != nil {
		return nil, err
	}
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("make namespaces in %s: %w", r.Dir, err)
	}
	if err := makeParents(filepath.Dir(r.Dir)); err != nil {
		return nil, fmt.Errorf("make namespaces in %s: %w", r.Dir, err)
	}
	stage := r.Dir + stageSuffix
	err = makeDir(stage)
	if err == nil {
		err = onThread(func() error { return build(r, want, stage) })
	}
	if err == nil {
		// Mounts below a directory move with it, so this one step makes
		// the set appear whole.
		err = os.Rename(stage, r.Dir)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("make namespaces in %s: %w", r.Dir, err), removeDir(stage))
	}
	p := &Paths{}
	for _, k := range want {
		*p.at(k) = filepath.Join(r.Dir, k.name)
	}
	return p, nil
}

// pick returns the paths of want, if p has them all.
func (p *Paths) pick(want []kind) (*Paths, bool) {
	q := &Paths{}
	for _, k := range want {
		if *p.at(k) == "" {
			return nil, false
		}
		*q.at(k) = *p.at(k)
	}
	return q, true
}

// build makes, equips and pins the namespaces. It changes the calling thread,
// which must be one that is thrown away.
func build(r *Request, want []kind, stage string) error {
	source := "/proc/thread-self/ns/"
	flags := 0
	for _, k := range want {
		flags |= k.flag
	}
	if r.User == nil {
		if err := unix.Unshare(flags); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
	} else {
		h, err := startHolder(flags, r.User)
		if err != nil {
			return err
		}
		defer h.end()
		source = "/proc/" + strconv.Itoa(h.process.Pid) + "/ns/"
		for _, k := range want {
			// The user namespace cannot be joined by a thread of many,
			// and need not be: it is below ours, so we rule the others.
			if k != userKind {
				if err := join(source+k.name, k); err != nil {
					return err
				}
			}
		}
	}
	if r.Net {
		if err := loopbackUp(); err != nil {
			return err
		}
	}
	if r.Hostname != "" {
		if err := unix.Sethostname([]byte(r.Hostname)); err != nil {
			return fmt.Errorf("set hostname %q: %w", r.Hostname, err)
		}
	}
	if err := writeSysctls(r.Sysctls, skipMissingInterfaces); err != nil {
		return err
	}
	for _, k := range want {
		if err := pin(source+k.name, filepath.Join(stage, k.name)); err != nil {
			return err
		}
	}
	return nil
}

// join moves the calling thread into the namespace at path.
func join(path string, k kind) error {
	fd, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open %s: %w", path, err)
	}
	defer unix.Close(fd)
	if err := unix.Setns(fd, k.flag); err != nil {
		return fmt.Errorf("join %s: %w", path, err)
	}
	return nil
}

// loopbackUp brings lo up in the calling thread's network namespace. The kernel
// then gives it 127.0.0.1 and ::1 by itself.
func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("bring lo up: socket: %w", err)
	}
	defer unix.Close(fd)
	lo, err := unix.NewIfreq("lo")
	if err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring lo up: read flags: %w", err)
	}
	lo.SetUint16(lo.Uint16() | unix.IFF_UP)
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, lo); err != nil {
		return fmt.Errorf("bring lo up: %w", err)
	}
	return nil
}

// makeParents makes dir and what is missing above it, open to pass through for
// the mapped users of user namespaces.
func makeParents(dir string) error {
	if _, err := os.Stat(dir); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := makeParents(filepath.Dir(dir)); err != nil {
		return err
	}
	return makeDir(dir)
}

func makeDir(dir string) error {
	err := os.Mkdir(dir, 0o711)
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	if err == nil {
		err = os.Chmod(dir, 0o711) // whatever the umask is
	}
	return err
}
