package ocispec

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/containerd/errdefs"
	imagespec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
	crierrors "k8s.io/cri-api/pkg/errors"
)

func mountAt(s *specs.Spec, target string) *specs.Mount {
	i := slices.IndexFunc(s.Mounts, func(m specs.Mount) bool { return m.Destination == target })
	if i < 0 {
		return nil
	}
	return &s.Mounts[i]
}

func targets(s *specs.Spec) []string {
	var list []string
	for _, m := range s.Mounts {
		list = append(list, m.Destination)
	}
	return list
}

func TestDefaultMounts(t *testing.T) {
	r := testRequest(t)
	r.Files = Files{Hostname: "/p/hostname", Hosts: "/p/hosts", ResolvConf: "/p/resolv", Shm: "/p/shm"}
	r.context().ReadonlyRootfs = true
	s := mustBuild(t, r)
	want := []string{
		"/proc", "/dev", "/dev/pts", "/dev/mqueue", "/sys", "/sys/fs/cgroup",
		"/etc/hostname", "/etc/hosts", "/etc/resolv.conf", "/dev/shm",
	}
	if got := targets(s); !slices.Equal(got, want) {
		t.Errorf("mounts %q, want %q", got, want)
	}
	if !s.Root.Readonly || !slices.Contains(mountAt(s, "/etc/hosts").Options, "ro") {
		t.Error("read-only root, writable /etc/hosts")
	}
	if m := mountAt(s, "/dev/shm"); m.Source != "/p/shm" || !slices.Contains(m.Options, "rw") || !slices.Contains(m.Options, "nosuid") {
		t.Errorf("/dev/shm: %v", m)
	}
	r.Pod.Linux.SecurityContext.NamespaceOptions.Ipc = nodeMode
	if m := mountAt(mustBuild(t, r), "/dev/shm"); m.Source != "/dev/shm" {
		t.Errorf("/dev/shm in the host's IPC namespace: %v", m)
	}
	r.Pod.Linux.SecurityContext.NamespaceOptions.Ipc = podMode
	r.Files = Files{}
	if m := mountAt(mustBuild(t, r), "/dev/shm"); m.Type != "tmpfs" {
		t.Errorf("/dev/shm of a pod without: %v", m)
	}
}

func TestCgroupMountOnV2(t *testing.T) {
	r := testRequest(t)
	r.Host.CgroupV2, r.Host.CgroupOptions = true, []string{"nsdelegate"}
	if o := mountAt(mustBuild(t, r), "/sys/fs/cgroup").Options; !slices.Contains(o, "ro") || slices.Contains(o, "nsdelegate") {
		t.Errorf("options %q", o)
	}
	r.Pod.Linux.SecurityContext.Privileged, r.context().Privileged = true, true
	if o := mountAt(mustBuild(t, r), "/sys/fs/cgroup").Options; !slices.Contains(o, "rw") || !slices.Contains(o, "nsdelegate") {
		t.Errorf("in the host's cgroup namespace: options %q", o)
	}
}

func TestSysInHostNetworkWithUserNamespace(t *testing.T) {
	r := testRequest(t)
	useUserNamespace(r, 100000, 65536)
	r.Pod.Linux.SecurityContext.NamespaceOptions.Network = nodeMode
	if m := mountAt(mustBuild(t, r), "/sys"); m.Type != "bind" || !slices.Contains(m.Options, "rro") {
		t.Errorf("/sys: %v", m)
	}
}

func TestConfigMounts(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "link")
	folder := filepath.Join(dir, "real")
	if err := errors.Join(os.Mkdir(folder, 0o700), os.Symlink("real", link)); err != nil {
		t.Fatal(err)
	}
	file := writeFile(t, filepath.Join(dir, "hosts"), "x")
	r := testRequest(t)
	r.Files = Files{Hosts: "/p/hosts", Hostname: "/p/hostname"}
	r.Container.Mounts = []*runtime.Mount{
		{ContainerPath: "/a/b/c", HostPath: folder},
		{ContainerPath: "a", HostPath: link, Readonly: true, MountOptions: []string{"noexec", "nodev"}},
		{ContainerPath: "/etc/hosts", HostPath: file},
		{ContainerPath: "/new/", HostPath: filepath.Join(dir, "made", "below")},
		{ContainerPath: "/sys/fs/cgroup", HostPath: folder},
	}
	s := mustBuild(t, r)
	want := []string{
		"/proc", "/dev", "/dev/pts", "/dev/shm", "/dev/mqueue", "/sys",
		"/a", "/new", "/etc/hosts", "/etc/hostname", "/a/b/c", "/sys/fs/cgroup",
	}
	if got := targets(s); !slices.Equal(got, want) {
		t.Errorf("mounts %q, want %q", got, want)
	}
	a := mountAt(s, "/a")
	if a.Source != folder || !slices.Equal(a.Options, []string{"rbind", "rprivate", "ro", "noexec", "nodev"}) {
		t.Errorf("/a: %v", a)
	}
	if m := mountAt(s, "/etc/hosts"); m.Source != file || !slices.Contains(m.Options, "rw") {
		t.Errorf("/etc/hosts: %v", m)
	}
	if fi, err := os.Stat(filepath.Join(dir, "made", "below")); err != nil || !fi.IsDir() || fi.Mode().Perm() != 0o755 {
		t.Errorf("missing host path: %v, %v", fi, err)
	}
	r.Container.Mounts = []*runtime.Mount{{ContainerPath: "/dev", HostPath: "/dev"}}
	for _, m := range mustBuild(t, r).Mounts {
		if strings.HasPrefix(m.Destination, "/dev/") {
			t.Errorf("%s although /dev is the config's", m.Destination)
		}
	}
}

func TestBadMounts(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, dir+"/file", "")
	if err := os.Symlink("nowhere", dir+"/dangling"); err != nil {
		t.Fatal(err)
	}
	image := &runtime.ImageSpec{Image: "i"}
	ro := func(m *runtime.Mount) *runtime.Mount {
		m.ContainerPath, m.HostPath, m.RecursiveReadOnly = "/m", dir, true
		return m
	}
	for name, tc := range map[string]struct {
		mount *runtime.Mount
		field string
	}{
		"no target":        {&runtime.Mount{HostPath: dir}, "container_path"},
		"root":             {&runtime.Mount{ContainerPath: "/..", HostPath: dir}, "container_path"},
		"no source":        {&runtime.Mount{ContainerPath: "/m"}, "host_path"},
		"relative":         {&runtime.Mount{ContainerPath: "/m", HostPath: "x"}, "host_path"},
		"below a file":     {&runtime.Mount{ContainerPath: "/m", HostPath: file + "/x"}, "host_path"},
		"dangling":         {&runtime.Mount{ContainerPath: "/m", HostPath: dir + "/dangling"}, "host_path"},
		"image and path":   {&runtime.Mount{ContainerPath: "/m", HostPath: dir, Image: image}, "host_path"},
		"nameless image":   {&runtime.Mount{ContainerPath: "/m", Image: &runtime.ImageSpec{}}, "image"},
		"sub path alone":   {&runtime.Mount{ContainerPath: "/m", HostPath: dir, ImageSubPath: "x"}, "image_sub_path"},
		"rro, rw":          {ro(&runtime.Mount{}), "recursive_read_only"},
		"rro, propagating": {ro(&runtime.Mount{Readonly: true, Propagation: runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER}), "recursive_read_only"},
		"propagation":      {&runtime.Mount{ContainerPath: "/m", HostPath: dir, Propagation: 9}, "propagation"},
		"option":           {&runtime.Mount{ContainerPath: "/m", HostPath: dir, MountOptions: []string{"suid"}}, "mount_options"},
		"half a mapping":   {&runtime.Mount{ContainerPath: "/m", HostPath: dir, UidMappings: []*runtime.IDMapping{{Length: 1}}}, "uidMappings"},
		"empty mapping":    {&runtime.Mount{ContainerPath: "/m", HostPath: dir, UidMappings: []*runtime.IDMapping{{}}, GidMappings: []*runtime.IDMapping{{Length: 1}}}, "uidMappings"},
	} {
		t.Run(name, func(t *testing.T) {
			r := testRequest(t)
			r.Container.Mounts = []*runtime.Mount{{ContainerPath: "/fine", HostPath: dir}, tc.mount}
			wantInvalid(t, r, "mounts[1]."+tc.field)
		})
	}
}

func TestUnsupportedMounts(t *testing.T) {
	made := filepath.Join(t.TempDir(), "made")
	r := testRequest(t)
	r.Host.RecursiveReadOnly, r.Host.IDMap = false, false
	r.Container.Mounts = []*runtime.Mount{{ContainerPath: "/m", HostPath: made, Readonly: true, RecursiveReadOnly: true}}
	_, err := Build(t.Context(), r)
	if !errors.Is(err, crierrors.ErrRROUnsupported) || !strings.HasPrefix(err.Error(), "RROUnsupported") || !errdefs.IsFailedPrecondition(err) {
		t.Errorf("recursive read-only: %v", err)
	}
	m := []*runtime.IDMapping{{Length: 10}}
	r.Container.Mounts = []*runtime.Mount{{ContainerPath: "/m", HostPath: made, UidMappings: m, GidMappings: m}}
	if _, err := Build(t.Context(), r); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("mapped ids: %v", err)
	}
	if _, err := os.Stat(made); err == nil {
		t.Error("the refused mount's path was made")
	}
	r.Host.IDMap = true
	bind := mountAt(mustBuild(t, r), "/m")
	if len(bind.UIDMappings) != 1 || bind.UIDMappings[0].Size != 10 || len(bind.GIDMappings) != 1 {
		t.Errorf("mapped: %v", bind)
	}
}

func TestPropagation(t *testing.T) {
	dir := t.TempDir()
	mountTmpfs(t, dir)
	r := testRequest(t)
	m := &runtime.Mount{ContainerPath: "/m", HostPath: dir}
	r.Container.Mounts = []*runtime.Mount{m}
	for _, tc := range []struct {
		flags       uintptr
		propagation runtime.MountPropagation
		option      string // "" = refused
		root        string
	}{
		{unix.MS_PRIVATE, runtime.MountPropagation_PROPAGATION_PRIVATE, "rprivate", ""},
		{unix.MS_PRIVATE, runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, "", ""},
		{unix.MS_PRIVATE, runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL, "", ""},
		{unix.MS_SHARED, runtime.MountPropagation_PROPAGATION_HOST_TO_CONTAINER, "rslave", "rslave"},
		{unix.MS_SHARED, runtime.MountPropagation_PROPAGATION_BIDIRECTIONAL, "rshared", "rshared"},
	} {
		if err := unix.Mount("", dir, "", tc.flags, ""); err != nil {
			t.Fatal(err)
		}
		m.Propagation = tc.propagation
		s, err := Build(t.Context(), r)
		if tc.option == "" {
			if !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "mounts[0].propagation") {
				t.Errorf("%s of a private mount: %v", tc.propagation, err)
			}
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		if o := mountAt(s, "/m").Options; !slices.Contains(o, tc.option) || s.Linux.RootfsPropagation != tc.root {
			t.Errorf("%s: options %q, root %q", tc.propagation, o, s.Linux.RootfsPropagation)
		}
	}
}

// mountTmpfs mounts a tmpfs on dir until the test ends.
func mountTmpfs(t testing.TB, dir string) {
	t.Helper()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
}

func TestImageVolumes(t *testing.T) {
	root := t.TempDir()
	outside := t.TempDir()
	writeFile(t, root+"/dir/sub/file", "x")
	for link, to := range map[string]string{"/out": outside, "/abs": "/dir/sub"} {
		if err := os.Symlink(to, root+link); err != nil {
			t.Fatal(err)
		}
	}
	for sub, want := range map[string]string{
		"": root, "dir/sub": root + "/dir/sub", "abs": root + "/dir/sub",
		"none": "", "dir/sub/file": "", "out": "", "../../etc": "",
	} {
		r := testRequest(t)
		r.ImageVolumes = map[string]string{"/vol": root}
		r.Container.Mounts = []*runtime.Mount{{ContainerPath: "/vol", Image: &runtime.ImageSpec{Image: "i"}, ImageSubPath: sub}}
		if want == "" {
			wantInvalid(t, r, "mounts[0].image_sub_path")
			if _, err := Build(t.Context(), r); !errors.Is(err, crierrors.ErrImageVolumeMountFailed) {
				t.Errorf("sub path %q: %v", sub, err)
			}
			continue
		}
		m := mountAt(mustBuild(t, r), "/vol")
		if m.Source != want || !slices.Contains(m.Options, "ro") {
			t.Errorf("sub path %q: %v", sub, m)
		}
	}
	r := testRequest(t)
	r.Container.Mounts = []*runtime.Mount{{ContainerPath: "/vol", Image: &runtime.ImageSpec{Image: "i"}}}
	if _, err := Build(t.Context(), r); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("image that is not mounted: %v", err)
	}
}

func TestVolumes(t *testing.T) {
	r := testRequest(t)
	data := writeFile(t, r.Rootfs+"/srv/data/file", "content")
	outside := writeFile(t, t.TempDir()+"/secret", "secret")
	if err := errors.Join(
		os.Chown(data, 12, 34), os.Chmod(filepath.Dir(data), 0o701), os.Chown(filepath.Dir(data), 56, 78),
		os.Symlink(filepath.Dir(outside), r.Rootfs+"/escape"),
	); err != nil {
		t.Fatal(err)
	}
	r.Image = &imagespec.ImageConfig{Volumes: map[string]struct{}{"srv/data/": {}, "/none": {}, "/taken": {}, "/escape": {}}}
	r.Container.Mounts = []*runtime.Mount{{ContainerPath: "/taken", HostPath: t.TempDir()}}
	s := mustBuild(t, r)

	v := mountAt(s, "/srv/data")
	if v == nil || filepath.Dir(v.Source) != r.VolumeDir {
		t.Fatalf("volume %v", v)
	}
	if got, err := os.ReadFile(v.Source + "/file"); string(got) != "content" {
		t.Errorf("content %q, %v", got, err)
	}
	var dir, file unix.Stat_t
	if err := errors.Join(unix.Stat(v.Source, &dir), unix.Stat(v.Source+"/file", &file)); err != nil {
		t.Fatal(err)
	}
	if dir.Mode&0o7777 != 0o701 || dir.Uid != 56 || dir.Gid != 78 || file.Uid != 12 || file.Gid != 34 {
		t.Errorf("directory %o %d:%d, file %d:%d", dir.Mode, dir.Uid, dir.Gid, file.Uid, file.Gid)
	}
	for _, target := range []string{"/none", "/escape"} {
		m := mountAt(s, target)
		if e, err := os.ReadDir(m.Source); err != nil || len(e) != 0 {
			t.Errorf("%s holds %v, %v", target, e, err)
		}
	}
	if n := len(slices.DeleteFunc(targets(s), func(d string) bool { return d != "/taken" })); n != 1 {
		t.Errorf("/taken is mounted %d times", n)
	}

	// A second Build finds what the container wrote, not the image's content.
	if err := os.Remove(v.Source + "/file"); err != nil {
		t.Fatal(err)
	}
	if again := mountAt(mustBuild(t, r), "/srv/data"); again.Source != v.Source {
		t.Errorf("volume moved to %q", again.Source)
	}
	if _, err := os.Stat(v.Source + "/file"); err == nil {
		t.Error("the volume was filled again")
	}
}

// A copy that was cut short is done again.
func TestVolumeAfterCrash(t *testing.T) {
	r := testRequest(t)
	writeFile(t, r.Rootfs+"/v/file", "content")
	r.Image = &imagespec.ImageConfig{Volumes: map[string]struct{}{"/v": {}}}
	source := mountAt(mustBuild(t, r), "/v").Source
	if err := os.Rename(source, source+".part"); err != nil {
		t.Fatal(err)
	}
	writeFile(t, source+".part/half", "")
	s := mustBuild(t, r)
	e, err := os.ReadDir(mountAt(s, "/v").Source)
	if err != nil || len(e) != 1 || e[0].Name() != "file" {
		t.Errorf("volume holds %v, %v", e, err)
	}
}

func TestVolumeInUserNamespace(t *testing.T) {
	r := testRequest(t)
	useUserNamespace(r, 100000, 65536)
	r.Image = &imagespec.ImageConfig{Volumes: map[string]struct{}{"/v": {}}}
	var st unix.Stat_t
	if err := unix.Stat(mountAt(mustBuild(t, r), "/v").Source, &st); err != nil || st.Uid != 100000 || st.Gid != 100000 {
		t.Errorf("volume of %d:%d, %v; want the namespace's root", st.Uid, st.Gid, err)
	}
}
