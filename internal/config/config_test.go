package config

import (
	"bytes"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

func write(t *testing.T, text string) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "config.toml")
	if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWriteDefaultLoadsToDefault(t *testing.T) {
	var b bytes.Buffer
	if err := WriteDefault(&b); err != nil {
		t.Fatal(err)
	}
	got, err := Load(write(t, b.String()))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, Default()) {
		t.Errorf("loaded %+v\nwant %+v", got, Default())
	}
	if err := Default().Check(); err != nil {
		t.Error(err)
	}
	empty, err := Load(write(t, ""))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(empty, Default()) {
		t.Errorf("an empty file gives %+v", empty)
	}
}

// Every key of Config stands in default.toml, under its table, with a comment
// above it or above the group that it belongs to.
func TestEveryKeyIsPrinted(t *testing.T) {
	ix := lines(defaults)
	text := strings.Split(string(defaults), "\n")
	var walk func(prefix string, ty reflect.Type)
	walk = func(prefix string, ty reflect.Type) {
		for f := range ty.Fields() {
			key := prefix + f.Tag.Get("toml")
			ft := f.Type
			if ft.Kind() == reflect.Map {
				key, ft = key+".runc", ft.Elem()
			}
			row, ok := ix[key]
			if !ok {
				t.Errorf("%s is not in default.toml", key)
				continue
			}
			if ft.Kind() == reflect.Struct && ft != reflect.TypeFor[Duration]() {
				walk(key+".", ft)
				continue
			}
			above := row - 2
			for above >= 0 && text[above] != "" && !strings.HasPrefix(text[above], "#") && !strings.HasPrefix(text[above], "[") {
				above--
			}
			if above < 0 || !strings.HasPrefix(text[above], "#") {
				t.Errorf("%s (line %d) has no comment", key, row)
			}
		}
	}
	walk("", reflect.TypeFor[Config]())
}

func TestLoadKeepsDefaultsOfWhatIsNotSet(t *testing.T) {
	c, err := Load(write(t, `
root = "/srv/berth"
[runtimes.runc.options]
root = "/run/x"
[runtimes.sandboxed]
kind = "vm"
[timeouts]
exit_drain = "3s"
`))
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Root = "/srv/berth"
	r := want.Runtimes["runc"]
	r.Options.Root = "/run/x"
	want.Runtimes["runc"] = r
	want.Runtimes["sandboxed"] = Runtime{Kind: "vm", Path: "runc", Options: RuntimeOptions{SystemdCgroup: "auto"}}
	want.Timeouts.ExitDrain = Duration{Duration: 3 * time.Second}
	if !reflect.DeepEqual(c, want) {
		t.Errorf("got %+v\nwant %+v", c, want)
	}
	if got := c.RuntimeRoot("runc"); got != "/run/x" {
		t.Errorf("runtime root %q", got)
	}
	if got := c.RuntimeRoot("sandboxed"); got != "/run/berth/runc" {
		t.Errorf("default runtime root %q", got)
	}
	if got := c.Socket(); got != "/run/berth/berthd.sock" {
		t.Errorf("socket %q", got)
	}
}

func TestBadFiles(t *testing.T) {
	for _, tc := range []struct {
		text  string
		wants []string // regular expressions, each in the error
	}{
		{"rooot = \"/x\"\n", []string{`:1: rooot: unknown key; allowed at the top: root, state, .*metrics`}},
		{"\n\n[cni]\nconfdir = \"/x\"\n", []string{`:4: cni\.confdir: unknown key; allowed in \[cni\]: conf_dir, bin_dirs, max_conf_num, call_timeout`}},
		{"[runtimes.runc]\nbinary = \"/x\"\n", []string{`:2: runtimes\.runc\.binary: unknown key; allowed in \[runtimes\.runc\]: kind, path`}},
		{"[nosuch]\nx = 1\n", []string{`:[12]: nosuch.*: unknown key; allowed at the top`}},
		{"a = 1\nb = 2\n", []string{`:1: a: unknown`, `:2: b: unknown`}},
		{"root = 5\n", []string{`:1: root: .*allowed: a string`}},
		{"[stream]\nport = \"http\"\n", []string{`:2: stream\.port: .*allowed: a whole number`}},
		{"[registry]\nconfig_path = \"/x\"\n", []string{`:2: registry\.config_path: .*allowed: a list of strings`}},
		{"[image]\nsync = \"yes\"\n", []string{`:2: image\.sync: .*allowed: true or false`}},
		{"[timeouts]\nexit_drain = \"10\"\n", []string{`:2: timeouts\.exit_drain: "10" is not allowed; allowed: a duration`}},
		{"[timeouts]\nexit_drain = \"\"\n", []string{`:2: timeouts\.exit_drain: "" is not allowed; allowed: a duration`}},
		{"[timeouts]\nexit_drain = 10\n", []string{`:2: timeouts\.exit_drain: .*allowed: a duration`}},
		{"root = \"/x\nstate=\"/y\"\n", []string{`:1: `}},
		{"cgroup_driver = \"cgroup\"\nlog_level = \"loud\"\n", []string{
			`:1: cgroup_driver: "cgroup" is not allowed; allowed: auto, cgroupfs, systemd`,
			`:2: log_level: "loud" is not allowed; allowed: debug, info, warn, error`,
		}},
		{"state = \"run\"\n", []string{`:1: state: "run" is not allowed; allowed: an absolute path`}},
		{"state = \"/" + strings.Repeat("x", 64) + "\"\n", []string{`:1: state: .*at most 64`}},
		{"default_runtime = \"kata\"\n", []string{`:1: default_runtime: "kata" is not allowed; allowed: runc`}},
		{"\n[runtimes.vm]\nkind = \"virtual\"\n", []string{`:3: runtimes\.vm\.kind: .*allowed: process, vm`}},
		{"[runtimes.UPPER]\n", []string{`:1: runtimes\.UPPER: .*allowed: a-z`}},
		{"runtimes.x.path = \"bin/runc\"\n", []string{`:1: runtimes\.x\.path: .*allowed: an absolute path`}},
		{"[cni]\nbin_dirs = []\nmax_conf_num = -1\ncall_timeout = \"0s\"\n", []string{`:2: cni\.bin_dirs: is empty`, `:3: cni\.max_conf_num: -1.*0 to`, `:4: cni\.call_timeout: "0s".*above 0`}},
		{"[stream]\naddress = \"localhost\"\nport = 70000\ncert_file = \"/c\"\n", []string{`:2: stream\.address: .*an IP address`, `:3: stream\.port: 70000.*65535`, `:1: stream\.key_file: .*go together`}},
		{"[logs]\nmax_line_size = 1\nmax_files = 0\nrate = -4\n", []string{`:2: logs\.max_line_size`, `:3: logs\.max_files`, `:4: logs\.rate`}},
		{"[metrics]\naddress = \"9000\"\n", []string{`:2: metrics\.address: .*host:port`}},
		{"[image]\nsnapshotter = \"zfs\"\n", []string{`:2: image\.snapshotter: .*overlayfs, native`}},
	} {
		p := write(t, tc.text)
		_, err := Load(p)
		if err == nil {
			t.Errorf("%q was accepted", tc.text)
			continue
		}
		for _, w := range tc.wants {
			if !regexp.MustCompile("(?m)^" + regexp.QuoteMeta(p) + w).MatchString(err.Error()) {
				t.Errorf("%q: %v\nwant %s", tc.text, err, w)
			}
		}
	}
}

func TestEndpoint(t *testing.T) {
	for want, s := range map[string]Stream{"127.0.0.1:0": Default().Stream, "[::1]:80": {Address: "::1", Port: 80}} {
		if got := s.Endpoint(); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

func TestLoadMissing(t *testing.T) {
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("got %v", err)
	}
}

func TestCheckOfFlags(t *testing.T) {
	c := Default()
	c.Root = "here"
	if err := c.Check(); err == nil || !strings.Contains(err.Error(), `root: "here" is not allowed`) {
		t.Errorf("got %v", err)
	}
}

func TestDriver(t *testing.T) {
	c := Default()
	booted := t.TempDir()
	if got := c.driver(booted); got != "systemd" {
		t.Errorf("under systemd: %s", got)
	}
	if got := c.driver(filepath.Join(booted, "none")); got != "cgroupfs" {
		t.Errorf("without systemd: %s", got)
	}
	c.CgroupDriver = "systemd"
	if !c.SystemdCgroup("runc") {
		t.Error("auto does not follow cgroup_driver")
	}
	r := c.Runtimes["runc"]
	r.Options.SystemdCgroup = "false"
	c.Runtimes["runc"] = r
	if c.SystemdCgroup("runc") {
		t.Error("false is not obeyed")
	}
	c.CgroupDriver = "cgroupfs"
	r.Options.SystemdCgroup = "true"
	c.Runtimes["runc"] = r
	if !c.SystemdCgroup("runc") {
		t.Error("true is not obeyed")
	}
}

func TestLocate(t *testing.T) {
	own := executableDir()
	beside, inPath := filepath.Join(own, "berth-test-runtime"), t.TempDir()
	t.Setenv("PATH", inPath)
	c := Default()
	set := func(p string) { c.Runtimes["runc"] = Runtime{Path: p} }
	set("berth-test-runtime")
	if _, err := c.RuntimePath("runc"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), own) || !strings.Contains(err.Error(), inPath) {
		t.Errorf("nowhere: %v", err)
	}
	there := filepath.Join(inPath, "berth-test-runtime")
	if err := os.WriteFile(there, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := c.RuntimePath("runc"); !errdefs.IsNotFound(err) {
		t.Errorf("a file that cannot be executed was taken: %v", err)
	}
	if err := os.Chmod(there, 0o755); err != nil {
		t.Fatal(err)
	}
	if p, err := c.RuntimePath("runc"); err != nil || p != there {
		t.Errorf("in PATH: %s %v", p, err)
	}
	if err := os.WriteFile(beside, nil, 0o755); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.Remove(beside) })
	if p, err := c.RuntimePath("runc"); err != nil || p != beside {
		t.Errorf("next to berthd: %s %v", p, err)
	}
	set("@berthd/berth-test-runtime")
	if p, err := c.RuntimePath("runc"); err != nil || p != beside {
		t.Errorf("@berthd: %s %v", p, err)
	}
	set(there)
	if p, err := c.RuntimePath("runc"); err != nil || p != there {
		t.Errorf("as a path: %s %v", p, err)
	}
	set("/nonexistent/runc")
	if _, err := c.RuntimePath("runc"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), "runtimes.runc.path") {
		t.Errorf("missing path: %v", err)
	}
	if _, err := c.RuntimePath("other"); !errdefs.IsNotFound(err) || !strings.Contains(err.Error(), `"other"`) {
		t.Errorf("unknown handler: %v", err)
	}
	c.Shim = there
	if p, err := c.ShimPath(); err != nil || p != there {
		t.Errorf("shim: %s %v", p, err)
	}
	if got, want := c.CNI.PluginDirs(), []string{"/opt/cni/bin", filepath.Join(own, "cni")}; !reflect.DeepEqual(got, want) {
		t.Errorf("plugin dirs %v, want %v", got, want)
	}
}

func FuzzLoad(f *testing.F) {
	f.Add(string(defaults))
	f.Add("runtimes.a.b = 1\n[x]\n")
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, text string) {
		p := filepath.Join(dir, "f.toml")
		if err := os.WriteFile(p, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Load(p)
		if err == nil && c.Check() != nil {
			t.Errorf("accepted, but %v", c.Check())
		}
		if err != nil && !strings.HasPrefix(err.Error(), p) {
			t.Errorf("the error does not name the file: %v", err)
		}
	})
}
