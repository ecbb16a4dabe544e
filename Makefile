# Two commands matter: `make demo` and `make test`. Each does its own set-up on a fresh machine that
# has Python 3.11 or later, a Rust toolchain and a C compiler.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)
CORE := python/sglang_omni/_core.abi3.so

.PHONY: help build fmt lint
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# The lock is complete, so nothing is resolved here and every file's hash is checked.
$(VENV)/.installed: requirements/dev.lock | $(BIN)/uv
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock
	touch $@

# `install` replaces the file instead of writing into it: processes that have it mapped go on unharmed.
$(CORE): $(RUST_SOURCES)
	cargo build --release --locked --package sglang-omni-python --features pyo3/extension-module
	install -m 755 target/release/lib_core.so $@

$(VENV)/.editable: pyproject.toml $(VENV)/.installed
	echo "$(CURDIR)/python" > $(shell $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sglang_omni.pth
	touch $@

build: $(VENV)/.installed $(CORE) $(VENV)/.editable ## environment and Rust core
