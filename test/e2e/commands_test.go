package e2e

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// command runs one of the programs people use, against the shared daemon.
func command(t *testing.T, name string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(bin, name), args...)
	cmd.Env = append(os.Environ(), "BERTH_SOCKET="+shared.sock, "BERTH_LOG_DIR="+shared.dir+"/berth-logs",
		"CONTAINER_RUNTIME_ENDPOINT=unix://"+shared.sock, "IMAGE_SERVICE_ENDPOINT=unix://"+shared.sock)
	b, err := cmd.CombinedOutput()
	return string(b), err
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := command(t, name, args...)
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return out
}

// crictl works as it does with containerd.
func TestCrictl(t *testing.T) {
	t.Parallel()
	p := shared.pod(t)
	c := p.run("c", script("echo hello; sleep 1000"))
	c.waitLog("hello")
	for _, w := range []struct {
		args []string
		want string
	}{
		{[]string{"version"}, "RuntimeApiVersion"},
		{[]string{"info"}, "RuntimeReady"},
		{[]string{"pods", "--no-trunc"}, p.id},
		{[]string{"ps", "--no-trunc"}, c.id},
		{[]string{"images", "--no-trunc"}, ids[baseImage]},
		{[]string{"logs", c.id}, "hello"},
		{[]string{"exec", c.id, "echo", "by websocket or spdy"}, "by websocket or spdy"},
		{[]string{"exec", "-s", c.id, "echo", "sync"}, "sync"},
		{[]string{"inspect", c.id}, `"runtimeSpec"`},
		{[]string{"inspectp", p.id}, p.cfg.Metadata.Uid},
		{[]string{"inspecti", baseImage}, ids[baseImage]},
		{[]string{"stats", "--id", c.id}, "c"},
		{[]string{"imagefsinfo"}, "usedBytes"},
	} {
		if out := run(t, "crictl", append([]string{"--config", "/dev/null"}, w.args...)...); !contains(out, w.want) {
			t.Errorf("crictl %v: %q is not in\n%s", w.args, w.want, out)
		}
	}
}

// The life of a pod as a person has it.
func TestBerthCommand(t *testing.T) {
	t.Parallel()
	name := "person" + strings.ToLower(filepath.Base(work)[5:])
	args := []string{"run", "-d", "--name", name, "-e", "WHO=me", "-e", tagKey + "=" + runTag}
	if handler != "" {
		args = append(args, "--runtime", handler)
	}
	id := strings.TrimSpace(run(t, "berth", append(args, baseImage, "sh", "-c", "echo hello $WHO; sleep 1000")...))
	remember(id)
	t.Cleanup(func() { command(t, "berth", "rm", name) })
	if out := run(t, "berth", "ps"); !contains(out, name) || !contains(strings.ToLower(out), "running") {
		t.Errorf("ps: %s", out)
	}
	if out := run(t, "berth", "exec", name, "echo", "inside"); out != "inside\n" {
		t.Errorf("exec: %q", out)
	}
	if out := run(t, "berth", "logs", name); !contains(out, "hello me") {
		t.Errorf("logs: %q", out)
	}
	if out := run(t, "berth", "images"); !contains(out, "e2e.example/base") {
		t.Errorf("images: %s", out)
	}
	run(t, "berth", "restart", name)
	run(t, "berth", "stop", name)
	run(t, "berth", "rm", name)
	if out := run(t, "berth", "ps"); contains(out, name) {
		t.Errorf("after rm: %s", out)
	}
	if out, err := command(t, "berth", "exec", name, "true"); err == nil {
		t.Errorf("exec in what is not there: %s", out)
	}
}

// A configuration that is wrong is refused, and the error says where and how.
func TestBadConfig(t *testing.T) {
	t.Parallel()
	dir := hostFolder(t)
	for text, words := range map[string][]string{
		"rooot = \"/x\"\n":                    {"rooot", "unknown", ":1"},
		"[timeouts]\nexec_drain = \"soon\"\n": {"timeouts.exec_drain", "soon", ":2"},
		"cgroup_driver = \"cgroup\"\n":        {"cgroup_driver", "cgroupfs", "systemd"},
		"default_runtime = \"no-such\"\n":     {"default_runtime", "runc"},
		"[runtimes.x]\npath = \"/no/rt\"\n":   {"/no/rt"},
	} {
		write(t, dir+"/bad.toml", text)
		out, err := command(t, "berthd", "--config", dir+"/bad.toml", "--root", dir+"/r", "--state", dir+"/s")
		if err == nil {
			t.Errorf("%q was taken", text)
		}
		for _, w := range words {
			if !contains(out, w) {
				t.Errorf("%q: %q does not say %q", text, out, w)
			}
		}
	}
	write(t, dir+"/good.toml", run(t, "berthd", "config", "default"))
	if out, err := command(t, "berthd", "--config", dir+"/none.toml"); err == nil || !contains(out, "none.toml") {
		t.Errorf("a file that is not there: %s", out)
	}
}
