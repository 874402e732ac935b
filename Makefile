# Everything a developer or a user runs. `make run` and `make test` set up what is missing by
# themselves.
# Needs: a POSIX system, GNU make, Python 3.11 or newer with its venv module.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PYTHON ?= $(shell for p in python3.11 python3.12 python3.13 python3.14 python3; do \
	command -v $$p >/dev/null 2>&1 \
	&& $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	&& { echo $$p; break; }; done)

FILES ?=
TIER1 ?= file
JOBS ?= $(shell echo $$((2 * $$(getconf _NPROCESSORS_ONLN))))
MILLIONS ?= 100
SOAK_MINUTES ?= 10
MINUTES ?= 60
CYCLES ?= 300
POINTS ?= 50
GIB ?= 2
RELEASES ?=
PEERS ?=
CELLS ?=
QUICK ?=
RESULTS ?= var/bench-peers.json
# The seed of what hypothesis draws; SEED= for a new one each time.
SEED ?= $(shell git rev-parse HEAD 2>/dev/null)
DRAWN = $(if $(SEED),--hypothesis-seed=$(SEED))
PYTEST = $(BIN)/pytest -q --shares -n $(JOBS) --dist worksteal $(DRAWN)

.PHONY: help run test test-all tools services bookkeeper lint format typecheck imports \
	wheel-test wheel-test-all static unit unit-all unit-uvloop bench bench-peers bench-report \
	bench-ten-million hanging-bookie soak fuzz recovery-report \
	spark-demo spark-scale spark-plan spark-versions pravega-controller client-kills rust-client \
	cluster-kills archive-kills setup clean

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) \
	  | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 24

setup: $(STAMP) ## the virtual environment in .venv, with everything pinned

$(STAMP): pyproject.toml constraints.txt
	@if [ ! -x $(BIN)/python ]; then \
	  if [ -z "$(PYTHON)" ]; then \
	    echo "make: Python 3.11 or newer is needed and was not found;" \
	      "install it (Debian: apt-get install python3 python3-venv)" >&2; exit 1; \
	  fi; \
	  echo "setting up $(VENV) with $(PYTHON)"; \
	  $(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	    echo "make: $(PYTHON) has no venv module;" \
	      "install it (Debian: apt-get install python3-venv)" >&2; exit 1; }; \
	fi
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check \
	  -c constraints.txt -e '.[test,all]'
	@touch $(STAMP)

run: $(STAMP) ## the whole engine on real text, with a kill; FILES="a b" for yours, TIER1=bookkeeper
	@$(BIN)/python -m segmentstore.cli.main_job --tier1 $(TIER1) $(FILES)

test: tools services lint ## what a change can break: rules, types, the wheel, most tests
	@$(MAKE) --no-print-directory -j 3 static unit

test-all: tools services wheel-test-all unit-all ## the rest: every crash point, long kills

static: $(STAMP)
	@$(MAKE) --no-print-directory --output-sync=target \
	  $(if $(findstring jobserver,$(MAKEFLAGS)),,-j $(JOBS)) lint typecheck imports wheel-test

tools: # strace kills at exact system calls; systemd-analyze checks the units in deploy
	@for tool in strace:strace systemd-analyze:systemd; do \
	  command -v $${tool%:*} >/dev/null 2>&1 && continue; \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    echo "installing $${tool#*:}"; apt-get update -qq \
	      && apt-get install -y -qq --no-install-recommends $${tool#*:} >/dev/null; \
	  fi; \
	  command -v $${tool%:*} >/dev/null 2>&1 || { \
	    echo "make: $${tool%:*} is needed by the tests and was not found;" \
	      "install it (Debian: apt-get install $${tool#*:})" >&2; exit 1; }; \
	done

services: $(STAMP) ## the servers that tests run against, in var (docs/testing-services.md)
	@$(BIN)/python -m recovery.harness.services install

bookkeeper: $(STAMP) ## a BookKeeper cluster on this machine, in var/bookkeeper-cluster
	@$(BIN)/segmentstore bookkeeper start var/bookkeeper-cluster
	@echo 'a store on it:  segmentstore.open("folder", tier1=...),' \
	  'or SEGMENTSTORE_TIER1=... $(BIN)/segmentstore ingest ...'
	@echo 'stop it:        $(BIN)/segmentstore bookkeeper stop var/bookkeeper-cluster'

spark-plan: $(STAMP) ## plan a read of a million segments: at most 1,000 tasks; a minute, 1.5 GiB
	@SPARK_PLAN_SEGMENTS=1000000 $(BIN)/pytest -q -p no:xdist --timeout 900 \
	  tests/tier2/spark/test_source_packing.py -k "few_partitions"

# What passed, by group; an hour, and 5 GB in var. RELEASES="3.5.9" takes one release.
spark-versions: $(STAMP) ## the Spark jobs and the source in releases 3.5 to 4.3 of Spark; an hour
	@$(BIN)/python -m tests.tier2.spark.check_versions $(RELEASES)

spark-demo: $(STAMP) ## the Spark jobs on a small store; needs Java 17; FILES="a b" for yours
	@$(BIN)/python -m segmentstore.cli.spark_demo $(FILES)

spark-scale: $(STAMP) ## both Spark jobs over a catalog of MILLIONS=100 of chunks; an hour, 30 GB
	@$(BIN)/python -m bench.spark_scale --millions $(MILLIONS)

lint: $(STAMP) ## ruff: rules and format
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

format: $(STAMP) ## ruff: set the format, apply the fixes it knows
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

typecheck: $(STAMP) ## mypy, strict, the whole tree
	@$(BIN)/mypy

imports: $(STAMP) ## the import contracts
	@$(BIN)/lint-imports

wheel-test: $(STAMP) ## the wheel and its source, tried with the dependencies of .venv
	@$(BIN)/python tests/wheel/check_wheel.py

# The lower bounds on Python 3.11, and the newest releases on each.
wheel-test-all: $(STAMP) ## the wheel in empty environments of each Python 3.11 to 3.14 here
	@$(BIN)/python tests/wheel/check_wheel.py --all

# Two jobs for each core: for half of the time they wait.
unit: $(STAMP) ## the tests of `make test`, JOBS at a time
	@$(PYTEST) -m "not slow and not by_target"

unit-all: $(STAMP) ## the tests of `make test-all`: those marked slow; those marked sized, larger
	@TEST_SIZES=all $(PYTEST) -m "(slow or sized) and not by_target"

# Servers, clients and the store; the command line and the blocking API use uvloop in `make test`.
unit-uvloop: $(STAMP) ## what has sockets, on the event loop of `serve`
	@TEST_LOOP=uvloop $(PYTEST) -m "not slow and not by_target" tests/server tests/client \
	  tests/controller tests/cluster tests/contracts \
	  tests/store/test_forks.py tests/store/test_metrics.py

bench: $(STAMP) services ## the bench suite, as a table
	@$(BIN)/segmentstore bench

# QUICK=1: ten minutes; otherwise hours. PEERS="redis kafka", CELLS="W1 W4" take some of them.
bench-peers: $(STAMP) services ## this store beside RocksDB, Redis, Kafka ...: table, JSON, plot
	@$(BIN)/python -m bench.peers $(if $(QUICK),--quick) --peers $(PEERS) --cells $(CELLS) \
	  --json var/bench-peers.json --plot var/bench-peers.svg

bench-report: $(STAMP) ## the results of bench-peers, or RESULTS=FILE, into docs/performance.md
	@$(BIN)/python -m bench.peers.page $(RESULTS)

bench-ten-million: $(STAMP) ## 10 M segments in 8 containers: half an hour, 10 GB of disk
	@SEGMENTSTORE_BENCH_LARGE=1 $(BIN)/python -m bench.segments_in_containers

hanging-bookie: $(STAMP) services ## GIB=2 beside a bookie that hangs: pauses and memory
	@$(BIN)/python -m bench.hanging_bookie $(GIB)

soak: $(STAMP) ## the tests of `make test-all` for SOAK_MINUTES=10, with other seeds each time
	@end=$$(( $$(date +%s) + 60 * $(SOAK_MINUTES) )); \
	while [ $$(date +%s) -lt $$end ]; do $(MAKE) --no-print-directory unit-all; done

# Only this needs atheris, which has wheels for Linux and Python 3.11 to 3.13.
fuzz: $(STAMP) ## fuzz the decoder of the wire protocol for MINUTES=60, guided by coverage
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt atheris
	@$(BIN)/python -m tests.wire.fuzz -max_total_time=$$((60 * $(MINUTES)))

# All of it is in `make test-all`, too.
pravega-controller: $(STAMP) services ## Pravega's own Controller in place of ours; 10 minutes
	@$(PYTEST) -m by_target -k "pravega" tests/clients tests/bench

client-kills: $(STAMP) services ## 200 kills of a server below Pravega's clients; 20 minutes
	@CLIENT_KILL_RUNS=5 $(PYTEST) -k "kills" tests/clients

cluster-kills: $(STAMP) services ## CYCLES=300 of faults of a real cluster under load; 12 s each
	@$(BIN)/python -m recovery.harness.clusters --cycles $(CYCLES)

archive-kills: CYCLES = 200
archive-kills: $(STAMP) services ## CYCLES=200 of kills beside an archive, and POINTS=50 restored
	@$(BIN)/python -m recovery.harness.kills.archive_kills --cycles $(CYCLES) --points $(POINTS)

rust-client: $(STAMP) ## Pravega's Rust client on a store; needs cargo, and minutes to build
	@$(BIN)/python -m tests.clients.rust_program

recovery-report: $(STAMP) ## crashes of every kind for MINUTES=60, and docs/crash-test-report.md
	@$(BIN)/python -m recovery.harness.reporting.report --minutes $(MINUTES) \
	  --output docs/crash-test-report.md

clean: ## remove caches, builds and var/ (the virtual environment stays)
	rm -rf var build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	rm -rf *.egg-info
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
