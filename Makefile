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
# Python compiles a module when it is first imported; most of what is installed for tests never is.
INSTALL := $(PY) -m pip --disable-pip-version-check --quiet --quiet install --no-compile
export PATH := $(CURDIR)/$(VENV)/bin:$(PATH)
# What Cython has translated, by its contents: the tests build a wheel of the same sources.
export CYTHON_CACHE_DIR := $(CURDIR)/build/translated
# Without numpy's threads for linear algebra: each of some hundred processes that tests start would have them.
export OPENBLAS_NUM_THREADS := 1
# Where images set this, each of some hundred processes that tests start would compile what it imports again.
unexport PYTHONDONTWRITEBYTECODE

# What the extension is made of. A change of any of these rebuilds it; a change of Python code needs nothing.
SOURCES := setup.py $(shell find src tests/probes -name '*.pyx' -o -name '*.pxd')
# Versions of RabbitMQ: the one of this machine, and two more; and what differs between versions.
BROKERS := rabbitmq rabbitmq-4.0 rabbitmq-4.3
ON_BROKERS := tests/integration tests/spark/source/test_queues.py tests/spark/source/test_streams.py
UNIT := not integration and not slow and not stress
# Most tests wait: for a broker, for Spark, for a timer; in two processes for each core half of the machine was idle. So
# there are two more; each has a broker and a Spark of its own if it comes to that. What judges shares or times (`steady`)
# comes afterwards: in one process more than there are cores, a quarter of which these tests use. What computes alone has one
# for each core. The tests of a file stay together; tests/support/scheduling.py says where to begin.
CORES := $(shell getconf _NPROCESSORS_ONLN)
WORKERS ?= $(shell expr 2 \* $(CORES) + 2)
STEADY = $(shell grep -rl --include='test_*.py' 'pytest.mark.steady' tests)
at_most = $(shell echo $$(( $(WORKERS) < $(1) ? $(WORKERS) : $(1) )))
FEW := $(call at_most,$(CORES))
STEADY_WORKERS := $(call at_most,($(CORES) + 1))
PYTEST := $(PY) -m pytest --dist loadfile --no-loadscope-reorder --numprocesses
# Run what has a marker. A test that fails does not keep the second crowd from what it has to say; an interruption does.
in_two_crowds = status=0; $(PYTEST) $(WORKERS) -m "$(1)not steady" tests || status=$$?; test $$status -le 1; \
	$(PYTEST) $(STEADY_WORKERS) -m "$(1)steady" $(STEADY); exit $$status

.PHONY: help demo test test-quick test-embedded test-brokers test-versions chaos soak accounting peer-suites kombu-suites differences bench lint sanitize fuzz coverage wheel wheel-elsewhere docs build venv servers format clean distclean

help:  ## list the targets
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/:[^#]*##/\t/' | expand -t 14

demo: $(STAMPS)/built  ## ten weighted queues, and the share each of them got
	$(VENV)/bin/fairsched demo

test: build servers  ## every test, RabbitMQ included
	$(call in_two_crowds,)

test-quick: build  ## the tests that need no server, in under three minutes
	$(PYTEST) $(FEW) -m "$(UNIT)" tests

test-embedded: build  ## the tests of consumer, CLI and Spark that need a broker, on the embedded one
	tools/install-servers java
	export FAIRSCHED_TEST_BROKER=embedded; $(call in_two_crowds,broker and )

chaos: build servers  ## every fault of the tests, and what was lost, handled again and overtaken
	tools/chaos --dist loadfile --no-loadscope-reorder --numprocesses $(WORKERS)

soak: build servers  ## half an hour of work at 70 % of capacity: memory flat, shares by weight, nothing lost
	SOAK_MINUTES=30 $(PYTEST) 0 -s tests/integration/test_soak.py

accounting: build servers  ## a thousand random sessions with cuts and kills on RabbitMQ 3.10 and on 4.3: nothing lost, nothing twice
	tools/install-servers rabbitmq-4
	status=0; for broker in rabbitmq rabbitmq-4.3; do echo "== on $$broker"; \
	ACCOUNTED_SESSIONS=$${ACCOUNTED_SESSIONS:-1000} FAIRSCHED_TEST_BROKER=$$broker \
	$(PYTEST) 0 --timeout 7200 tests/integration/test_accounting.py || status=$$?; done; exit $$status

test-brokers: build servers  ## the tests of the consumer and of Spark's queues and streams on RabbitMQ 3.10, 4.0 and 4.3
	tools/install-servers rabbitmq-4
	status=0; for broker in $(BROKERS); do echo "== on $$broker"; \
	FAIRSCHED_TEST_BROKER=$$broker $(PYTEST) $(FEW) $(ON_BROKERS) || status=$$?; done; exit $$status

peer-suites: build servers  ## the tests of other AMQP clients, on RabbitMQ and on the embedded broker
	tools/install-servers jdk
	$(PY) tools/peer-suites

kombu-suites: build servers  ## the tests of kombu, py-amqp and Celery, by py-amqp and by fairsched's transport
	tools/install-servers rabbitmq-4
	$(PY) tools/kombu-suites

differences: build servers  ## ten thousand random sessions that RabbitMQ and the embedded broker must answer alike
	PYTHONPATH=tests $(PY) -m support.differences --sessions $${SESSIONS:-10000} --seed $${SEED:-0}

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

fuzz: build  ## under ASAN, 10 000 000 damaged frames, 100 000 damaged sessions and 50 kills for the broker; an hour or two
	tools/sanitize fuzz

coverage: build $(STAMPS)/group-coverage  ## line coverage of the engine, headers included: at least 95 %
	tools/coverage

wheel: $(STAMPS)/group-wheel  ## sdist, wheel from it, repaired, its bill of materials, checked, tested where there is no compiler
	tools/wheel

wheel-elsewhere: $(STAMPS)/group-wheel  ## a repaired wheel tested in a root that has another Debian's Python and nothing else
	tools/wheel-elsewhere

test-versions: $(STAMPS)/group-wheel  ## unit tests of wheels: every Python here (PYTHONS), oldest and newest dependencies
	tools/test-versions $(PYTHONS)

docs: build $(STAMPS)/group-docs  ## the manual in docs/_build/html; a warning is an error
	$(PY) -m sphinx -n -W --keep-going -q -b html docs docs/_build/html

venv: $(STAMPS)/created

build: $(STAMPS)/probes  ## the extension and its test probes, into .venv (editable)

servers:
	tools/install-servers rabbitmq librabbitmq chromium java faketime

$(STAMPS)/created:
	tools/install-servers python "$(PYTHON)"
	test -x $(PY) || "$(PYTHON)" -m venv $(VENV)
	$(INSTALL) --upgrade "pip>=25.1"
	mkdir -p $(STAMPS)
	touch $@

$(STAMPS)/group-%: pyproject.toml | $(STAMPS)/created
	@echo "== installing what '$*' needs"
	$(INSTALL) --group $*
	touch $@

# The build tools are installed first and isolation is off, so that a rebuild needs no network. Installing compiles
# nothing; afterwards `build_ext` compiles what a change reaches.
$(STAMPS)/installed: pyproject.toml $(STAMPS)/group-build | $(STAMPS)/created
	@echo "== installing fairsched and what its command line needs"
	FAIRSCHED_COMPILED=1 $(INSTALL) --no-build-isolation --editable ".[cli]"
	touch $@

$(STAMPS)/built: $(SOURCES) $(STAMPS)/installed
	@echo "== compiling fairsched on all cores; the first time takes a minute or two"
	$(PY) setup.py --quiet build_ext --inplace
	touch $@

# With the extension, which would otherwise be searched for what has changed twice.
$(STAMPS)/probes: $(SOURCES) $(STAMPS)/installed $(STAMPS)/group-source-test
	@echo "== compiling fairsched and the tests' probes on all cores; the first time takes a minute or two"
	FAIRSCHED_PROBE=1 $(PY) setup.py --quiet build_ext --inplace
	touch $(STAMPS)/built $@

clean:  ## remove what was built, but keep .venv
	rm -rf build dist wheelhouse docs/_build docs/reference/generated src/*.egg-info $(STAMPS)/built $(STAMPS)/probes
	rm -rf .pytest_cache .hypothesis .mypy_cache .ruff_cache .benchmarks .coverage
	find src tests -name '*.so' -delete -o -name '*.pyd' -delete -o -name '*.cpp' -delete
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +

distclean: clean  ## remove .venv as well
	rm -rf $(VENV)
