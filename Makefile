# Everything starts here: `make help`. Each target brings what it needs and does only what is left to do.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory

# The local cluster of `cluster`, `demo`, `install` and `deploy`.
CLUSTER ?= demo
NODES ?= 2
# Where `install` and `deploy` go, if not to the local cluster.
export CILIA_CACHE ?= $(HOME)/.cache/cilia
export PATH := $(HOME)/.cargo/bin:$(PATH):/usr/local/go/bin

CLUSTER_TOOL = cargo run --quiet --package cilia-e2e --bin cilia-cluster --

.PHONY: help
help: ## Show this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 16

##@ See it

.PHONY: demo
demo: images ## Start a cluster with Cilia and a small app in it, and show them; leaves it running
	@demo/run up $(CLUSTER) $(NODES)

.PHONY: demo-down
demo-down: cluster-down ## Remove the demo's cluster

##@ Test it

.PHONY: test
test: lint images ## Lint, then run all tests: units, kernel programs, chart, and a real cluster
	@echo "==> tests" >&2
	@PATH="$$(hack/tool-path):$$PATH" cargo test --workspace

.PHONY: lint
lint: setup tools ## Formatting, clippy, licences and advisories, generated files
	@hack/lint

.PHONY: bench
bench: images ## Measure: delays, writes, memory, throughput
	@$(CLUSTER_TOOL) bench

##@ Build it

.PHONY: manifests
manifests: tools ## Generate config/ and the chart's schema
	@cargo run --quiet --package cilia-crds --bin cilia-crds-yaml
	@PATH="$$(hack/tool-path):$$PATH" cargo run --quiet --package cilia-chart --bin cilia-manifests

.PHONY: images
images: setup tools ## Build the container images of agent and operator
	@echo "==> images" >&2
	@cargo build --workspace --bins
	@$(CLUSTER_TOOL) images

.PHONY: setup
setup: ## Install what is needed to build, test and run clusters
	@hack/setup

.PHONY: tools
tools: setup ## Build Kubernetes, etcd, CoreDNS and helm for the local cluster
	@$(CLUSTER_TOOL) tools

##@ Run it

.PHONY: cluster
cluster: setup tools ## Start a local cluster without a network plugin
	@$(CLUSTER_TOOL) up --name $(CLUSTER) --nodes $(NODES)

.PHONY: cluster-down
cluster-down: setup ## Remove the local cluster
	@$(CLUSTER_TOOL) down --name $(CLUSTER)

.PHONY: install
install: tools ## Install the CRDs into the cluster of $$KUBECONFIG, else the local one
	@hack/kubectl $(CLUSTER) apply --server-side --kustomize config/crd

.PHONY: deploy
deploy: images ## Install Cilia with helm into the cluster of $$KUBECONFIG, else the local one
	@hack/deploy $(CLUSTER)
