# Two commands: `make run` (train on the embedded data, ends with a summary and a picture) and `make test`.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.DEFAULT_GOAL := help
.PHONY: help setup run test slow lint docs release-check bench clean

help:  ## Show what there is to make
	@grep -E '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /make \1\t/' | expand -t 20

setup: $(READY)  ## Make the virtual environment in .venv with the pinned dependencies

$(READY): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and f"Python {sys.version.split()[0]} is too old: 3.11 or later is needed; use make PYTHON=/path/to/python3.11")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@# ByzFL asks for torchvision and seaborn, which what we compare with does not need: tests skip where it is missing.
	-$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps byzfl==0.0.11
	@touch $(READY)

run: $(READY)  ## Train MNIST 2NN by FedAvg on the embedded data to 97 %
	$(BIN)/fedavg run mnist-2nn -C 0.1 -E 1 -B 10 --lr 0.215 --rounds 200 --partition iid --seed 0 --target 0.97

# Without bytecode, each of a hundred processes would compile the package anew.
test: export PYTHONDONTWRITEBYTECODE =
test: $(READY)  ## Run the tests: side by side on all cores, then those that no other may disturb
	$(BIN)/python -m pytest -n auto --no-loadscope-reorder -m 'not slow and not alone'
	$(BIN)/python -m pytest -n 2 -m 'alone and not slow' $$(grep -rl --include='test_*.py' 'mark\.alone' tests)

slow: $(READY)  ## Run the slow tests on the real data sets
	$(BIN)/python -m pytest -m slow

lint: $(READY)  ## Check style, types and which module may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

docs: $(READY)  ## Build the site into site/: pages, API, search; look at it with python -m http.server -d site
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --quiet --strict --clean

release-check: $(READY)  ## Build wheel and sdist, check them, install them into a new environment and run the README there
	$(BIN)/python tools/release_check.py

bench: $(READY)  ## Measure speed against the floor of this machine
	$(BIN)/fedavg bench

clean:  ## Remove what make made (runs/ stays)
	rm -rf $(VENV) site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
