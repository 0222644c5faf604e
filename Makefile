# `make help` lists what there is. Everything that is downloaded or built lands in .venv and .cache.
PYTHON ?= python3
PY := .venv/bin/python
export PATH := $(CURDIR)/.venv/bin:$(PATH)
# uv leaves it to Python to compile modules, and who forbids Python to keep them waits four seconds at each start.
unexport PYTHONDONTWRITEBYTECODE
MINIO_MODULE := github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c

.DEFAULT_GOAL := help
BEGAN := $(shell date +%s)
.PHONY: help setup setup-tests fast-start kafka minio up down status run test pool check lint format unit verify cases chaos long mutants bench clean

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

.venv/.ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "Tidemark needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version). Install one" \
	       "(Debian, Ubuntu: apt-get install python3 python3-venv) or say which: make PYTHON=python3.12 …"; exit 1; }
	@echo "Making the Python environment in .venv (once, about a minute) …"
	@$(PYTHON) -m venv .venv
	@.venv/bin/pip install --quiet --disable-pip-version-check "$$(awk '/^uv==/ {print $$1}' requirements.txt)"
# uv installs in a third of pip's time, but does not read pip.conf: where only that leads to the packages, pip installs.
	@VIRTUAL_ENV=.venv .venv/bin/uv pip install --quiet -r requirements.txt || \
	  .venv/bin/pip install --quiet --disable-pip-version-check -r requirements.txt
	@.venv/bin/pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

setup: .venv/.ready ## the Python environment and the jars
	@$(PY) -m infra.setup_jars

fast-start: setup ## keep Java's classes in an archive: drivers then start a third sooner
	@$(PY) -m infra.setup_classes

# Side by side: Go compiles MinIO while packages and jars are fetched.
setup-tests: ## and what the tests run: Kafka, and MinIO where Go can build it
	@$(MAKE) --no-print-directory -j3 minio fast-start kafka

kafka: setup
	@$(PY) -m infra.setup_jars --kafka

minio:
	@if [ ! -x .cache/bin/minio ] && ! command -v minio >/dev/null; then \
	  if command -v go >/dev/null; then \
	    echo "Building MinIO into .cache/bin (once, two to three minutes) …"; \
	    GOBIN="$(CURDIR)/.cache/bin" go install $(MINIO_MODULE); \
	  else echo "LEFT OUT: the tests on MinIO; they need Go or a minio binary on PATH"; fi; fi

up: setup ## Airflow, a supervisor and a simulated shop, streams deployed: README's first command
	@tidemark up --began $(BEGAN)

down: .venv/.ready ## end what `make up` has started; streams finish their batches
	@tidemark down

status: .venv/.ready ## what runs, and how the streams fare
	@tidemark status --machine

run: setup ## a simulated shop, live for two minutes in the terminal, without Airflow
	@tidemark demo

# Side by side: to look at the types takes one processor half a minute.
test: setup-tests ## lint, types and all tests: README's second command
	@$(MAKE) --no-print-directory -j2 lint pool

# One pool of three: who waits for Airflow or for a driver leaves the processors to those that compute (tests/support/workers.py).
pool: .venv/.ready
	@$(PY) -m pytest tests -q -m "not outside_data and not long" -n 3 --dist loadfile --no-loadscope-reorder

check: lint unit ## what to run before each commit: format, lint, types, layers, unit tests

lint: .venv/.ready ## format, lint, types, layers
	@ruff format --check --quiet .
	@ruff check --quiet .
	@mypy
	@PYTHONPATH=dags lint-imports --no-cache | tail -n 9
	@$(PY) -m infra.lint_structure

format: .venv/.ready ## format the code
	@ruff format .
	@ruff check --fix .

unit: .venv/.ready ## the tests that need no JVM
	@$(PY) -m pytest tests/unit -q -n 2 --dist loadfile

verify: setup ## DATA=folder CASES=folder: the tests that read data from outside; SEEDS=3: keyed pipelines on three more streams
	@TIDEMARK_DATA="$(DATA)" TIDEMARK_CASES="$(CASES)" TIDEMARK_SHUFFLE_PARTITIONS=1 \
	  $(PY) -m pytest tests/spark -m outside_data -n 2 --dist loadfile
	@for seed in $$(seq $(or $(SEEDS),0)); do \
	  TIDEMARK_SEED=$$((100 + seed)) $(PY) -m pytest tests/spark/test_keyed_pipelines.py -q || exit 1; done

cases: setup ## FILE=cases.json: run window cases of other engines
	@$(PY) -m tests.cases "$(FILE)"

chaos: setup-tests ## N=200 SEED=1 LAKE=folder|minio: kill drivers, compare with a calm run; OF=pipelines: of the registered ones; FAULTS=200: other faults
	@$(PY) -m $(if $(FAULTS),tests.chaos.faults --rounds $(FAULTS),$(if $(OF),tests.chaos.each_pipeline,tests.chaos.kills --kills $(or $(N),200))) --lake $(or $(LAKE),$(if $(FAULTS),minio,folder)) --seed $(or $(SEED),1)

long: setup-tests ## the variants of tests that take minutes
	@$(PY) -m pytest tests -m long

mutants: setup-tests ## NAMES="…": make small faults, one after the other; each must be found by a test
	@$(PY) -m tests.mutants $(NAMES)

bench: setup-tests ## the measurements of benchmarks/README.md (three quarters of an hour)
	@$(PY) -m benchmarks.late_split
	@$(PY) -m benchmarks.files_to_windows

clean: ## remove the environment and all caches
	rm -rf .venv .cache
