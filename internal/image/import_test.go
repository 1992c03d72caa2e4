package image

import (
	"archive/tar"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// ociArchive is an OCI layout as tar, with these annotations for the image.
func ociArchive(t *testing.T, img v1.Image, annotations map[string]string) []byte {
	t.Helper()
	dir := t.TempDir()
	p, err := layout.Write(dir, empty.Index)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.AppendImage(img, layout.WithAnnotations(annotations)); err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	err = fs.WalkDir(os.DirFS(dir), ".", func(path string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := os.ReadFile(filepath.Join(dir, path))
		if err != nil {
			return err
		}
		if err := tw.WriteHeader(&tar.Header{Name: path, Size: int64(len(data)), Mode: 0o644}); err != nil {
			return err
		}
		_, err = tw.Write(data)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	tw.Close()
	return buf.Bytes()
}

func dockerArchive(t *testing.T, img v1.Image, tag string) []byte {
	t.Helper()
	ref, err := name.NewTag(tag)
	if err != nil {
		t.Fatal(err)
	}
	var buf bytes.Buffer
	if err := tarball.Write(ref, img, &buf); err != nil {
		t.Fatal(err)
	}
	return buf.Bytes()
}

func TestImport(t *testing.T) {
	img := small(t, "imported")
	digest, _ := img.Digest()
	for _, c := range []struct {
		name, tag string
		data      []byte
	}{
		{"oci containerd's name", "registry.test/a:1", ociArchive(t, img, map[string]string{"io.containerd.image.name": "registry.test/a:1"})},
		{"oci whole ref name", "docker.io/library/bee:2", ociArchive(t, img, map[string]string{"org.opencontainers.image.ref.name": "bee:2"})},
		{"oci tag only", "", ociArchive(t, img, map[string]string{"org.opencontainers.image.ref.name": "latest"})},
		{"oci no name", "", ociArchive(t, img, nil)},
		{"docker", "docker.io/library/see:3", dockerArchive(t, img, "see:3")},
	} {
		t.Run(c.name, func(t *testing.T) {
			s := open(t, Config{SyncFS: true})
			list, err := s.Import(t.Context(), bytes.NewReader(c.data))
			if err != nil {
				t.Fatal(err)
			}
			if len(list) != 1 || list[0].ID != configDigest(t, img) {
				t.Fatalf("imported %+v", list)
			}
			got := list[0]
			if c.tag != "" && (len(got.Tags) != 1 || got.Tags[0] != c.tag) {
				t.Errorf("tags %v, want %s", got.Tags, c.tag)
			}
			if c.tag == "" && (len(got.Tags) != 0 || len(got.Digests) != 1 || got.Digests[0] != namelessRepo+"@"+digest.String()) {
				t.Errorf("names %v %v", got.Tags, got.Digests)
			}
			if err := s.collectNow(s.ctx); err != nil {
				t.Fatal(err)
			}
			checkTree(t, s, got, map[string]string{"etc/motd": "welcome imported", "etc/gone": ""})
		})
	}
	s := open(t, Config{})
	if _, err := s.Import(t.Context(), strings.NewReader("not an archive")); err == nil {
		t.Error("imported rubbish")
	}
	whole := dockerArchive(t, img, "see:3")
	if _, err := s.Import(t.Context(), bytes.NewReader(whole[:len(whole)/2])); err == nil {
		t.Error("imported half an archive")
	}
	if n := len(s.List(t.Context())); n != 0 {
		t.Errorf("%d images after failed imports", n)
	}
}
