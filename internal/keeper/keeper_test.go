package keeper

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/errdefs"

	"berth/internal/pod"
)

func podReq(name string) *PodRequest {
	return &PodRequest{Name: name, Config: json.RawMessage(`{"a": 1}`)}
}

func run(t *testing.T, k *Keeper, name string) string {
	t.Helper()
	id, err := k.RunPod(t.Context(), podReq(name))
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func container(t *testing.T, k *Keeper, pod, name string) string {
	t.Helper()
	id, err := k.CreateContainer(t.Context(), &ContainerRequest{PodID: pod, Name: name, Config: json.RawMessage(`{}`)})
	if err != nil {
		t.Fatal(err)
	}
	if err := k.StartContainer(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	return id
}

func clean(t *testing.T, m *fakeMachine, dir string) {
	t.Helper()
	if l := m.left(); len(l) > 0 {
		t.Errorf("left over: %v", l)
	}
	if es, _ := os.ReadDir(dir); len(es) > 0 {
		t.Errorf("journals left: %v", es)
	}
}

func TestLife(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	events, cancel := k.Subscribe()
	defer cancel()
	p := run(t, k, "p")
	c := container(t, k, p, "c")
	if _, cs, err := k.Container(c[:10]); err != nil || cs.Status() != pod.ContainerStateRunning {
		t.Fatalf("Container by prefix: %v, %v", cs, err)
	}
	if err := k.StopContainer(t.Context(), c, "SIGTERM", time.Minute); err != nil {
		t.Fatal(err)
	}
	_, cs, err := k.Container(c)
	if err != nil || cs.ExitCode != 143 || cs.FinishedAt.IsZero() {
		t.Fatalf("after stop: %+v, %v", cs, err)
	}
	if err := k.StartContainer(t.Context(), c); !errdefs.IsFailedPrecondition(err) {
		t.Errorf("start twice: %v, want FailedPrecondition", err)
	}
	for range 2 { // all of them can be repeated
		for _, err := range []error{
			k.StopContainer(t.Context(), c, "SIGTERM", 0), k.RemoveContainer(t.Context(), c),
			k.StopPod(t.Context(), p), k.RemovePod(t.Context(), p),
		} {
			if err != nil {
				t.Error(err)
			}
		}
	}
	if _, err := k.Pod(p); !errdefs.IsNotFound(err) {
		t.Errorf("after removal: %v, want NotFound", err)
	}
	clean(t, m, dir)
	var got []EventType
	for range 8 {
		got = append(got, (<-events).Type)
	}
	want := []EventType{EventCreated, EventStarted, EventCreated, EventStarted, EventStopped, EventDeleted, EventStopped, EventDeleted}
	for i := range want {
		if got[i] != want[i] {
			t.Fatalf("events %v, want %v", got, want)
		}
	}
}

func TestNamesAndJoins(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	release := m.hang("take network")
	short, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := k.RunPod(short, podReq("p")); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "take network") {
		t.Fatalf("caller that gives up: %v, want DeadlineExceeded that names the stage", err)
	}
	// Three callers join the pod that is under way.
	var wg sync.WaitGroup
	ids := make([]string, 3)
	for i := range ids {
		wg.Go(func() { ids[i], _ = k.RunPod(t.Context(), podReq("p")) })
	}
	other := podReq("p")
	other.Config = json.RawMessage(`{"a": 2}`)
	if _, err := k.RunPod(t.Context(), other); !errdefs.IsAlreadyExists(err) {
		t.Errorf("same name, other config: %v, want AlreadyExists", err)
	}
	time.Sleep(20 * time.Millisecond)
	release()
	wg.Wait()
	if ids[0] == "" || ids[0] != ids[1] || ids[0] != ids[2] {
		t.Fatalf("joined callers got %q", ids)
	}
	if _, err := k.RunPod(t.Context(), podReq("p")); !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), ids[0]) {
		t.Errorf("name in use: %v, want AlreadyExists that names the holder", err)
	}
	c := container(t, k, ids[0], "c")
	if _, err := k.CreateContainer(t.Context(), &ContainerRequest{PodID: ids[0], Name: "c", Config: json.RawMessage(`{}`)}); !errdefs.IsAlreadyExists(err) || !strings.Contains(err.Error(), c) {
		t.Errorf("container name in use: %v", err)
	}
	if err := k.RemovePod(t.Context(), ids[0]); err != nil {
		t.Fatal(err)
	}
	clean(t, m, dir)
	run(t, k, "p") // the name is free
}

// An answer that found no caller is kept for the same request.
func TestAnswerLeftBehind(t *testing.T) {
	m := newFake()
	k := keep(t, t.TempDir(), m, "b")
	release := m.hang("take shim")
	short, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, err := k.RunPod(short, podReq("p")); err == nil {
		t.Fatal("RunPod came back though the shim hangs")
	}
	release()
	for len(k.Pods()) == 0 || !k.Pods()[0].IsReady() {
		time.Sleep(time.Millisecond)
	}
	id, err := k.RunPod(t.Context(), podReq("p"))
	if err != nil || id != k.Pods()[0].ID {
		t.Fatalf("the same request again: %q, %v; want the pod that was made", id, err)
	}
	if _, err := k.RunPod(t.Context(), podReq("p")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("and once more: %v, want AlreadyExists", err)
	}
}

func TestFailedRunLeavesNothing(t *testing.T) {
	for _, r := range []pod.Resource{pod.Dir, pod.Namespaces, pod.Network, pod.Shim} {
		t.Run(string(r), func(t *testing.T) {
			m, dir := newFake(), t.TempDir()
			k := keep(t, dir, m, "b")
			m.set("take "+string(r), errFake)
			if _, err := k.RunPod(t.Context(), podReq("p")); !errors.Is(err, errFake) {
				t.Fatalf("RunPod: %v, want the cause", err)
			}
			m.set("take "+string(r), nil)
			run(t, k, "p")
			if n := len(k.Pods()); n != 1 {
				t.Errorf("%d pods, want 1", n)
			}
		})
	}
}

func TestFailedContainer(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	p := run(t, k, "p")
	req := &ContainerRequest{PodID: p, Name: "c", Config: json.RawMessage(`{}`)}
	m.set("take rootfs", errFake)
	if _, err := k.CreateContainer(t.Context(), req); !errors.Is(err, errFake) {
		t.Fatalf("CreateContainer: %v, want the cause", err)
	}
	m.set("take rootfs", nil)
	c, err := k.CreateContainer(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	m.set("take task", &StartError{127, errFake})
	if err := k.StartContainer(t.Context(), c); !errors.Is(err, errFake) {
		t.Fatalf("StartContainer: %v, want the cause", err)
	}
	if _, cs, err := k.Container(c); err != nil || cs.ExitCode != 127 || cs.Reason != pod.ReasonStartError || !cs.StartedAt.IsZero() {
		t.Errorf("after a failed start: %+v, %v", cs, err)
	}
}

// A clean-up that fails is tried again, and nobody has to ask; who asks is not
// told of the failure before.
func TestGiveIsRetried(t *testing.T) {
	t.Run("unasked", func(t *testing.T) { giveIsRetried(t, false) })
	t.Run("asked", func(t *testing.T) { giveIsRetried(t, true) })
}

func giveIsRetried(t *testing.T, ask bool) {
	synctest.Test(t, func(t *testing.T) {
		m, dir := newFake(), t.TempDir()
		k := keep(t, dir, m, "b")
		defer k.Close()
		p := run(t, k, "p")
		m.set("give network", errFake)
		begin := time.Now()
		if err := k.RemovePod(t.Context(), p); !errors.Is(err, errFake) || !strings.Contains(err.Error(), "network") {
			t.Fatalf("RemovePod: %v, want the cause and the stage", err)
		}
		if d := time.Since(begin); d < patience || d > 3*patience {
			t.Errorf("the caller waited %v", d)
		}
		v, err := k.Pod(p)
		if err != nil || v.Trouble == "" || v.IsReady() {
			t.Errorf("a pod that cannot be removed: %+v, %v; want it listed, not ready, with its trouble", v, err)
		}
		st := k.Stats()
		if st.Strays != 1 || st.Retrying != 1 || st.Oldest < patience || st.Effects[EffectKind{"give", "network", "retried"}] < 3 || st.Effects[EffectKind{"take", "network", "ok"}] != 1 {
			t.Errorf("stats while it cannot be given back: %+v", st)
		}
		time.Sleep(20 * time.Second) // the next try is far away
		m.set("give network", nil)
		if ask {
			if err := k.RemovePod(t.Context(), p); err != nil {
				t.Errorf("after the fault was mended: %v", err)
			}
		} else {
			time.Sleep(time.Minute)
			synctest.Wait()
		}
		if _, err := k.Pod(p); !errdefs.IsNotFound(err) {
			t.Errorf("after the fault: %v, want NotFound", err)
		}
		clean(t, m, dir)
		if st := k.Stats(); st.Strays+st.Retrying != 0 || st.Oldest != 0 {
			t.Errorf("stats afterwards: %+v", st)
		}
	})
}

func TestKeeperDies(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	p := run(t, k, "p")
	live, dead := container(t, k, p, "live"), container(t, k, p, "dead")
	k.Close()
	m.exit(p, dead, 42)
	k = keep(t, dir, m, "b")
	for {
		_, c, err := k.Container(dead)
		if err != nil {
			t.Fatal(err)
		}
		if c.Status() == pod.ContainerStateExited {
			if c.ExitCode != 42 {
				t.Errorf("exit code %d, want 42", c.ExitCode)
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
	if _, c, err := k.Container(live); err != nil || c.Status() != pod.ContainerStateRunning {
		t.Errorf("the live container: %+v, %v", c, err)
	}
	if _, err := k.RunPod(t.Context(), podReq("p")); !errdefs.IsAlreadyExists(err) {
		t.Errorf("its name: %v, want AlreadyExists", err)
	}
	if err := k.RemovePod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	clean(t, m, dir)
}

// The keeper dies in the middle of a creation; the same request makes one pod.
func TestKeeperDiesInCreation(t *testing.T) {
	for _, r := range []string{"dir", "namespaces", "network", "shim"} {
		t.Run(r, func(t *testing.T) {
			m, dir := newFake(), t.TempDir()
			k := keep(t, dir, m, "b")
			m.hang("take " + r)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			defer cancel()
			k.RunPod(ctx, podReq("p"))
			k.Close()
			m.mu.Lock()
			m.hangs = map[string]chan struct{}{}
			m.mu.Unlock()
			k = keep(t, dir, m, "b")
			for len(k.Pods()) == 0 || !k.Pods()[0].IsReady() {
				time.Sleep(time.Millisecond)
			}
			if err := k.RemovePod(t.Context(), k.Pods()[0].ID); err != nil {
				t.Fatal(err)
			}
			clean(t, m, dir)
		})
	}
}

func TestShimDies(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	p := run(t, k, "p")
	c := container(t, k, p, "c")
	m.kill(p)
	for {
		if _, cs, err := k.Container(c); err != nil {
			t.Fatal(err)
		} else if cs.Status() == pod.ContainerStateExited {
			if cs.ExitCode != 137 || cs.Reason != pod.ReasonShimLost {
				t.Errorf("exit %d %q, want 137 %q", cs.ExitCode, cs.Reason, pod.ReasonShimLost)
			}
			break
		}
		time.Sleep(time.Millisecond)
	}
	if v, err := k.Pod(p); err != nil || v.IsReady() {
		t.Errorf("the pod: %v, %v; want it not ready", v, err)
	}
	if err := k.RemovePod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	clean(t, m, dir)
}

func TestReboot(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b1")
	p := run(t, k, "p")
	c := container(t, k, p, "c")
	k.Close()
	k = keep(t, dir, m, "b2")
	if err := k.StopPod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	_, cs, err := k.Container(c)
	if err != nil || cs.ExitCode != pod.CodeUnknown || cs.Reason != pod.ReasonUnknown {
		t.Fatalf("after a reboot: %+v, %v; want 255 Unknown", cs, err)
	}
	if err := k.StopPod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := k.RemovePod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	clean(t, m, dir)
}

func TestDamagedJournal(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	p, q := run(t, k, "p"), run(t, k, "q")
	k.Close()
	path := filepath.Join(dir, p)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	k = keep(t, dir, m, "b")
	if v, err := k.Pod(q); err != nil || !v.IsReady() {
		t.Errorf("the other pod: %v, %v; want it untouched", v, err)
	}
	if v, err := k.Pod(p); err != nil || v.IsReady() || !strings.Contains(v.Reason, "damaged") {
		t.Errorf("the damaged pod: %v, %v; want it not ready and named", v, err)
	}
	if err := k.RemovePod(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path + ".damaged"); err != nil {
		t.Error(err)
	}
	os.Remove(path + ".damaged")
	if err := k.RemovePod(t.Context(), q); err != nil {
		t.Fatal(err)
	}
	clean(t, m, dir)
}

// A journal that cannot be read leaves its pod unknown, not dead: the keeper
// says that it does not know all.
func TestUnreadJournalIsNotAbsence(t *testing.T) {
	m, dir := newFake(), t.TempDir()
	k := keep(t, dir, m, "b")
	p := run(t, k, "p")
	if !k.Whole() {
		t.Error("a keeper that read everything is not whole")
	}
	k.Close()
	path := filepath.Join(dir, p)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	b[len(b)/2] ^= 1
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(path+".damaged", 0o700); err != nil { // it cannot be set aside
		t.Fatal(err)
	}
	if k = keep(t, dir, m, "b"); k.Whole() || len(k.Pods()) != 0 {
		t.Errorf("whole %v, pods %v; want a keeper that knows that it misses one", k.Whole(), k.Pods())
	}
}

func TestSlowSubscriberIsCut(t *testing.T) {
	m := newFake()
	k := keep(t, t.TempDir(), m, "b")
	slow, _ := k.Subscribe()
	for range eventBuffer {
		k.events.publish(&Event{})
	}
	run(t, k, "p") // does not wait for the slow one
	n := 0
	for range slow {
		n++
	}
	if n != eventBuffer {
		t.Errorf("the slow subscriber got %d events, then the end; want %d", n, eventBuffer)
	}
}
