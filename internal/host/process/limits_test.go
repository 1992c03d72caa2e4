package process

import (
	"testing"
	"time"

	"berth/internal/host"

	"github.com/opencontainers/runtime-spec/specs-go"
)

func TestForkBomb(t *testing.T) {
	h := newHost(t, Options{})
	_, p := run(t, h, host.StreamSpec{}, sh("f() { f & f & }; f; sleep 1000"), hostPID, func(s *specs.Spec) {
		s.Linux.Resources = &specs.LinuxResources{Pids: &specs.LinuxPids{Limit: ptr(int64(100))}}
	})
	time.Sleep(200 * time.Millisecond)
	start := time.Now()
	if err := p.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	wait(t, p, time.Second)
	if d := time.Since(start); d > bound(5*time.Second) {
		t.Errorf("it took %v", d)
	}
	if err := p.Delete(t.Context()); err != nil {
		t.Error(err)
	}
}

func ptr[T any](v T) *T { return &v }

func TestOOM(t *testing.T) {
	h := newHost(t, Options{})
	eat := "dd if=/dev/zero of=/dev/null bs=100M count=1"
	for range 10 {
		_, p := run(t, h, host.StreamSpec{}, []string{"dd", "if=/dev/zero", "of=/dev/null", "bs=100M", "count=1"}, memory(24<<20))
		if e := wait(t, p, 10*time.Second); !e.OOM || e.Code != 137 {
			t.Fatalf("init over its limit: %+v", e)
		}
		if err := p.Delete(t.Context()); err != nil {
			t.Error(err)
		}
	}
	_, p := run(t, h, host.StreamSpec{}, sh(eat+"; exit 3"), memory(24<<20))
	if e := wait(t, p, 10*time.Second); !e.OOM || e.Code != 3 {
		t.Errorf("child over the limit: %+v", e)
	}
	_, p = run(t, h, host.StreamSpec{}, sh("exit 4"), memory(24<<20))
	if e := wait(t, p, 10*time.Second); e.OOM || e.Code != 4 {
		t.Errorf("nobody over the limit: %+v", e)
	}
}
