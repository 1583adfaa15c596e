# Two commands set everything up on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: demo test lint types layers check bench wheel clean

demo: $(STAMP)
	$(BIN)/loadgen demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 2 --dist loadfile

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

layers: $(STAMP)
	$(BIN)/lint-imports

wheel: $(STAMP)
	$(BIN)/python -m build --no-isolation --wheel

check: lint types layers test wheel

bench: $(STAMP)
	$(BIN)/python -m tests.benchmarks
	$(BIN)/python -m tests.benchmarks.serving

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) dist build
