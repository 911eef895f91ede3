# Everything needs only Python (3.11 to 3.13) and make: the environment is built on first use.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test test-all check docs bench clean help

help:
	@echo "make demo   learn an unknown system from 600 noisy numbers, with a picture"
	@echo "make test   run the tests; make test-all, the slow ones, too"
	@echo "make check  linter, formatter, type checker"
	@echo "make docs   build the site, with every tutorial run: build/docs/index.html"
	@echo "make bench  time one training iteration beside what XLA needs for its products alone, and whole fits"

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; v = sys.version_info[:2]; sys.exit(None if (3, 11) <= v < (3, 14) else f"gpssm needs Python 3.11 to 3.13, {sys.executable} is {v[0]}.{v[1]}; run make PYTHON=/path/to/python")'
	$(PYTHON) -m venv $(VENV)

$(STAMP): $(VENV)/bin/python pyproject.toml
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[all]'
	@touch $@

$(STAMP)-dev $(STAMP)-docs: $(STAMP)-%: $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]'
	@touch $@

demo: $(STAMP)
	$(BIN)/gpssm demo --out demo

PYTEST := TF_CPP_MIN_LOG_LEVEL=3 $(BIN)/python -m pytest -n 2 --dist loadfile --no-loadscope-reorder --durations=25

test: $(STAMP)-dev
	$(PYTEST) -m "not slow"

test-all: $(STAMP)-dev
	$(PYTEST)

check: $(STAMP)-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)-docs
	$(BIN)/sphinx-build -q -W --keep-going -d build/doctrees docs build/docs
	@echo build/docs/index.html

bench: $(STAMP)-dev
	$(BIN)/python benchmarks/iteration.py
	$(BIN)/python benchmarks/fit.py

clean:
	rm -rf $(VENV) build docs/gallery docs/reference/api demo results
