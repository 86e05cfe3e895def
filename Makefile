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

.PHONY: demo test stress test-oldest test-newest newest lint docs bench clean

demo: $(STAMP)  ## run the main example on data that comes with it
	$(BIN)/python -m tutorials deep_regression fourier_spectra one_dimensional --output build/demo

test: $(STAMP)  ## run the tests, in as many processes as there are cores (make test WORKERS=1 for one)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

stress: $(STAMP)  ## run the torture in full and write its table into docs/reliability.md
	rm -rf build/stress
	start=$$(date +%s) && \
	KERAS_ODGP_STRESS=full TF_NUM_INTRAOP_THREADS=1 TF_NUM_INTEROP_THREADS=1 OMP_NUM_THREADS=1 \
		$(BIN)/python -m pytest tests/stress tests/test_multiworker.py -n $(WORKERS) --dist worksteal && \
	$(BIN)/python tests/stress/table.py build/stress docs/reliability.md $$(($$(date +%s) - start))

test-oldest: .venv-oldest/.installed  ## run the tests with the oldest versions that pyproject.toml admits
	.venv-oldest/bin/python -m pytest -n $(WORKERS) --dist worksteal

test-newest: newest  ## run the tests with the newest versions there are
	.venv-newest/bin/python -m pytest -n $(WORKERS) --dist worksteal

lint: $(STAMP)  ## check style and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(DOCS_STAMP)  ## run the tutorials and build the documentation; warnings are errors
	$(BIN)/python -m sphinx -W --keep-going -j auto $(SPHINXOPTS) -b html docs docs/_build/html
	@echo "Documentation: docs/_build/html/index.html"

bench: $(BENCH_STAMP)  ## a ten-minute subset of all benchmarks; DATA=DIR has .npz files, else from OpenML
	$(BIN)/python -m benchmarks all --quick --budget 1.5 $(if $(DATA),--data-dir $(DATA))
	$(BIN)/python -m benchmarks report --results build/benchmarks --docs build/benchmarks

clean:  ## remove the environment and everything generated
	rm -rf $(VENV) .venv-oldest .venv-newest build docs/_build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis

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

OLDEST ?= $(shell for p in python3.10 python3.11 python3.12; do $$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)
NEWEST ?= $(shell for p in python3.12 python3.11 python3.10; do $$p -c '$(SUPPORTED)' 2>/dev/null && echo $$p && break; done)

# Every "name>=version" of pyproject.toml as "name==version".
.venv-oldest/.installed: pyproject.toml
	test -x $(@D)/bin/python || $(OLDEST) -m venv $(@D)
	sed -nE 's/^ *"([A-Za-z0-9_.-]+)(\[[a-z]+\])?>=([0-9.]+).*/\1==\3/p' pyproject.toml | sort -u > $(@D)/oldest.txt
	$(@D)/bin/python -m pip install --quiet --disable-pip-version-check -c $(@D)/oldest.txt -e '.[dev,plots]'
	touch $@

# Without a stamp: what is newest changes while pyproject.toml does not.
newest:
	test -x .venv-newest/bin/python || $(NEWEST) -m venv .venv-newest
	.venv-newest/bin/python -m pip install --quiet --disable-pip-version-check --upgrade --upgrade-strategy eager \
		-e '.[dev,plots]'
