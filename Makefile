# Two commands matter: `make demo` and `make test`. Each does its own set-up on a fresh machine that
# has Python 3.11 or later, a Rust toolchain and a C compiler.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

# Set in many container images; without the files that it forbids, each process compiles all that it imports, which
# more than doubles what importing torch costs, and the tests start a thousand processes.
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.8
CORE := python/sglang_omni/_core.abi3.so
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -name '*.rs' -o -name Cargo.toml)
SAY ?= What is the capital of France?
PORT ?= 8000
MODEL ?= speech-chat

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.PHONY: demo
demo: build ## a question and a spoken answer (SAY="..." to ask your own; MODEL=qwen3-omni-tiny for all modalities)
	$(BIN)/python -m sglang_omni.demo --model $(MODEL) --say "$(SAY)"

.PHONY: serve
serve: build ## the same, and it keeps serving on PORT until Ctrl-C: open http://127.0.0.1:8000/ and talk
	exec $(BIN)/python -m sglang_omni.demo --model $(MODEL) --say "$(SAY)" --keep-serving --port $(PORT)

.PHONY: parity
parity: build ## Qwen3-Omni's answers against transformers', over seeds, shapes, engines and kinds of input (an hour)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python tests/soak/qwen3_omni_parity.py $(PARITY)

.PHONY: test
test: lint test-rust test-python ## linters, Rust tests, Python tests; CI runs this and test-long

# Tests of one file stay in one process (tests/conftest.py). Each process takes a few GiB.
TEST_PROCESSES ?= $(shell n=$$(nproc); echo $$((n < 4 ? n : 4)))
PARALLEL := -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder

.PHONY: check
check: lint test-rust ## for the edit loop: linters, Rust tests, unit tests
	$(BIN)/python -m pytest tests/unit $(PARALLEL) --quiet

.PHONY: lint
lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=benches:tests/soak:tests $(BIN)/mypy $(filter-out benches/peer_%,$(wildcard benches/*.py)) $(wildcard tests/soak/*.py)
	$(BIN)/lint-imports
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings

.PHONY: test-rust
test-rust:
	cargo test --workspace --locked --quiet

.PHONY: test-python
test-python: build system-packages
	SGLANG_OMNI_TEST_ALL=1 $(BIN)/python -m pytest -m "not long" $(PARALLEL)

.PHONY: test-long
test-long: build clients system-packages ## the tests that take longest: Ray, several hosts, the wheel, pipelines over every relay
	SGLANG_OMNI_TEST_ALL=1 $(BIN)/python -m pytest -m long

CLIENTS := build/clients
.PHONY: clients
clients: $(CLIENTS)/.installed ## realtime clients that tests drive servers with, in an environment of their own (400 MB)

$(CLIENTS)/.installed: requirements/clients.lock | $(BIN)/uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(CLIENTS)
	$(BIN)/uv pip sync --quiet --python $(CLIENTS)/bin/python --require-hashes requirements/clients.lock
	touch $@

# What mooncake's engine links to, and `ip`, with which tests make hosts of network namespaces. Recommended packages
# are left out: they are drivers for RDMA, and one of them makes NIXL crash when a process exits.
SYSTEM_PACKAGES := libibverbs1 libnuma1 libcurl4 iproute2
.PHONY: system-packages
system-packages: ## the system's packages that the mooncake relay and tests of several hosts need
	@for name in libibverbs.so.1 libnuma.so.1 libcurl.so.4; do \
		$(PYTHON) -c "import ctypes; ctypes.CDLL('$$name')" 2>/dev/null || missing="$${missing:-} $$name"; \
	done; \
	command -v ip >/dev/null || missing="$${missing:-} ip"; \
	if [ -z "$${missing:-}" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "The tests need$$missing. Run, or do what your system has in its place:" >&2; \
		echo "  sudo apt-get install --no-install-recommends $(SYSTEM_PACKAGES)" >&2; \
		exit 1; \
	fi; \
	apt-get update -qq && apt-get install -qq --yes --no-install-recommends $(SYSTEM_PACKAGES) >/dev/null

.PHONY: test-versions
test-versions: build ## the wheel with the oldest and the newest versions of what it needs, each in an environment of its own
	$(BIN)/ruff check --quiet --target-version py314 --ignore UP python
	for version in 3.12 3.13 3.14; do \
		echo "mypy for Python $$version"; \
		$(BIN)/mypy --python-version $$version --enable-error-code deprecated --cache-dir build/versions/mypy; \
	done
	$(BIN)/python tests/versions/run.py $(VERSIONS)

.PHONY: test-gpu
test-gpu: build ## what a GPU computes and shares, beside the CPU; without one, what can be told without it
	$(BIN)/python -m pytest tests/gpu tests/device
	$(BIN)/python benches/gpu/run.py --only codec engine serving

.PHONY: bench-gpu
bench-gpu: build ## the same, and times: predictor, codec, encoders, engine, two processes on one GPU; ten minutes
	$(BIN)/python benches/gpu/run.py

# For a machine with a GPU and torch, but without a network or this repository.
GPU_KIT := build/gpu-kit
KIT_PYTHON ?= 3.12
.PHONY: gpu-kit
gpu-kit: wheel ## test-gpu and bench-gpu in a folder to carry: our wheel, what it needs beside torch, tests and benches
	rm -rf $(GPU_KIT) && mkdir -p $(GPU_KIT)/wheels
	$(BIN)/python -m pip download --quiet --dest $(GPU_KIT)/wheels --only-binary :all: \
		--python-version $(KIT_PYTHON) dist/sgl_omni-*.whl pytest pytest-asyncio pytest-timeout pytest-xdist hypothesis
	rm $(GPU_KIT)/wheels/numpy-*.whl
	git archive HEAD tests benches/gpu pyproject.toml | tar -x -C $(GPU_KIT)
	cp benches/gpu/run.sh $(GPU_KIT)/
	du -sh $(GPU_KIT)

.PHONY: bench
bench: build ## every case against memcpy, and against sglang-omni 0.1.9 where it is installed; seven minutes
	cd benches && ../$(BIN)/python data_plane.py
	cd benches && ../$(BIN)/python pipeline.py
	cd benches && ../$(BIN)/python stalled.py
	cd benches && ../$(BIN)/python relays.py
	cd benches && ../$(BIN)/python plot.py
	$(MAKE) bench-replicas
	cd benches && ../$(BIN)/python report.py
	$(MAKE) bench-rust

.PHONY: bench-replicas
bench-replicas: build ## requests a second of one, two and three replicas of a stage, and autoscaling; a minute
	cd benches && ../$(BIN)/python replicas.py
	cd benches && ../$(BIN)/python plot_replicas.py

.PHONY: bench-omni
bench-omni: build ## Qwen3-Omni's pipeline on a tiny model: first sound, and eight requests beside one; both engines
	cd benches && OMP_NUM_THREADS=1 ../$(BIN)/python qwen3_omni.py $(BENCH)

.PHONY: bench-playback
bench-playback: build ## gaps in the sound of 1, 8 and 16 spoken answers at once, by schedule policy; 12 minutes
	cd benches && OMP_NUM_THREADS=1 PYTHONPATH=../tests ../$(BIN)/python playback_order.py
	cd benches && ../$(BIN)/python playback.py $(BENCH)

.PHONY: bench-text
bench-text: build ## tokens a second of both engines beside transformers' generate, on SmolLM2
	cd benches && ../$(BIN)/python text_engines.py $(BENCH)

.PHONY: bench-rust
bench-rust: ## encode, decode, allocate and the ledger, without Python
	mkdir -p benches/results
	cargo bench --locked --package sglang-omni-payload --package sglang-omni-relay --bench '*' \
		| tee benches/results/rust.txt

.PHONY: bench-peers
bench-peers: $(BIN)/uv ## install sglang-omni 0.1.9 for `make bench`, in an environment of its own (6 GB)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/peers/sglang-omni
	$(BIN)/uv pip install --python build/peers/sglang-omni/bin/python -r benches/peer_requirements.txt
	$(BIN)/uv pip install --python build/peers/sglang-omni/bin/python --no-deps sglang-omni==0.1.9 sglang==0.5.22

.PHONY: bench-router
bench-router: build ## the router beside the direct path and three peers; eleven minutes (BENCH="--cases json-32 --no-peers")
	cargo build --release --locked --quiet --package sglang-omni-router-load
	cd benches && ../$(BIN)/python router.py $(BENCH)

.PHONY: bench-router-peers
bench-router-peers: $(BIN)/uv ## install the routers to compare with, in an environment of their own (300 MB)
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/peers/routers
	$(BIN)/uv pip install --quiet --python build/peers/routers/bin/python -r benches/router_peers.txt

.PHONY: bench-attacks
bench-attacks: build ## attacks on the router and on three peers, and a good client beside attacks on a replica; 20 minutes
	cd benches && ../$(BIN)/python attacked_routers.py
	cd benches && ../$(BIN)/python attacked_replica.py

.PHONY: soak
soak: build ## ten minutes: a million random payloads between two processes, 200 kills at random moments
	$(BIN)/python tests/soak/payloads.py
	$(BIN)/python tests/soak/kills.py

.PHONY: soak-overload
soak-overload: build ## four minutes: ten times what a server can do (OVERLOAD="--dp-size 2", or any of its options)
	$(BIN)/python tests/soak/overload.py $(OVERLOAD)

SOAK_MINUTES ?= 30
.PHONY: soak-router
soak-router: build ## half an hour of mixed traffic while replicas are killed, hung and revived (SOAK_MINUTES=5)
	$(BIN)/python tests/soak/router_soak.py --minutes $(SOAK_MINUTES)

FUZZ_SECONDS ?= 600
.PHONY: fuzz
fuzz: ## ten minutes of hostile bytes for the payload decoder (FUZZ_SECONDS=60 for one)
	cargo fuzz --version >/dev/null 2>&1 || cargo install --locked --version 0.13.2 cargo-fuzz
	mkdir -p target/fuzz-corpus
	RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/fuzz cargo fuzz run --fuzz-dir rust/payload/fuzz decode \
		target/fuzz-corpus rust/payload/fuzz/corpus/decode -- \
		-max_total_time=$(FUZZ_SECONDS) -malloc_limit_mb=64 -max_len=4096 -use_value_profile=1

.PHONY: loom
loom: ## every interleaving of tickets, slots and credits
	cargo test --release --locked --package sglang-omni-relay --features loom loom

# Without leaks in the bindings' tests: an interpreter leaves some when it ends. Without the copy that has no memory
# for threads: AddressSanitizer has none either then.
SANITIZE := RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/sanitize RUSTFLAGS=-Zsanitizer=address \
	cargo test --locked --lib --target $$(rustc -vV | sed -n 's/^host: //p')
.PHONY: sanitize
sanitize: ## the Rust tests of the data plane under AddressSanitizer; the first time takes minutes to compile
	$(SANITIZE) --package sglang-omni-payload --package sglang-omni-relay -- --skip a_copy_needs_no_threads
	ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc $(SANITIZE) --package sglang-omni-python

# Miri knows neither shared memory nor an interpreter: the relay's tests of them are not compiled for it.
.PHONY: miri
miri: ## undefined behaviour in the payload format and the relay's lock-free parts; needs a nightly toolchain with miri
	MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=8 PROPTEST_DISABLE_FAILURE_PERSISTENCE=true \
		cargo +nightly miri test --locked --lib --package sglang-omni-payload --package sglang-omni-relay

.PHONY: fmt
fmt: build ## format both languages
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	cargo fmt --all

.PHONY: wheel
wheel: $(VENV)/.installed ## the wheel, in dist/
	rm -f dist/sgl_omni-*.whl
	$(BIN)/maturin build --release --locked --quiet --out dist

.PHONY: lock
lock: $(BIN)/uv ## resolve requirements/dev.in and clients.in again
	$(BIN)/uv pip compile requirements/dev.in --override requirements/overrides.txt --quiet --upgrade \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-header -o requirements/dev.lock
	$(BIN)/uv pip compile requirements/clients.in --quiet --upgrade \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-header -o requirements/clients.lock

.PHONY: clean
clean: ## remove everything that the other targets made
	rm -rf $(VENV) target dist build $(CORE)

.PHONY: build
build: $(CORE) ## the environment and the Rust core

# uv is itself in the lock, so the later sync keeps it.
$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

# The locks are complete: nothing is resolved here, and every file's hash is checked.
$(VENV)/.installed: requirements/dev.lock requirements/sglang.lock | $(BIN)/uv
	$(BIN)/uv pip sync --quiet --python $(BIN)/python --require-hashes requirements/dev.lock requirements/sglang.lock
	touch $@

$(VENV)/.editable: pyproject.toml $(VENV)/.installed
	$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
	touch $@

# `install` replaces the file instead of writing into it: processes that have it mapped go on unharmed.
$(CORE): $(RUST_SOURCES) $(VENV)/.editable
	cargo build --release --locked --quiet --package sglang-omni-python --features extension-module
	install -m 755 target/release/lib_core.so $@
