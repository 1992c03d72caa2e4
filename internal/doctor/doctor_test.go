package doctor

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"berth/internal/journal"
	"berth/internal/pod"
)

func TestMain(m *testing.M) {
	if os.Getenv("BERTH_TEST_SHIM") != "" { // a process that looks like a shim
		time.Sleep(time.Minute)
		return
	}
	os.Exit(m.Run())
}

const (
	known   = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"
	unknown = "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"
)

// node makes the folders of a daemon with one pod, as its journal has it.
func node(t *testing.T, facts ...*pod.Fact) *Options {
	t.Helper()
	dir := t.TempDir()
	o := &Options{Root: dir + "/root", State: dir + "/state", Addresses: dir + "/addresses", Own: []string{"berth"}}
	for _, p := range []string{o.Root + "/journal", o.Root + "/network", o.Root + "/pods/" + known, o.State + "/pods/" + known, o.State + "/s", o.Addresses + "/berth"} {
		if err := os.MkdirAll(p, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	var lines [][]byte
	for _, f := range append(pod.Declare("p_ns_uid_0", "", &pod.Traits{}, nil, strings.TrimSpace(string(boot)), time.Now()), facts...) {
		b, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		lines = append(lines, b)
	}
	j, err := journal.Create(o.Root+"/journal", known, lines...)
	if err != nil {
		t.Fatal(err)
	}
	j.Close()
	return o
}

// differences are Look's findings in o's own folders: the machine's cgroups may
// be another daemon's.
func differences(t *testing.T, o *Options) []*Finding {
	t.Helper()
	r, err := Look(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	if r.Pods != 1 {
		t.Errorf("%d pods, want 1", r.Pods)
	}
	return slices.DeleteFunc(r.Findings, func(f *Finding) bool { return f.Kind == "cgroup" })
}

func put(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// What no pod holds is found, named and given back; what a pod holds is left.
func TestStrays(t *testing.T) {
	o := node(t, &pod.Fact{Kind: pod.Holds, Res: pod.Dir})
	if fs := differences(t, o); len(fs) > 0 {
		t.Fatalf("a node in order: %v", fs)
	}
	put(t, o.Addresses+"/berth/10.0.0.2", known+"\neth0")
	put(t, o.Addresses+"/berth/10.0.0.3", unknown+"\neth0")
	put(t, o.Addresses+"/foreign/10.0.0.4", unknown+"\neth0")
	put(t, o.Root+"/pods/"+unknown+"/exits/x", "")
	put(t, o.Root+"/network/"+unknown+".json", `{"networks":[]}`)
	put(t, o.State+"/s/"+unknown[:16], "")
	put(t, o.State+"/s/"+known[:16]+".io", "")
	shm := o.State + "/pods/" + unknown + "/shm"
	put(t, shm+"/x", "")
	if err := unix.Mount("shm", shm, "tmpfs", 0, "size=64k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(shm, unix.MNT_DETACH) })
	for _, id := range []string{known, unknown} {
		cmd := exec.Command(os.Args[0])
		cmd.Args = []string{"/x/containerd-shim-berth-v1", "-namespace", "k8s.io", "-id", id}
		cmd.Env, cmd.Dir = append(os.Environ(), "BERTH_TEST_SHIM=1"), o.State+"/pods/"+id
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
		for { // until it is what it was started as
			if b, err := os.ReadFile("/proc/" + itoa(cmd.Process.Pid) + "/cmdline"); err != nil || strings.HasPrefix(string(b), "/x/") {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	fs := differences(t, o)
	var kinds []string
	for _, f := range fs {
		kinds = append(kinds, f.Kind)
		if f.Missing || f.Pod != unknown && f.Kind != "socket" || !f.Fixable() || !strings.Contains(f.String(), "stray") {
			t.Errorf("%v", f)
		}
	}
	if want := []string{"shim", "mount", "socket", "folder", "folder", "address", "record"}; !slices.Equal(kinds, want) {
		t.Fatalf("found %v, want %v: %v", kinds, want, fs)
	}
	for _, f := range fs {
		if err := f.Fix(t.Context()); err != nil {
			t.Errorf("%v: %v", f, err)
		}
	}
	if fs := differences(t, o); len(fs) > 0 {
		t.Errorf("after all was given back: %v", fs)
	}
	for _, p := range []string{o.Addresses + "/berth/10.0.0.2", o.Addresses + "/foreign/10.0.0.4", o.State + "/s/" + known[:16] + ".io"} {
		if _, err := os.Stat(p); err != nil {
			t.Errorf("what is not a stray is gone: %v", err)
		}
	}
}

func itoa(n int) string { b, _ := json.Marshal(n); return string(b) }

// What a pod holds and is not there is named, and left to berthd.
func TestMissing(t *testing.T) {
	hold := func(r pod.Resource, data string) *pod.Fact {
		return &pod.Fact{Kind: pod.Holds, Res: r, Data: json.RawMessage(data)}
	}
	facts := []*pod.Fact{
		hold(pod.Dir, `{}`), hold(pod.Namespaces, `{"net":"/nowhere/net"}`), hold(pod.Network, `{}`),
		hold(pod.Shim, `{"pid":4194303,"startTime":1,"socket":"/nowhere/s"}`),
	}
	o := node(t, facts...)
	put(t, o.Root+"/network/"+known+".json", `{"networks":[{"config":{"name":"n","plugins":[{"ipam":{"type":"host-local"}}]}}]}`)
	if err := os.Remove(o.Root + "/pods/" + known); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, f := range differences(t, o) {
		got = append(got, f.Kind)
		if !f.Missing || f.Fixable() || f.Fix(t.Context()) == nil {
			t.Errorf("%v", f)
		}
	}
	if want := []string{"shim", "mount", "folder", "address"}; !slices.Equal(got, want) {
		t.Errorf("found %v, want %v", got, want)
	}
	// After a reboot nothing of the kernel's is expected.
	o = node(t, append(facts, &pod.Fact{Kind: pod.Rebooted, Boot: "another"})...)
	if fs := differences(t, o); len(fs) > 0 {
		t.Errorf("after a reboot: %v", fs)
	}
}

// A difference that is gone a moment later is none, and Look ends with its caller.
func TestMoment(t *testing.T) {
	o := node(t, &pod.Fact{Kind: pod.Holds, Res: pod.Dir})
	o.Settle = 300 * time.Millisecond
	put(t, o.State+"/s/"+unknown[:16], "")
	time.AfterFunc(100*time.Millisecond, func() { os.Remove(o.State + "/s/" + unknown[:16]) })
	if fs := differences(t, o); len(fs) > 0 {
		t.Errorf("%v", fs)
	}
	put(t, o.State+"/s/"+unknown[:16], "")
	o.Settle = time.Hour
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if _, err := Look(ctx, o); err == nil {
		t.Error("Look outlives its caller")
	}
}
