//go:build linux

package shims

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"
)

// smaps returns Pss and its anonymous part, in KiB.
func smaps(t testing.TB, pid int) (pss, anon int) {
	f, err := os.Open("/proc/" + strconv.Itoa(pid) + "/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for s := bufio.NewScanner(f); s.Scan(); {
		fields := strings.Fields(s.Text())
		if len(fields) < 2 {
			continue
		}
		n, _ := strconv.Atoi(fields[1])
		switch fields[0] {
		case "Pss:":
			pss = n
		case "Pss_Anon:":
			anon = n
		}
	}
	return pss, anon
}

// BenchmarkIdlePod prints what an idle pod of one container costs in memory,
// alone and in a crowd.
func BenchmarkIdlePod(b *testing.B) {
	for _, n := range []int{1, 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var shims []*Shim
			for range n {
				p := newPod(b)
				s := p.start()
				id, dir := p.bundle("sleep 1000")
				if _, err := s.Run(b.Context(), &Task{ID: id, Bundle: dir}); err != nil {
					b.Fatal(err)
				}
				shims = append(shims, s)
			}
			time.Sleep(6 * time.Second)
			pss, anon := 0, 0
			for _, s := range shims {
				p, a := smaps(b, s.addr.Pid)
				pss, anon = pss+p, anon+a
			}
			b.ReportMetric(float64(pss)/float64(n), "KiB-PSS/pod")
			b.ReportMetric(float64(anon)/float64(n), "KiB-anon/pod")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkStart measures Start: process, sockets, sandbox up.
func BenchmarkStart(b *testing.B) {
	for range b.N {
		b.StopTimer()
		p := newPod(b)
		b.StartTimer()
		a, err := p.m.Start(b.Context(), p.req)
		b.StopTimer()
		if err != nil {
			b.Fatal(err)
		}
		if err := p.m.Finish(b.Context(), p.id, p.req.Dir, a); err != nil {
			b.Fatal(err)
		}
		b.StartTimer()
	}
}
