# Everything below sets itself up: make demo and make test work on a fresh machine with Python 3.11 or newer.
PYTHON ?= python3
JOBS ?= 2
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/lock.txt
STAMP := $(VENV)/.attnsim-installed
LOWEST := $(VENV)/lowest
UV_VERSION := 0.13.8
PIP := $(BIN)/python -m pip --disable-pip-version-check -qq

.DEFAULT_GOAL := help
.PHONY: help demo test test-lowest lint types imports unit sizes outputs docs format lock clean distclean

help: ## show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: $(STAMP) ## a change of a GPU that helps and one that does not, and a picture in demo/
	$(BIN)/attnsim demo --out demo

test: lint types imports unit ## everything .ci/run checks

# The lowest versions have no wheels for newer Pythons: RESOLUTION=highest ON=3.13 tries the newest on another.
# pyarrow is that of the extra datasets, whose tables want a newer NumPy than attnsim does.
test-lowest: ON ?= 3.11
test-lowest: RESOLUTION ?= lowest-direct
test-lowest: $(BIN)/python ## the commands' examples and 100 answers with the lowest versions that pyproject.toml allows
	$(PIP) install uv==$(UV_VERSION)
	$(BIN)/uv --no-config venv --quiet --clear --python $(ON) $(LOWEST)
	$(BIN)/uv --no-config pip install --quiet --python $(LOWEST) --resolution $(RESOLUTION) \
	  --default-index https://pypi.org/simple '.[explore]' 'pyarrow>=17'
	$(LOWEST)/bin/python benchmarks/installed_versions.py

lint: $(STAMP) ## formatting and lint rules
	$(BIN)/python -m ruff format --check .
	$(BIN)/python -m ruff check .

types: $(STAMP) ## mypy --strict
	$(BIN)/python -m mypy

imports: $(STAMP) ## which part may import which
	$(BIN)/lint-imports

unit: $(STAMP) ## pytest, on JOBS processes; says what it skipped and why
	$(BIN)/python -m pytest -n $(JOBS) -rs

sizes: ## lines that hold code, by folder, beside their budget
	@$(PYTHON) benchmarks/sizes.py

outputs: $(STAMP) ## write every output shown in a document, notebook or picture anew
	$(BIN)/python benchmarks/architecture_picture.py
	$(BIN)/python benchmarks/command_help.py
	$(BIN)/python benchmarks/mechanism_pages.py
	$(BIN)/python benchmarks/gallery.py
	$(BIN)/python benchmarks/refresh_readme.py
	$(BIN)/python benchmarks/refresh_notebooks.py

docs: $(STAMP) ## the documentation site, in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html docs docs/_build/html
	$(BIN)/python -m attnsim explore --build docs/_build/html/try
	@echo "written: docs/_build/html/index.html"

format: $(STAMP) ## reformat and fix what can be fixed
	$(BIN)/python -m ruff format .
	$(BIN)/python -m ruff check --fix .

# One resolution for Python 3.11 to 3.13, with the hashes of every file PyPI holds for each version.
lock: $(BIN)/python ## resolve the locked versions anew
	$(PIP) install uv==$(UV_VERSION)
	$(BIN)/uv --no-config pip compile pyproject.toml --extra dev --universal --python-version 3.11 \
	  --fork-strategy fewest --generate-hashes --upgrade --quiet --no-annotate \
	  --default-index https://pypi.org/simple --no-emit-index-url \
	  --custom-compile-command 'make lock' --output-file $(LOCK)

clean: ## remove what tools and builds left behind
	rm -rf build dist demo docs/_build docs/_generated docs/_api .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find attnsim tests -name __pycache__ -type d -prune -exec rm -rf {} +

distclean: clean ## the same, and the virtual environment
	rm -rf $(VENV)

$(BIN)/python:
	@command -v $(PYTHON) >/dev/null 2>&1 || { \
	  echo "make: no '$(PYTHON)' here; install Python 3.11 or newer, or run: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "make: '$(PYTHON)' is $$($(PYTHON) --version 2>&1); attnsim needs 3.11 or newer: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	  echo "make: '$(PYTHON)' cannot create a virtual environment; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }

$(STAMP): $(LOCK) pyproject.toml | $(BIN)/python
	@echo "Installing attnsim and its locked dependencies into $(VENV) (about a minute)"
	@$(PIP) install --require-hashes -r $(LOCK)
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@touch $@
