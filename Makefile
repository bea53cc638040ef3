# Every target works from a clean clone: it creates .venv, installs what is missing and builds the extension.
# PYTHON chooses the interpreter of a new .venv; afterwards .venv decides.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= $(shell tools/find-python)
VENV := .venv
STAMPS := $(VENV)/stamps
PY := $(VENV)/bin/python
# Twice quiet: errors only. Warnings about the index that a machine is set up with are its owner's.
PIP := $(PY) -m pip --disable-pip-version-check --quiet --quiet
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)

# What the extension is made of. A change of any of these rebuilds it; a change of Python code needs nothing.
SOURCES := setup.py $(shell find src tests/probes -name '*.pyx' -o -name '*.pxd')
UNIT := not integration and not slow and not stress
# Most tests wait: for a broker, for Spark, for a timer. So there are as many processes as cores, each with a broker and
# a Spark of its own. The tests of a file stay together; tests/conftest.py says where to begin.
WORKERS ?= $(shell getconf _NPROCESSORS_ONLN)
PYTEST := $(PY) -m pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

.PHONY: help demo test test-quick peer-suites bench lint sanitize coverage wheel docs build venv servers format clean distclean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 14

demo: $(STAMPS)/built  ## ten weighted queues, and the share each of them got
	$(VENV)/bin/fairsched demo

test: build servers  ## every test, RabbitMQ included
	$(PYTEST) tests

test-quick: build  ## the tests that need no server, in under three minutes
	$(PYTEST) -m "$(UNIT)" tests

peer-suites: build servers  ## the tests of other AMQP clients, on RabbitMQ and on the embedded broker
	$(PY) tools/peer-suites

bench: build servers $(STAMPS)/group-bench  ## the benchmarks beside their peers; numbers to build/benchmarks.json
	tools/install-servers librabbitmq
	mkdir -p build
	$(PY) -m pytest --benchmark-columns=min,median,ops,rounds --benchmark-sort=name \
	    --benchmark-json=build/benchmarks.json benchmarks

lint: build $(STAMPS)/group-lint  ## style, types, stubs, spelling, workflows
	tools/lint

format: $(STAMPS)/group-lint  ## let ruff format the Python code
	ruff check --fix-only --quiet .
	ruff format .

sanitize: build  ## unit tests under ASAN+UBSAN, stress tests looped under TSAN
	tools/sanitize

coverage: build $(STAMPS)/group-coverage  ## line coverage of the engine, headers included: at least 95 %
	tools/coverage

wheel: $(STAMPS)/group-wheel  ## sdist, wheel from it, repaired, checked, tested where there is no compiler
	tools/wheel

docs: build $(STAMPS)/group-docs  ## the manual in docs/_build/html; a warning is an error
	$(PY) -m sphinx -n -W --keep-going -q -b html docs docs/_build/html

venv: $(STAMPS)/created

build: $(STAMPS)/probes  ## the extension and its test probes, into .venv (editable)

servers:
	tools/install-servers rabbitmq librabbitmq chromium java

$(STAMPS)/created:
	tools/install-servers python "$(PYTHON)"
	test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	$(PIP) install --upgrade "pip>=25.1"
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/group-%: pyproject.toml | $(STAMPS)/created
	@echo "== installing what '$*' needs"
	$(PIP) install --group $*
	touch $@

# The build tools are installed first and isolation is off, so that a rebuild needs no network. Installing compiles
# nothing; afterwards `build_ext` compiles what a change reaches.
$(STAMPS)/installed: pyproject.toml $(STAMPS)/group-build | $(STAMPS)/created
	@echo "== installing fairsched and what its command line needs"
	FAIRSCHED_COMPILED=1 $(PIP) install --no-build-isolation --editable ".[cli]"
	touch $@

$(STAMPS)/built: $(SOURCES) $(STAMPS)/installed
	@echo "== compiling fairsched on all cores; the first time takes a minute or two"
	$(PY) setup.py --quiet build_ext --inplace
	touch $@

$(STAMPS)/probes: $(SOURCES) $(STAMPS)/built $(STAMPS)/group-source-test $(STAMPS)/group-test
	@echo "== compiling the tests' probes"
	FAIRSCHED_PROBE=1 $(PY) setup.py --quiet build_ext --inplace
	touch $@

clean:  ## remove what was built, but keep .venv
	rm -rf build dist wheelhouse docs/_build docs/reference/generated src/*.egg-info $(STAMPS)/built $(STAMPS)/probes
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache .benchmarks .coverage
	find src tests -name '*.so' -delete -o -name '*.pyd' -delete -o -name '*.cpp' -delete
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove .venv as well
	rm -rf $(VENV)
