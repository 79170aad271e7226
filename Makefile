# `make` alone lists the targets. Every target is idempotent and sets up what it needs. The scripts in dev/ do the work.
#
# CLUSTER=context   use this existing cluster of your kubeconfig; otherwise kind if Docker runs, else a local node
# REGISTRY=host/x   where an existing cluster pulls the images from
# PURGE=1           `make down` removes everything except LETHE_CACHE, including the guard routes and the clusters' images
# LETHE_CACHE, LETHE_STATE   folders for built files and for running state; by default under ~/.cache and ~/.local/state

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

export LETHE_CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/lethe
export LETHE_STATE ?= $(or $(XDG_STATE_HOME),$(HOME)/.local/state)/lethe
export CLUSTER REGISTRY
export PATH := $(LETHE_CACHE)/bin:$(PATH)
# Compiled Python is kept outside of the checkout, also where the environment turns that off: the tests start many processes.
export PYTHONPYCACHEPREFIX ?= $(LETHE_CACHE)/pyc
unexport PYTHONDONTWRITEBYTECODE

VENV := $(LETHE_CACHE)/venv
BIN := $(VENV)/bin
JARS := $(LETHE_CACHE)/jars
export LETHE_JARS := $(JARS)
export PYTHONPATH := $(CURDIR)/operator:$(CURDIR)/spark_apps

# The tests have their own cluster, so they and the demo do not affect each other.
TEST_STACK := CLUSTER_NAME=lethe-test CLUSTER_INDEX=1 dev/stack.sh
# And `make bench-operator` has one, which it fills with 10,000 Datasets.
BENCH_CLUSTER := CLUSTER_NAME=lethe-bench CLUSTER_INDEX=2 S3_CPU=300m
TEST := dev/packages.sh python && python3 dev/test.py
PYTEST := $(BIN)/python -m pytest -p no:cacheprovider

.PHONY: help
help: ## this list
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-z-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' Makefile

##@ See it work
.PHONY: demo demo-cluster env status kubeconfig down
demo: venv ## the whole loop on this machine: a year of flights is promoted, restated, erased and vacuumed
	@dev/packages.sh java
	@$(BIN)/python -m lethe.jars $(JARS) --scope local
	@$(BIN)/python -m lethe.cli demo $(ARGS)
demo-cluster: up ## the loop on a Kubernetes cluster of its own
	@LETHE_EVENTS=true LETHE_INLET=true dev/install.sh
	@kafka="$$(dev/images.sh kafka)" && eval "$$kafka" && eval "$$(dev/stack.sh env)" && $(BIN)/python examples/flights/demo.py
env: ## exports for the services of `make demo-cluster`: eval "$$(make -s env)"
	@dev/stack.sh env
status: ## show the state of the clusters
	@dev/stack.sh status
kubeconfig: ## the path of the demo cluster's kubeconfig
	@dev/stack.sh kubeconfig
down: ## stop the clusters of the demo and of the tests (PURGE=1: remove everything)
	@dev/stack.sh down $(if $(PURGE),--purge)
	@$(if $(CLUSTER),:,$(TEST_STACK) down $(if $(PURGE),--purge))
	@$(if $(CLUSTER),:,$(BENCH_CLUSTER) dev/stack.sh down $(if $(PURGE),--purge))
	@$(if $(PURGE),cd "$(LETHE_STATE)" && rm -rf log images.env loaded-*.env *.lock && cd / && rmdir "$(LETHE_STATE)" || true)

##@ Parts
.PHONY: cluster images services install up venv jars tools
cluster: ## a Kubernetes cluster
	@dev/stack.sh cluster
images: ## build the images and load them into the demo's cluster
	@dev/images.sh build && dev/images.sh load
services: ## PostgreSQL and S3 in the cluster
	@dev/stack.sh services
up: venv ## cluster, images and services
	@dev/stack.sh up
install: ## install Lethe with Helm
	@dev/install.sh
venv: ## the Python environment
	@dev/venv.sh
tools: ## the programs of the cluster: Kubernetes, Helm, ...
	@dev/packages.sh python
	@dev/tools.sh
jars: venv
	@dev/packages.sh java postgres
	@$(BIN)/python -m lethe.jars $(JARS) --scope test
	@$(BIN)/python spark_apps/archive_classes.py

##@ Distribute it
.PHONY: dist release
release: ## what a release consists of, in build/release; nothing is pushed (ARGS="--push REGISTRY": it is, and signed)
	@dev/release.sh $(ARGS)
dist: ## the distribution lethe-lake (wheel and sdist), and the plugin for krew and Homebrew, in dist/
	@dev/dist.sh

##@ Check it
.PHONY: lint lint-all test test-fast test-cluster test-model chaos test-all ci test-existing test-up test-launchers test-previous format generate docs-engines docs-notebooks docs-pictures docs-site
lint: venv ## formatting, types, layers, scripts
	@dev/lint.sh python
lint-all: venv ## also chart, images, documentation site
	@dev/lint.sh all
format: venv ## apply the formatting that lint requires
	@$(BIN)/ruff check --fix --quiet . ; $(BIN)/ruff format .
test-fast: ## lint and unit tests, with Python only: while you work
	@$(TEST) fast $(TESTS)
test: ## lint, and all tests that need no cluster (TESTS="tests/spark/vacuum": only these)
	@$(TEST) test $(TESTS)
test-cluster: ## tests on a Kubernetes of their own (TESTS=tests/cluster/test_loop.py)
	@$(TEST) cluster $(TESTS)
test-all: ## both with the long tests, other engines and versions, and all linters: hours
	@$(TEST) all $(TESTS)
ci: ## what CI runs: all linters, and both without the long tests
	@$(TEST) ci
test-model: venv jars ## a random walk on real tables for as long as you like: STEPS=5000 SEED=1 VERSION=2 (or 3; without it both)
	@STEPS=$(or $(STEPS),5000) SEED=$(SEED) VERSION=$(VERSION) $(PYTEST) -s -m long tests/spark/model/test_walk.py
chaos: ## random acts and faults on the tests' cluster: DURATION=600 SEED=1 (without a seed a new one each time)
	@CHAOS_DURATION=$(DURATION) CHAOS_SEED=$(SEED) $(TEST) all tests/cluster/chaos
test-existing: venv ## the demo on a second local node, as on a cluster of yours that pulls from a registry
	@dev/no-docker/existing.sh demo
generate: venv ## write what is generated from models, reasons and commands: crds/, parts of the chart's schema, reference pages
	@$(BIN)/python dev/generate.py
	@$(BIN)/python docs/reference/generate.py
	@$(BIN)/python docs/generate_cli.py
docs-notebooks: venv ## execute docs/notebooks again, and store what their cells show
	@$(BIN)/python docs/run_notebooks.py
docs-pictures: ## take the pictures of the console again, in a real browser
	@LETHE_SCREENSHOTS=$(CURDIR)/docs/images $(TEST) all tests/apiserver/console
console-screens: ## pictures of all pages of the console with 0, 3 and 10,000 Datasets, light, dark and phone, in build/screens
	@LETHE_SCREENS=$(CURDIR)/build/screens $(TEST) all tests/apiserver/console/test_screens.py
docs-engines: ## measure what other engines find in Lethe's tables, into docs/engines.md (TRINO_JAVA_HOME: a JDK 25 or later)
	@LETHE_WRITE_ENGINES=1 $(TEST) all tests/spark/engines
docs-site: ## the documentation site, in build/site: LETHE_REPOSITORY=https://… for links to files
	@dev/site.sh
test-up: venv ## the tests' cluster, for working on a test
	@$(TEST_STACK) up
test-launchers: test-up ## the Spark operator and Kueue for the tests' cluster: eval "$$(make -s test-launchers)"
	@CLUSTER_NAME=lethe-test CLUSTER_INDEX=1 dev/images.sh launchers
test-previous: test-up ## the images of the version from which tests upgrade: eval "$$(make -s test-previous)"
	@CLUSTER_NAME=lethe-test CLUSTER_INDEX=1 dev/images.sh previous

##@ Measure it
.PHONY: bench-ledger bench-consolidation bench-deletes bench-vacuum bench-large bench-row-groups bench-reading bench-start bench-local bench-gateway bench-cluster bench-operator bench-hour
bench-ledger: venv jars ## the cost of the ledger, into docs/benchmarks: 40 minutes on an idle machine (ARGS="--scale small")
	@$(BIN)/python -m bench.ledger $(ARGS)
bench-consolidation: venv jars ## small files per hour, into docs/benchmarks: 100 minutes on an idle machine (ARGS="--scale small")
	@$(BIN)/python -m bench.consolidation $(ARGS)
bench-deletes: venv jars ## the cost of native deletes compared with the ledger, into docs/deletes.md (ARGS="--scale small")
	@$(BIN)/python -m bench.deletes $(ARGS)
bench-vacuum: venv jars ## what a vacuum rewrites, and how SCAN scales, into docs/benchmarks (ARGS="--scale small")
	@$(BIN)/python -m bench.vacuum $(ARGS)
bench-large: venv jars ## purges of a table of 8 GiB, into docs/benchmarks: 2 hours on an idle machine, 45 GB of disk (ARGS="--scale small")
	@dev/tools.sh versitygw
	@$(BIN)/python -m bench.large $(ARGS)
bench-row-groups: venv jars ## reads and purges with row groups of 8 to 128 MiB, into docs/benchmarks: 25 minutes, 20 GB of disk (ARGS="--scale small")
	@dev/tools.sh versitygw
	@$(BIN)/python -m bench.row_groups $(ARGS)
bench-reading: venv jars ## reads by Spark, lethe.scan, PyIceberg and DuckDB, into docs/benchmarks: 30 minutes (ARGS="--scale small")
	@dev/venv.sh engines
	@$(BIN)/python -m bench.reading $(ARGS)
bench-start: venv jars ## the time that the class archive saves in each run
	@$(BIN)/python -m bench.start $(ARGS)
bench-local: venv jars ## lethe local: from a command to the commit (ARGS="--demo --cold": also the demo, and from nothing)
	@$(BIN)/python -m bench.local $(ARGS)
bench-gateway: venv jars ## pages, uploads, status events and the inlet, into docs/benchmarks: 10 minutes on an idle machine (ARGS="--scale small")
	@dev/tools.sh versitygw
	@$(BIN)/python -m lethe.jars $(JARS) --scope bench
	@$(BIN)/python -m bench.gateway $(ARGS)
bench-cluster: venv jars
	@$(BENCH_CLUSTER) dev/stack.sh up
	@$(BENCH_CLUSTER) LETHE_GATEWAY=false dev/install.sh --force-conflicts \
	  --set 'podTemplate.allowed.tolerations={bench.lethe.dev/fake},warmDrivers.enabled=true,resyncMaxSeconds=300'
bench-operator: bench-cluster ## the operator with 10,000 Datasets, on a cluster of its own: 3 hours on an idle machine (ARGS="--scale small")
	@eval "$$($(BENCH_CLUSTER) dev/stack.sh env)"; $(BIN)/python -m bench.operator $(ARGS)
bench-hour: bench-cluster ## an hour of small files on that cluster, beside Reverts and vacuums: 75 minutes on an idle machine (ARGS="--scale small")
	@eval "$$($(BENCH_CLUSTER) dev/stack.sh env)"; $(BIN)/python -m bench.hour $(ARGS)
