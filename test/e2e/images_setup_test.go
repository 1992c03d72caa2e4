package e2e

import (
	"archive/tar"
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sort"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"

	nodev1 "berth/api/node/v1"
)

const (
	baseImage  = "e2e.example/base:1"  // busybox and the probe; runs a shell that sleeps
	oddImage   = "e2e.example/odd:1"   // base with everything that a config can set
	filesImage = "e2e.example/files:1" // a few files, for image volumes
)

var (
	packed = map[string]v1.Image{} // by name
	ids    = map[string]string{}   // config digests, by name
)

const passwd = `root:x:0:0:root:/root:/bin/sh
daemon:x:1:1:daemon:/usr/sbin:/bin/false
tester:x:1000:1000:tester:/home/tester:/bin/sh
nobody:x:65534:65534:nobody:/:/bin/false
`

const group = `root:x:0:
daemon:x:1:
tester:x:1000:
image-group:x:50000:tester
other-group:x:50001:tester
nogroup:x:65534:
`

// entry is a file of a layer: a folder when the name ends in a slash, a link
// when to is set.
type entry struct {
	name, data, to string
	mode           int64
	uid, gid       int
}

func layer(entries []entry) (v1.Layer, error) {
	var buf bytes.Buffer
	w := tar.NewWriter(&buf)
	for _, e := range entries {
		h := &tar.Header{Name: e.name, Mode: e.mode, Size: int64(len(e.data)), Typeflag: tar.TypeReg, Uid: e.uid, Gid: e.gid}
		switch {
		case strings.HasSuffix(e.name, "/"):
			h.Typeflag = tar.TypeDir
		case e.to != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, e.to
		}
		if err := w.WriteHeader(h); err != nil {
			return nil, err
		}
		if _, err := io.WriteString(w, e.data); err != nil {
			return nil, err
		}
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
}

// pack makes an image of base's layers and one more.
func pack(base v1.Image, entries []entry, config func(*v1.Config)) (v1.Image, error) {
	l, err := layer(entries)
	if err != nil {
		return nil, err
	}
	img, err := mutate.AppendLayers(base, l)
	if err != nil {
		return nil, err
	}
	c, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	config(&c.Config)
	return mutate.ConfigFile(img, c)
}

// packImages builds the images in memory, and one OCI archive of all.
func packImages() error {
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return fmt.Errorf("a static busybox is needed (Debian: busybox-static): %w", err)
	}
	applets, err := exec.Command("/bin/busybox", "--list").Output()
	if err != nil {
		return err
	}
	build := exec.Command("go", "build", "-trimpath", "-ldflags", "-s -w", "-o", work+"/probe", "./probe")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		return fmt.Errorf("build the probe: %w\n%s", err, out)
	}
	probe, err := os.ReadFile(work + "/probe")
	if err != nil {
		return err
	}
	files := []entry{
		{name: "tmp/", mode: 0o1777}, {name: "root/", mode: 0o700}, {name: "home/", mode: 0o755},
		{name: "home/tester/", mode: 0o755, uid: 1000, gid: 1000}, {name: "etc/", mode: 0o755}, {name: "bin/", mode: 0o755},
		{name: "owned/", mode: 0o755, uid: 1000, gid: 50000}, {name: "owned/file", data: "mine\n", mode: 0o640, uid: 1000, gid: 50000},
		{name: "etc/passwd", data: passwd, mode: 0o644}, {name: "etc/group", data: group, mode: 0o644},
		{name: "bin/busybox", data: string(busybox), mode: 0o755},
		{name: "bin/probe", data: string(probe), mode: 0o755},
		{name: "bin/text", data: "no program\n", mode: 0o644},
	}
	for _, a := range strings.Fields(string(applets)) {
		if a != "busybox" {
			files = append(files, entry{name: "bin/" + a, to: "busybox", mode: 0o777})
		}
	}
	base, err := pack(empty.Image, files, func(c *v1.Config) {
		c.Env = []string{"PATH=/bin", "FROM_IMAGE=yes"}
		c.Cmd = []string{"sleep", "100000"}
	})
	if err != nil {
		return err
	}
	odd, err := pack(base, []entry{
		{name: "data/", mode: 0o755}, {name: "data/seed", data: "from the image\n", mode: 0o644}, {name: "work/", mode: 0o755, uid: 1000, gid: 1000},
	}, func(c *v1.Config) {
		c.Entrypoint, c.Cmd = []string{"/bin/sh", "-c"}, []string{"echo default; pwd; id -u; cat /data/seed; exec probe signals"}
		c.User, c.WorkingDir, c.StopSignal = "tester", "/work", "SIGUSR1"
		c.Volumes = map[string]struct{}{"/data": {}}
	})
	if err != nil {
		return err
	}
	volume, err := pack(empty.Image, []entry{
		{name: "top", data: "top\n", mode: 0o644}, {name: "dir/", mode: 0o755}, {name: "dir/sub", data: "sub\n", mode: 0o644},
	}, func(*v1.Config) {})
	if err != nil {
		return err
	}
	for name, img := range map[string]v1.Image{baseImage: base, oddImage: odd, filesImage: volume} {
		d, err := img.ConfigName()
		if err != nil {
			return err
		}
		packed[name], ids[name] = img, d.String()
	}
	return writeArchive(work+"/images.tar", packed)
}

// writeArchive writes an OCI archive, in containerd's way of naming what is in it.
func writeArchive(to string, images map[string]v1.Image) error {
	dir := to + ".d"
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	names := make([]string, 0, len(images))
	for n := range images {
		names = append(names, n)
	}
	sort.Strings(names)
	for _, n := range names {
		if err := l.AppendImage(images[n], layout.WithAnnotations(map[string]string{"io.containerd.image.name": n})); err != nil {
			return err
		}
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	defer f.Close()
	w := tar.NewWriter(f)
	if err := w.AddFS(os.DirFS(dir)); err != nil {
		return err
	}
	return w.Close()
}

func (n *node) importImages() error { return n.importFile(work + "/images.tar") }

func (n *node) importFile(archive string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	f, err := os.Open(archive)
	if err != nil {
		return err
	}
	defer f.Close()
	st, err := nodev1.NewNodeClient(n.conn).Import(ctx)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for {
		k, err := f.Read(buf)
		if err == io.EOF {
			break
		}
		if err != nil {
			return err
		}
		if err := st.Send(&nodev1.ImportRequest{Chunk: buf[:k]}); err != nil {
			break // the answer says why
		}
	}
	_, err = st.CloseAndRecv()
	if err != nil {
		return fmt.Errorf("import %s: %w", filepath.Base(archive), err)
	}
	return nil
}
