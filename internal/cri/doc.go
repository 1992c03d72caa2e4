// Package cri is berthd's front: CRI v1, RuntimeService and ImageService, as
// k8s.io/cri-api v0.37.2 has them. One file a call: it checks the request,
// translates it, calls the keeper or the image, stream or stats service, and
// translates back.
//
// What it promises:
//
//   - a bad request is InvalidArgument and names the field; nothing was begun;
//   - ids are taken in full or as a unique prefix; what is not there is NotFound,
//     and success for Stop and Remove;
//   - lists and statuses are made from the keeper's published snapshots and from
//     indexes in memory: no shim, no disk and no pod is waited for (but the
//     verbose info of a container, which reads its own bundle);
//   - errors become gRPC codes in one place, at the border (border.go);
//   - a client that reads slowly delays nobody but itself.
//
// It keeps no state of pods. Messages that it answers with are shared with the
// snapshots that they were made from: nothing in here changes them.
//
// Only berthd's main imports it.
package cri
