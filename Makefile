# Everything starts here: `make help`. Each target brings what it needs and does only what is left to do.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

# The local cluster that `cluster`, `demo`, `bench`, `install` and `deploy` use.
CLUSTER ?= demo
NODES ?= 2

export CILIA_CACHE ?= $(HOME)/.cache/cilia
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/local/go/bin
# `dev` builds fast and is what tests run; `release` is what to measure and to deploy.
PROFILE ?= dev
export CILIA_TARGET := $(abspath $(or $(CARGO_TARGET_DIR),target))/$(if $(filter dev,$(PROFILE)),debug,$(PROFILE))

cluster_tool := $(CILIA_TARGET)/cilia-cluster --name $(CLUSTER)

.PHONY: help
help: ## Show this list
	@awk -F':.*## ' '/^##@/ {print "\n" substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-16s %s\n", $$1, $$2}' Makefile

##@ See it

.PHONY: demo
demo: images ## Start a cluster with Cilia and a small app in it, and show them; leaves it running
	@demo/run $(CLUSTER) $(NODES)

.PHONY: demo-down
demo-down: cluster-down ## Remove the demo's cluster

##@ Test it

.PHONY: test
test: lint images ## Lint, then run all tests: units, kernel programs, chart, a real cluster
	@echo '==> tests' >&2
	@cargo test --workspace

.PHONY: churn
churn: images ## Have 2,000 pods come and go on five nodes: nothing may be left, and no packet lost (5 minutes)
	@CILIA_CHURN=2000 CILIA_E2E_NODES=5 \
		CILIA_E2E_VALUES="operator.identityGCInterval=10s operator.identityHeartbeatTimeout=20s operator.endpointGCInterval=10s operator.nodeGCInterval=10s" \
		cargo test -p cilia-e2e --test main_job -- churn

.PHONY: mesh
mesh: images ## Have two clusters read each other, and change the modes of identities under traffic (5 minutes)
	@hack/mesh

.PHONY: kvstore-faults
kvstore-faults: images ## Break etcd in every way, under agents and under a cluster whose modes change: nothing may be lost (16 minutes)
	@CILIA_QUORUM_LOST_SECONDS=180 CILIA_FAULTS=12 cargo test -p cilia-kvstore --test etcd -- cluster_faults --nocapture
	@CILIA_QUORUM_LOST_SECONDS=180 CILIA_KVSTORE_FAULTS=1 cargo test -p cilia-e2e --test main_job -- kvstore

.PHONY: pools
pools: images ## Give pods addresses out of pools on a cluster of their own (ipam.mode=multi-pool): one minute
	@CILIA_E2E_VALUES="ipam.mode=multi-pool \
		ipam.operator.autoCreateCiliumPodIPPools.default.ipv4.cidrs[0]=10.10.0.0/16 \
		ipam.operator.autoCreateCiliumPodIPPools.default.ipv4.maskSize=27 \
		ipam.operator.autoCreateCiliumPodIPPools.default.ipv6.cidrs[0]=fd00:10::/104 \
		ipam.operator.autoCreateCiliumPodIPPools.default.ipv6.maskSize=123" \
		cargo test -p cilia-e2e --test main_job -- reach pools

.PHONY: live
live: images ## Edit labels, swap policies and cut a node's power under traffic, ask the command line for everything, and measure how long verdicts take (7 minutes)
	@CILIA_LIVE=1 cargo test -p cilia-e2e --test main_job -- edits flips guarded_nodes reboot command_line

.PHONY: lint
lint: setup manifests-check ## Formatting, clippy, licences and advisories, generated files
	@hack/lint

.PHONY: conformance
conformance: images ## Run Kubernetes' own tests of network policies, and those of its policy API, on a local cluster
	@$(CILIA_TARGET)/cilia-conformance

.PHONY: fuzz
fuzz: setup ## Feed every parser with random input, a minute each (needs a nightly toolchain)
	@hack/fuzz

# What can be measured alone, by hack/bench-NAME.
alone := $(firstword $(filter ces identities kvstore namespace nodes policy,$(MAKECMDGOALS)))

.PHONY: bench
bench: $(if $(filter policy,$(alone)),setup,$(if $(alone),tools,images)) ## Measure Cilia on a local cluster; `make bench ces`, `identities`, `kvstore`, `namespace`, `nodes`, `policy`: these alone
	@$(if $(alone),hack/bench-$(alone),hack/bench $(CLUSTER) $(NODES))

.PHONY: ces identities kvstore namespace nodes policy
ces identities kvstore namespace nodes policy: bench
	@:

##@ Build it

.PHONY: build
build: setup ## Build all programs
	@echo '==> build' >&2
	@cargo build --profile $(PROFILE) --workspace --bins

.PHONY: images
images: build tools ## Build the container images of agent and operator
	@echo '==> images' >&2
	@$(cluster_tool) image build --target $(CILIA_TARGET) >/dev/null

.PHONY: manifests
manifests: build tools ## Generate config/ and the chart's schema
	@$(CILIA_TARGET)/cilia-crds-generate
	@$(CILIA_TARGET)/cilia-manifests

.PHONY: manifests-check
manifests-check: build tools ## Check that the generated files are up to date
	@echo '==> generated files' >&2
	@$(CILIA_TARGET)/cilia-crds-generate --check
	@$(CILIA_TARGET)/cilia-manifests --check

.PHONY: setup
setup: ## Install what is needed to build, test and run clusters
	@hack/setup

.PHONY: tools
tools: build ## Build Kubernetes, etcd, CoreDNS and helm for the local cluster
	@echo '==> tools' >&2
	@$(cluster_tool) tools >/dev/null

##@ Run it

.PHONY: cluster
cluster: tools ## Start a local cluster without a network plugin
	@$(cluster_tool) up --nodes $(NODES)

.PHONY: cluster-down
cluster-down: build ## Remove the local cluster
	@$(cluster_tool) down

.PHONY: install
install: tools ## Install the CRDs into the current cluster, else into the local one
	@hack/client $(CLUSTER) kubectl apply --server-side --kustomize config/crd

.PHONY: deploy
deploy: images ## Install Cilia with helm into the current cluster, else into the local one
	@hack/deploy $(CLUSTER)
