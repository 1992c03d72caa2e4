// Package api holds the protocols that Berth's own parts speak to each other.
// The Go code beside each proto is generated; `go generate ./api` makes it anew
// with protoc, protoc-gen-go, protoc-gen-go-ttrpc and protoc-gen-go-grpc from PATH.
//
// It knows nothing of the rest of the tree; whoever speaks a protocol imports it.
package api

//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-ttrpc_out=. --go-ttrpc_opt=paths=source_relative shim/v1/shim.proto
//go:generate protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative node/v1/node.proto
