package main

import (
	"fmt"
	"slices"
)

// series are measurements of one thing.
type series struct {
	v    []float64
	more bool // more is better
}

func (s *subject) add(name string, v float64, more bool) {
	m := s.series[name]
	if m == nil {
		m = &series{more: more}
		s.series[name] = m
		s.order = append(s.order, name)
	}
	m.v = append(m.v, v)
}

// at is a quantile.
func (m *series) at(q float64) float64 {
	v := slices.Sorted(slices.Values(m.v))
	return v[int(q*float64(len(v)-1))]
}

func (s *subject) report() {
	fmt.Printf("%s\n%-40s %9s %9s %9s %6s\n", s.name, "", "p50", "p90", "max", "n")
	for _, k := range s.order {
		m := s.series[k]
		fmt.Printf("%-40s %9.2f %9.2f %9.2f %6d\n", k, m.at(.5), m.at(.9), m.at(1), len(m.v))
	}
	fmt.Println()
}

// compare prints a over b.
func compare(a, b *subject) {
	fmt.Printf("%s over %s\n%-40s %9s\n", a.name, b.name, "", "p50")
	for _, k := range a.order {
		better := "less is better"
		if a.series[k].more {
			better = "more is better"
		}
		fmt.Printf("%-40s %9.2f  %s\n", k, a.series[k].at(.5)/b.series[k].at(.5), better)
	}
}
