# Two commands matter: `make demo` and `make test`. Both work from a bare clone with Python >= 3.11, git and make.

PYTHON ?= python3
SERVE ?= 1
PORT ?= 8000
AGAIN ?=
# The version the lock was made for; where a machine has an accelerator, another build of it may be installed beforehand.
TORCH ?= torch==2.13.0
# DeepSpeed is built from source, without isolation since it looks at the torch that is there.
BUILD := setuptools==80.9.0 wheel==0.45.1

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# The harness also runs on the Python side of the Neuron stack, which pins older libraries.
NEURON_VENV := .venv-neuron-stack
NEURON_BIN := $(NEURON_VENV)/bin
NEURON_INSTALLED := $(NEURON_VENV)/.installed
OPTIMUM_NEURON := optimum-neuron==0.4.5
PIP := $(BIN)/python -m pip --disable-pip-version-check
CODE := schema harness collector site tests
# A process per core, whole files each; tiny models are slower on several threads where other work runs beside.
PYTEST := -m pytest --numprocesses auto --dist loadfile

.PHONY: help setup demo test check tests test-neuron-stack neuron-api browser format schema support lock clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: $(INSTALLED) ## Create .venv and install everything from the lock.

$(INSTALLED): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python >= 3.11 is needed, this is {sys.version.split()[0]}; say make PYTHON=python3.12")'
	@echo "setup: creating $(VENV) and installing; torch is large, the first time takes minutes"
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) install --quiet $(TORCH)
	@$(PIP) install --quiet $(BUILD)
	@DS_BUILD_OPS=0 $(PIP) install --quiet --no-deps --no-build-isolation --require-hashes -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $(INSTALLED)

demo: setup ## Fine-tune three small models, collect, build the site and serve it (SERVE=0 only builds, PORT=8001, AGAIN=1 measures anew).
	@$(BIN)/tunemark demo $(if $(filter 0,$(SERVE)),--no-serve,--serve --port $(PORT)) $(if $(AGAIN),--again)

test: setup browser check tests test-neuron-stack ## Lint, types and the whole test suite, the harness' also with older libraries.

check: setup ## Lint, formatting, types, import rules.
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy schema/tunemark harness/tunemark collector/tunemark site/tunemark
	$(BIN)/lint-imports --no-cache

tests: setup
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST)

test-neuron-stack: $(NEURON_INSTALLED) ## The harness' tests with the libraries that optimum-neuron pins.
	OMP_NUM_THREADS=1 $(NEURON_BIN)/python $(PYTEST) tests/harness

$(NEURON_INSTALLED): requirements-neuron-stack.txt pyproject.toml
	@echo "test-neuron-stack: creating $(NEURON_VENV) and installing"
	@test -x $(NEURON_BIN)/python || $(PYTHON) -m venv $(NEURON_VENV)
	@$(NEURON_BIN)/python -c 'import torch' 2>/dev/null || $(NEURON_BIN)/python -m pip --disable-pip-version-check install --quiet $(TORCH)
	@$(NEURON_BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps -r requirements-neuron-stack.txt
	@$(NEURON_BIN)/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $(NEURON_INSTALLED)

neuron-api: setup ## Read optimum-neuron's API anew, from its wheel, for the contract tests.
	@$(PIP) download --quiet --no-deps --dest build/neuron-api $(OPTIMUM_NEURON)
	@$(BIN)/python tests/harness/neuron_api.py build/neuron-api/*.whl > tests/harness/data/optimum_neuron_api.json

# The browser test needs Chromium. Debian's package is installed where that is possible; elsewhere the test says why it is skipped.
browser:
	@command -v chromium >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    echo "browser: installing chromium"; apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; \
	  else echo "browser: no chromium here, its test will be skipped; install it with your package manager"; fi; }

format: setup ## Format the code.
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

schema: setup ## Write the JSON Schema files after a change of the records.
	$(BIN)/tunemark schema --write

support: setup ## Write data/support.json after a change of what device families can do.
	$(BIN)/python -m tunemark.harness.plan.capabilities

# Without find-links and extra indexes, so that no path or host of a machine gets into the lock.
lock: ## Resolve the lock anew (needs uv).
	env -u PIP_FIND_LINKS -u UV_FIND_LINKS PIP_CONFIG_FILE=/dev/null uv --no-config export --no-emit-project --all-groups \
	  --prune torch --no-header --no-annotate --output-file requirements.lock >/dev/null

clean: ## Remove what can be rebuilt.
	rm -rf build $(VENV) $(NEURON_VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis
