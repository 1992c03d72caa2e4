// Mirror serves the images that critest asks for from a loopback registry, built
// from the root file systems that ../rootfs lays. It serves every repository under
// its own path, whatever registry the name of an image says.
package main

import (
	"archive/tar"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/registry"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// image describes one image to build: a base root file system, an optional
// extra file that makes its content unique, and the config fields that the
// tests look at.
type image struct {
	repo, tag string
	rootfs    string
	extra     string
	user      string
	cmd       []string
	workdir   string
	port      string
}

const (
	e2e     = "e2e-test-images/"
	staging = "k8s-staging-cri-tools/"
)

var images = []image{
	{repo: "pause", tag: "3.9", rootfs: "pause", extra: "pause-3.9", cmd: []string{"/pause"}},
	{repo: "pause", tag: "3.10", rootfs: "pause", extra: "pause-3.10", cmd: []string{"/pause"}},
	{repo: "pause", tag: "3.10.1", rootfs: "pause", extra: "pause-3.10.1", cmd: []string{"/pause"}},
	{repo: "pause", tag: "3.10.2", rootfs: "pause", extra: "pause-3.10.2", cmd: []string{"/pause"}},
	{repo: e2e + "busybox", tag: "1.29-2", rootfs: "busybox", cmd: []string{"sh"}},
	{repo: e2e + "nginx", tag: "1.14-2", rootfs: "nginx", cmd: []string{"nginx"}, port: "80/tcp"},
	{repo: e2e + "httpd", tag: "2.4.39-4", rootfs: "busybox", extra: "httpd", cmd: []string{"sh", "-c", "echo httpd is serving; exec httpd -f -v -p 80 -h /www"}, port: "80/tcp"},
	{repo: e2e + "nonewprivs", tag: "1.3", rootfs: "nnp", cmd: []string{"/nnp"}},
	{repo: staging + "hostnet-nginx-amd64", tag: "latest", rootfs: "nginx", extra: "hostnet", cmd: []string{"nginx", "-c", "/etc/nginx/hostnet.conf"}},
	{repo: staging + "test-image-user-uid", tag: "latest", rootfs: "busybox", user: "1002"},
	{repo: staging + "test-image-user-username", tag: "latest", rootfs: "busybox", user: "www-data"},
	{repo: staging + "test-image-user-uid-group", tag: "latest", rootfs: "busybox", user: "1003:users"},
	{repo: staging + "test-image-user-username-group", tag: "latest", rootfs: "busybox", user: "www-data:100"},
	{repo: staging + "test-image-predefined-group", tag: "latest", rootfs: "busybox", user: "1000", extra: "predefined"},
	{repo: staging + "test-image-latest", tag: "latest", rootfs: "busybox", extra: "latest"},
	{repo: staging + "test-image-tag", tag: "test", rootfs: "busybox", extra: "tag-test"},
	{repo: staging + "test-image-tag", tag: "all", rootfs: "busybox", extra: "tag-all"},
	{repo: staging + "test-image-digest", tag: "latest", rootfs: "busybox", extra: "digest"},
	{repo: staging + "test-image-1", tag: "latest", rootfs: "busybox", extra: "1"},
	{repo: staging + "test-image-2", tag: "latest", rootfs: "busybox", extra: "2"},
	{repo: staging + "test-image-3", tag: "latest", rootfs: "busybox", extra: "3"},
	{repo: staging + "test-image-tags", tag: "1", rootfs: "busybox", extra: "tags"},
	{repo: staging + "test-image-tags", tag: "2", rootfs: "busybox", extra: "tags"},
	{repo: staging + "test-image-tags", tag: "3", rootfs: "busybox", extra: "tags"},
	{repo: "library/busybox", tag: "latest", rootfs: "busybox", cmd: []string{"sh"}},
	{repo: "library/nginx", tag: "latest", rootfs: "nginx", cmd: []string{"nginx"}, port: "80/tcp"},
}

func main() {
	listen := flag.String("listen", "127.0.0.1:5000", "loopback address to serve on")
	rootfs := flag.String("rootfs", "", "folder laid by rootfs.sh")
	quiet := flag.Bool("quiet", true, "do not log requests")
	flag.Parse()
	if *rootfs == "" {
		log.Fatal("mirror: -rootfs is required")
	}

	l, err := net.Listen("tcp", *listen)
	if err != nil {
		log.Fatal(err)
	}
	opts := []registry.Option{}
	if *quiet {
		opts = append(opts, registry.Logger(log.New(io.Discard, "", 0)))
	}
	go func() { log.Fatal(http.Serve(l, registry.New(opts...))) }()

	layers := map[string]v1.Layer{}
	for _, im := range images {
		if err := push(l.Addr().String(), *rootfs, im, layers); err != nil {
			log.Fatalf("mirror: %s:%s: %v", im.repo, im.tag, err)
		}
	}
	fmt.Printf("mirror: %d images on %s\n", len(images), l.Addr())
	select {}
}

func push(addr, rootfs string, im image, layers map[string]v1.Layer) error {
	base, ok := layers[im.rootfs]
	if !ok {
		dir := filepath.Join(rootfs, im.rootfs)
		var err error
		base, err = tarball.LayerFromOpener(func() (io.ReadCloser, error) { return tree(dir), nil },
			tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return err
		}
		layers[im.rootfs] = base
	}
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, base)
	if err != nil {
		return err
	}
	if im.extra != "" {
		extra, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return file("/"+im.extra+".txt", im.extra), nil },
			tarball.WithMediaType(types.OCILayer))
		if err != nil {
			return err
		}
		if img, err = mutate.AppendLayers(img, extra); err != nil {
			return err
		}
	}
	cf, err := img.ConfigFile()
	if err != nil {
		return err
	}
	cf = cf.DeepCopy()
	cf.OS, cf.Architecture = "linux", "amd64"
	cf.Config.User, cf.Config.Cmd, cf.Config.WorkingDir = im.user, im.cmd, im.workdir
	if im.cmd == nil {
		cf.Config.Cmd = []string{"sh"}
	}
	cf.Config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	if im.port != "" {
		cf.Config.ExposedPorts = map[string]struct{}{im.port: {}}
	}
	if img, err = mutate.ConfigFile(img, cf); err != nil {
		return err
	}
	ref, err := name.ParseReference(addr+"/"+im.repo+":"+im.tag, name.Insecure)
	if err != nil {
		return err
	}
	return remote.Write(ref, img)
}

var (
	fixed = time.Unix(1700000000, 0)
	zero  time.Time
)

// tree streams dir as a tar, owners and set-uid bits kept, times left out so
// that the layer's digest is the same on every build.
func tree(dir string) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		inodes := map[uint64]string{}
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil || p == dir {
				return err
			}
			fi, err := d.Info()
			if err != nil {
				return err
			}
			link := ""
			if fi.Mode()&fs.ModeSymlink != 0 {
				if link, err = os.Readlink(p); err != nil {
					return err
				}
			}
			h, err := tar.FileInfoHeader(fi, link)
			if err != nil {
				return err
			}
			st := fi.Sys().(*syscall.Stat_t)
			h.Uid, h.Gid, h.Uname, h.Gname = int(st.Uid), int(st.Gid), "", ""
			h.ModTime, h.AccessTime, h.ChangeTime = fixed, zero, zero
			h.Name = strings.TrimPrefix(p, dir+"/")
			if d.IsDir() {
				h.Name += "/"
			}
			if fi.Mode().IsRegular() && st.Nlink > 1 {
				if first, ok := inodes[st.Ino]; ok {
					h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
				} else {
					inodes[st.Ino] = h.Name
				}
			}
			if err := tw.WriteHeader(h); err != nil || h.Typeflag != tar.TypeReg {
				return err
			}
			f, err := os.Open(p)
			if err != nil {
				return err
			}
			defer f.Close()
			_, err = io.Copy(tw, f)
			return err
		})
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err)
	}()
	return r
}

func file(path, body string) io.ReadCloser {
	r, w := io.Pipe()
	go func() {
		tw := tar.NewWriter(w)
		err := tw.WriteHeader(&tar.Header{Name: strings.TrimPrefix(path, "/"), Mode: 0o644, Size: int64(len(body)), ModTime: fixed})
		if err == nil {
			_, err = io.WriteString(tw, body)
		}
		if err == nil {
			err = tw.Close()
		}
		w.CloseWithError(err)
	}()
	return r
}
