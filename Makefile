# make          builds everything into bin/
# make demo     shows a pod's life on this machine (root)
# make test     runs everything that CI runs (root)
#
# Both commands of the README install what is missing first: scripts/setup says
# what it does. Programs that Berth ships or is checked with are pinned in
# tools/go.mod.

GO      ?= go
# A checkout that belongs to another user has no VCS stamp, and needs none.
export GOFLAGS += -buildvcs=false
BIN     := $(CURDIR)/bin
VERSION ?= $(shell cat VERSION)
LDFLAGS := -s -w -X berth/internal/version.Version=$(VERSION)
CNI     := bridge loopback ptp host-device host-local static portmap bandwidth firewall tuning
PLUGINS := github.com/containernetworking/plugins

cni_dir  = $(if $(filter bridge loopback ptp host-device,$1),main,$(if $(filter host-local static,$1),ipam,meta))
tool_ver = $(shell awk '$$1 == "$1" {print $$2}' tools/go.mod)

.PHONY: build demo test unit lint e2e faults conformance v2 bench soak setup test-setup clean FORCE

build: $(BIN)/berthd $(BIN)/berth $(BIN)/containerd-shim-berth-v1 tools

# Go decides what is out of date: its build cache is quicker than any rule here.
$(BIN)/berthd $(BIN)/berth: FORCE
	$(GO) build -trimpath -ldflags '$(LDFLAGS)' -o $@ ./cmd/$(@F)

# The shim has a memory budget: no gRPC, which containerd's API brings along.
$(BIN)/containerd-shim-berth-v1: FORCE
	CGO_ENABLED=0 $(GO) build -trimpath -tags no_grpc -ldflags '$(LDFLAGS)' -o $@ ./cmd/$(@F)

.PHONY: tools
tools: $(BIN)/runc $(BIN)/crictl $(addprefix $(BIN)/cni/,$(CNI))

$(BIN)/runc: tools/go.mod
	CGO_ENABLED=1 $(GO) -C tools build -trimpath -tags seccomp -ldflags '-s -w' -o $@ github.com/opencontainers/runc

$(BIN)/crictl: tools/go.mod
	CGO_ENABLED=0 $(GO) -C tools build -trimpath -ldflags '-s -w -X sigs.k8s.io/cri-tools/pkg/version.Version=$(call tool_ver,sigs.k8s.io/cri-tools)' -o $@ sigs.k8s.io/cri-tools/cmd/crictl

$(BIN)/cni/%: tools/go.mod
	CGO_ENABLED=0 $(GO) -C tools build -trimpath -ldflags '-s -w -X $(PLUGINS)/pkg/utils/buildversion.BuildVersion=$(call tool_ver,$(PLUGINS))' -o $@ $(PLUGINS)/plugins/$(call cni_dir,$*)/$*

$(BIN)/staticcheck: tools/go.mod
	CGO_ENABLED=0 $(GO) -C tools build -o $@ honnef.co/go/tools/cmd/staticcheck

# critest is a test binary of cri-tools, not a program.
$(BIN)/critest: tools/go.mod
	CGO_ENABLED=0 $(GO) -C tools test -c -o $@ sigs.k8s.io/cri-tools/cmd/critest

$(BIN)/ginkgo: tools/go.mod
	CGO_ENABLED=0 $(GO) -C tools build -trimpath -ldflags '-s -w' -o $@ github.com/onsi/ginkgo/v2/ginkgo

# The containerd that the shim is tested under, and Berth compared with.
PEERS := $(addprefix $(BIN)/peer/,containerd containerd-shim-runc-v2 ctr)
$(PEERS): test/bench/containerd/go.mod
	CGO_ENABLED=0 $(GO) -C test/bench/containerd build -trimpath -o $@ github.com/containerd/containerd/v2/cmd/$(@F)

setup:
	scripts/setup

test-setup:
	scripts/setup test

demo: setup
	$(MAKE) build
	scripts/demo

test: test-setup
	$(MAKE) build
	$(MAKE) lint
	$(MAKE) unit
	$(MAKE) e2e
	$(MAKE) faults
	$(MAKE) conformance
	$(MAKE) v2

lint: $(BIN)/staticcheck
	scripts/lint

unit: tools $(PEERS)
	BERTH_RUNC=$(BIN)/runc BERTH_CONTAINERD=$(BIN)/peer/containerd CNI_PATH=$(BIN)/cni $(GO) test -race ./cmd/... ./internal/... ./api/... ./demo/... ./test/hygiene/

e2e:
	$(GO) test -count=1 -timeout 20m ./test/e2e/...

# Real pods, and a berthd that is stopped at every point.
faults:
	$(GO) test -count=1 -timeout 15m ./test/faults/

# What Berth does with cgroups, on a v2 kernel in QEMU.
v2:
	test/v2/run

# The keeper's simulation for as long as one likes.
SOAK ?= 20m
soak:
	$(GO) test -count=1 -timeout 90m ./internal/keeper -run 'TestSimulation|TestEvery' -sim.time $(SOAK) -sim.from $$(date +%s)000 -sim.pairs 1

conformance: $(BIN)/critest
	test/conformance/run

bench: build $(PEERS)
	test/bench/run

clean:
	rm -rf $(BIN)

FORCE:
