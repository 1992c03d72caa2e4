package ocispec

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func TestMain(m *testing.M) {
	PathMain()
	os.Exit(m.Run())
}

var probedHost = sync.OnceValues(Probe)

// testHost is this machine as Probe sees it.
func testHost(t testing.TB) *Host {
	t.Helper()
	h, err := probedHost()
	if err != nil {
		t.Fatal(err)
	}
	c := *h
	return &c
}

// testRequest is a plain container: a command, a PID namespace of its own.
func testRequest(t testing.TB) *Request {
	t.Helper()
	return &Request{
		PodID: strings.Repeat("a", 64), ContainerID: strings.Repeat("c", 64),
		Pod: &runtime.PodSandboxConfig{
			Metadata: &runtime.PodSandboxMetadata{Name: "web", Namespace: "shop", Uid: "u-1"},
			Hostname: "web-0",
			Linux: &runtime.LinuxPodSandboxConfig{SecurityContext: &runtime.LinuxSandboxSecurityContext{
				NamespaceOptions: &runtime.NamespaceOption{Pid: runtime.NamespaceMode_CONTAINER},
			}},
		},
		Container: &runtime.ContainerConfig{
			Metadata: &runtime.ContainerMetadata{Name: "nginx"},
			Image:    &runtime.ImageSpec{Image: "sha256:1", UserSpecifiedImage: "nginx:1"},
			Command:  []string{"/bin/sh"},
			Linux:    &runtime.LinuxContainerConfig{SecurityContext: &runtime.LinuxContainerSecurityContext{}},
		},
		Rootfs: t.TempDir(), VolumeDir: filepath.Join(t.TempDir(), "volumes"),
		Host: testHost(t),
	}
}

// context is the container's security context.
func (r *Request) context() *runtime.LinuxContainerSecurityContext {
	return r.Container.Linux.SecurityContext
}

func mustBuild(t testing.TB, r *Request) *specs.Spec {
	t.Helper()
	s, err := Build(t.Context(), r)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// wantInvalid checks that Build refuses r with InvalidArgument naming field.
func wantInvalid(t *testing.T, r *Request, field string) {
	t.Helper()
	_, err := Build(t.Context(), r)
	if !errdefs.IsInvalidArgument(err) || !strings.Contains(err.Error(), field) {
		t.Errorf("error %v, want InvalidArgument that names %s", err, field)
	}
}

func writeFile(t testing.TB, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestArgs(t *testing.T) {
	for name, tc := range map[string]struct {
		command, args, entrypoint, cmd, want []string
	}{
		"image":               {nil, nil, []string{"e"}, []string{"c"}, []string{"e", "c"}},
		"args replace cmd":    {nil, []string{"a"}, []string{"e"}, []string{"c"}, []string{"e", "a"}},
		"command replaces":    {[]string{"x"}, nil, []string{"e"}, []string{"c"}, []string{"x"}},
		"both replace":        {[]string{"x"}, []string{"a"}, []string{"e"}, []string{"c"}, []string{"x", "a"}},
		"empty entrypoint":    {nil, nil, []string{""}, []string{"c"}, []string{"c"}},
		"no entrypoint, args": {nil, []string{"a"}, nil, []string{"c"}, []string{"a"}},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			r.Container.Command, r.Container.Args = tc.command, tc.args
			r.Image = &imagespec.ImageConfig{Entrypoint: tc.entrypoint, Cmd: tc.cmd}
			if got := mustBuild(t, r).Process.Args; !slices.Equal(got, tc.want) {
				t.Errorf("args %q, want %q", got, tc.want)
			}
		})
	}
	r := testRequest(t)
	r.Container.Command = nil
	wantInvalid(t, r, "command")
}

func TestEnv(t *testing.T) {
	r := testRequest(t)
	r.Container.Tty = true
	r.Image = &imagespec.ImageConfig{Env: []string{"PATH=/img", "A=1", "B=2", "TERM"}}
	r.Container.Envs = []*runtime.KeyValue{
		{Key: "B", Value: []byte("3=4")}, {Key: "C", Value: nil}, {Key: "C", Value: []byte("x")},
	}
	want := []string{"PATH=/img", "HOSTNAME=web-0", "A=1", "B=3=4", "C=x"}
	if got := mustBuild(t, r).Process.Env; !slices.Equal(got, want) {
		t.Errorf("env %q, want %q", got, want)
	}
	r.Image = nil
	if got := mustBuild(t, r).Process.Env; !slices.Contains(got, "TERM=xterm") || !slices.Contains(got, defaultPath) {
		t.Errorf("env %q lacks TERM or PATH", got)
	}
	for _, k := range []string{"", "A=B", "A\x00"} {
		r.Container.Envs = []*runtime.KeyValue{{Key: "OK"}, {Key: k}}
		wantInvalid(t, r, "envs[1]")
	}
}

func TestWorkingDir(t *testing.T) {
	r := testRequest(t)
	if got := mustBuild(t, r).Process.Cwd; got != "/" {
		t.Errorf("cwd %q", got)
	}
	r.Image = &imagespec.ImageConfig{WorkingDir: "srv"}
	if got := mustBuild(t, r).Process.Cwd; got != "/srv" {
		t.Errorf("cwd %q", got)
	}
	r.Container.WorkingDir = "/own"
	if got := mustBuild(t, r).Process.Cwd; got != "/own" {
		t.Errorf("cwd %q", got)
	}
}

func TestExecProcess(t *testing.T) {
	r := testRequest(t)
	r.context().NoNewPrivs = true
	s := mustBuild(t, r)
	before := slices.Clone(s.Process.Env)
	p := ExecProcess(s, []string{"id"}, true)
	if !p.Terminal || !slices.Equal(p.Args, []string{"id"}) || !slices.Contains(p.Env, "TERM=xterm") || !p.NoNewPrivileges {
		t.Errorf("exec process %+v", p)
	}
	if p.Capabilities == nil || !slices.Equal(p.Capabilities.Bounding, s.Process.Capabilities.Bounding) {
		t.Error("exec has other capabilities")
	}
	if s.Process.Terminal || !slices.Equal(s.Process.Env, before) || s.Process.Args[0] != "/bin/sh" {
		t.Errorf("the container's process changed: %+v", s.Process)
	}
}

func TestOOMScoreAdj(t *testing.T) {
	r := testRequest(t)
	// The daemon's own must not be inherited.
	if got := mustBuild(t, r).Process.OOMScoreAdj; got == nil || *got != max(0, r.Host.MinOOMScoreAdj) {
		t.Errorf("oom_score_adj %v without resources, want 0", got)
	}
	r.Container.Linux.Resources = &runtime.LinuxContainerResources{OomScoreAdj: -500}
	r.Host.MinOOMScoreAdj = -100
	if got := *mustBuild(t, r).Process.OOMScoreAdj; got != -100 {
		t.Errorf("oom_score_adj %d, want it clamped to -100", got)
	}
	r.Host.MinOOMScoreAdj = -1000
	if got := *mustBuild(t, r).Process.OOMScoreAdj; got != -500 {
		t.Errorf("oom_score_adj %d, want -500", got)
	}
	r.Container.Linux.Resources.OomScoreAdj = 1001
	wantInvalid(t, r, "oom_score_adj")
}

func TestAnnotations(t *testing.T) {
	r := testRequest(t)
	r.Container.Annotations = map[string]string{"theirs": "1"}
	got := mustBuild(t, r).Annotations
	for k, want := range map[string]string{
		"io.kubernetes.cri.container-type": "container", "io.kubernetes.cri.sandbox-id": r.PodID,
		"io.kubernetes.cri.container-name": "nginx", "io.kubernetes.cri.sandbox-name": "web",
		"io.kubernetes.cri.sandbox-namespace": "shop", "io.kubernetes.cri.sandbox-uid": "u-1",
		"io.kubernetes.cri.image-name": "nginx:1", "theirs": "",
	} {
		if got[k] != want {
			t.Errorf("annotation %s = %q, want %q", k, got[k], want)
		}
	}
}

func TestBuildTwiceGivesTheSame(t *testing.T) {
	r := testRequest(t)
	r.Image = &imagespec.ImageConfig{Volumes: map[string]struct{}{"/b": {}, "/a": {}}}
	r.context().Seccomp = &runtime.SecurityProfile{}
	one, two := jsonOf(t, mustBuild(t, r)), jsonOf(t, mustBuild(t, r))
	if one != two {
		t.Errorf("specs differ:\n%s\n%s", one, two)
	}
}
