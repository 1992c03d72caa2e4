package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/containerd/errdefs"
)

// Two journals claim one name, as after a restored disk: the newest pod keeps
// it, the other goes, and nothing of it is left.
func TestTwoPodsOfOneName(t *testing.T) {
	m, dir, aside := newFake(), t.TempDir(), t.TempDir()
	k := keep(t, dir, m, "b")
	old := run(t, k, "p")
	k.Close()
	if err := os.Rename(filepath.Join(dir, old), filepath.Join(aside, old)); err != nil {
		t.Fatal(err)
	}
	k = keep(t, dir, m, "b")
	fresh := run(t, k, "p")
	k.Close()
	if err := os.Rename(filepath.Join(aside, old), filepath.Join(dir, old)); err != nil {
		t.Fatal(err)
	}
	k = keep(t, dir, m, "b")
	for len(k.Pods()) > 1 {
		time.Sleep(time.Millisecond)
	}
	if v, err := k.Pod(fresh); err != nil || !v.IsReady() {
		t.Errorf("the newest: %v, %v; want it untouched", v, err)
	}
	if _, err := k.RunPod(t.Context(), podReq("p")); !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), fresh) {
		t.Errorf("the name: %v, want it in use by the newest", err)
	}
	if err := k.RemovePod(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	clean(t, m, dir)
}

// A pod that was half made when the keeper died is the answer to the same
// request, made again; a second one is told that the name is in use.
func TestSameRequestAfterCrash(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	release := m.hang("take network")
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := k.RunPod(short, podReq("p")); err == nil {
		t.Fatal("RunPod came back though the network hangs")
	}
	k.Close()
	release()
	k = keep(t, dir, m, "b")
	for !k.Pods()[0].IsReady() {
		time.Sleep(time.Millisecond)
	}
	id, err := k.RunPod(t.Context(), podReq("p"))
	if err != nil || id != k.Pods()[0].ID {
		t.Fatalf("the same request: %q, %v; want the pod that was half made", id, err)
	}
	if _, err := k.RunPod(t.Context(), podReq("p")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("and once more: %v, want AlreadyExists", err)
	}
}

// A container that the disk refused leaves its name free.
func TestFullDiskFreesTheName(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	var full atomic.Bool
	k.tap = func(m *moment) error {
		if full.Load() && m.name() == "before write container declared" {
			return errFake
		}
		return nil
	}
	p := run(t, k, "p")
	full.Store(true)
	r := &ContainerRequest{PodID: p, Name: "c", Config: json.RawMessage(`{}`)}
	for range 2 {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		if _, err := k.CreateContainer(ctx, r); !errors.Is(err, errFake) {
			t.Errorf("on a full disk: %v, want the disk's error at once", err)
		}
		cancel()
	}
	full.Store(false)
	if _, err := k.CreateContainer(t.Context(), r); err != nil {
		t.Errorf("once there is room: %v", err)
	}
}
