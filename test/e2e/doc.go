// Package e2e is Berth's own end-to-end suite: berthd through its socket, with
// real runc and CNI plugins, on scratch folders. It runs as root on a machine
// that may do other things at the same time, and leaves it as it was: the last
// check of a run is that nothing of it is left.
//
//	make build && go test ./test/e2e/...
//
// BERTH_BIN is the folder of the binaries (the repository's bin), BERTH_HANDLER
// the runtime handler of the pods (the default one), BERTH_CONFIG a file whose
// lines are added to berthd's configuration, for that handler.
//
// harness_test.go has the daemon, pods_test.go pods and containers, image_test.go
// the images, leftovers_test.go the last check; each other file is a topic.
package e2e
