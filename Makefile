# Two commands matter: `make demo` and `make test`. Each does its own set-up on a fresh machine that has Python 3.11 or
# later, a Rust toolchain and a C compiler, and tells what a machine lacks.

# A machine without bash is told so by scripts/preflight.sh, which sh runs.
BASH_PATH := $(shell command -v bash)
SHELL := $(or $(BASH_PATH),/bin/sh)
.SHELLFLAGS := $(if $(BASH_PATH),-euo pipefail,-eu) -c
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
MATURIN := build/maturin
RUST_SOURCES := Cargo.toml Cargo.lock $(shell find rust -path rust/fuzz -prune -o \( -name '*.rs' -o -name Cargo.toml \) -print)
SAY ?= What is the capital of France?
PORT ?= 8000
MODEL ?= speech-chat

# The demo of speech-chat has an environment of its own, which is part of the developers' one and gives way to it: once
# `make test` has made that, the demo uses it.
OTHER_GOALS := $(filter-out demo serve,$(MAKECMDGOALS))
ENVIRONMENT := $(VENV)/.installed
ifeq ($(MODEL)$(OTHER_GOALS)$(wildcard $(VENV)/.installed),speech-chat)
ENVIRONMENT := $(VENV)/.demo
endif

# WHEEL=dist/sgl_omni-....whl: the demo runs that wheel instead of this checkout, and nothing is compiled. It goes on to do
# so without WHEEL, until another target installs the checkout.
PACKAGE := $(CORE)
RUNS := $(MODEL) on a CPU
ifeq ($(OTHER_GOALS),)
WHEEL ?= $(shell cat $(VENV)/.wheel-* 2>/dev/null)
endif
ifneq ($(WHEEL),)
WHEEL_FILE := $(wildcard $(WHEEL))
ifneq ($(words $(WHEEL_FILE)),1)
$(error WHEEL=$(WHEEL): no such file, or more than one)
endif
PACKAGE := $(VENV)/.wheel-$(notdir $(WHEEL_FILE))
RUNS += from $(WHEEL_FILE)
endif

GOAL := $(or $(firstword $(MAKECMDGOALS)),help)
preflight = @PYTHON=$(PYTHON) sh scripts/preflight.sh $(GOAL) $(1)
step = @printf '\n== %s\n' "$(1)"

.PHONY: help
help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

.PHONY: demo
demo: build ## a question and a spoken answer (SAY="..." to ask your own; MODEL=qwen3-omni-tiny for all modalities; WHEEL=FILE)
	$(call step,Demo: $(RUNS))
	@$(BIN)/python -m sglang_omni.demo --model $(MODEL) --say "$(SAY)"

.PHONY: serve
serve: build ## the same, and it keeps serving on PORT until Ctrl-C: open http://127.0.0.1:8000/ and talk
	$(call step,Demo: $(RUNS))
	@exec $(BIN)/python -m sglang_omni.demo --model $(MODEL) --say "$(SAY)" --keep-serving --port $(PORT)

# Without a MODEL, which is the demo's, every family that tests/parity knows.
PARITY_OF = $(if $(filter file,$(origin MODEL)),all,$(MODEL))
SEEDS ?= 0
ENGINE ?= omni
REFERENCE := build/qwen-tts
.PHONY: parity
parity: build $(if $(filter all qwen3_tts,$(PARITY_OF)),$(REFERENCE)/.installed) $(if $(filter all kokoro,$(PARITY_OF)),build/kokoro/.installed) ## a family's answers against its reference's, however it is asked (MODEL=qwen3_omni SEEDS=0,1,2 ENGINE=omni)
	OMP_NUM_THREADS=1 PYTHONPATH=tests $(BIN)/python -m parity $(PARITY_OF) --seeds $(SEEDS) --engines $(ENGINE) $(PARITY)

.PHONY: test
test: lint test-rust test-python ## linters, Rust tests, Python tests; CI runs this and test-long

# Tests of one file stay in one process (tests/conftest.py). Each process takes a few GiB.
TEST_PROCESSES ?= $(shell n=$$(getconf _NPROCESSORS_ONLN); echo $$((n < 4 ? n : 4)))
PARALLEL := -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder

.PHONY: check
check: lint test-rust ## for the edit loop: linters, Rust tests, unit tests
	$(BIN)/python -m pytest tests/unit $(PARALLEL) --quiet

.PHONY: lint
lint: build
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	MYPYPATH=benches:tests/soak:tests $(BIN)/mypy $(filter-out benches/peer_%,$(wildcard benches/*.py)) $(wildcard tests/soak/*.py tests/parity/*.py tests/campaign/*.py)
	$(BIN)/lint-imports
	cargo fmt --all --check
	cargo clippy --workspace --all-targets --locked -- -D warnings
	cargo check --quiet --locked --manifest-path rust/fuzz/Cargo.toml --target-dir target/fuzz-check
	cargo check --quiet --locked --package sglang-omni-relay --tests --features loom,tsan

DEPLOY_TOOLS := build/deploy
.PHONY: lint-deploy
lint-deploy: $(DEPLOY_TOOLS)/.installed ## workflows, the Dockerfile, the manifests and the chart; its tools are in an environment of their own (385 MB)
	deploy/lint.sh $(DEPLOY_TOOLS)/bin

# Tools of cargo, installed here alone.
CARGO_TOOLS := build/cargo-tools
DENY := $(CARGO_TOOLS)/bin/cargo-deny
FUZZ := $(CARGO_TOOLS)/bin/cargo-fuzz
$(DENY): CRATE_VERSION := 0.20.2
$(FUZZ): CRATE_VERSION := 0.13.2
$(DENY) $(FUZZ):
	cargo install --locked --root $(CARGO_TOOLS) --version $(CRATE_VERSION) $(@F)

# Tools that have an environment of their own, build/NAME, from requirements/NAME.lock.
build/audit/.installed build/deploy/.installed build/docs/.installed build/clients/.installed build/text-clients/.installed build/fuzz-http/.installed build/kokoro/.installed: build/%/.installed: requirements/%.lock | $(BIN)/uv
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python build/$*
	$(BIN)/uv pip sync --python build/$*/bin/python --require-hashes requirements/$*.lock
	touch $@

# The reference of Qwen3-TTS, whose transformers is an older one: all that is not in its lock it has from $(VENV).
SITE := -c "import sysconfig; print(sysconfig.get_path('purelib'))"
$(REFERENCE)/.installed: requirements/qwen-tts.lock | build
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(REFERENCE)
	$(BIN)/uv pip sync --python $(REFERENCE)/bin/python --require-hashes $<
	$(BIN)/python $(SITE) > $$($(REFERENCE)/bin/python $(SITE))/project.pth
	touch $@

AUDIT_TOOLS := build/audit
SBOM := build/sbom
.PHONY: audit
audit: $(DENY) $(AUDIT_TOOLS)/.installed ## licences, sources and advisories of what is shipped; bills of materials of the locks in build/sbom. Its tools take minutes to compile
	$(DENY) --locked check licenses bans sources
	@if why=$$($(DENY) fetch db 2>&1); then \
		$(DENY) --locked check --disable-fetch advisories; \
	else \
		echo "Advisories of crates were not checked: $$(tail -n 1 <<<"$$why")"; \
	fi
	$(AUDIT_TOOLS)/bin/python scripts/audit_packages.py $(AUDIT_TOOLS)/bin/pip-audit
	mkdir -p $(SBOM)
	for lock in cuda demo; do \
		$(AUDIT_TOOLS)/bin/python -W ignore $(AUDIT_TOOLS)/bin/cyclonedx-py requirements requirements/$$lock.lock \
			--pyproject pyproject.toml --output-reproducible --output-file $(SBOM)/$$lock.cdx.json; \
	done

# Neither a folder nor an hour may show in it.
TWICE := build/audit-wheel
.PHONY: audit-wheel
audit-wheel: $(MATURIN)/.installed ## the wheel of HEAD, built in two folders, is the same bit for bit; some minutes
	rm -rf $(TWICE)
	for folder in one another/below; do \
		mkdir -p $(TWICE)/$$folder; \
		git archive HEAD | tar -x -C $(TWICE)/$$folder; \
		(cd $(TWICE)/$$folder && SOURCE_DATE_EPOCH=$$(git log -1 --format=%ct) \
			$(abspath $(MATURIN))/bin/maturin build --release --locked --out dist); \
	done
	cmp $(TWICE)/one/dist/*.whl $(TWICE)/another/below/dist/*.whl

DOCS_TOOLS := build/docs
.PHONY: docs
docs: $(DOCS_TOOLS)/.installed ## the site of docs/ in build/site; a broken link is an error. Its tools are in an environment of their own (130 MB)
	NO_MKDOCS_2_WARNING=1 $(DOCS_TOOLS)/bin/mkdocs build --clean

.PHONY: test-rust
test-rust:
	cargo test --workspace --locked --quiet

.PHONY: test-python
test-python: build system-packages
	SGLANG_OMNI_TEST_ALL=1 $(BIN)/python -m pytest -m "not long" $(PARALLEL)

# Without them, eight thousand other tests would be collected, which takes half a minute.
LONG_FILES = $(shell grep -rl --include='test_*.py' 'mark\.long' tests | sort)
.PHONY: test-long
test-long: build clients $(DOCS_TOOLS)/.installed $(REFERENCE)/.installed build/kokoro/.installed system-packages ## the tests that take longest: Ray, several hosts, the wheel, pipelines over every relay
	SGLANG_OMNI_TEST_ALL=1 $(BIN)/python -m pytest -m long $(PARALLEL) $(LONG_FILES)

.PHONY: clients
clients: build/clients/.installed build/text-clients/.installed build/fuzz-http/.installed ## clients that tests drive servers with, in three environments of their own (1.2 GB)

# What mooncake's engine links to, and `ip`, with which tests make hosts of network namespaces. Recommended packages
# are left out: they are drivers for RDMA, and one of them makes NIXL crash when a process exits.
# coturn relays calls over WebRTC.
SYSTEM_PACKAGES := libibverbs1 libnuma1 libcurl4 iproute2 chromium coturn
.PHONY: system-packages
system-packages: ## the system's packages that the mooncake relay, tests of several hosts, of the page and of calls need
	@for name in libibverbs.so.1 libnuma.so.1 libcurl.so.4; do \
		$(PYTHON) -c "import ctypes; ctypes.CDLL('$$name')" 2>/dev/null || missing="$${missing:-} $$name"; \
	done; \
	for name in ip chromium turnserver; do command -v $$name >/dev/null || missing="$${missing:-} $$name"; done; \
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

# SGLang's kernels for GPUs are not among the packages of dev.lock, whose tests need no GPU.
GPU_VENV := .venv-gpu
GPU_PYTHON := $(GPU_VENV)/bin/python
.PHONY: build-gpu
build-gpu: $(GPU_VENV)/.core ## what a GPU needs, SGLang's kernels too, in an environment of its own, .venv-gpu (10 GB)

.PHONY: test-kernels
test-kernels: build-gpu ## SGLang's kernels are compiled for an H100, without one; some minutes
	$(GPU_PYTHON) -m pytest -m long tests/integration/test_sglang_kernels.py

.PHONY: prove-gpu
prove-gpu: build-gpu ## SGLang's kernels, its Triton ones too, are compiled for A100, L4, H100, B200 and RTX 5090; for a night
	$(GPU_PYTHON) tests/gpu_proofs.py $(KINDS)

.PHONY: prove-image
prove-image: build wheel ## the same for an H100 in the files of the CUDA image, made by the Dockerfile's steps in a chroot; root, debootstrap, 12 GB
	$(BIN)/python tests/image_tree.py

.PHONY: test-gpu
test-gpu: build-gpu ## what a GPU computes and shares, beside the CPU; without one, what can be told without it
	$(GPU_PYTHON) benches/gpu/run.py --only tests codec engine serving device --minutes 60

.PHONY: bench-gpu
bench-gpu: build-gpu ## the same, and times: predictor, codec, encoders, engine, two processes on one GPU; ten minutes
	$(GPU_PYTHON) benches/gpu/run.py

# For a machine with a GPU and torch, but without a network or this repository: Linux on x86-64, whatever this one is. torch
# brings numpy.
GPU_KIT := build/gpu-kit
KIT_PYTHON ?= 3.12
KIT_PLATFORMS := manylinux_2_28_x86_64 manylinux2014_x86_64
.PHONY: gpu-kit
gpu-kit: wheel $(BIN)/uv ## test-gpu and bench-gpu in a folder to carry: our wheel, what it needs beside torch, tests and benches
	rm -rf $(GPU_KIT) && mkdir -p $(GPU_KIT)/wheels
	$(BIN)/uv pip compile --quiet --no-header --no-annotate --no-emit-index-url --no-emit-package numpy \
		--python-version $(KIT_PYTHON) --python-platform x86_64-manylinux_2_28 \
		pyproject.toml requirements/gpu-tests.in -c requirements/dev.lock -o $(GPU_KIT)/requirements.txt
	$(BIN)/python -m pip download --quiet --dest $(GPU_KIT)/wheels --no-deps --only-binary :all: \
		--python-version $(KIT_PYTHON) $(KIT_PLATFORMS:%=--platform %) -r $(GPU_KIT)/requirements.txt
	cp dist/sgl_omni-*.whl $(GPU_KIT)/wheels/
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

.PHONY: walk
walk: build ## how many files a request, a payload and a chunk of sound go through; fails if more than agreed
	cd benches && ../$(BIN)/python walk.py $(BENCH)

.PHONY: bench-host
bench-host: build ## what the host adds to a step, beside SGLang's own server, on a tiny Llama; both engines; ten minutes
	cd benches && ../$(BIN)/python host.py $(BENCH)

.PHONY: bench-tokens
bench-tokens: build ## CPU of the API's processes and of a stage's event loop for each streamed token; two minutes
	cd benches && ../$(BIN)/python tokens.py $(BENCH)

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
soak-overload: build ## fourteen minutes: ten times what a server can do (OVERLOAD="--seconds 60 --dp-size 2", or any of a server's options)
	$(BIN)/python tests/soak/overload.py $(OVERLOAD)

SOAK_HOURS ?= 2
.PHONY: soak-server
soak-server: build ## two hours of a little traffic to a fleet whose stages are killed; plots of what its processes have in build/soak (SOAK_HOURS=0.3)
	$(BIN)/python tests/soak/server_soak.py --hours $(SOAK_HOURS) $(SOAK)

SOAK_MINUTES ?= 30
.PHONY: soak-router
soak-router: build ## half an hour of mixed traffic while replicas are killed, hung and revived (SOAK_MINUTES=5)
	$(BIN)/python tests/soak/router_soak.py --minutes $(SOAK_MINUTES)

SCHEDULES ?= 10000
# With HOURS, a third of them for each tier.
SHARE = $(if $(HOURS),--schedules 1000000000 --seconds $$(($(HOURS) * 1200)),--schedules $$(($(SCHEDULES) / $(1))))
.PHONY: campaign
campaign: build ## random requests and faults, in virtual time, on a pipeline's processes, and on a fleet; 20 minutes (HOURS=2, or SCHEDULES=2000)
	PYTHONHASHSEED=0 $(BIN)/python tests/campaign/run.py $(call SHARE,1) $(CAMPAIGN)
	$(BIN)/python tests/campaign/run_real.py processes $(call SHARE,30) $(CAMPAIGN)
	$(BIN)/python tests/campaign/run_real.py fleet $(call SHARE,200) $(CAMPAIGN)

FUZZ_SECONDS ?= 600
FUZZ_TARGETS = $(basename $(notdir $(wildcard rust/fuzz/fuzz_targets/*.rs)))
.PHONY: fuzz
fuzz: $(FUZZ) ## ten minutes of hostile bytes for all that parses them in Rust (FUZZ_SECONDS=60 for one, FUZZ_TARGETS=decode)
	for name in $(FUZZ_TARGETS); do \
		mkdir -p target/fuzz-corpus/$$name; \
		RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/fuzz $(FUZZ) run --fuzz-dir rust/fuzz $$name \
			target/fuzz-corpus/$$name rust/fuzz/corpus/$$name -- \
			-max_total_time=$$(($(FUZZ_SECONDS) / $(words $(FUZZ_TARGETS)))) \
			-malloc_limit_mb=64 -max_len=4096 -use_value_profile=1; \
	done

.PHONY: fuzz-http
fuzz-http: build build/fuzz-http/.installed ## ten minutes of requests made from the server's own OpenAPI description (FUZZ_SECONDS=60 FUZZ_SEED=2)
	FUZZ_SECONDS=$(FUZZ_SECONDS) FUZZ_SEED=$(or $(FUZZ_SEED),1) $(BIN)/python -m pytest -m long tests/e2e/test_generated_requests.py

.PHONY: loom
loom: ## every interleaving of tickets, slots and credits
	cargo test --release --locked --package sglang-omni-relay --features loom loom

SANITIZED_TEST := cargo test --locked --lib --target $$(rustc -vV | sed -n 's/^host: //p')
# Without leaks in the bindings' tests: an interpreter leaves some when it ends. Without the copy that has no memory
# for threads: AddressSanitizer has none either then.
SANITIZE := RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/sanitize RUSTFLAGS=-Zsanitizer=address $(SANITIZED_TEST)
.PHONY: sanitize
sanitize: sanitize-threads ## the Rust tests of the data plane under AddressSanitizer, and those of sanitize-threads; the first time takes minutes to compile
	$(SANITIZE) --package sglang-omni-payload --package sglang-omni-relay -- --skip a_copy_needs_no_threads
	ASAN_OPTIONS=detect_leaks=0 PYTHONMALLOC=malloc $(SANITIZE) --package sglang-omni-python

# The compiler's own std is linked without being instrumented: rust/tsan.supp lists what that hides.
.PHONY: sanitize-threads
sanitize-threads: ## data races in the tests of the relay and of the fault points, by ThreadSanitizer
	RUSTC_BOOTSTRAP=1 CARGO_TARGET_DIR=target/sanitize-threads TSAN_OPTIONS=suppressions=$(CURDIR)/rust/tsan.supp \
		RUSTFLAGS="-Zsanitizer=thread -Cunsafe-allow-abi-mismatch=sanitizer" $(SANITIZED_TEST) \
		--package sglang-omni-faults --package sglang-omni-relay --features sglang-omni-relay/tsan

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
wheel: $(MATURIN)/.installed ## the wheel, in dist/; installs maturin (11 MB) and no more
	rm -f dist/sgl_omni-*.whl
	$(MATURIN)/bin/maturin build --release --locked --out dist

$(MATURIN)/.installed: requirements/maturin.lock
	$(call preflight,linux bash python rust cc disk=1500)
	$(PYTHON) -m venv --clear $(MATURIN)
	$(MATURIN)/bin/python -m pip install --disable-pip-version-check --require-hashes -r $<
	touch $@

COMPILE := $(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-emit-index-url --no-header
.PHONY: lock
lock: $(BIN)/uv ## resolve requirements/*.in again
	$(COMPILE) --upgrade requirements/dev.in --override requirements/overrides.txt -o requirements/dev.lock
	$(COMPILE) --upgrade requirements/clients.in -o requirements/clients.lock
	$(COMPILE) --upgrade requirements/text-clients.in -o requirements/text-clients.lock
	$(COMPILE) --upgrade requirements/fuzz-http.in -o requirements/fuzz-http.lock
	$(COMPILE) --upgrade --no-deps requirements/qwen-tts.in -o requirements/qwen-tts.lock
	$(COMPILE) --upgrade --no-deps requirements/kokoro.in -o requirements/kokoro.lock
	$(MAKE) lock-demo

# With the versions of dev.lock.
.PHONY: lock-demo
lock-demo: $(BIN)/uv
	$(COMPILE) --universal -c requirements/dev.lock requirements/maturin.in -o requirements/maturin.lock
	$(COMPILE) --universal -c requirements/dev.lock requirements/demo.in \
		--override requirements/overrides.txt --override requirements/demo-xgrammar-overrides.txt \
		-o requirements/demo.lock
	$(COMPILE) --universal -c requirements/dev.lock requirements/demo-torch.in \
		--override requirements/demo-overrides.txt -o requirements/demo-torch.lock
	$(COMPILE) -c requirements/dev.lock --no-deps --torch-backend cpu requirements/demo-torch-cpu.in \
		-o requirements/demo-torch-cpu.lock

.PHONY: lock-deploy
lock-deploy: $(BIN)/uv ## resolve deploy.in, and what the CUDA image has, again
	$(BIN)/uv pip compile requirements/deploy.in --override requirements/deploy-overrides.txt --quiet --upgrade \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-header -o requirements/deploy.lock
	$(BIN)/uv pip compile pyproject.toml --extra sglang --quiet --upgrade \
		--python-version 3.11 --universal --generate-hashes --no-annotate --no-emit-index-url --no-header \
		-o requirements/cuda.lock
	$(BIN)/uv pip compile requirements/gpu-tests.in -c requirements/cuda.lock -c requirements/dev.lock --quiet --upgrade \
		--python-version 3.11 --universal --generate-hashes --no-annotate --no-emit-index-url --no-header \
		-o requirements/gpu-tests.lock

.PHONY: lock-audit
lock-audit: $(BIN)/uv ## resolve audit.in again
	$(COMPILE) --upgrade requirements/audit.in -o requirements/audit.lock

.PHONY: lock-docs
lock-docs: $(BIN)/uv ## resolve docs.in again
	$(BIN)/uv pip compile requirements/docs.in --quiet --upgrade \
		--python-version 3.11 --generate-hashes --no-emit-index-url --no-header -o requirements/docs.lock

.PHONY: clean
clean: ## remove everything that the other targets made
	rm -rf $(VENV) $(GPU_VENV) target dist build $(CORE)

.PHONY: build
build: $(PACKAGE) ## the environment and the Rust core

DEMO_MB := 3000
ALL_MB := 9000
GPU_MB := 12000

# uv is itself in the locks, so the later sync keeps it.
$(BIN)/uv:
	$(call preflight,linux bash python $(if $(WHEEL),,rust cc) disk=$(if $(filter %.demo,$(ENVIRONMENT)),$(DEMO_MB),$(ALL_MB)))
	$(call step,Set-up 1/3: a Python environment in $(VENV))
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --disable-pip-version-check uv==$(UV_VERSION)

# The locks are complete: nothing is resolved here, and every file's hash is checked.
$(VENV)/.demo: $(wildcard requirements/demo*.lock) | $(BIN)/uv
	$(call step,Set-up 2/3: Python packages for the demo)
	@sh scripts/demo_packages.sh $(abspath $(VENV))
	@touch $@

# A torch without CUDA would pass for the one of dev.lock, whose version is the same.
$(VENV)/.installed: requirements/dev.lock requirements/sglang.lock | $(BIN)/uv
	$(call preflight,$(if $(wildcard $@),,disk=$(ALL_MB)))
	$(call step,Set-up 2/3: Python packages for every model and for development: 3.7 GB to download and 7 GB on disk)
	@[ ! -e $(VENV)/.demo ] || $(BIN)/uv pip uninstall --python $(BIN)/python torch
	@rm -f $(VENV)/.demo
	@$(BIN)/uv pip sync --python $(BIN)/python --require-hashes requirements/dev.lock requirements/sglang.lock
	@touch $@

# The checkout's own Python files are used. maturin writes into the core's file, which processes that run have mapped: its
# name gets a copy first, and they keep the old file. Arguments: an environment, and where maturin is.
define install_core
	$(call step,Set-up 3/3: the Rust core; the first time takes some minutes)
	$(call preflight,rust cc)
	@[ ! -e $(CORE) ] || { cp $(CORE) $(CORE).copy && mv $(CORE).copy $(CORE); }
	@VIRTUAL_ENV=$(abspath $(1)) PATH=$(abspath $(BIN)):$$PATH $(2)/maturin develop --uv --release --locked
	@touch $@
endef
$(CORE): $(RUST_SOURCES) pyproject.toml $(ENVIRONMENT)
	@rm -f $(VENV)/.wheel-*
	$(call install_core,$(VENV),$(BIN))

$(GPU_VENV)/.core: $(RUST_SOURCES) pyproject.toml $(GPU_VENV)/.installed | $(MATURIN)/.installed
	$(call install_core,$(GPU_VENV),$(MATURIN)/bin)

$(GPU_VENV)/.installed: requirements/cuda.lock requirements/gpu-tests.lock | $(BIN)/uv
	$(call preflight,$(if $(wildcard $@),,disk=$(GPU_MB)))
	$(call step,Set-up 2/3: Python packages for GPUs: 4.5 GB to download and 10 GB on disk)
	@$(BIN)/uv venv --quiet --allow-existing --python $(BIN)/python $(GPU_VENV)
	@$(BIN)/uv pip sync --python $(GPU_PYTHON) --require-hashes $^
	@touch $@

# Another target must install the checkout again: so the core is made older than its environment.
ifneq ($(WHEEL),)
$(PACKAGE): $(WHEEL_FILE) $(ENVIRONMENT)
	$(call step,Set-up 3/3: $(WHEEL_FILE))
	@$(BIN)/uv pip install --python $(BIN)/python --no-deps --reinstall $(WHEEL_FILE)
	@rm -f $(VENV)/.wheel-*
	@touch $(ENVIRONMENT)
	@echo $(abspath $(WHEEL_FILE)) > $@
endif
