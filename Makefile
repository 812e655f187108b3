# Every target prepares .venv by itself and costs nothing when it is up to date.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: install demo test verify test-federations test-ray test-gpu test-browser test-deployment test-wheel check format docs dist bench clean

install: $(READY)

demo: $(READY)
	$(BIN)/fedfm demo

# Some tests wait for other processes, so one worker more than there are cores
WORKERS ?= $(shell echo $$(($$(nproc 2>/dev/null || echo 1) + 1)))
# What `make docs`, `make test-ray`, `make verify` and `make test-federations` run
WHOLE := tests/verify/whole tests/paper/comparison/test_methods.py
IN_PROCESS := tests/deploy/federations
ELSEWHERE := tests/test_tutorial.py tests/grid/cluster $(WHOLE) $(IN_PROCESS)
test: export PYTHONDONTWRITEBYTECODE = # a shell may set it; workers and programs would compile anew
test: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(addprefix --ignore=,$(ELSEWHERE))

# The whole conformance suite, its properties in federations that hypothesis makes up, and every
# method under the protocol of the comparison
verify: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(WHOLE)

# Deployed federations in one process: equal to simulations, whatever fails or whoever lies
test-federations: $(READY)
	$(BIN)/python -m pytest -n $(WORKERS) --dist worksteal $(IN_PROCESS)

# A Ray cluster on this machine: needs unshare of util-linux
test-ray: $(READY)
	$(BIN)/python -m pytest tests/grid/cluster

# What needs an NVIDIA GPU; PYTEST lets it run in an environment of your own: make test-gpu PYTEST=pytest
PYTEST ?= $(BIN)/python -m pytest
test-gpu: $(if $(findstring $(BIN),$(PYTEST)),$(READY))
	PYTHONPATH=src:. $(PYTEST) tests/gpu

# The report and the live page in a real browser: needs chromium and chromium-driver
test-browser: $(READY)
	FEDFM_BROWSER=1 $(BIN)/python -m pytest tests/browser

# Federations of real Flower processes on this machine, killed and cut off: takes minutes; Linux
FEDERATIONS ?= tests/deploy/processes
test-deployment: $(READY)
	FEDFM_DEPLOYMENT=1 $(BIN)/python -m pytest -rs $(FEDERATIONS)

# The tutorial, executed; and the documentation site, in build/site: warnings are errors
docs: $(READY)
	$(BIN)/python -m pytest tests/test_tutorial.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# A wheel and an sdist, in dist
dist: $(READY)
	rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build --outdir dist
	$(BIN)/twine check --strict dist/*

# The wheel alone, in an empty environment: the demo must pass
EMPTY := build/empty
test-wheel: dist
	rm -rf $(EMPTY)
	$(PYTHON) -m venv $(EMPTY)
	$(EMPTY)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(EMPTY)/bin/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt dist/*.whl
	cd $(EMPTY) && bin/fedfm demo

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(READY)
	@for file in bench/[a-z]*.py; do echo "== $$file"; $(BIN)/python -m bench.$$(basename $$file .py) || exit 1; done

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt torch==2.13.0
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $(READY)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache
