package ocispec

import (
	"encoding/json"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/containerd/v2/pkg/cap"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	data, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func TestCapabilities(t *testing.T) {
	with := func(caps []string, add ...string) []string {
		caps = append(slices.Clone(caps), add...)
		slices.Sort(caps)
		return slices.Compact(caps)
	}
	without := func(caps []string, drop string) []string {
		return slices.DeleteFunc(slices.Clone(caps), func(c string) bool { return c == drop })
	}
	all := []string{"CAP_CHOWN", "CAP_KILL", "CAP_NET_ADMIN", "CAP_SYS_ADMIN"}
	for name, tc := range map[string]struct {
		caps  *runtime.Capability
		want  []string
		field string
	}{
		"default":       {nil, defaultCapabilities, ""},
		"add":           {&runtime.Capability{AddCapabilities: []string{"net_admin"}}, with(defaultCapabilities, "CAP_NET_ADMIN"), ""},
		"add prefixed":  {&runtime.Capability{AddCapabilities: []string{"CAP_NET_ADMIN"}}, with(defaultCapabilities, "CAP_NET_ADMIN"), ""},
		"drop":          {&runtime.Capability{DropCapabilities: []string{"CHOWN"}}, without(defaultCapabilities, "CAP_CHOWN"), ""},
		"add all":       {&runtime.Capability{AddCapabilities: []string{"all"}, DropCapabilities: []string{"KILL"}}, without(all, "CAP_KILL"), ""},
		"drop all":      {&runtime.Capability{AddCapabilities: []string{"KILL"}, DropCapabilities: []string{"ALL"}}, []string{"CAP_KILL"}, ""},
		"unknown add":   {&runtime.Capability{AddCapabilities: []string{"FLY"}}, nil, "add_capabilities"},
		"unknown drop":  {&runtime.Capability{DropCapabilities: []string{"FLY"}}, nil, "drop_capabilities"},
		"unknown ambi.": {&runtime.Capability{AddAmbientCapabilities: []string{"FLY"}}, nil, "add_ambient_capabilities"},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			r.Host.Capabilities = all
			r.context().Capabilities = tc.caps
			if tc.field != "" {
				wantInvalid(t, r, tc.field)
				return
			}
			c := mustBuild(t, r).Process.Capabilities
			for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted} {
				if !slices.Equal(set, tc.want) {
					t.Errorf("%q, want %q", set, tc.want)
				}
			}
			if len(c.Ambient)+len(c.Inheritable) != 0 {
				t.Errorf("ambient %q, inheritable %q", c.Ambient, c.Inheritable)
			}
		})
	}

	r := testRequest(t)
	r.context().Capabilities = &runtime.Capability{AddAmbientCapabilities: []string{"NET_ADMIN"}}
	c := mustBuild(t, r).Process.Capabilities
	for _, set := range [][]string{c.Bounding, c.Effective, c.Permitted, c.Inheritable, c.Ambient} {
		if !slices.Contains(set, "CAP_NET_ADMIN") {
			t.Errorf("asked for ambient NET_ADMIN, got %+v", c)
		}
	}
	r.Host.Capabilities = all
	r.context().Capabilities = &runtime.Capability{AddCapabilities: []string{"SYS_BOOT"}}
	if _, err := Build(t.Context(), r); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("a capability that the host lacks: %v", err)
	}
}

func TestPrivileged(t *testing.T) {
	r := testRequest(t)
	r.context().Privileged = true
	wantInvalid(t, r, "privileged")

	r.Pod.Linux.SecurityContext.Privileged = true
	r.context().Seccomp = &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Localhost, LocalhostRef: "/nowhere"}
	r.context().MaskedPaths = []string{"/proc/kcore"}
	r.context().ReadonlyPaths = []string{"/proc/sys"}
	s := mustBuild(t, r)
	if s.Linux.Seccomp != nil || len(s.Linux.MaskedPaths)+len(s.Linux.ReadonlyPaths) != 0 {
		t.Error("privileged but confined")
	}
	if want := slices.Sorted(slices.Values(r.Host.Capabilities)); !slices.Equal(s.Process.Capabilities.Effective, want) {
		t.Errorf("capabilities %q, want %q", s.Process.Capabilities.Effective, want)
	}
	for _, m := range s.Mounts {
		if strings.HasPrefix(m.Destination, "/sys") && slices.Contains(m.Options, "ro") {
			t.Errorf("%s is read-only", m.Destination)
		}
	}
	if d := s.Linux.Resources.Devices; len(d) != 1 || !d[0].Allow || d[0].Access != "rwm" {
		t.Errorf("device rules %v", d)
	}
	if !slices.ContainsFunc(s.Linux.Devices, func(d specs.LinuxDevice) bool { return d.Path == "/dev/null" && d.Major == 1 && d.Minor == 3 }) {
		t.Error("no /dev/null among the host's devices")
	}
	r.PrivilegedWithoutHostDevices = true
	if s := mustBuild(t, r); len(s.Linux.Devices) != 0 || s.Linux.Resources.Devices[0].Allow {
		t.Errorf("host devices: %v", s.Linux.Devices)
	}
}

func TestSeccomp(t *testing.T) {
	dir := t.TempDir()
	good := writeFile(t, dir+"/good.json", `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["chmod"],"action":"SCMP_ACT_ERRNO"}]}`)
	bad := writeFile(t, dir+"/bad.json", `{"defaultAction":"SCMP_ACT_NOPE"}`)
	big := writeFile(t, dir+"/big.json", `{"defaultAction":"SCMP_ACT_ALLOW"}`+strings.Repeat(" ", maxSeccompFile))
	fifo := filepath.Join(dir, "fifo")
	if err := unix.Mkfifo(fifo, 0o644); err != nil {
		t.Fatal(err)
	}
	local := func(path string) *runtime.SecurityProfile {
		return &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Localhost, LocalhostRef: path}
	}
	def := &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_RuntimeDefault}
	for name, tc := range map[string]struct {
		profile    *runtime.SecurityProfile
		deprecated string
		byDefault  bool
		want       string // the default action; "" = unconfined; "error" = refused
	}{
		"nothing":              {nil, "", false, ""},
		"nothing, by default":  {nil, "", true, "SCMP_ACT_ERRNO"},
		"default":              {def, "", false, "SCMP_ACT_ERRNO"},
		"unconfined":           {&runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Unconfined}, "", true, ""},
		"localhost":            {local(good), "", false, "SCMP_ACT_ALLOW"},
		"localhost, prefixed":  {local("localhost/" + good), "", false, "SCMP_ACT_ALLOW"},
		"localhost, missing":   {local(dir + "/none"), "", false, "error"},
		"localhost, relative":  {local("none"), "", false, "error"},
		"localhost, empty":     {local(""), "", false, "error"},
		"localhost, bad":       {local(bad), "", false, "error"},
		"localhost, too large": {local(big), "", false, "error"},
		"localhost, fifo":      {local(fifo), "", false, "error"},
		"localhost, directory": {local(dir), "", false, "error"},
		"default with a file":  {&runtime.SecurityProfile{LocalhostRef: good}, "", false, "error"},
		"unknown type":         {&runtime.SecurityProfile{ProfileType: 9}, "", false, "error"},
		"old default":          {nil, "runtime/default", false, "SCMP_ACT_ERRNO"},
		"old docker default":   {nil, "docker/default", false, "SCMP_ACT_ERRNO"},
		"old unconfined":       {nil, "unconfined", true, ""},
		"old localhost":        {nil, "localhost/" + good, false, "SCMP_ACT_ALLOW"},
		"old rubbish":          {nil, "rubbish", false, "error"},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			r.DefaultSeccomp = tc.byDefault
			r.context().Seccomp = tc.profile
			//lint:ignore SA1019 the deprecated field is part of CRI, and older kubelets set it
			r.context().SeccompProfilePath = tc.deprecated
			if tc.want == "error" {
				wantInvalid(t, r, "seccomp")
				return
			}
			var got string
			if p := mustBuild(t, r).Linux.Seccomp; p != nil {
				got = string(p.DefaultAction)
			}
			if got != tc.want {
				t.Errorf("default action %q, want %q", got, tc.want)
			}
		})
	}
	r := testRequest(t)
	r.Host.Seccomp = false
	r.context().Seccomp = def
	if _, err := Build(t.Context(), r); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("seccomp on a kernel without: %v", err)
	}
}

// The default profile follows the capabilities, also when it is cached.
func TestDefaultSeccompFollowsCapabilities(t *testing.T) {
	allows := func(s *specs.Spec, name string) bool {
		return slices.ContainsFunc(s.Linux.Seccomp.Syscalls, func(c specs.LinuxSyscall) bool {
			return c.Action == specs.ActAllow && slices.Contains(c.Names, name)
		})
	}
	for range 2 {
		r := testRequest(t)
		r.context().Seccomp = &runtime.SecurityProfile{}
		if allows(mustBuild(t, r), "mount") {
			t.Error("mount is allowed without SYS_ADMIN")
		}
		r.context().Capabilities = &runtime.Capability{AddCapabilities: []string{"SYS_ADMIN"}}
		if !allows(mustBuild(t, r), "mount") {
			t.Error("mount is not allowed with SYS_ADMIN")
		}
	}
}

func TestBadSeccompFiles(t *testing.T) {
	for name, file := range map[string]string{
		"empty":            ``,
		"null":             `null`,
		"no action":        `{}`,
		"two values":       `{"defaultAction":"SCMP_ACT_ALLOW"}{}`,
		"rule of nothing":  `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"action":"SCMP_ACT_ERRNO"}]}`,
		"unknown action":   `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["x"],"action":"` + strings.Repeat("X", 5000) + `"}]}`,
		"unknown operator": `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["x"],"action":"SCMP_ACT_ERRNO","args":[{"op":"LIKE"}]}]}`,
		"seventh argument": `{"defaultAction":"SCMP_ACT_ALLOW","syscalls":[{"names":["x"],"action":"SCMP_ACT_ERRNO","args":[{"index":6,"op":"SCMP_CMP_EQ"}]}]}`,
	} {
		if p, err := parseSeccomp([]byte(file)); err == nil || len(err.Error()) > 500 {
			t.Errorf("%s: %v, %v", name, p, err)
		}
	}
}

func FuzzSeccomp(f *testing.F) {
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ERRNO","syscalls":[{"names":["read"],"action":"SCMP_ACT_ALLOW","args":[{"index":0,"value":1,"op":"SCMP_CMP_EQ"}]}]}`))
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"defaultAction":"SCMP_ACT_ALLOW"} {}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parseSeccomp(data)
		if err != nil {
			if len(err.Error()) > 4096 {
				t.Error("error repeats the file")
			}
			return
		}
		if !slices.Contains(seccompActions, p.DefaultAction) {
			t.Errorf("default action %q", p.DefaultAction)
		}
		again, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseSeccomp(again); err != nil {
			t.Errorf("%s, written again: %v", data, err)
		}
	})
}

func TestAppArmor(t *testing.T) {
	for name, tc := range map[string]struct {
		profile    *runtime.SecurityProfile
		deprecated string
		ok         bool
	}{
		"nothing":    {nil, "", true},
		"unconfined": {&runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Unconfined}, "", true},
		"default":    {&runtime.SecurityProfile{}, "", false},
		"localhost":  {nil, "localhost/mine", false},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			r.Host.AppArmor = false
			r.context().Apparmor = tc.profile
			//lint:ignore SA1019 the deprecated field is part of CRI, and older kubelets set it
			r.context().ApparmorProfile = tc.deprecated
			_, err := Build(t.Context(), r)
			if tc.ok != (err == nil) || err != nil && !errdefs.IsFailedPrecondition(err) {
				t.Errorf("on a host without AppArmor: %v", err)
			}
		})
	}
	r := testRequest(t)
	r.context().Apparmor = &runtime.SecurityProfile{ProfileType: runtime.SecurityProfile_Localhost}
	wantInvalid(t, r, "apparmor")
}

func TestMaskedPaths(t *testing.T) {
	r := testRequest(t)
	if s := mustBuild(t, r); len(s.Linux.MaskedPaths)+len(s.Linux.ReadonlyPaths) != 0 {
		t.Error("a security context with empty lists is procMount: Unmasked")
	}
	r.context().MaskedPaths, r.context().ReadonlyPaths = []string{"/proc/x"}, []string{"/proc/y"}
	if s := mustBuild(t, r); s.Linux.MaskedPaths[0] != "/proc/x" || s.Linux.ReadonlyPaths[0] != "/proc/y" {
		t.Error("the lists are not those given")
	}
	r.context().MaskedPaths[0] = "proc/x"
	wantInvalid(t, r, "masked_paths")
	r.Container.Linux = nil
	if s := mustBuild(t, r); !slices.Contains(s.Linux.MaskedPaths, "/proc/kcore") || !slices.Contains(s.Linux.ReadonlyPaths, "/proc/sys") {
		t.Error("no default paths without a security context")
	}
}

func TestSELinuxLevels(t *testing.T) {
	seen := map[string]bool{}
	for i := range 1000 {
		l := podLevel(strings.Repeat("x", i))
		if !regexp.MustCompile(`^s0:c\d{1,4},c\d{1,4}$`).MatchString(l) || !selinuxLevel.MatchString(l) {
			t.Fatalf("level %q", l)
		}
		a, b, _ := strings.Cut(strings.TrimPrefix(l, "s0:"), ",")
		if a == b {
			t.Fatalf("level %q has one category", l)
		}
		seen[l] = true
	}
	if len(seen) < 990 {
		t.Errorf("%d levels for 1000 pods", len(seen))
	}
	r := testRequest(t)
	r.context().SelinuxOptions = &runtime.SELinuxOption{Level: "s0:cX"}
	wantInvalid(t, r, "selinux_options.level")
}

func TestCapabilitiesInUserNamespace(t *testing.T) {
	r := testRequest(t)
	r.Host.Capabilities = []string{"CAP_KILL"}
	useUserNamespace(r, 65536, 65536)
	r.context().Capabilities = &runtime.Capability{AddCapabilities: []string{"ALL"}}
	got := mustBuild(t, r).Process.Capabilities.Effective
	if len(got) != len(cap.Known()) {
		t.Errorf("capabilities %q, want all that there are", got)
	}
}

// useUserNamespace gives the pod a user namespace, at a path that does not exist.
func useUserNamespace(r *Request, host, length uint32) {
	m := []*runtime.IDMapping{{HostId: host, ContainerId: 0, Length: length}}
	r.Pod.Linux.SecurityContext.NamespaceOptions.UsernsOptions = &runtime.UserNamespace{Uids: m, Gids: m}
	r.Namespaces = map[specs.LinuxNamespaceType]string{specs.UserNamespace: "/run/user-ns"}
}
