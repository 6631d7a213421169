# The two commands are `make run` and `make test`. ops/install.sh installs the packages.
PYTHON ?= python3
IMAGES ?= api worker-cpu
DEVICE ?= $(shell ops/device.sh)
NAME ?= serve
FAULTS ?= 210
FUZZ_TIMES ?= 20
MINUTES ?= 60
FROM ?=
SEED ?= 1
ENGINE ?=
MODEL ?=
SUITE ?=
VLLM ?=
SGLANG ?=
ELSEWHERE := not gpu and not media and not tiers and not nodes and not helm and not images and not soak
BIN := .venv/bin
UV_COMPILE := $(BIN)/uv pip compile pyproject.toml --universal --python-version 3.11 --quiet --upgrade --generate-hashes \
	--no-emit-index-url --no-emit-find-links --custom-compile-command "make lock"
FOR_CPU := $(if $(PIP_FIND_LINKS),--find-links $(PIP_FIND_LINKS),--torch-backend cpu) --excludes requirements/cpu-excludes.txt \
	--overrides requirements/cpu-overrides.txt --overrides requirements/torch-cpu.txt --no-emit-package torch

FOR_ENGINE := $(subst --universal,--python-platform x86_64-manylinux_2_34,$(UV_COMPILE)) -c .xylem/constraints.txt

.PHONY: help run test test-fast test-all check docs reference walk lines away chaos soak smoke upgrade media tiers nodes helm images gpu fuzz clients conformance templates readback bench models engines pictures lock lint-docker clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 14

run: $(if $(filter sglang,$(ENGINE)),.venv/.sglang,.venv/.$(DEVICE)) $(if $(filter shapes,$(MODEL)),.venv/.images) ## [DEVICE=cpu] [ENGINE=sglang] [MODEL=shapes]: install the packages and start the whole system with real vLLM, on a GPU if there is one, or with SGLang; with a model that sees and one that paints
	@$(BIN)/xylem up $(if $(ENGINE),--engine $(ENGINE)) $(if $(MODEL),--model $(MODEL))

test test-fast check: export PYTHONDONTWRITEBYTECODE = # so that a hundred processes compile their modules once
test: .venv/.dev .venv/.sglang .xylem/models/SmolLM2-135M-Instruct/config.json ## install the packages and run all tests
	@ops/test-servers.sh
	@$(BIN)/pytest -m alone $$(grep -rl mark.alone --include '*.py' tests); alone=$$?; \
	$(BIN)/pytest -m "not alone and $(ELSEWHERE)" --numprocesses 4 --dist loadfile --no-loadscope-reorder && exit $$alone

test-fast: .venv/.dev .venv/.sglang .xylem/models/SmolLM2-135M-Instruct/config.json ## those of `make test` that load no real engine
	@ops/test-servers.sh
	@$(BIN)/pytest -m alone $$(grep -rl mark.alone --include '*.py' tests); alone=$$?; \
	$(BIN)/pytest -m "not alone and not real_engine and $(ELSEWHERE)" --numprocesses 4 --dist loadfile --no-loadscope-reorder && exit $$alone

test-all: .venv/.dev ## `make test` and every group that it leaves out (media, tiers, nodes, helm, images, gpu), one after the other; a table, and one line of JSON (as root; two hours)
	@$(BIN)/python -m ops.test_all

check: .venv/.dev docs ## lint, types, import contracts, documentation, known vulnerabilities, unit tests: about a minute
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy
	@$(BIN)/lint-imports | tail -1
	@ops/audit.sh
	@$(BIN)/pytest -q tests/unit -m "not alone" --numprocesses 2 --hypothesis-profile quick

docs: .venv/.dev ## the documentation, into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

reference: .venv/.dev ## write the pages of docs/reference that are made from the code, and the keys in ops/acl/redis-acl.conf
	@$(BIN)/python -m ops.docs.reference

walk: .venv/.dev ## [BEFORE=commit]: the functions of ours that a chat passes on its way to the queue; a table, and one line of JSON (a minute)
	@$(BIN)/python -m ops.walk $(if $(BEFORE),--before $(BEFORE))

lines: .venv/.dev ## [BEFORE=commit]: lines of code by folder; a table, and one line of JSON
	@$(BIN)/python -m ops.lines $(if $(BEFORE),--before $(BEFORE))

chaos: .venv/.dev .xylem/models/SmolLM2-135M-Instruct/config.json ## [FAULTS=210 SEED=1]: faults under load; a table, and one line of JSON (about half an hour)
	@$(BIN)/python -m tests.chaos --faults $(FAULTS) --seed $(SEED)

away: .venv/.dev ## [AWAY_S=600]: Redis is away for ten minutes, behind a proxy that closes what it accepts, and in other ways; no process ends
	@AWAY_S=$(or $(AWAY_S),600) $(BIN)/pytest --timeout 1500 tests/acceptance/test_redis_away.py

soak: .venv/.dev .xylem/models/SmolLM2-135M-Instruct/config.json ## [MINUTES=60 SEED=1]: memory, descriptors and Redis keys under mixed load with faults; a table, a plot in .xylem/, and one line of JSON
	@$(BIN)/python -m tests.soak --minutes $(MINUTES) --seed $(SEED)

smoke: .venv/.dev .venv/.sglang .xylem/models/SmolLM2-135M-Instruct/config.json .xylem/models/whisper-tiny.en/config.json ## the smallest size of every benchmark, real engines included, and of chaos, soak and clients: before an issue is closed (at most 20 minutes)
	@$(BIN)/python -m ops.smoke

upgrade: .venv/.dev ## [FROM=commit]: a fleet of an older version is replaced process by process under load; a table, and one line of JSON (some minutes)
	@$(BIN)/python -m tests.chaos.upgrade $(if $(FROM),--from $(FROM))

media: .venv/.dev .venv/.sglang .xylem/models/whisper-tiny.en/config.json ## tests with real models of pictures and sound: some minutes
	@$(BIN)/pytest -m media tests

tiers: .venv/.dev .venv/.sglang .xylem/models/SmolLM2-135M-Instruct/config.json ## tests of real engines with KV in tiers: folders, buckets, full and broken ones (as root: it mounts a small disk)
	@$(BIN)/pytest -m tiers tests

nodes: .venv/.dev .venv/.sglang .xylem/models/SmolLM2-135M-Instruct/config.json ## tests of real engines over several hosts, each a network namespace (as root, with iproute2; twenty minutes)
	@$(BIN)/pytest -m nodes tests

helm: .venv/.dev ## lint and render the chart of ops/helm, and check what it makes: half a minute
	@ops/helm.sh
	@$(BIN)/pytest -q -m helm tests

images: .venv/.dev ## [IMAGES="api worker-cpu" BASE= SOURCE=]: build docker/ without a daemon, as root, list their packages, run them (CPU: 3 GB, ten minutes)
	@BASE=$(BASE) SOURCE=$(SOURCE) ops/images/build.sh $(IMAGES)
	@$(BIN)/pytest -m images tests

gpu: ## [MINUTES=15 REHEARSE=]: what only a GPU shows, of vLLM, SGLang and TensorRT-LLM as far as they are installed or can be: a table, and one line of JSON (fifteen minutes; REHEARSE=1: without a GPU, what engines for CPUs can show)
	@$(PYTHON) -m ops.gpu --minutes $(if $(filter command,$(origin MINUTES)),$(MINUTES),15) $(if $(REHEARSE),--rehearse)

fuzz: .venv/.dev ## [FUZZ_TIMES=20]: the odd inputs of `make test`, so many times as many, other ones each time (20: half an hour)
	@FUZZ_TIMES=$(FUZZ_TIMES) $(BIN)/pytest -q tests/fuzz --numprocesses 2 --timeout $$((120 * $(FUZZ_TIMES)))

clients: .venv/.dev ## unmodified clients from PyPI and npm against a mock engine: a table, and one line of JSON
	@$(BIN)/python -m ops.clients

conformance: .venv/.dev ## [SUITE=openai]: test suites of others against a mock engine: the clients' own, LangChain's, types and documents; a table, and one line of JSON (ten minutes)
	@$(BIN)/python -m ops.conformance $(if $(SUITE),--only $(SUITE))

templates: .venv/.dev ## the chat templates of two packages, with the same conversations, as the API and as transformers render them: what differs, and one line of JSON (two minutes)
	@$(BIN)/python -m ops.templates

readback: .venv/.dev ## the calls that the chat templates of four packages write, read by the dialect that is guessed for each, cut at each place: what differs, and one line of JSON (three minutes)
	@$(BIN)/python -m ops.templates.readback

bench: .venv/.dev .xylem/models/SmolLM2-135M-Instruct/config.json ## NAME=serve [QUICK=1]: measure, print a table and one line of JSON
	@$(BIN)/python -m ops.bench.$(NAME)

models: .venv/.dev .venv/.sglang .xylem/models/SmolLM2-135M-Instruct/config.json ## [JOBS=1 MISSING=]: tiny models of today's architectures on the real engines: lines of JSON, and docs/reference/models.md (an hour on two idle cores; MISSING=1 goes on with a run that was broken off)
	@$(BIN)/python -m ops.models $(if $(JOBS),--jobs $(JOBS)) $(if $(MISSING),--missing)

engines: .venv/.dev .xylem/models/SmolLM2-135M-Instruct/config.json ## VLLM=0.31.0 [SGLANG=0.5.23]: what another version of an engine has, read from its wheel, and what the adapters don't know of it; a CPU build is run, too (two minutes)
	@$(BIN)/python -m ops.engines $(if $(VLLM),--vllm $(VLLM)) $(if $(SGLANG),--sglang $(SGLANG))

pictures: .venv/.dev ## the guide's pictures of the console, from Chromium and a simulated fleet, and README's of a terminal: two minutes
	@ops/test-servers.sh
	@$(BIN)/python -m ops.docs.console_pictures
	@$(BIN)/python -m ops.docs.terminal_picture

lock: .venv/.dev ## resolve requirements/*.txt anew from pyproject.toml
	grep -o 'torch==[^"]*+cpu' pyproject.toml >requirements/torch-cpu.txt # its hashes would be of one platform's build
	$(UV_COMPILE) --extra cpu $(FOR_CPU) -c requirements/images.in -o requirements/cpu.txt
	$(UV_COMPILE) --extra grpc --extra postgresql -c requirements/cpu.txt -o requirements/base.txt
	$(UV_COMPILE) --extra cpu --extra dev $(FOR_CPU) -c requirements/cpu.txt -o requirements/dev.txt
	sed -n '/^uv==/,/# via/p' requirements/dev.txt >requirements/uv.txt
	$(subst --universal,--python-platform x86_64-manylinux_2_28,$(UV_COMPILE)) --extra gpu \
		-c requirements/base.txt -o requirements/gpu.txt
	mkdir -p .xylem && grep -E '^[a-z0-9]' requirements/base.txt | sed 's: *.$$::' | grep -vE '^(fsspec|huggingface-hub|llguidance|protobuf|tokenizers)==' \
		>.xylem/constraints.txt # these the engines pin themselves
	$(FOR_ENGINE) --extra sglang -o requirements/sglang.txt
	$(subst 3.11,3.12,$(FOR_ENGINE)) --extra trtllm --overrides requirements/trtllm-overrides.txt -o requirements/trtllm.txt
	for list in clients examples conformance; do \
		$(subst pyproject.toml,requirements/$$list.in,$(UV_COMPILE)) -o requirements/$$list.txt || exit; \
	done
	for list in sglang-cpu images; do \
		$(subst pyproject.toml,requirements/$$list.in,$(UV_COMPILE)) --no-deps -o requirements/$$list.txt || exit; \
	done

lint-docker: .venv/.dev ## check docker/ and ops/observability/: the Dockerfiles, and the compose files against their schema
	@$(BIN)/hadolint --ignore DL3008 --failure-threshold warning docker/*.Dockerfile # Debian keeps no old versions
	@$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose.yaml ops/observability/compose.yaml

clean: ## remove everything installed and built, models too
	@! mountpoint -q .xylem/images/storage/overlay 2>/dev/null || umount .xylem/images/storage/overlay # buildah leaves it
	rm -rf .venv .xylem site .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

.venv/.cpu: requirements/cpu.txt requirements/torch-cpu.txt pyproject.toml
	@PYTHON=$(PYTHON) ops/install.sh cpu

.venv/.gpu: requirements/gpu.txt pyproject.toml
	@PYTHON=$(PYTHON) ops/install.sh gpu

.venv/.dev: requirements/dev.txt requirements/torch-cpu.txt pyproject.toml
	@PYTHON=$(PYTHON) ops/install.sh dev

.venv/.sglang: requirements/sglang-cpu.txt ops/sglang_cpu/pyproject.toml | .venv/.cpu
	@ops/install.sh sglang

.venv/.images: requirements/images.txt | .venv/.$(DEVICE)
	@ops/install.sh images

.xylem/models/SmolLM2-135M-Instruct/config.json: | .venv/.dev
	@$(BIN)/python -m app.demo_models.smollm2 $(@D)

.xylem/models/whisper-tiny.en/config.json: | .venv/.dev
	@$(BIN)/python -m app.demo_models.whisper $(@D)

media: .xylem/models/SmolLM2-135M-Instruct/config.json

.xylem/models/shapes/config.json: .xylem/models/SmolLM2-135M-Instruct/config.json app/demo_models/shapes/eyes.safetensors
	@rm -rf $(@D)
	@$(BIN)/python -m app.demo_models.shapes $(@D) seeing

.xylem/models/shapes-painter/model_index.json: app/demo_models/shapes/painter.safetensors | .venv/.dev
	@rm -rf $(@D)
	@$(BIN)/python -m app.demo_models.shapes $(@D) painting
