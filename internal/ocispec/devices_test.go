package ocispec

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func mknod(t *testing.T, path string, mode, major, minor uint32) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(path, mode|0o640, int(unix.Mkdev(major, minor))); err != nil {
		t.Fatal(err)
	}
}

func TestDevices(t *testing.T) {
	dir := t.TempDir()
	mknod(t, dir+"/d/one", unix.S_IFCHR, 1, 5)
	mknod(t, dir+"/d/sub/two", unix.S_IFBLK, 7, 9)
	mknod(t, dir+"/d/pts/0", unix.S_IFCHR, 136, 0)
	mknod(t, dir+"/d/pipe", unix.S_IFIFO, 0, 0)
	writeFile(t, dir+"/d/file", "")
	if err := os.Symlink("d/one", dir+"/link"); err != nil {
		t.Fatal(err)
	}
	r := testRequest(t)
	r.Container.Devices = []*runtime.Device{
		{HostPath: dir + "/link", ContainerPath: "/dev/zero2", Permissions: "r"},
		{HostPath: dir + "/d", ContainerPath: "/dev/folder"},
	}
	l := mustBuild(t, r).Linux
	var got []string
	for _, d := range l.Devices {
		got = append(got, d.Path+" "+d.Type)
		if d.FileMode.Perm() != 0o640 {
			t.Errorf("%s: mode %o", d.Path, *d.FileMode)
		}
	}
	if want := []string{"/dev/zero2 c", "/dev/folder/one c", "/dev/folder/sub/two b"}; !slices.Equal(got, want) {
		t.Errorf("devices %q, want %q", got, want)
	}
	want := `[{"allow":false,"access":"rwm"},` +
		`{"allow":true,"type":"c","major":1,"minor":5,"access":"r"},` +
		`{"allow":true,"type":"c","major":1,"minor":5,"access":"rwm"},` +
		`{"allow":true,"type":"b","major":7,"minor":9,"access":"rwm"}]`
	if got := jsonOf(t, l.Resources.Devices); got != want {
		t.Errorf("rules %s, want %s", got, want)
	}
	for field, d := range map[string]*runtime.Device{
		"devices[0].permissions": {HostPath: "/dev/null", Permissions: "rx"},
		"devices[0].host_path":   {HostPath: "dev/null"},
	} {
		r.Container.Devices = []*runtime.Device{d}
		wantInvalid(t, r, field)
	}
	for _, p := range []string{dir + "/none", dir + "/d/file", dir + "/d/pipe"} {
		r.Container.Devices = []*runtime.Device{{HostPath: p}}
		wantInvalid(t, r, "devices[0].host_path")
	}
}

func TestCDI(t *testing.T) {
	dir := t.TempDir()
	writeFile(t, dir+"/vendor.yaml", `
cdiVersion: "0.6.0"
kind: "vendor.com/gpu"
devices:
  - name: one
    containerEdits:
      env: ["GPU=one"]
      deviceNodes: [{path: /dev/gpu1, type: c, major: 195, minor: 1}]
  - name: two
    containerEdits:
      env: ["GPU2=two"]
      mounts: [{hostPath: /lib/gpu, containerPath: /lib/gpu, options: [ro, bind]}]
`)
	writeFile(t, dir+"/broken.yaml", "kind: [")
	r := testRequest(t)
	r.Host.CDIDirs = []string{dir}
	r.Container.CDIDevices = []*runtime.CDIDevice{{Name: "vendor.com/gpu=one"}, {Name: "vendor.com/gpu=one"}}
	r.Container.Annotations = map[string]string{"cdi.k8s.io/plugin_x": "vendor.com/gpu=two"}
	s := mustBuild(t, r)
	if !slices.Contains(s.Process.Env, "GPU=one") || !slices.Contains(s.Process.Env, "GPU2=two") || mountAt(s, "/lib/gpu") == nil {
		t.Errorf("env %q, mounts %q", s.Process.Env, targets(s))
	}
	if n := len(s.Linux.Devices); n != 1 || s.Linux.Devices[0].Path != "/dev/gpu1" {
		t.Errorf("devices %v", s.Linux.Devices)
	}
	if !slices.ContainsFunc(s.Linux.Resources.Devices, func(d specs.LinuxDeviceCgroup) bool { return d.Allow && *d.Major == 195 }) {
		t.Errorf("rules %v", s.Linux.Resources.Devices)
	}
	r.Container.CDIDevices[1].Name = "vendor.com/gpu=three"
	wantInvalid(t, r, "CDI_devices")
}
