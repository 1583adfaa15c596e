# Two commands set everything up on a fresh machine with Python >= 3.11: `make demo` and `make test`.
PYTHON ?= python3
VENV ?= .venv
BIN = $(VENV)/bin
STAMP = $(VENV)/.installed

.PHONY: demo test lint types layers check bench study wheel clean

demo: $(STAMP)
	$(BIN)/loadgen demo

test: $(STAMP)
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder

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

# Studies over many seeds; TABLES: published measurements in the tidy form, where there are any.
study: $(STAMP)
	$(BIN)/python -m tests.benchmarks.fit_recovery
	$(BIN)/python -m tests.benchmarks.fit_explanations
	$(BIN)/python -m tests.benchmarks.fit_detectors
	$(BIN)/python -m tests.benchmarks.fit_interventions --first 77
	$(if $(TABLES),$(BIN)/python -m tests.benchmarks.fit_published $(TABLES))
	$(if $(TABLES),$(BIN)/python -m tests.benchmarks.fit_published --holdout shape $(TABLES))
	$(if $(TABLES),$(BIN)/python -m tests.benchmarks.fit_transfer A100-SXM-80 H100-SXM $(TABLES))
	$(if $(TABLES),$(BIN)/python -m tests.benchmarks.fit_transfer H100-SXM H100-SXM-powercap $(TABLES))

$(STAMP): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -e '.[dev]'
	touch $(STAMP)

clean:
	rm -rf $(VENV) dist build
