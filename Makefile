# What a developer types. Needs Python 3.11 or newer, pip and make; uses uv where it is present.
#
#   make run        start the worker; with nothing configured, it serves the demo
#   make test       all tests that take no more than a few minutes together
#   make test-long  these, and the ones that take longer
#   make bench      calls beside the SDK's own client, as ratios (ARGS="--quick" for a short look)
#   make fuzz       any bytes whatever on the wire, for a minute (SECONDS=600 for ten)
#   make chaos      real servers under random faults, for a minute (SECONDS=600, FAULTS=10000, SEED=7)
#   make conformance  the official conformance suite; writes docs/reference/conformance.md (ARGS=--check compares)
#   make lint       ruff: rules and format
#   make types      mypy --strict and pyright
#   make clean      remove all that these commands have made, .venv included
#
# ARGS is handed on:   make test ARGS="-k config -x"     make run ARGS="--port 8765"
# PYTHON names one:    make run PYTHON=/opt/python3.12/bin/python3

SHELL := /bin/sh
.DEFAULT_GOAL := help
.SUFFIXES:
.NOTPARALLEL:

BIN := .venv/bin
MAKE_VENV := sh tools/with_python.sh tools/make_venv.py
export PYTHON
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

# One stamp for each set of requirements; they live and die with .venv, so that a second run costs nothing.
.venv/.ready-%: pyproject.toml
	@$(MAKE_VENV) $*

.PHONY: help
help:
	@sed -n '3,/^$$/s/^# \{0,1\}//p' Makefile

.PHONY: run
run: .venv/.ready-run
	@exec $(BIN)/python tools/foreground.py $(BIN)/openprogram-mcp worker --demo-if-empty $(ARGS)

.PHONY: test
test: .venv/.ready-test
	@$(BIN)/python -m tests.servers
	@$(BIN)/python -m pytest -m "not long" $(ARGS)

.PHONY: test-long
test-long: .venv/.ready-test
	@$(BIN)/python -m tests.servers
	@$(BIN)/python -m pytest $(ARGS)

.PHONY: bench
bench: .venv/.ready-test
	@$(BIN)/python -m bench $(ARGS)

SECONDS ?= 60
.PHONY: fuzz
fuzz: .venv/.ready-test
	@$(MAKE_VENV) fuzz || echo "atheris cannot be installed here; going on without it." >&2
	@$(BIN)/python -m tests.fuzz --seconds $(SECONDS) $(ARGS)

# A number of faults is a limit of its own; without one, time is.
.PHONY: chaos
chaos: .venv/.ready-test
	@$(BIN)/python -m tests.chaos $(if $(FAULTS),--faults $(FAULTS),--seconds $(SECONDS)) $(if $(SEED),--seed $(SEED)) $(ARGS)

.PHONY: conformance
conformance: .venv/.ready-test
	@$(BIN)/python -m tests.conformance $(ARGS)

.PHONY: lint
lint: .venv/.ready-all
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

.PHONY: types
types: .venv/.ready-all
	@$(BIN)/mypy
	@$(BIN)/pyright

.PHONY: clean
clean:
	rm -rf .venv .cache .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist tests/servers/node_modules tests/conformance/node_modules
	find openprogram_mcp tests tools bench -name __pycache__ -type d -prune -exec rm -rf {} +
