// Pack makes an OCI archive of one static program: no registry, no base image.
//
//	pack -program bin/hello -name demo.local/hello:1 -o hello.tar
package main

import (
	"archive/tar"
	"bytes"
	"flag"
	"io"
	"log"
	"os"
	"path/filepath"
	"runtime"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

func main() {
	program := flag.String("program", "", "static program, the image's entrypoint")
	ref := flag.String("name", "demo.local/hello:1", "the image's name")
	out := flag.String("o", "image.tar", "archive to write")
	flag.Parse()
	if err := pack(*program, *ref, *out); err != nil {
		log.Fatalf("pack %s: %v", *program, err)
	}
}

func pack(program, ref, out string) error {
	tag, err := name.NewTag(ref)
	if err != nil {
		return err
	}
	b, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	entry := "/" + filepath.Base(program)
	var buf bytes.Buffer
	tw := tar.NewWriter(&buf)
	if err := tw.WriteHeader(&tar.Header{Name: entry[1:], Mode: 0o755, Size: int64(len(b))}); err != nil {
		return err
	}
	if _, err := tw.Write(b); err != nil {
		return err
	}
	if err := tw.Close(); err != nil {
		return err
	}
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil })
	if err != nil {
		return err
	}
	img, err := mutate.AppendLayers(empty.Image, layer)
	if err != nil {
		return err
	}
	img, err = mutate.ConfigFile(img, configFile(img, entry))
	if err != nil {
		return err
	}
	return tarball.WriteToFile(out, tag, img)
}

func configFile(img v1.Image, entry string) *v1.ConfigFile {
	c, err := img.ConfigFile()
	if err != nil {
		log.Fatal(err)
	}
	c = c.DeepCopy()
	c.OS, c.Architecture = "linux", runtime.GOARCH
	c.Config.Entrypoint = []string{entry}
	return c
}
