# Two commands matter: `make demo` and `make test`. Both work from a bare clone with Python >= 3.11, git and make.

PYTHON ?= python3
SERVE ?= 1
PORT ?= 8000
AGAIN ?=
# The version that the locks were made for. On a machine with an accelerator, install another build of it first.
TORCH ?= torch==2.13.0
# DeepSpeed is built from source without isolation, since it looks for the installed torch.
BUILD := setuptools==80.9.0 wheel==0.45.1

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
RUNNER_INSTALLED := $(VENV)/.installed-run
# The harness also runs with older libraries: those that optimum-neuron pins, and those of common GPU images. Each list names its torch.
STACKS := $(patsubst requirements-stack-%.txt,%,$(wildcard requirements-stack-*.txt))
PIP := $(BIN)/python -m pip --disable-pip-version-check
# Without --no-compile, pip compiles every module of every library on one core; Python compiles those that are imported.
CODE := schema harness collector site tests benchmarks
# One process more than there are cores, whole test files each, in their order: slow ones first (tests/conftest.py). Tiny models are slower on several threads when other work runs.
PYTEST := -m pytest --numprocesses auto --dist loadfile --no-loadscope-reorder

.PHONY: help setup setup-run demo test test-all check tests wheel-test rehearse-pr rehearse-release test-stacks browser format schema support mutation-score check-sources campaign structure lock clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 20

setup: $(INSTALLED) ## Create .venv and install everything: runner, database, site, tests.

setup-run: $(RUNNER_INSTALLED) ## Create .venv and install the runner only: doctor, plan, run, studies, validate.

define python_check
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python >= 3.11 is required, this is {sys.version.split()[0]}; try make PYTHON=python3.12")'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(PIP) install $(TORCH)
	@$(PIP) install --quiet $(BUILD) hatchling editables
endef

$(INSTALLED): requirements.lock pyproject.toml
	@echo "setup: creating $(VENV) and installing; torch is large, the first time takes minutes"
	$(python_check)
	@DS_BUILD_OPS=0 $(PIP) install --quiet --no-compile --no-deps --no-build-isolation --require-hashes -r requirements.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $(INSTALLED) $(RUNNER_INSTALLED)

$(RUNNER_INSTALLED): requirements-run.lock pyproject.toml
	@echo "setup-run: creating $(VENV) and installing the runner; torch is large, the first time takes minutes"
	$(python_check)
	@$(PIP) install --quiet --no-compile --no-deps --require-hashes -r requirements-run.lock
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $(RUNNER_INSTALLED)

demo: setup ## Fine-tune three small models, collect, build the site and serve it (SERVE=0 only builds, PORT=8001, AGAIN=1 measures again).
	@PYTHON=$(BIN)/python SERVE=$(SERVE) PORT=$(PORT) AGAIN=$(AGAIN) .ci/demo

test: setup browser ## Run lint, types and all tests but those that run nightly. The checks take one core and run beside the tests.
	@$(MAKE) --no-print-directory --jobs=2 check tests MARKS="$(MARKS)"

test-all: MARKS := -m ''
test-all: test test-stacks ## Run all tests, also the nightly ones, those of the harness also with older libraries.

check: setup ## Run lint, format, type, import and workflow checks.
	$(BIN)/ruff check $(CODE)
	$(BIN)/ruff format --check $(CODE)
	$(BIN)/mypy schema/tunemark harness/tunemark collector/tunemark site/tunemark
	$(BIN)/lint-imports --no-cache
	$(BIN)/zizmor --offline --quiet .github/workflows action.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-actions action.yml
	$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml

tests: setup
	OMP_NUM_THREADS=1 $(BIN)/python $(PYTEST) $(MARKS)

test-stacks: $(STACKS:%=test-stack-%) ## Run the harness tests with older libraries; test-stack-neuron or test-stack-torch-2.11 is one of them.

test-stack-%: .venv-stack-%/.installed
	OMP_NUM_THREADS=1 .venv-stack-$*/bin/python $(PYTEST) tests/harness -m 'not process and not nightly'

.PRECIOUS: .venv-stack-%/.installed
.venv-stack-%/.installed: requirements-stack-%.txt pyproject.toml
	@echo "test-stack-$*: creating .venv-stack-$* and installing"
	@test -x .venv-stack-$*/bin/python || $(PYTHON) -m venv .venv-stack-$*
	@.venv-stack-$*/bin/python -c 'import torch' 2>/dev/null || .venv-stack-$*/bin/python -m pip --disable-pip-version-check install --quiet $$(sed -n 's/^# \(torch==.*\)/\1/p' $<)
	@.venv-stack-$*/bin/python -m pip --disable-pip-version-check install --quiet --no-deps -r $<
	@.venv-stack-$*/bin/python -m pip --disable-pip-version-check install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

wheel-test: setup ## Build the sdist and the wheel, and use the wheel in an empty folder with a new environment (also part of the tests).
	$(BIN)/python -m pytest -q tests/end_to_end/test_wheel.py

rehearse-release: setup ## Build and try what a release publishes: distributions, an index, data, checksums; say which steps cannot run here.
	@.ci/release rehearse

rehearse-pr: setup ## Play a good, a bad and a hostile pull request, and print what each workflow says.
	@$(BIN)/python benchmarks/rehearse_pull_requests.py

# The browser test needs Chromium. Debian's package is installed where possible; otherwise the test is skipped with the reason.
browser:
	@command -v chromium >/dev/null 2>&1 || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then \
	    echo "browser: installing chromium"; apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends chromium >/dev/null; \
	  else echo "browser: chromium is missing, so its test is skipped; install it with your package manager"; fi; }

format: setup ## Format the code.
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

schema: setup ## Write the JSON Schema files after a change of the records.
	$(BIN)/python -c "from pathlib import Path; from tunemark.schema.records.reading import schema_files; \
	  [Path('schema/json', name).write_text(text) for name, text in schema_files().items()]"

support: setup ## Write data/support.json from the capability table.
	$(BIN)/python -m tunemark.harness.plan.resolve

campaign: setup ## Run the campaign of benchmarks/gpu_campaign.toml on this machine (STAGE=lora, REHEARSE=1 uses tiny cards).
	$(BIN)/python benchmarks/gpu_campaign.py $(STAGE) $(if $(REHEARSE),--rehearse --minutes 60)

structure: ## Print the structure of the code: modules, lines, import chains, single-importer modules.
	$(PYTHON) benchmarks/structure.py

check-sources: setup ## Look up each published figure in the clones of its source (SOURCES=folder with the clones).
	$(BIN)/python benchmarks/check_sources.py $(SOURCES)

mutation-score: setup ## Examine the gate with corrupted and honest submissions, hostile texts, files and facts (3 minutes on 2 cores).
	$(BIN)/python benchmarks/gate_mutation_score.py --missed --out data/evaluations/gate.csv

# torch is left out: its build depends on the machine, and so do the packages that only torch needs.
lock: ## Resolve both locks again (needs uv).
	@mkdir -p build && echo torch > build/not-locked.txt
	for lock in "requirements-run.lock --extra run" "requirements.lock --extra dev"; do set -- $$lock; \
	  env -u PIP_FIND_LINKS -u UV_FIND_LINKS PIP_CONFIG_FILE=/dev/null uv pip compile pyproject.toml $$2 $$3 --universal --generate-hashes \
	    --no-header --no-annotate --excludes build/not-locked.txt --quiet --output-file $$1 >/dev/null; done

clean: ## Remove everything that can be rebuilt.
	rm -rf build $(VENV) .venv-stack-* .mypy_cache .ruff_cache .pytest_cache .hypothesis
