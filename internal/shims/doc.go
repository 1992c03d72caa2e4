//go:build linux

// Package shims is berthd's side of the shims: it starts, finds, adopts, watches
// and ends them. It promises that
//
//   - a shim is said to be gone only when its process is proven dead; a shim
//     that does not answer is an error, never a state;
//   - every call can be made again after a crash of berthd at any point of it;
//   - a process is named by pid and start time, and signalled through a pidfd;
//   - no lock is held across a call to a shim.
//
// The keeper's effects import it. It never links into a shim, and speaks ttrpc
// only.
package shims
