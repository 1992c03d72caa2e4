package ocispec

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/contrib/seccomp"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxSeccompFile bounds a localhost profile. The default one has 20 KiB.
const maxSeccompFile = 1 << 20

const (
	seccompField  = "linux.security_context.seccomp"
	apparmorField = "linux.security_context.apparmor"
)

// seccompProfile is what CRI asks for; nil when it asks for nothing.
func (b *builder) seccompProfile() *runtime.SecurityProfile {
	if b.privileged {
		return nil // privileged means unconfined, whatever the profile says
	}
	//lint:ignore SA1019 the deprecated field is part of CRI, and older kubelets set it
	p, _ := securityProfile(seccompField, b.sc.GetSeccomp(), b.sc.GetSeccompProfilePath())
	if p == nil && b.DefaultSeccomp {
		return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault}
	}
	return p
}

// seccomp confines the process's system calls. Exec'd processes get the same
// filter from the runtime.
func (b *builder) seccomp(context.Context) error {
	p := b.seccompProfile()
	if p == nil || p.GetProfileType() == runtime.SecurityProfile_Unconfined {
		return nil
	}
	if !b.Host.Seccomp {
		return unsupported(seccompField, "this kernel has no seccomp filters")
	}
	if p.GetProfileType() == runtime.SecurityProfile_RuntimeDefault {
		b.spec.Linux.Seccomp = defaultSeccomp(b.spec)
		return nil
	}
	profile, err := parseSeccomp(b.paths.seccomp)
	if err != nil {
		return invalid(seccompField, "profile %q: %v", p.GetLocalhostRef(), err)
	}
	b.spec.Linux.Seccomp = profile
	return nil
}

// defaultProfiles caches default profiles by bounding set: they are large, and
// nearly all containers have one of a few.
var defaultProfiles struct {
	mu    sync.Mutex
	byCap map[string]*specs.LinuxSeccomp
}

// maxDefaultProfiles bounds the cache: callers choose capabilities.
const maxDefaultProfiles = 32

// defaultSeccomp returns the default profile for the spec's capabilities. The
// profile is shared.
func defaultSeccomp(spec *specs.Spec) *specs.LinuxSeccomp {
	key := strings.Join(spec.Process.Capabilities.Bounding, ",")
	c := &defaultProfiles
	c.mu.Lock()
	defer c.mu.Unlock()
	if p := c.byCap[key]; p != nil {
		return p
	}
	p := seccomp.DefaultProfile(spec)
	if c.byCap == nil {
		c.byCap = map[string]*specs.LinuxSeccomp{}
	}
	if len(c.byCap) < maxDefaultProfiles {
		c.byCap[key] = p
	}
	return p
}

var (
	seccompActions = []specs.LinuxSeccompAction{
		specs.ActAllow, specs.ActErrno, specs.ActKill, specs.ActKillProcess, specs.ActKillThread,
		specs.ActLog, specs.ActNotify, specs.ActTrace, specs.ActTrap,
	}
	seccompOperators = []specs.LinuxSeccompOperator{
		specs.OpNotEqual, specs.OpLessThan, specs.OpLessEqual, specs.OpEqualTo,
		specs.OpGreaterEqual, specs.OpGreaterThan, specs.OpMaskedEqual,
	}
)

// parseSeccomp reads a profile as the OCI runtime spec defines it. Unknown
// fields are passed over, as runtimes do; everything that decides what is
// allowed must be whole.
func parseSeccomp(data []byte) (*specs.LinuxSeccomp, error) {
	var p specs.LinuxSeccomp
	d := json.NewDecoder(bytes.NewReader(data))
	if err := d.Decode(&p); err != nil {
		return nil, err
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, errors.New("more than one JSON value")
	}
	if !slices.Contains(seccompActions, p.DefaultAction) {
		return nil, errors.New("defaultAction: unknown action " + quote(p.DefaultAction))
	}
	for _, s := range p.Syscalls {
		if len(s.Names) == 0 {
			return nil, errors.New("syscalls: a rule has no names")
		}
		if !slices.Contains(seccompActions, s.Action) {
			return nil, errors.New("syscalls: unknown action " + quote(s.Action))
		}
		for _, a := range s.Args {
			if !slices.Contains(seccompOperators, a.Op) {
				return nil, errors.New("syscalls: unknown operator " + quote(a.Op))
			}
			if a.Index > 5 {
				return nil, errors.New("syscalls: a system call has six arguments")
			}
		}
	}
	return &p, nil
}

// quote keeps an error short, whatever the file says.
func quote[T ~string](s T) string {
	if len(s) > 64 {
		s = s[:64] + "…"
	}
	return `"` + strings.ToValidUTF8(string(s), "?") + `"`
}

// securityProfile is what CRI says about seccomp or AppArmor: the struct, or
// the deprecated string. nil means that it says nothing. A localhost reference
// comes back without its prefix.
func securityProfile(field string, p *runtime.SecurityProfile, deprecated string) (*runtime.SecurityProfile, error) {
	const prefix = "localhost/"
	if p != nil {
		switch p.GetProfileType() {
		case runtime.SecurityProfile_RuntimeDefault, runtime.SecurityProfile_Unconfined:
			if p.GetLocalhostRef() != "" {
				return nil, invalid(field+".localhost_ref", "must be empty unless the type is Localhost")
			}
			return p, nil
		case runtime.SecurityProfile_Localhost:
			ref := strings.TrimPrefix(p.GetLocalhostRef(), prefix)
			if err := checkLocalhost(field+".localhost_ref", ref); err != nil {
				return nil, err
			}
			return &runtime.SecurityProfile{ProfileType: p.GetProfileType(), LocalhostRef: ref}, nil
		default:
			return nil, invalid(field+".profile_type", "unknown type %d", p.GetProfileType())
		}
	}
	switch deprecated {
	case "":
		return nil, nil
	case "runtime/default", "docker/default":
		return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault}, nil
	case "unconfined":
		return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Unconfined}, nil
	}
	ref, ok := strings.CutPrefix(deprecated, prefix)
	if !ok {
		return nil, invalid(field+"_profile", "%q is not runtime/default, unconfined or localhost/…", deprecated)
	}
	if err := checkLocalhost(field+"_profile", ref); err != nil {
		return nil, err
	}
	return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Localhost, LocalhostRef: ref}, nil
}

func checkLocalhost(field, ref string) error {
	if strings.HasPrefix(field, seccompField) && !path.IsAbs(ref) {
		return invalid(field, "%q is not an absolute path", ref)
	}
	if ref == "" {
		return invalid(field, "empty")
	}
	return nil
}
