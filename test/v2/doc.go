// Package v2 tests what Berth does with cgroups of version 2: limits, updates,
// out of memory, statistics, kills, and that nothing is left. It talks to a
// berthd of its own through its socket, and needs a machine without v1 (a hybrid
// one does not do): test/v2/run gives it one, in QEMU.
//
// rig_test.go has the daemon, pods and containers; each other file is a topic.
package v2
