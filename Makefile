# Every verb does its own set-up in .venv, says what it waits for, and is quick and offline when nothing has changed.

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help build demo test bench lint fmt clean setup setup-lint model
# Prerequisites are steps in order, and each of them uses all cores by itself.
.NOTPARALLEL:

BIN   := .venv/bin
ARGS  ?=
BUILT := .venv/.built

# Plain pip and cargo: proxies, mirrors and indices are whatever the user's own variables say.
export HF_HUB_OFFLINE := 1
export VIRTUAL_ENV := $(CURDIR)/.venv
export PYO3_PYTHON := $(CURDIR)/$(BIN)/python
export PYTHON
unexport PYTHONHOME PYTHONPATH

RUST := Cargo.toml Cargo.lock $(wildcard rust/*/Cargo.toml) $(shell find rust -name '*.rs' -path '*/src/*')

help: ## show this
	@echo "make <verb> [ARGS=...]"
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  %-6s %s\n", $$1, $$2 }' Makefile

build: setup $(BUILT) ## compile the core and install pdsched editable in .venv

demo: build model ## serve real prompts on one prefill and one decode worker; ARGS=--short for two minutes
	@$(BIN)/pdsched demo $(ARGS)

test: setup-lint build model ## all checks and tests; ARGS go to pytest
	@scripts/checks.sh test $(ARGS)

bench: build ## time the scheduler's step from Python, into reports/
	@$(BIN)/python benches/python/bench_step.py $(ARGS)

lint: setup-lint build ## rustfmt, clippy, ruff, mypy and stubtest
	@scripts/checks.sh lint

fmt: setup-lint ## format Rust and Python
	@cargo fmt --all
	@$(BIN)/ruff check --fix --quiet; $(BIN)/ruff format --quiet

clean: ## remove what was built, not .venv (torch) nor the fetched model
	@rm -rf target build dist reports .mypy_cache .ruff_cache .pytest_cache .hypothesis .benchmarks $(BUILT)
	@find python tests benches examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
	@rm -f python/pdsched/_core*.so
	@echo "kept: .venv (rm -rf .venv for a new one) and the model under $${PDSCHED_CACHE:-~/.cache/pdsched}"

setup:
	@scripts/setup.sh

setup-lint:
	@scripts/setup.sh lint

model:
	@$(BIN)/pdsched fetch-model

# Python sources need no rebuild: the install is editable. FORCE when the compiled module is gone.
$(BUILT): $(RUST) pyproject.toml $(if $(wildcard python/pdsched/_core*.so),,FORCE)
	@echo "[build] compiling pdsched._core"
	@PIP_QUIET=1 $(BIN)/maturin develop --release
	@touch $@

.PHONY: FORCE
FORCE:
