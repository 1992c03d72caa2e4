//go:build linux

// Package boot is the process around a shim's core: what containerd (1.7 to
// 2.4) and berthd find when they run the binary. It promises that
//
//   - start answers in the form in which it was asked, in milliseconds, and
//     writes nothing but its answer (and, for a containerd before 2.3, the file
//     `address` in the bundle, where that one looks for it);
//   - one shim serves a pod, however often start is called for it;
//   - delete ends and gives back what a dead shim left, and can be run again;
//   - an idle shim is small: one socket, no timer, no thread that wakes up.
//
// Only the shim's main may import it.
package boot
