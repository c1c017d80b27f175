# Everything a person does with this repository. `make` alone lists it.
#
# Needs python3 (3.11 or newer), python3-venv and make; uv is used where it is installed, as it is faster. Nothing is written outside this folder
# (and pip's cache).

PYTHON ?= python3
PORT ?= 8000
HOST ?= 127.0.0.1
DATA ?= data
DEMO ?= small
TESTS ?=
# One more than there are processors: a third of the time of a test run is spent waiting for servers, Slurm's and browsers'.
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 2 ] || n=2; [ $$n -lt 8 ] || n=8; echo $$((n + 1)))

# An environment is ready when it holds the stamp of these locks and this Python: a change of branch that changes neither costs nothing.
KEY := $(shell { $(PYTHON) --version; cat requirements.lock requirements-dev.lock pyproject.toml; } 2>&1 | sha256sum | cut -c1-16)
BIN := .venv/bin
# Tools that read the settings must not make a data folder in passing.
TOOL_ENV := GPUFLEET_DATA_DIR=build/tools
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder --instafail --durations 25 --durations-min 5
# What the long tests draw afresh is drawn from the tree that they test: new for every commit, the same when one commit is tested again.
SOAK_SEED ?= $(shell printf '%d' "0x$$(git rev-parse --quiet --verify 'HEAD^{tree}' 2>/dev/null | cut -c1-8)" 2>/dev/null)

# Where Python may keep no compiled code, each of the hundreds of processes that a test run starts compiles the whole project anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup setup-tests run test soak check fix lock images charts

help: ## list what there is
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1	\2/p' $(MAKEFILE_LIST) | while IFS='	' read -r name text; do printf 'make %-13s %s\n' "$$name" "$$text"; done

setup: .venv/.gpufleet-$(KEY) ## put what gpufleet needs into .venv

setup-tests: .venv/.gpufleet-tests-$(KEY) ## the same, with what tests and checks need

run: setup ## the console with a live demo fleet (PORT=8000 HOST=127.0.0.1 DATA=data DEMO=small|large|none)
	@exec $(BIN)/gpufleet up --host $(HOST) --port $(PORT) --data-dir $(DATA) --demo $(DEMO)

test: setup-tests ## the whole suite (TESTS=path for a part of it)
	@HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(PYTEST) $(TESTS)

soak: setup-tests ## the long tests: kills, storms, the full browser matrices (SOAK_SEED=number draws others than this commit's)
	@echo 'SOAK_SEED=$(SOAK_SEED)'
	@HYPOTHESIS_PROFILE=soak SOAK_SEED=$(SOAK_SEED) $(PYTEST) -m soak --hypothesis-seed=$(SOAK_SEED) $(TESTS)

check: setup-tests ## style, types, templates, migrations, docs
	@mkdir -p build
	@$(BIN)/ruff check --quiet .
	@$(BIN)/ruff format --quiet --check . || { echo 'These files are not formatted; make fix does it:'; $(BIN)/ruff format --check . ; exit 1; }
	@$(TOOL_ENV) $(BIN)/mypy --no-error-summary
	@$(BIN)/djlint --quiet --lint templates
	@$(TOOL_ENV) $(BIN)/python manage.py makemigrations --check --dry-run --verbosity 1 >build/migrations.log 2>&1 || { cat build/migrations.log; exit 1; }
	@$(BIN)/python -m pytest --no-header -q tests/test_docs.py tests/test_architecture.py >build/docs.log 2>&1 || { cat build/docs.log; exit 1; }

fix: setup-tests ## let the tools repair what they can
	@$(BIN)/ruff check --quiet --fix . || true
	@$(BIN)/ruff format --quiet .

lock: ## choose versions anew within pyproject.toml (needs uv; UPGRADE=1 takes the newest)
	@command -v uv >/dev/null || { echo 'make lock needs uv: https://docs.astral.sh/uv/'; exit 1; }
	@uv pip compile --quiet $(if $(UPGRADE),--upgrade) --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra setup pyproject.toml --output-file requirements.lock >/dev/null
	@uv pip compile --quiet $(if $(UPGRADE),--upgrade) --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
		--extra setup --extra dev --constraint requirements.lock pyproject.toml --output-file requirements-dev.lock >/dev/null

images: ## name the images of compose.yaml and Containerfile by the digests that their tags have now (needs skopeo)
	.ci/pin_images

charts: ## make static/vendor/plotly/plotly.min.js anew for the plotly in .venv (needs npm)
	@mkdir -p build/charts && cd build/charts && npm install --silent --no-save \
		plotly.js@$$(../../$(BIN)/python -c 'from plotly.offline import get_plotlyjs_version; print(get_plotlyjs_version())') esbuild
	@cp static/vendor/plotly/entry.js static/vendor/plotly/build.mjs build/charts/
	@cd build/charts && node build.mjs entry.js ../../static/vendor/plotly/plotly.min.js

ifeq ($(shell test -L .venv && echo link),link)
# An environment that is only linked here is somebody else's, and used as it is.
.venv/.gpufleet-$(KEY) .venv/.gpufleet-tests-$(KEY):
	@:
else
.venv/.gpufleet-$(KEY):
	$(call install,requirements.lock)
	@touch $@

.venv/.gpufleet-tests-$(KEY):
	$(call install,requirements-dev.lock)
	@touch $@ .venv/.gpufleet-$(KEY)
endif

define install
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
		echo "gpufleet needs Python 3.11 or newer; $(PYTHON) is $$($(PYTHON) --version 2>&1 | tail -n 1)."; \
		echo 'Debian 12 and newer have it (apt-get install python3 python3-venv); another one is named with make PYTHON=/path/to/python3.'; exit 1; }
	@if ! uv --version >/dev/null 2>&1 && ! $(PYTHON) -c 'import venv, ensurepip' 2>/dev/null; then \
		echo "$(PYTHON) can't make virtual environments: on Debian, apt-get install python3-venv."; exit 1; fi
	@test -x $(BIN)/python && test "$$($(BIN)/python --version)" = "$$($(PYTHON) --version)" || { \
		echo 'Setting up .venv (once) …'; rm -rf .venv; \
		if uv --version >/dev/null 2>&1; then uv venv --quiet --python "$$(command -v $(PYTHON))" .venv; else $(PYTHON) -m venv .venv; fi; }
	@if uv --version >/dev/null 2>&1; then \
		uv pip install --quiet --python $(BIN)/python --require-hashes --no-deps -r $(1) && \
		uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .; \
	else \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --require-hashes --no-deps --only-binary :all: -r $(1) && \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-input --no-deps --no-build-isolation --editable .; \
	fi
endef
