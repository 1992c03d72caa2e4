package network

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"berth/internal/namespaces"

	"github.com/containerd/errdefs"
	"github.com/containernetworking/cni/pkg/types"
)

// A plugin that hangs in ADD is killed with its children at the deadline, and
// the address that a plugin before it took is given back by Teardown.
func TestHangingADD(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Timeout = 2 * time.Second })
	r.write("10-a.conflist", "hang", r.bridgeConf(), r.stubConf("a"))
	r.order("ADD", "hang")
	p := r.pod()
	begin := time.Now()
	_, err := r.s.Setup(t.Context(), p)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "plugin stub") {
		t.Errorf("%v, want DeadlineExceeded that names the plugin", err)
	}
	if took := time.Since(begin); took > 15*time.Second {
		t.Errorf("took %s", took)
	}
	r.wait("hanging plugin and child gone", func() bool { return len(r.hanging()) == 0 })
	if got := r.addresses("hang"); len(got) != 1 {
		t.Fatalf("reserved: %v", got)
	}
	r.teardown(p)
	r.clean("hang")

	// A caller that leaves takes its plugin along.
	ctx, cancel := context.WithCancel(t.Context())
	p = r.pod()
	go func() {
		r.wait("plugin started", func() bool { return len(r.hanging()) > 0 })
		cancel()
	}()
	if _, err := r.s.Setup(ctx, p); !errors.Is(err, context.Canceled) && !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	r.wait("hanging plugin gone", func() bool { return len(r.hanging()) == 0 })
	// And a Setup again starts from scratch.
	r.order("ADD", "")
	if res := r.setup(p); len(r.addresses("hang")) != 1 || r.addresses("hang")[0] != res.IPs[0] {
		t.Errorf("reserved %v, given %v", r.addresses("hang"), res.IPs)
	}
	r.teardown(p)
	r.clean("hang")
}

// Row 80: the second plugin fails ADD, and then DEL for a while. The address is
// free at once, and the pod is not forgotten before all is.
func TestFailingADDAndDEL(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "fail", r.bridgeConf("10.77.0.0/29"), r.stubConf("a"))
	for range 8 { // more than the /29 holds
		r.order("ADD", "fail")
		r.order("DEL", "fail 3")
		p := r.pod()
		_, err := r.s.Setup(t.Context(), p)
		var e *types.Error
		if !errors.As(err, &e) || e.Code != 999 || !strings.Contains(err.Error(), "told to fail") {
			t.Fatalf("%v, want the plugin's error", err)
		}
		if got := r.addresses("fail"); len(got) != 1 {
			t.Fatalf("reserved: %v", got)
		}
		for i := range 3 {
			if err := r.s.Teardown(t.Context(), p); err == nil || !strings.Contains(err.Error(), "told to fail") {
				t.Fatalf("teardown %d: %v", i, err)
			}
			if got := r.addresses("fail"); len(got) != 0 {
				t.Fatalf("a failing plugin kept %v", got)
			}
			if got := r.records(); len(got) != 1 {
				t.Fatalf("forgotten too early: %v", got)
			}
		}
		r.teardown(p)
		r.clean("fail")
	}
}

// A plugin that is killed (by the OOM killer, say) leaves no child that goes on.
func TestCrashingPlugin(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "crash", r.bridgeConf(), r.stubConf("a"))
	r.order("ADD", "crash")
	p := r.pod()
	if _, err := r.s.Setup(t.Context(), p); err == nil || !strings.Contains(err.Error(), "signal: killed") {
		t.Errorf("%v", err)
	}
	r.wait("child gone", func() bool { return len(r.hanging()) == 0 })
	r.teardown(p)
	r.clean("crash")
}

// Errors of all plugins are told.
func TestJoinedErrors(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "joined", r.bridgeConf(), r.stubConf("a"), r.stubConf("b"))
	p := r.pod()
	r.setup(p)
	r.order("DEL", "fail")
	err := r.s.Teardown(t.Context(), p)
	if err == nil || strings.Count(err.Error(), "told to fail") != 2 {
		t.Errorf("%v, want two errors", err)
	}
	r.order("DEL", "")
	r.teardown(p)
	r.clean("joined")
}

// Row 83: DEL without a namespace, and never in a foreign one.
func TestTeardownWithoutNamespace(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "gone", r.bridgeConf(), r.stubConf("a"), portmapConf())
	for name, lose := range map[string]func(p *Pod){
		"empty": func(p *Pod) { r.dropNS(p.ID); p.NetNS = "" },
		"gone":  func(p *Pod) { r.dropNS(p.ID) },
		"foreign": func(p *Pod) {
			r.dropNS(p.ID)
			if _, err := namespaces.Create(t.Context(), &namespaces.Request{Dir: filepath.Dir(p.NetNS), Net: true}); err != nil {
				t.Fatal(err)
			}
		},
		"a file": func(p *Pod) {
			r.dropNS(p.ID)
			if err := os.MkdirAll(filepath.Dir(p.NetNS), 0o711); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(p.NetNS, nil, 0o444); err != nil {
				t.Fatal(err)
			}
		},
		"rebooted": func(p *Pod) { // after a boot an inode proves nothing
			rec, err := r.s.load(t.Context(), p.ID)
			if err != nil {
				t.Fatal(err)
			}
			rec.Boot = "the one before"
			if err := r.s.save(p.ID, rec); err != nil {
				t.Fatal(err)
			}
			r.s = r.restart()
		},
	} {
		t.Run(name, func(t *testing.T) {
			_ = os.Remove(filepath.Join(r.control, "calls"))
			p := r.pod()
			p.Ports = []PortMapping{{HostPort: 18081, ContainerPort: 80, Protocol: "tcp"}}
			r.setup(p)
			path := p.NetNS
			lose(p)
			r.teardown(p)
			if calls := r.calls("DEL"); len(calls) != 1 || !strings.Contains(calls[0], "netns= ") {
				t.Errorf("%v, want one without a namespace", calls)
			}
			if got := r.addresses("gone"); len(got) != 0 {
				t.Errorf("left: %v", got)
			}
			if name == "foreign" {
				if got := in(t, path, "ip", "-o", "link"); !strings.Contains(got, "lo:") {
					t.Errorf("%s", got)
				}
			}
		})
	}
}

// DEL uses the configuration of the ADD.
func TestConfigChangedBetween(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "old", r.bridgeConf(), r.stubConf("old"))
	done, failed := r.pod(), r.pod()
	r.setup(done)
	r.order("ADD", "fail")
	if _, err := r.s.Setup(t.Context(), failed); err == nil {
		t.Fatal("no failure")
	}
	r.write("10-a.conflist", "new", r.stubConf("new"))
	r.s = r.restart()
	r.teardown(done)
	if err := os.RemoveAll(r.conf.ConfDir); err != nil {
		t.Fatal(err)
	}
	r.teardown(failed) // a whole directory lost, and no ADD was ever finished
	for _, c := range r.calls("DEL") {
		if !strings.Contains(c, "mark=old") {
			t.Errorf("DEL with another configuration: %s", c)
		}
	}
	if n := len(r.calls("DEL")); n != 2 {
		t.Errorf("%d DELs, want 2", n)
	}
	r.clean("old")
}

// Without a record the configuration of the day is asked, in full; without any
// there is nobody to ask.
func TestTeardownOfUnknownPod(t *testing.T) {
	r := newRig(t)
	p := r.pod()
	r.teardown(p)
	r.write("10-a.conflist", "lost", r.bridgeConf(), r.stubConf("a"))
	r.setup(p)
	for name, harm := range map[string]func(path string) error{
		"damaged": func(path string) error { return os.WriteFile(path, []byte(`{"networks":[{"config":"`), 0o600) },
		"lost":    os.Remove,
	} {
		r.setup(p)
		if err := harm(r.s.recordPath(p.ID)); err != nil {
			t.Fatal(err)
		}
		r.teardown(p)
		if got := r.addresses("lost"); len(got) != 0 {
			t.Errorf("%s record: left %v", name, got)
		}
	}
	r.clean("lost")
	// A pod that could not start for want of a plugin must be removable.
	r.write("10-a.conflist", "lost", conf{"type": "nosuchplugin"})
	if _, err := r.s.Setup(t.Context(), p); !errdefs.IsFailedPrecondition(err) || !strings.Contains(err.Error(), "nosuchplugin") {
		t.Errorf("%v", err)
	}
	r.teardown(p)
	r.clean("lost")
}

// Row 82: the daemon dies in the middle of an ADD whose plugin goes on. The next
// one ends it before the DEL, so that it takes nothing afterwards.
func TestPluginOfDeadDaemon(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "dead", r.bridgeConf(), r.stubConf("a"))
	r.order("ADD", "hang")
	p, other := r.pod(), r.pod()
	errs := make(chan error, 2)
	for _, pod := range []*Pod{p, other} {
		go func() {
			_, err := r.s.Setup(t.Context(), pod)
			errs <- err
		}()
	}
	r.wait("both hang", func() bool { return len(r.hanging()) == 4 })
	next := r.restart()
	if err := next.Teardown(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if err := <-errs; err == nil {
		t.Error("the ADD went on")
	}
	if got := r.hanging(); len(got) != 2 {
		t.Errorf("%d processes live, want the other pod's 2", len(got))
	}
	if err := next.Teardown(t.Context(), other); err != nil {
		t.Fatal(err)
	}
	<-errs
	if got := r.hanging(); len(got) != 0 {
		t.Errorf("left: %v", got)
	}
	r.clean("dead")
}

// Outputs are bounded, whatever a plugin writes.
func TestFloods(t *testing.T) {
	r := newRig(t)
	r.write("10-a.conflist", "flood", r.bridgeConf(), r.stubConf("a"))
	p := r.pod()
	r.order("ADD", "flood")
	r.setup(p)
	r.teardown(p)
	r.order("ADD", "flood fail")
	_, err := r.s.Setup(t.Context(), p)
	if err == nil || !strings.Contains(err.Error(), "the last word") || len(err.Error()) > 2*maxStderr {
		t.Errorf("%.100v…, want the end of stderr", err)
	}
	r.order("ADD", "babble")
	if _, err := r.s.Setup(t.Context(), p); err == nil || !strings.Contains(err.Error(), "longer than") {
		t.Errorf("%.100v…", err)
	}
	// A plugin that leaves a child behind on its pipes is done when it exits.
	r.order("ADD", "daemon")
	begin := time.Now()
	r.setup(p)
	if took := time.Since(begin); took > 10*time.Second {
		t.Errorf("waited %s for a child", took)
	}
	r.teardown(p)
	r.clean("flood")
}

// Row 86: hanging DELs stay bounded in number and keep no other pod from its ADD.
func TestHangingDELs(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxPlugins = 3; c.Timeout = 4 * time.Second })
	r.write("10-a.conflist", "bound", r.bridgeConf(), r.stubConf("a"))
	var pods []*Pod
	for range 8 {
		p := r.pod()
		r.setup(p)
		pods = append(pods, p)
	}
	r.order("DEL", "hang")
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			if err := r.s.Teardown(ctx, p); err == nil {
				t.Error("a hanging DEL succeeded")
			}
		})
	}
	r.wait("three hang", func() bool { return len(r.hanging()) == 6 })
	begin := time.Now()
	free := r.pod()
	r.setup(free)
	if took := time.Since(begin); took > 3*time.Second {
		t.Errorf("an ADD took %s meanwhile", took)
	}
	if got := len(r.hanging()); got > 6 {
		t.Errorf("%d processes hang, want at most 6", got)
	}
	cancel()
	wg.Wait()
	r.wait("all gone", func() bool { return len(r.hanging()) == 0 })
	r.order("DEL", "")
	for _, p := range append(pods, free) {
		r.teardown(p)
	}
	r.clean("bound")
}

// A service keeps no descriptor and no goroutine, whatever its plugins do.
func TestNothingLeaks(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Timeout = 2 * time.Second })
	r.write("10-a.conflist", "leak", r.bridgeConf(), r.stubConf("a"))
	round := func() {
		for _, what := range []string{"fail", "hang", "crash", "flood", "daemon", "babble", "-"} {
			r.order("ADD", what)
			p := r.pod()
			_, _ = r.s.Setup(t.Context(), p)
			r.teardown(p)
			r.dropNS(p.ID)
		}
	}
	fds := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	round()
	wantFDs, wantGoroutines := fds(), runtime.NumGoroutine()
	round()
	r.wait("no more descriptors and goroutines than before", func() bool {
		return fds() <= wantFDs && runtime.NumGoroutine() <= wantGoroutines
	})
	r.clean("leak")
}
