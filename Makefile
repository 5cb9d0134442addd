# The two commands of the README: `make demo` and `make test`. For whoever works on the code: `make format`, `make check`,
# and `make test-privacy` for the tests of one room, the folder tests/privacy.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

# Container images often set it; then each of the tests' hundreds of processes compiles anew all that it imports.
unexport PYTHONDONTWRITEBYTECODE

# The tests make hundreds of runs, each durable: their files lie in memory where it has 4 GB to spare, not on a disk.
MEMORY = $(shell test "$$(df -Pk /dev/shm 2>/dev/null | awk 'END {print int($$4)}')" -gt 4000000 && echo /dev/shm/XXXXXX)

# uv unpacks the gigabytes of torch's libraries in parallel and keeps them for the next time; pip takes two minutes. It
# reads no settings of pip, is told which index pip asks, and trusts the machine's certificates. Where it cannot, pip does.
PIP = $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt
INDEX = $(BIN)/python -m pip config list | sed -n "s/^[^=]*\.index-url='\(.*\)'$$/--default-index=\1/p" | head -n 1
UV = UV_HTTP_TIMEOUT=60 $(BIN)/uv pip install --quiet --system-certs --python $(BIN)/python -c constraints.txt $$($(INDEX))
LIGHT := cpu,demo
EVERYTHING := cpu,demo,diffusion,embeddings,evaluation,http,parquet,medical,server,sign,text,trained,words,test
install = $(PIP) uv && $(UV) -e '.[$(1)]' || { echo "uv could not install, so pip does." >&2; $(PIP) --no-compile -e '.[$(1)]'; }

.PHONY: demo docs test tests test-slow test-peers wheel gpu-check browser check looks types format collected clean

demo: $(VENV)/.light
	$(BIN)/pe demo

# Three processes on two cores, and mypy beside them: a third of the tests' time is waiting for servers and clocks.
test:
	$(MAKE) -j 3 browser looks collected
	$(MAKE) -j 2 types tests

tests: $(VENV)/.test
	folder=$$(mktemp -d $(MEMORY)) && \
	  TMPDIR="$$folder" OMP_NUM_THREADS=1 $(BIN)/pytest -n 3 && rm -rf "$$folder"

test-%: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/$*

# More of what quicker tests hold: kills of more runs and fits; the tests of GPUs, with tiny shapes on a
# processor.
test-slow: $(VENV)/.test
	OMP_NUM_THREADS=1 $(BIN)/pytest -m slow
	PE_GPU_DEVICE=cpu OMP_NUM_THREADS=1 $(BIN)/pytest -m gpu tests/gpu

# Foreign servers of the package index, which take minutes and gigabytes to install: not part of `make test`.
test-peers: $(VENV)/.test
	bash tests/peers/install.sh $(VENV) .venv-peers
	OMP_NUM_THREADS=1 $(BIN)/pytest tests/peers

# The site of the pages in docs/, in build/site, in an environment of its own. A warning is an error: docs/site/conf.py.
docs:
	$(MAKE) VENV=.venv-docs LIGHT=docs .venv-docs/.light
	rm -rf build/site
	.venv-docs/bin/sphinx-build -q -W --keep-going -c docs/site . build/site
	@echo "The site is in build/site/index.html"

# The wheel, built, checked, and tried in a clean environment: a minute or two, not part of `make test`.
wheel: $(BIN)/python
	bash tests/wheel.sh $(BIN)/python

# A quarter of an hour on a GPU that nothing else uses, then the tests that take a GPU where torch sees one, and two
# benchmarks, whatever the tests found: docs/diffusion.md. A process of its own, so that the tests go on after a crash.
gpu-check: $(VENV)/.test
	status=0; $(BIN)/pytest -n 1 -m gpu -rP --show-capture=stdout tests/gpu || status=1; \
	  $(BIN)/pytest tests/nearest || status=1; \
	  $(BIN)/python benchmarks/diffusion.py && $(BIN)/python benchmarks/neighbors.py && exit $$status

format: $(VENV)/.test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

check: looks types

looks: $(VENV)/.test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python docs/budgets.py

types: $(VENV)/.test
	$(BIN)/mypy

# Python compiles what the tests import, once, while lint and types leave a core for it; the tests say what fails.
collected: $(VENV)/.test
	-$(BIN)/pytest --collect-only -qq >/dev/null

# The reports are opened in Debian's Chromium.
browser:
	@command -v chromium >/dev/null && command -v chromedriver >/dev/null || { \
	  test "$$(id -u)" = 0 && command -v apt-get >/dev/null || \
	    { echo "The tests need chromium and chromedriver (Debian: chromium, chromium-driver): install them." >&2; exit 1; }; \
	  apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
	    apt-get install -y -qq --no-install-recommends chromium chromium-driver >/dev/null; }

$(BIN)/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.light: $(BIN)/python pyproject.toml constraints.txt
	$(call install,$(LIGHT))
	touch $@

$(VENV)/.test: $(BIN)/python pyproject.toml constraints.txt
	$(call install,$(EVERYTHING))
	touch $@ $(VENV)/.light

clean:
	rm -rf $(VENV) .venv-docs .venv-peers build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
