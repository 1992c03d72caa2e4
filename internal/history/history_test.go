package history

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/journal"
	"berth/internal/pod"
)

// life are the facts of a pod's life, a second apart.
func life() []*pod.Fact {
	t := time.Unix(1000, 0)
	code := int32(3)
	fs := pod.Declare("web_default_uid_0", "", &pod.Traits{HostNetwork: true}, nil, "boot", t)
	for i, f := range []*pod.Fact{
		{Kind: pod.Holds, Res: pod.Dir},
		{Kind: pod.Holds, Res: pod.Namespaces},
		{Kind: pod.Holds, Res: pod.Shim},
		{Kind: pod.Ready},
		{Kind: pod.ContainerDeclared, Container: "c", Name: "app_web_default_uid_0"},
		{Kind: pod.Intends, Res: pod.Rootfs, Container: "c"},
		{Kind: pod.Holds, Res: pod.Rootfs, Container: "c"},
		{Kind: pod.ContainerCreated, Container: "c"},
		{Kind: pod.Intends, Res: pod.Task, Container: "c"},
		{Kind: pod.Holds, Res: pod.Task, Container: "c"},
		{Kind: pod.ContainerStarted, Container: "c", Pid: 42},
		{Kind: pod.ContainerStop, Container: "c", Signal: "SIGTERM", Deadline: t.Add(42 * time.Second)},
		{Kind: pod.ContainerExited, Container: "c", Code: &code, Reason: "Error"},
		{Kind: pod.Released, Res: pod.Task, Container: "c"},
	} {
		f.At = t.Add(time.Duration(i+1) * time.Second)
		fs = append(fs, f)
	}
	return fs
}

func TestTell(t *testing.T) {
	var got []string
	for _, l := range Tell(life()) {
		s := l.What
		if l.Took > 0 {
			s += " [" + l.Took.String() + "]"
		}
		got = append(got, s)
	}
	want := []string{
		"pod web_default_uid_0 declared", "dir taken [1s]", "namespaces taken [1s]", "shim taken [1s]", "pod ready [4s]",
		"container app declared", "rootfs of app taken [1s]", "container app created", "task of app taken [1s]",
		"container app started, pid 42", "container app is to stop: SIGTERM, killed after 30s",
		"container app exited, code 3 Error [1s]", "task of app given back [1s]",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
}

func TestFind(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "journal")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, id := range []string{"aa11", "aa22"} {
		f := life()[0]
		f.Name = "pod" + id + "_ns_u_0"
		b, err := json.Marshal(f)
		if err != nil {
			t.Fatal(err)
		}
		j, err := journal.Create(dir, id, b)
		if err != nil {
			t.Fatal(err)
		}
		j.Close()
	}
	for _, word := range []string{"aa1", "podaa11", "aa11"} {
		if id, err := Find(root, word); err != nil || id != "aa11" {
			t.Errorf("Find(%q) = %q, %v", word, id, err)
		}
	}
	if _, err := Find(root, "aa"); !errdefs.IsInvalidArgument(err) {
		t.Errorf("two that fit: %v", err)
	}
	if _, err := Find(root, "x"); !errdefs.IsNotFound(err) {
		t.Errorf("none that fits: %v", err)
	}
	path := filepath.Join(dir, "aa22")
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(b, "garbage that is no line\n"...), 0o600); err != nil {
		t.Fatal(err)
	}
	if fs, err := Facts(dir, "aa22"); len(fs) != 1 || !errors.Is(err, journal.ErrDamaged) {
		t.Errorf("a damaged journal: %d facts, %v; want what is before the damage, and its name", len(fs), err)
	}
}
