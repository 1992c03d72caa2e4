// Package pod is the pod machine: what is known of a pod, and what is to be
// done next. It is pure. There is no I/O in it, no clock, no goroutine and no
// lock; time comes in with the facts. It may import nothing of Berth.
//
// A pod is its journal: a list of facts. Four functions say all there is to say:
//
//	Fold(state, facts…)   what is known after these facts
//	Check (check.go)      the facts that a request adds, or why it is refused
//	Settle(state, now)    the facts that follow from the state by themselves
//	Plan(state)           the effects to perform next, as data
//
// # Duties of the caller
//
//  1. It writes facts to disk before it folds them; those of a request, and
//     every Intends, synced before any effect starts.
//  2. After each change it folds, settles until nothing follows, plans, and
//     starts those planned effects whose resource has none under way. At any
//     time one effect at most is under way for a resource (Effect.Key).
//  3. A finished Take or a successful Probe becomes Holds, a finished Give
//     Released, a failed Take Failed. A failed Give, Probe or Stop adds no
//     fact: the plan still asks for it, and the caller tries again, later.
//  4. Every effect can be performed twice. After a crash the caller folds the
//     journal, calls Recover, and goes on with duty 2.
//
// # Resources
//
// What a pod takes from the machine is a Resource, and stands in the ledger
// (Holdings) from the intent to the proof that it is gone. One table, needs,
// orders them: a resource is taken when all it needs is held, and given back
// when nothing that needs it is left. Teardown is thus the reverse of set-up,
// whatever was interrupted where, and there is no other clean-up.
//
//	dir ─┬─ namespaces ─┬─ network ─┐
//	     │              └─ shim ────┤
//	     └─ rootfs (a container) ───┴─ task (a container)
package pod
