# Every target does its own set-up: it needs only Python 3.11 or newer and make.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow test-live test-all attack check docs format bench soak clean

demo: $(VENV)/.core
	rm -rf runs/demo
	$(BIN)/agnosticfl compare toy --out runs/demo

test: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not slow" --numprocesses 2 --dist loadfile --no-loadscope-reorder

test-slow: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow --ignore tests/deploy

# Federations of real processes, three beside each other: mostly they wait. Neighbours stay together,
# since many share a federation that takes longer to start than each of them.
test-live: $(VENV)/.dev
	$(BIN)/python -m pytest -m slow tests/deploy --numprocesses 3 --dist worksteal

# Everything, with more examples for each property.
test-all: $(VENV)/.all
	$(MAKE) test test-slow test-live PYTEST_ADDOPTS=--hypothesis-profile=thorough

# Plays the attacks of docs/security.md against the real client and server code, and prints a table.
attack: $(VENV)/.dev
	$(BIN)/python -m pytest -m attack -p tests.helpers.attacks --numprocesses 3 --dist worksteal

check: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/basedpyright --pythonpath $(BIN)/python
	$(MAKE) docs

# The site, in site/index.html. A link or a name that leads nowhere is an error, and so is a public name that is missing.
docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

format: $(VENV)/.dev
	$(BIN)/ruff check --fix-only --quiet .
	$(BIN)/ruff format .
	$(BIN)/ruff check .

# WORKLOADS: another file of workloads, as a peer brings its own; PEERS: --peer PYTHON SCRIPT, repeated.
WORKLOADS ?= benchmarks/workloads.py
bench: $(VENV)/.core
	mkdir -p runs
	$(BIN)/python benchmarks/rounds.py $(WORKLOADS) --task toy emnist --bare --rounds 5 --repeats 3 $(PEERS) --json runs/bench-rounds.json
	$(BIN)/python benchmarks/rounds.py $(WORKLOADS) --task stackoverflow --bare --rounds 2 $(PEERS) --json runs/bench-words.json
	$(BIN)/python benchmarks/scale.py --json runs/bench-scale.json

# Half an hour of a federation under load: 100 clients, then 1000, with drop-outs and hostile ones.
soak: $(VENV)/.dev
	mkdir -p runs
	$(BIN)/python -m benchmarks.soak --clients 100 --cohort 50 --seconds 600 --step 45 --json runs/soak-100.json
	$(BIN)/python -m benchmarks.soak --clients 1000 --cohort 200 --seconds 1200 --poll 30 --step 180 --json runs/soak-1000.json

clean:
	rm -rf $(VENV) runs build dist site

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade pip

$(VENV)/.core: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable .
	touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev]'
	touch $@ $(VENV)/.core

# The trackers of experiments too, which bring many packages of their own.
$(VENV)/.all: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[dev,mlflow,wandb]'
	touch $@ $(VENV)/.dev $(VENV)/.core
