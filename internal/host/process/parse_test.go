package process

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
)

func TestStartCode(t *testing.T) {
	for message, want := range map[string]int32{
		`runc run failed: unable to start container process: error during container init: exec: "x": executable file not found in $PATH`: 127,
		`exec failed: unable to start container process: exec: "/x": stat /x: no such file or directory`:                                 127,
		`exec: "/x": permission denied`:                                     126,
		`exec: "/x": is a directory`:                                        126,
		`exec /x: exec format error`:                                        126,
		"executable file `x` not found in $PATH: No such file or directory": 127,
		"open executable: Permission denied":                                126,
		"exec container process `/x`: Exec format error":                    126,
		"exec container process `/x`: No such file or directory":            127,
		"exec: Exec format error":                                           126,
		`error mounting "/x" to rootfs at "/y": no such file or directory`:  128,
		`chdir to cwd ("/x") failed: permission denied`:                     128,
		`container init was OOM-killed (memory limit too low?)`:             128,
	} {
		if got := startCode(message); got != want {
			t.Errorf("%s: %d, want %d", message, got, want)
		}
	}
}

func TestLastLine(t *testing.T) {
	for text, want := range map[string]string{
		"": "",
		"hook said\nexec /x: exec format error\n":                    "exec /x: exec format error",
		`{"msg":"exec: Exec format error","level":"error"}` + "\n":   "exec: Exec format error",
		"\x1b[1;31m{\"msg\":\"exec: Exec format error\"}\x1b[0m\r\n": "exec: Exec format error",
		"\x1b[1;31mexec: Exec format error\x1b[0m\r\n":               "exec: Exec format error",
	} {
		if got := lastLine([]byte(text)); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestConfiguredPath(t *testing.T) {
	for _, c := range []struct {
		systemd    bool
		path, want string
	}{
		{false, "/a/b", "/a/b"},
		{false, "", "/id"},
		{false, "/", ""},
		{false, "../..", ""},
		{true, "kubepods-burstable-podx.slice:berth:c1", "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-podx.slice/berth-c1.scope"},
		{true, ":berth:c1", "/system.slice/berth-c1.scope"},
		{true, "-.slice:berth:c1", "/berth-c1.scope"},
		{true, "", "/system.slice/runc-id.scope"},
		{true, "/not/systemd", ""},
	} {
		h := &Host{systemd: c.systemd}
		if got := h.configuredPath("id", c.path); got != c.want {
			t.Errorf("systemd %v, %q: %q, want %q", c.systemd, c.path, got, c.want)
		}
	}
}

func TestFindMounts(t *testing.T) {
	file := filepath.Join(t.TempDir(), "mountinfo")
	for text, want := range map[string]*mounts{
		"29 25 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n": {unified: "/sys/fs/cgroup", v1: map[string]string{}},
		"30 25 0:27 / /cg/unified rw - cgroup2 cgroup rw\n" +
			"31 25 0:28 / /cg/systemd rw shared:5 - cgroup cgroup rw,xattr,name=systemd\n" +
			"32 25 0:29 / /cg/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n" +
			"33 25 0:30 / /proc rw - proc proc rw\n": {
			unified: "/cg/unified",
			v1:      map[string]string{"name=systemd": "/cg/systemd", "cpu": "/cg/cpu,cpuacct", "cpuacct": "/cg/cpu,cpuacct"},
		},
		"garbage\n\n1 2 - cgroup\n": {v1: map[string]string{}},
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := findMounts(file)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: %+v, %v, want %+v", text, got, err, want)
		}
	}
}

// What holds this process is never taken for a container's cgroup.
func TestExclude(t *testing.T) {
	m, err := findMounts("/proc/self/mountinfo")
	if err != nil {
		t.Fatal(err)
	}
	for _, g := range []cgroup{m.at("/"), m.of(os.Getpid())} {
		m.exclude(&g)
		if d := g.dirs(); len(d) > 0 {
			t.Errorf("this process is in %v", d)
		}
	}
	g := m.at("/elsewhere")
	n := len(g.dirs())
	if m.exclude(&g); len(g.dirs()) != n || n == 0 {
		t.Errorf("of %d directories that are elsewhere %d stay", n, len(g.dirs()))
	}
}

// A cgroup v2 directory, as far as files can stand for one.
func TestUnifiedFiles(t *testing.T) {
	dir := t.TempDir()
	g := cgroup{unified: dir}
	for name, text := range map[string]string{
		"memory.events": "low 0\nhigh 0\nmax 12\noom 3\noom_kill 2\noom_group_kill 0\n",
		"cgroup.events": "populated 1\nfrozen 0\n",
		"cgroup.procs":  "11\n0\n12\n",
		"cgroup.kill":   "",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if n := g.oomKills(); n != 2 {
		t.Errorf("%d OOM kills", n)
	}
	if !g.populated() || !reflect.DeepEqual(g.pids(), []int{11, 12}) {
		t.Errorf("populated %v, pids %v", g.populated(), g.pids())
	}
	if err := g.kill(); err != nil {
		t.Error(err)
	}
	if b, _ := os.ReadFile(filepath.Join(dir, "cgroup.kill")); string(b) != "1" {
		t.Errorf("cgroup.kill has %q", b)
	}
	sub, arg, err := g.below("berth-x")
	if err != nil || arg != "berth-x" || sub.dir() != filepath.Join(dir, "berth-x") {
		t.Errorf("%+v, %q, %v", sub, arg, err)
	}
}

func TestRunTimeState(t *testing.T) {
	root := t.TempDir()
	h := &Host{root: root, mounts: &mounts{unified: "/cg", v1: map[string]string{}}}
	for id, file := range map[string][2]string{
		"runc": {"state.json", `{"init_process_pid":7,"init_process_start":9,"cgroup_paths":{"":"/cg/a"},"config":{"namespaces":[{"type":"NEWPID","path":""}]}}`},
		"crun": {"status", `{"pid":7,"process-start-time":9,"cgroup-path":"/a"}`},
	} {
		dir := filepath.Join(root, id)
		if err := os.Mkdir(dir, 0o700); err != nil {
			t.Fatal(err)
		}
		config := `{"linux":{"cgroupsPath":"/b","namespaces":[{"type":"pid"}]}}`
		for name, text := range map[string]string{file[0]: file[1], "config.json": config} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		r := h.locate(id, dir, 0)
		if r.pid != 7 || r.start != 9 || !r.private || r.cg.unified != "/cg/a" {
			t.Errorf("%s: %+v", id, r)
		}
		if r := h.locate("gone", dir, 0); r.cg.unified != "/cg/b" || !r.private || r.pid != 0 {
			t.Errorf("without a state: %+v", r)
		}
	}
}
