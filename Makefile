# Everything a person needs on a fresh machine: `make dev` to run it, `make test` to prove it.
PORT ?= 8700
JOBS ?= 2
# The system's Python, where it will do: it was built with optimisations, unlike what version managers compile, and needs a sixth
# less of a processor for the same.
WILL_DO := 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell /usr/bin/python3 -c $(WILL_DO) 2>/dev/null && echo /usr/bin/python3 || echo python3)
BIN := .venv/bin
UV := $(BIN)/uv
UV_FLAGS := --quiet --system-certs

# The tests start hundreds of processes, and with this each of them compiles every module that it imports.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env dev services services-down check format browser test lock clean

help: ## Print this help
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-14s %s\n", $$1, $$2}'

env: .venv/.ready ## Make the environment in .venv from the lock file

.venv/.ready: requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Bellringer needs Python 3.11 or newer: make env PYTHON=/path/to/python3"; exit 1; }
	@echo "  making the environment in .venv with $(PYTHON) …"
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes --requirement requirements-uv.lock
	@$(UV) pip install $(UV_FLAGS) --python $(BIN)/python --require-hashes --requirement requirements.lock
	@$(UV) pip install $(UV_FLAGS) --python $(BIN)/python --no-deps --no-build-isolation --editable .
	@touch $@

dev: env ## Run Bellringer with its demo on http://127.0.0.1:8700 (PORT= overrides); Ctrl-C stops it
	@$(BIN)/bellringer dev --demo --port $(PORT)

services: env ## Start a real PostgreSQL, Redis, etcd and Kafka under .services, and come back when they answer
	@$(BIN)/bellringer services up

services-down: env ## Stop them; their programs and data are kept
	@$(BIN)/bellringer services down

check: env ## Check format, lint, types and the layers
	@$(BIN)/ruff format --check --quiet src tests
	@$(BIN)/ruff check --quiet src tests
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: env ## Format the code and mend what ruff can mend
	@$(BIN)/ruff format src tests
	@$(BIN)/ruff check --fix src tests

# The console's tests drive a real Chromium. Without one they are skipped, and say so; where CI=true they fail.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  echo "  installing Chromium for the console's tests …" && apt-get -qq update >/dev/null && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium >/dev/null; } || \
	  echo "  there is no Chromium: the console's tests need one (Debian: apt-get install chromium)"

test: check browser ## Run every check and every test, in two processes (JOBS= overrides)
	@$(BIN)/pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder

lock: env ## Make the lock files anew from pyproject.toml
	@echo "uv==0.13.7" | $(UV) pip compile $(UV_FLAGS) --no-header --generate-hashes --universal --python-version 3.11 - --output-file requirements-uv.lock
	@$(UV) pip compile $(UV_FLAGS) --no-header --generate-hashes --universal --python-version 3.11 --all-extras --group dev pyproject.toml --output-file requirements.lock

clean: ## Remove the environment and caches (not your data in .bellringer and .services)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis dist
