// Package faults kills berthd at every point of a pod's life, with real pods: a
// daemon built with the tag faults runs to the point and dies there, the next
// one goes on, the pod's life comes to its end, and nothing is left over. It
// needs root and what `make build` makes.
package faults
