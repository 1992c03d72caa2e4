package main

import (
	"fmt"
	"sort"
	"time"
)

func ms(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }

// quantile of sorted samples.
func quantile(d []time.Duration, q float64) time.Duration { return d[int(q*float64(len(d)-1))] }

func (s *subject) keys() []string {
	var keys []string
	for k, d := range s.samples.m {
		sort.Slice(d, func(i, j int) bool { return d[i] < d[j] })
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}

func (s *subject) perSecond() float64 { return float64(*n-s.failed) / s.busy.Seconds() }

func (s *subject) report() {
	fmt.Printf("%s: %d pods, %d in flight, %d failed, %.2f pods/s\n", s.name, *n, *c, s.failed, s.perSecond())
	fmt.Printf("%-26s %9s %9s %9s %9s  ms\n", "", "p50", "p90", "p99", "max")
	for _, k := range s.keys() {
		d := s.samples.m[k]
		fmt.Printf("%-26s %9.1f %9.1f %9.1f %9.1f\n", k, ms(quantile(d, .5)), ms(quantile(d, .9)), ms(quantile(d, .99)), ms(d[len(d)-1]))
	}
}

// compare prints a over b.
func compare(a, b *subject) {
	fmt.Printf("\n%s over %s\n%-26s %9s %9s\n", a.name, b.name, "", "p50", "p90")
	for _, k := range a.keys() {
		if d, e := a.samples.m[k], b.samples.m[k]; len(e) > 0 {
			fmt.Printf("%-26s %9.2f %9.2f\n", k, ratio(d, e, .5), ratio(d, e, .9))
		}
	}
	fmt.Printf("%-26s %9.2f\n", "pods a second", a.perSecond()/b.perSecond())
}

func ratio(a, b []time.Duration, q float64) float64 { return ms(quantile(a, q)) / ms(quantile(b, q)) }
