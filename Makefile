# Everything that a fresh machine needs: `make dev` runs Bellringer, `make test` checks it.
PORT ?=
JOBS ?= 3
# Prefer the system's Python: it is built with optimizations, and uses a sixth less CPU than one that a version manager compiled.
IS_SUITABLE := 'import ensurepip, sys; sys.exit(sys.version_info < (3, 11))'
PYTHON ?= $(shell /usr/bin/python3 -c $(IS_SUITABLE) 2>/dev/null && echo /usr/bin/python3 || echo python3)
BIN := .venv/bin
CODE := src tests bench tools
UV := $(BIN)/uv
UV_FLAGS := --quiet --system-certs

# The tests start hundreds of processes; with this variable each of them would compile every module again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help env dev services services-down check format browser postgres docs wheel test test-stock test-pgbouncer chaos restore-drill alert-drill deploy-check image-check bench lock clean

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

dev: env ## Run Bellringer with its demo on http://127.0.0.1:8700, or the next free port (PORT= overrides)
	@$(BIN)/bellringer dev --demo $(if $(PORT),--port $(PORT))

services: env ## Start a real PostgreSQL, Redis, etcd and Kafka under .services, and wait until they respond
	@$(BIN)/python -m tools.servers up

services-down: env ## Stop these servers; their programs and data are kept
	@$(BIN)/python -m tools.servers down

check: env ## Check format, lint, types and the layers
	@$(BIN)/ruff format --check --quiet $(CODE)
	@$(BIN)/ruff check --quiet $(CODE)
	@$(BIN)/mypy
	@$(BIN)/lint-imports

format: env ## Format the code and apply the fixes of ruff
	@$(BIN)/ruff format $(CODE)
	@$(BIN)/ruff check --fix $(CODE)

# The console's tests drive a real Chromium. Without one they are skipped; with CI=true they fail.
browser:
	@command -v chromium >/dev/null || command -v chromium-browser >/dev/null || command -v google-chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  echo "  installing Chromium for the console's tests …" && apt-get -qq update >/dev/null && \
	  DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends chromium >/dev/null; } || \
	  echo "  there is no Chromium: the console's tests need one (Debian: apt-get install chromium)"

# Some tests also run on the distribution's PostgreSQL. Only its programs are used: no cluster is created or started.
# Without them these tests are skipped; with CI=true they fail.
LLVM := $(wildcard /usr/lib/postgresql/*/lib/llvmjit.so)
APT_INSTALL := DEBIAN_FRONTEND=noninteractive apt-get -qq install --yes --no-install-recommends
postgres:
	@test -n "$(LLVM)" || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
	  echo "  installing PostgreSQL for the tests on a stock server …" && apt-get -qq update >/dev/null && \
	  mkdir -p /etc/postgresql-common && \
	  { test -e /etc/postgresql-common/createcluster.conf || echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf; } && \
	  $(APT_INSTALL) postgresql $$(apt-cache depends --recurse --no-suggests postgresql | grep -oE 'postgresql-[0-9]+-jit' | sort -u) >/dev/null; } || \
	  echo "  there is no PostgreSQL with LLVM: tests on a stock server need one (Debian: apt-get install postgresql)"

docs: env ## Build the documentation into the package; `bellringer dev` serves it below /guide
	@$(BIN)/python -m tools.reference
	@$(BIN)/python -m tools.diagrams
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "  built the guide: open it with \`make dev\` on http://127.0.0.1:8700/guide/"

wheel: docs ## Build the wheel with the documentation into dist
	@$(BIN)/python -m hatchling build --target wheel

PYTEST := $(BIN)/pytest --numprocesses $(JOBS) --dist loadfile --no-loadscope-reorder
test: check browser postgres ## Run every check and every test, in three processes, because most tests wait (JOBS= overrides)
	@rm -f .pytest_cache/v/cache/lastfailed
	@$(PYTEST) || { test $$? = 1 && $(BIN)/python -m tools.retry_failed; }

test-stock: env postgres ## Run only the tests on the distribution's PostgreSQL, as a role without privileges
	@$(PYTEST) -k stock

# Left out: tests of what only a session of its own has (kept plans, notifications in milliseconds, session locks).
POOLED := tests/integration/engine tests/integration/store tests/integration/api tests/integration/worker
POOLED += tests/integration/sdk tests/integration/workflow
test-pgbouncer: env ## Run the core suite through PgBouncer in transaction mode
	@BELLRINGER_TEST_POOLER=pgbouncer $(PYTEST) $(POOLED)

SEEDS ?= 10
SECONDS ?= 180
chaos: env ## Run SEEDS=10 random fault histories of SECONDS=180 each, and the SIGSTOP drill; SEED= repeats one
	@$(BIN)/python -m tests.chaos --seeds $(SEEDS) --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

deploy-check: env ## Render and validate the Helm chart with Helm and kubeconform (needs Go), and lint the Dockerfile
	@$(BIN)/python -m tools.deploy_check

image-check: env ## Execute the Dockerfile in a Debian root (needs root), and run its entry point as another user
	@$(BIN)/python -m tools.image_root

alert-drill: env ## Inject the fault of each alert into a cluster with a real Prometheus; takes about ten minutes
	@$(BIN)/python -m bench alerts

restore-drill: env postgres ## Restore a loaded cluster's database from a base backup and WAL; nothing accepted may be missing
	@$(BIN)/python -m bench restore

ROUNDS ?= 3
bench: env postgres ## Run Bellringer and its peers through the same scenarios (ROUNDS=3, ONLY=bellringer,pgqueuer,S1)
	@$(BIN)/python -m bench.peers run --rounds $(ROUNDS) $(if $(ONLY),--only $(ONLY))

# The image has the same versions as the tests, without the embedded PostgreSQL and the tools of developers.
IMAGE_LOCK := --no-header --no-annotate --generate-hashes --universal --python-version 3.11 --constraint requirements.lock
lock: env ## Regenerate the lock files from pyproject.toml
	@echo "uv==0.13.7" | $(UV) pip compile $(UV_FLAGS) --no-header --generate-hashes --universal --python-version 3.11 - --output-file requirements-uv.lock
	@$(UV) pip compile $(UV_FLAGS) --no-header --generate-hashes --universal --python-version 3.11 --all-extras --group dev pyproject.toml --output-file requirements.lock
	@printf 'uv\nhatchling\n' | $(UV) pip compile $(UV_FLAGS) $(IMAGE_LOCK) --constraint requirements-uv.lock - --output-file deploy/docker/build.lock
	@$(UV) pip compile $(UV_FLAGS) $(IMAGE_LOCK) --extra fast --extra kafka --extra redis --extra tracing --extra archive pyproject.toml --output-file deploy/docker/requirements.lock

clean: ## Remove the environment and caches (not your data in .bellringer and .services)
	@rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis .bench .image dist
