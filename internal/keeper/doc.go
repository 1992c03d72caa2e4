// Package keeper keeps pods: it runs one pod machine (internal/pod) for each,
// performs the effects that the machine plans, and writes every fact to the
// pod's journal before anything is done about it.
//
// One goroutine a pod, its actor, owns the machine. Requests are messages to
// it; two requests for the same thing wait for the same end. A caller's context
// ends the caller's wait, never the work. What the world reads (Pods, Pod,
// Container) are published snapshots: reading waits for no actor, disk or shim.
//
// There is no clean-up but the machine's plan: not in defers, not in a failed
// creation. A failed effect keeps its place and is tried again with backoff.
//
// The keeper reaches the world through Machine, which internal/effects
// implements. It may import pod and journal.
package keeper
