package main

import (
	"context"
	"errors"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// People read sentences, not gRPC's wrapping.
func TestPlain(t *testing.T) {
	for _, c := range []struct {
		err  error
		want string
	}{
		{errors.New("as it is"), "as it is"},
		{status.Error(codes.NotFound, "no such pod"), "no such pod"},
		{status.Error(codes.Unavailable, `connection error: desc = "transport: …"`), "berthd does not answer: is it running?"},
		{status.Error(codes.Unavailable, "error reading from server: EOF"), "berthd went away during the call"},
		{status.Error(codes.Unavailable, "the pod is busy"), "the pod is busy"},
	} {
		if got := plain(c.err); got != c.want {
			t.Errorf("plain(%v) = %q, want %q", c.err, got, c.want)
		}
	}
}

// node is a node with pods and containers, in memory.
type node struct {
	runtime.RuntimeServiceClient
	pods       []*runtime.PodSandbox
	containers []*runtime.Container
}

func (n *node) ListPodSandbox(context.Context, *runtime.ListPodSandboxRequest, ...grpc.CallOption) (*runtime.ListPodSandboxResponse, error) {
	return &runtime.ListPodSandboxResponse{Items: n.pods}, nil
}

func (n *node) ListContainers(context.Context, *runtime.ListContainersRequest, ...grpc.CallOption) (*runtime.ListContainersResponse, error) {
	return &runtime.ListContainersResponse{Containers: n.containers}, nil
}

func TestFind(t *testing.T) {
	p := func(id, name string) *runtime.PodSandbox {
		return &runtime.PodSandbox{Id: id, Metadata: &runtime.PodSandboxMetadata{Name: name}}
	}
	c := &client{pods: &node{
		pods: []*runtime.PodSandbox{p("abc1", "web"), p("abd2", "abc"), p("fff3", "twin"), p("eee4", "twin")},
		containers: []*runtime.Container{
			{Id: "c1", PodSandboxId: "abc1", CreatedAt: 1}, {Id: "c2", PodSandboxId: "abc1", CreatedAt: 2}, {Id: "abc9", PodSandboxId: "abc1"},
		},
	}}
	for _, tc := range []struct{ word, pod, container, err string }{
		{word: "web", pod: "abc1", container: "c2"},
		{word: "abc1", pod: "abc1", container: "c2"},
		{word: "abc", pod: "abd2"}, // a name comes before the start of an id
		{word: "c1", pod: "abc1", container: "c1"},
		{word: "ab", err: "not clear: it fits 2 pods"},
		{word: "twin", err: "not clear: it fits 2 pods"},
		{word: "nosuch", err: "no pod or container is called"},
	} {
		pod, ctr, err := c.find(t.Context(), tc.word)
		switch {
		case tc.err != "":
			if err == nil || !strings.Contains(err.Error(), tc.err) {
				t.Errorf("find %s: %v, want %q", tc.word, err, tc.err)
			}
		case err != nil || pod.GetId() != tc.pod || ctr.GetId() != tc.container:
			t.Errorf("find %s: pod %q, container %q, %v; want %q, %q", tc.word, pod.GetId(), ctr.GetId(), err, tc.pod, tc.container)
		}
	}
}

// Names that are no host names are refused before anything is made.
func TestPodName(t *testing.T) {
	for name, want := range map[string]bool{
		"a": true, "web-1": true, strings.Repeat("x", 63): true,
		"": false, "A": false, "a_b": false, "-a": false, "a-": false, "a/b": false, strings.Repeat("x", 64): false,
	} {
		if got := podName.MatchString(name); got != want {
			t.Errorf("name %q is allowed: %v, want %v", name, got, want)
		}
	}
}
