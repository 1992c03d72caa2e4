package network

import (
	"fmt"
	"path/filepath"
	"testing"
	"time"
)

// BenchmarkPod measures Setup and Teardown with the reference plugins, apart.
func BenchmarkPod(b *testing.B) {
	ports := []PortMapping{{HostPort: 18090, ContainerPort: 80, Protocol: "tcp"}}
	for _, c := range []struct {
		name  string
		ports []PortMapping
		conf  func(r *rig)
	}{
		{"bridge-portmap", nil, func(r *rig) { r.write("10-a.conflist", "b", r.bridgeConf(), portmapConf()) }},
		{"bridge-portmap-hostport", ports, func(r *rig) { r.write("10-a.conflist", "b", r.bridgeConf(), portmapConf()) }},
		{"bridge-masq-portmap", nil, func(r *rig) {
			bridge := r.bridgeConf()
			bridge["ipMasq"] = true
			r.write("10-a.conflist", "b", bridge, portmapConf())
		}},
		{"default", nil, func(r *rig) {
			r.s.conf.Default = &Default{Bridge: r.bridge, DataDir: filepath.Join(r.top, "hl")}
		}},
		{"default-ipv6", nil, func(r *rig) {
			r.s.conf.Default = &Default{Bridge: r.bridge, DataDir: filepath.Join(r.top, "hl"), IPv6: true}
		}},
	} {
		b.Run(c.name, func(b *testing.B) {
			r := newRig(b)
			c.conf(r)
			warm := r.pod()
			r.setup(warm)
			var add, del time.Duration
			for b.Loop() {
				b.StopTimer()
				p := r.pod()
				p.Ports = c.ports
				b.StartTimer()
				t0 := time.Now()
				r.setup(p)
				t1 := time.Now()
				r.teardown(p)
				del += time.Since(t1)
				add += t1.Sub(t0)
			}
			b.ReportMetric(float64(add.Microseconds())/1000/float64(b.N), "ms/ADD")
			b.ReportMetric(float64(del.Microseconds())/1000/float64(b.N), "ms/DEL")
			b.ReportMetric(0, "ns/op")
			r.teardown(warm)
			if got := fmt.Sprint(r.addresses("b"), r.addresses("berth")); got != "[] []" {
				b.Errorf("left: %s", got)
			}
		})
	}
}
