// Package hygiene keeps the tree in the shape that ARCHITECTURE.md describes:
// who may import whom, a comment for every package, a size for the shim.
package hygiene

import (
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// rules say which of our packages a package may import, and why. A package that
// is not here may import nothing of ours; a trailing /... covers what is below.
var rules = map[string]struct {
	may []string
	why string
}{
	"cmd/...": {[]string{"api/...", "internal/..."}, "mains wire everything"},

	"internal/cri":     {[]string{"internal/keeper", "internal/pod", "internal/record", "internal/image", "internal/stream", "internal/stats", "internal/network", "internal/ocispec", "internal/namespaces", "internal/shims", "internal/rpcerr", "internal/version"}, "the front translates between CRI and the services"},
	"internal/node":    {[]string{"api/node/v1", "internal/image", "internal/rpcerr"}, "a front like cri"},
	"internal/effects": {[]string{"internal/keeper", "internal/pod", "internal/record", "internal/image", "internal/network", "internal/namespaces", "internal/ocispec", "internal/shims", "internal/stdio"}, "it joins the keeper's machine to the services"},
	"internal/keeper":  {[]string{"internal/pod", "internal/journal", "internal/fault"}, "it reaches the world through Machine only, so that tests can be the world"},
	"internal/history": {[]string{"internal/pod", "internal/journal"}, "it tells a journal to people"},
	"internal/doctor":  {[]string{"internal/pod", "internal/journal", "internal/history", "internal/record", "internal/namespaces", "internal/shims", "internal/image"}, "it reads what the keeper and the services have written down"},
	"internal/shims":   {[]string{"api/shim/v1", "internal/stdio", "internal/shim/exits", "internal/shim/boot"}, "the daemon's side of the shim's protocol"},
	"internal/stream":  {[]string{"internal/stdio", "internal/keeper", "internal/pod", "internal/record", "internal/ocispec", "internal/namespaces", "internal/netns", "internal/shims"}, "it finds the pod's shim in the keeper's snapshots, and has a session with it"},
	"internal/stats":   {[]string{"internal/keeper", "internal/pod", "internal/record", "internal/namespaces", "internal/netns", "internal/network"}, "it reads the keeper's snapshots"},

	"internal/shim":         {[]string{"api/shim/v1", "internal/host", "internal/rpcerr", "internal/stdio", "internal/shim/...", "internal/version"}, "the shim knows hosts, streams and its protocols, nothing of the daemon"},
	"internal/shim/...":     {[]string{"api/shim/v1", "internal/host", "internal/host/process", "internal/stdio", "internal/shim", "internal/shim/...", "internal/version"}, "parts of the shim"},
	"internal/host/process": {[]string{"internal/host"}, "an implementation of Host"},

	"demo/...": {nil, "the demo's image and its packer stand alone"},
	"test/...": {[]string{"api/...", "internal/...", "test/..."}, "tests may look everywhere"},
}

// root is the repository's.
func root(t *testing.T) string {
	t.Helper()
	wd, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Dir(filepath.Dir(wd))
}

type source struct {
	dir   string // relative, of the package
	path  string
	file  *ast.File
	tests bool
}

func sources(t *testing.T) []source {
	t.Helper()
	top := root(t)
	var out []source
	fset := token.NewFileSet()
	err := filepath.WalkDir(top, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(top, p)
		if d.IsDir() {
			if name := d.Name(); rel != "." && (strings.HasPrefix(name, ".") || name == "bin" || name == "testdata" || rel == "tools") {
				return fs.SkipDir
			}
			if _, err := os.Stat(filepath.Join(p, "go.mod")); err == nil && rel != "." {
				return fs.SkipDir // a module of its own
			}
			return nil
		}
		if !strings.HasSuffix(p, ".go") {
			return nil
		}
		f, err := parser.ParseFile(fset, p, nil, parser.ParseComments)
		if err != nil {
			return err
		}
		out = append(out, source{filepath.Dir(rel), rel, f, strings.HasSuffix(p, "_test.go")})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(out) < 50 {
		t.Fatalf("only %d Go files found: the walk is broken", len(out))
	}
	return out
}

func fits(pattern, pkg string) bool {
	if p, ok := strings.CutSuffix(pattern, "/..."); ok {
		return strings.HasPrefix(pkg, p+"/")
	}
	return pattern == pkg
}

func TestImports(t *testing.T) {
	for _, s := range sources(t) {
		if s.tests {
			continue
		}
		for _, i := range s.file.Imports {
			to, ours := strings.CutPrefix(strings.Trim(i.Path.Value, `"`), "berth/")
			if !ours {
				continue
			}
			var may []string
			var why string
			for pattern, r := range rules {
				if pattern == s.dir || fits(pattern, s.dir) && rules[s.dir].may == nil {
					may, why = append(may, r.may...), r.why
				}
			}
			if !slices.ContainsFunc(may, func(p string) bool { return fits(p, to) }) {
				t.Errorf("%s imports %s; %s may import %v (%s)", s.path, to, s.dir, may, why)
			}
		}
	}
}

// Every package says in a comment what it promises, once.
func TestPackageComments(t *testing.T) {
	docs := map[string][]string{}
	for _, s := range sources(t) {
		if s.tests {
			continue
		}
		if _, ok := docs[s.dir]; !ok {
			docs[s.dir] = nil
		}
		if strings.HasSuffix(s.path, ".pb.go") || ast.IsGenerated(s.file) {
			docs[s.dir] = append(docs[s.dir], "generated")
			continue
		}
		if s.file.Doc != nil {
			text := s.file.Doc.Text()
			if !strings.HasPrefix(text, "Package ") && !strings.HasPrefix(text, "Command ") && s.file.Name.Name != "main" {
				t.Errorf("%s: the package comment begins with %q", s.path, strings.SplitN(text, " ", 3)[0])
			}
			docs[s.dir] = append(docs[s.dir], s.path)
		}
	}
	for dir, d := range docs {
		if len(d) == 0 {
			t.Errorf("package %s has no comment", dir)
		}
		if len(d) > 1 && d[0] != "generated" {
			t.Errorf("package %s has more than one comment: %v", dir, d)
		}
	}
}

// heavy are modules that must not get into the shim: each costs memory in every pod.
var heavy = map[string]string{
	"google.golang.org/grpc/internal/transport": "2 MiB of code; ttrpc needs grpc's status codes only",
	"net/http":        "1.5 MiB, and goroutines",
	"k8s.io/cri-api":  "CRI is the daemon's; its protos register 400 types",
	"internal/keeper": "the daemon's",
	"internal/image":  "the daemon's",
}

func TestShimIsLight(t *testing.T) {
	cmd := exec.Command("go", "list", "-deps", "-tags", "no_grpc", "./cmd/containerd-shim-berth-v1")
	cmd.Dir = root(t)
	b, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	deps := strings.Fields(string(b))
	if len(deps) < 50 {
		t.Fatalf("only %d dependencies: go list is broken", len(deps))
	}
	for _, d := range deps {
		for h, why := range heavy {
			if d == h || d == "berth/"+h || strings.HasPrefix(d, h+"/") {
				t.Errorf("the shim links %s: %s", d, why)
			}
		}
	}
}
