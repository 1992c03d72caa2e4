package image

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/containerd/errdefs"
	specs "github.com/opencontainers/runtime-spec/specs-go"
)

func TestRootfsUserNamespace(t *testing.T) {
	s := open(t, Config{})
	reg := startRegistry(t)
	img, err := s.Pull(t.Context(), reg.push(t, "app:1", imageOf(t, "",
		layerOf(t, file{name: "root", data: "r", mode: 0o600}, file{name: "user", data: "u", mode: 0o600, uid: 1000}),
		layerOf(t, file{name: "second", data: "s", mode: 0o600}))), nil)
	if err != nil {
		t.Fatal(err)
	}
	ids := []specs.LinuxIDMapping{{ContainerID: 0, HostID: 200000, Size: 65536}}
	for _, view := range []bool{false, true} {
		key := fmt.Sprintf("userns-%v", view)
		before := len(mountsBelow(t, "/"))
		mounts, err := s.PrepareRootfs(t.Context(), key, img.ID, &RootfsOptions{UIDs: ids, GIDs: ids, ReadOnly: view})
		if err != nil {
			t.Fatal(err)
		}
		target := filepath.Join(t.TempDir(), "TestRootfs")
		if err := s.Mount(t.Context(), mounts, target); err != nil {
			t.Fatal(err)
		}
		if n := len(mountsBelow(t, "/")); n != before+1 {
			t.Errorf("%d mounts more than before", n-before)
		}
		want := map[string]uint32{"root": 200000, "user": 201000, "second": 200000}
		if !view {
			want["."] = 200000
		}
		for name, uid := range want {
			var st syscall.Stat_t
			if err := syscall.Stat(filepath.Join(target, name), &st); err != nil || st.Uid != uid || st.Gid != uid {
				t.Errorf("%s belongs to %d:%d (%v), want %d", name, st.Uid, st.Gid, err, uid)
			}
		}
		if !view {
			if err := os.WriteFile(filepath.Join(target, "user"), []byte("changed"), 0o600); err != nil {
				t.Errorf("copy up: %v", err)
			}
		}
		if err := s.Unmount(t.Context(), target); err != nil {
			t.Error(err)
		}
		if err := s.RemoveRootfs(t.Context(), key); err != nil {
			t.Error(err)
		}
	}
	for name, o := range map[string]*RootfsOptions{
		"size 0":     {UIDs: []specs.LinuxIDMapping{{HostID: 1}}, GIDs: ids},
		"no gids":    {UIDs: ids},
		"no root":    {UIDs: []specs.LinuxIDMapping{{ContainerID: 1, HostID: 1, Size: 10}}, GIDs: ids},
		"too far":    {UIDs: []specs.LinuxIDMapping{{HostID: 1<<32 - 10, Size: 65536}}, GIDs: ids},
		"overlap":    {UIDs: append(ids, specs.LinuxIDMapping{ContainerID: 65000, HostID: 1, Size: 1000}), GIDs: ids},
		"host twice": {UIDs: append(ids, specs.LinuxIDMapping{ContainerID: 70000, HostID: 200010, Size: 1}), GIDs: ids},
	} {
		if _, err := s.PrepareRootfs(t.Context(), "bad", img.ID, o); !errdefs.IsInvalidArgument(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
