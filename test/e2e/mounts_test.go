package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"
)

func with(m ...*cri.Mount) containerOption {
	return func(c *cri.ContainerConfig) { c.Mounts = append(c.Mounts, m...) }
}

// tmpfsOn mounts something on the host, and takes it away with the test.
func tmpfsOn(t *testing.T, dir string) {
	t.Helper()
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("e2e", dir, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Unmount(dir, unix.MNT_DETACH) })
}

func TestMounts(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	dir := hostFolder(t)
	write(t, dir+"/file", "one\n")
	tmpfsOn(t, dir+"/sub")
	missing := filepath.Join(dir, "not", "there")
	c := p.run("c", forever, with(
		&cri.Mount{HostPath: dir, ContainerPath: "/rw"},
		&cri.Mount{HostPath: dir, ContainerPath: "/ro", Readonly: true},
		&cri.Mount{HostPath: dir, ContainerPath: "/rro", Readonly: true, RecursiveReadOnly: true},
		&cri.Mount{HostPath: dir + "/file", ContainerPath: "/deep/er/file"},
		&cri.Mount{HostPath: missing, ContainerPath: "/missing"},
	))
	c.want("cat /rw/file /ro/file /deep/er/file", "one\none\none")
	c.sh("echo two > /rw/made; echo three > /missing/made")
	for path, want := range map[string]string{dir + "/made": "two\n", missing + "/made": "three\n"} {
		if b, err := os.ReadFile(path); err != nil || string(b) != want {
			t.Errorf("%s: %q, %v", path, b, err)
		}
	}
	const try = "touch %/x 2>/dev/null && echo % || echo no"
	for path, want := range map[string]string{"/rw": "/rw", "/rw/sub": "/rw/sub", "/ro": "no", "/ro/sub": "/ro/sub", "/rro": "no", "/rro/sub": "no"} {
		c.want(strings.ReplaceAll(try, "%", path), want)
	}
	m := c.status().Mounts
	if len(m) != 5 || m[1].ContainerPath != "/ro" || !m[1].Readonly || !m[2].RecursiveReadOnly {
		t.Errorf("status: %v", m)
	}
}

func TestMountPropagation(t *testing.T) {
	t.Parallel()
	p := shared.pod(t, privileged)
	dir := hostFolder(t)
	// A shared mount of its own, whatever the host's are.
	tmpfsOn(t, dir)
	if err := unix.Mount("", dir, "", unix.MS_SHARED, ""); err != nil {
		t.Fatal(err)
	}
	for _, d := range []string{"late", "inside"} {
		if err := os.Mkdir(dir+"/"+d, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	c := p.run("c", forever, with(
		&cri.Mount{HostPath: dir, ContainerPath: "/private"},
		&cri.Mount{HostPath: dir, ContainerPath: "/slave", Propagation: cri.MountPropagation_PROPAGATION_HOST_TO_CONTAINER},
		&cri.Mount{HostPath: dir, ContainerPath: "/shared", Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL},
	), security(func(s *secure) { s.Privileged = true }))
	tmpfsOn(t, dir+"/late")
	write(t, dir+"/late/f", "x")
	c.want("ls /private/late", "")
	c.want("ls /slave/late /shared/late | grep -c f", "2")
	c.sh("mount -t tmpfs none /shared/inside && touch /shared/inside/g")
	t.Cleanup(func() { unix.Unmount(dir+"/inside", unix.MNT_DETACH) })
	if _, err := os.Stat(dir + "/inside/g"); err != nil {
		t.Errorf("a mount in the container did not reach the host: %v", err)
	}
	c.sh("umount /shared/inside")
	// Private mounts of the host cannot be propagated: an error, no surprise.
	plain := hostFolder(t)
	tmpfsOn(t, plain)
	if err := unix.Mount("", plain, "", unix.MS_PRIVATE, ""); err != nil {
		t.Fatal(err)
	}
	if d, err := p.tryCreate(p.config("d", forever, with(&cri.Mount{HostPath: plain, ContainerPath: "/m", Propagation: cri.MountPropagation_PROPAGATION_BIDIRECTIONAL}))); err == nil {
		if err = d.tryStart(); err == nil {
			t.Error("a private mount is bidirectional")
		}
	}
}

func TestImageVolumes(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	files := &cri.ImageSpec{Image: filesImage}
	c := p.run("c", forever, with(
		&cri.Mount{ContainerPath: "/img", Image: files},
		&cri.Mount{ContainerPath: "/sub", Image: files, ImageSubPath: "dir"},
	))
	c.want("cat /img/top /img/dir/sub /sub/sub", "top\nsub\nsub")
	c.want("touch /img/x 2>&1 || echo; touch /sub/x 2>/dev/null || echo refused", "touch: /img/x: Read-only file system\n\nrefused")
	m := c.status().Mounts
	if len(m) != 2 || m[0].GetImage().GetImageRef() == "" && m[0].GetImage().GetImage() != filesImage {
		t.Errorf("status: %v", m)
	}
	// Twice in two containers, each for itself; while it is used it stays.
	d := p.run("d", forever, with(&cri.Mount{ContainerPath: "/img", Image: files}))
	c.stop(0)
	c.remove()
	d.want("cat /img/top", "top")
	for what, m := range map[string]*cri.Mount{
		"image":    {ContainerPath: "/x", Image: &cri.ImageSpec{Image: "e2e.example/none:1"}},
		"folder":   {ContainerPath: "/x", Image: files, ImageSubPath: "top"}, // it is a file
		"sub-path": {ContainerPath: "/x", Image: files, ImageSubPath: "no/such"},
	} {
		e, err := p.tryCreate(p.config("e", forever, with(m)))
		if err == nil {
			err = e.tryStart()
			e.remove()
		}
		if err == nil {
			t.Errorf("a missing %s is no error", what)
		}
	}
}

// What an image calls a volume is a folder of its own, with the image's content,
// and goes with the container.
func TestImageDeclaredVolumes(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	odd := func(c *cri.ContainerConfig) { c.Image.Image = oddImage }
	root := security(func(s *secure) { s.RunAsUser = &cri.Int64Value{} })
	c := p.run("c", forever, odd, root)
	c.want("cat /data/seed; grep -c ' /data ' /proc/mounts", "from the image\n1")
	c.sh("echo mine > /data/mine")
	d := p.run("d", forever, odd, root)
	d.want("ls /data", "seed")
	dir := hostFolder(t)
	e := p.run("e", forever, odd, root, with(&cri.Mount{HostPath: dir, ContainerPath: "/data"}))
	e.want("ls /data", "")
	c.stop(0)
	c.remove()
	l := must[[]string](t)(filepath.Glob(shared.dir + "/r/pods/" + p.id + "/containers/" + c.id + "/volumes/*"))
	if len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}

func TestMountOptions(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	dir := hostFolder(t)
	c := p.run("c", forever, with(
		&cri.Mount{HostPath: dir, ContainerPath: "/plain"},
		&cri.Mount{HostPath: dir, ContainerPath: "/noexec", MountOptions: []string{"noexec", "nodev", "nosuid"}},
	))
	c.sh("cp /bin/busybox /plain/true")
	c.want("/plain/true && echo ran; /noexec/true 2>/dev/null || echo refused", "ran\nrefused")
	opts := c.sh("grep ' /noexec ' /proc/mounts")
	for _, o := range []string{"noexec", "nodev", "nosuid"} {
		if !contains(opts, o) {
			t.Errorf("%s is missing: %s", o, opts)
		}
	}
}

// A device as its vendor's CDI file describes it, by field and by annotation.
func TestCDI(t *testing.T) {
	t.Parallel()
	const folder = "/var/run/cdi"
	if _, err := os.Stat(folder); err != nil {
		if err := os.Mkdir(folder, 0o755); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { os.Remove(folder) })
	}
	file := folder + "/" + runTag + ".json"
	write(t, file, `{"cdiVersion": "0.6.0", "kind": "e2e.example/thing", "devices": [
 {"name": "one", "containerEdits": {"env": ["THING=one"], "deviceNodes": [{"path": "/dev/thing", "hostPath": "/dev/zero"}]}},
 {"name": "two", "containerEdits": {"env": ["OTHER=two"]}}]}`)
	t.Cleanup(func() { os.Remove(file) })
	p := shared.pod(t)
	c := p.run("c", forever, func(c *cri.ContainerConfig) {
		c.CDIDevices = []*cri.CDIDevice{{Name: "e2e.example/thing=one"}}
		c.Annotations = map[string]string{"cdi.k8s.io/e2e": "e2e.example/thing=two"}
	})
	c.want("echo $THING $OTHER; head -c 2 /dev/thing | xxd -p", "one two\n0000")
	_, err := p.tryCreate(p.config("d", forever, func(c *cri.ContainerConfig) { c.CDIDevices = []*cri.CDIDevice{{Name: "e2e.example/thing=none"}} }))
	if err == nil || !contains(err.Error(), "thing=none") {
		t.Errorf("a device that is not there: %v", err)
	}
}

func TestMountOfMissingFileInReadOnlyRootfs(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	dir := hostFolder(t)
	c := p.run("c", forever, with(&cri.Mount{HostPath: dir, ContainerPath: "/not/in/image"}), security(func(s *secure) { s.ReadonlyRootfs = true }))
	c.want("touch /not/in/image/f && ls /not/in/image", "f")
}

func TestDevices(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	// The kernel's log: there everywhere, and not among what all containers have.
	const open, read = ": > /dev/mine && echo opened", "head -c 1 /dev/mine"
	c := p.run("c", forever, func(c *cri.ContainerConfig) {
		c.Devices = []*cri.Device{{HostPath: "/dev/kmsg", ContainerPath: "/dev/mine", Permissions: "w"}, {HostPath: "/dev/full", ContainerPath: "/dev/two", Permissions: "rwm"}}
	})
	c.want("test -c /dev/mine && "+open, "opened")
	c.want("head -c 2 /dev/two | xxd -p; echo x > /dev/null && echo null", "0000\nnull")
	if r, err := c.try(5, "sh", "-c", read); err != nil || r.ExitCode == 0 {
		t.Errorf("it can be read: %v, %v", r, err)
	}
	// Not given: not usable, even by root who makes the file.
	d := p.run("d", forever)
	if r, err := d.try(5, "sh", "-c", "mknod /dev/mine c 1 11 && "+open); err != nil || r.ExitCode == 0 {
		t.Errorf("a device that was not given can be used: %v, %v", r, err)
	}
	_, err := p.tryCreate(p.config("e", forever, func(c *cri.ContainerConfig) {
		c.Devices = []*cri.Device{{HostPath: "/dev/no-such", ContainerPath: "/dev/x", Permissions: "r"}}
	}))
	if err == nil || !strings.Contains(err.Error(), "/dev/no-such") {
		t.Errorf("a missing device: %v", err)
	}
}
