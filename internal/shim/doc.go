// Package shim is the shim's own side: the one process that keeps a pod's
// containers and is the truth about them. It promises that
//
//   - an exit is the process's exit, written to disk before anybody is told,
//     told once, and kept until it is acknowledged by a delete;
//   - a stop goes on to its end without its caller;
//   - every call can be made twice and at once: later callers join the first;
//   - no lock is held across a call into the host, a file system or a peer;
//   - the shim ends by itself when it has no task, no sandbox and no lease.
//
// The package is the core (Core: state machine, stops, exits, changes), what it
// serves (containerd's task v2 and v3, sandbox v1, berth.shim.v1, stdio
// sessions) and the queue of events to a stock containerd. It knows nothing of
// Linux: what a machine must do for it stands behind Platform and host.Host.
// The process around it is package boot.
//
// Only the shim's main and package boot may import it.
package shim
