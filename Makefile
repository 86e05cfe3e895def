# Everything runs in .venv, which is made on first use from any Python 3.10 to 3.12 found on the machine.
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= $(shell n=$$(nproc 2>/dev/null || echo 2); [ $$n -gt 4 ] && n=4; echo $$n)
DOCS_STAMP := $(VENV)/.installed-docs
BENCH_STAMP := $(VENV)/.installed-benchmarks
export TF_CPP_MIN_LOG_LEVEL ?= 3

SUPPORTED := import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))
PYTHON ?= $(shell for p in python3 python3.12 python3.11 python3.10; do $$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)

.PHONY: demo test lint docs bench clean

demo: $(STAMP)  ## run the main example on data that comes with it
	$(BIN)/python tutorials/deep_regression.py --output build/demo
	$(BIN)/python tutorials/fourier_spectra.py --output build/demo
	$(BIN)/python tutorials/one_dimensional.py --output build/demo

test: $(STAMP)  ## run the tests, in as many processes as there are cores (make test WORKERS=1 for one)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(STAMP)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DOCS_STAMP)  ## build the documentation, warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -b html docs docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

bench: $(BENCH_STAMP)  ## a ten-minute subset of all benchmarks; DATA=DIR has .npz files, else from OpenML
	$(BIN)/python -m benchmarks all --quick --budget 1.5 $(if $(DATA),--data-dir $(DATA))
	$(BIN)/python -m benchmarks report --results build/benchmarks --docs build/benchmarks

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) build docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(STAMP): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" || { echo "No Python 3.10, 3.11 or 3.12 found. Install one, or run: make PYTHON=/path/to/python $(MAKECMDGOALS)"; exit 1; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,plots]'
	touch $@

$(BENCH_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[benchmarks]'
	touch $@

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@
