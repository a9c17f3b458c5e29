# Motet: every target does the set-up that is missing, so each works alone on a fresh machine.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	command -v $$p >/dev/null 2>&1 && $$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	&& echo $$p && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/ready
JAVA := $(VENV)/java
JRE := openjdk-17-jre-headless
SERVERS := $(VENV)/servers
NATIVE := $(wildcard src/motet/matching/*.c src/motet/matching/*.h \
	src/motet/matching/native/*.c src/motet/matching/native/*.h)

.DEFAULT_GOAL := help
.PHONY: help setup demo test lint soak hunt bench compare house clean

help: ## show this page
	@echo "make TARGET, where TARGET is one of"
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10 | sed 's/^/  /'

setup: $(READY) ## create the virtual environment and build Motet in it

$(READY): pyproject.toml setup.py constraints.txt $(NATIVE)
	@test -n "$(PYTHON)" || { \
		echo "Motet needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-compile -c constraints.txt -e '.[dev,fast,plots,spark]'
	@touch $@

# Spark runs on Java: what is there is taken, what is missing is installed where that is possible.
$(JAVA): $(READY)
	@test -x "$$JAVA_HOME/bin/java" || command -v java >/dev/null 2>&1 || { \
		test "$$(id -u)" = 0 && command -v apt-get >/dev/null 2>&1 \
		&& echo "Spark needs Java: installing $(JRE)" \
		&& apt-get update -qq && apt-get install -y -qq $(JRE) >/dev/null; } || { \
		echo "Spark needs Java 17 or newer. On Debian or Ubuntu: sudo apt-get install $(JRE)"; exit 1; }
	@touch $@

# Tests of adapters need the event services themselves; nats-server comes with pip.
$(SERVERS): $(READY) tools/servers.sh
	@tools/servers.sh && touch $@ || true

demo: $(READY) $(JAVA) ## run the main job: a workflow, five brokers, one killed and back, Spark, a report
	$(BIN)/motet demo

# Tests with Spark and with real brokers mostly wait, the others compute: four suites run side by
# side, the longest first, and the next one begins when one ends. The last is all other folders.
SUITES := spark integration/test_[a-d]*.py integration/test_[!a-d]*.py unit sim docs
OTHERS := tests $(foreach each,spark integration unit sim docs,--ignore=tests/$(each))
test: lint $(JAVA) $(SERVERS) ## lint, types and all tests
	@printf '%s\n' $(SUITES:%='tests/%') "$(OTHERS)" | xargs -P 4 -I SUITE sh -c \
		'echo "pytest SUITE: begins"; told=$$(mktemp); $(BIN)/pytest SUITE >$$told 2>&1; ended=$$?; \
		echo "pytest SUITE: status $$ended"; cat $$told; rm $$told; exit $$ended'

lint: $(READY) ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

soak: $(READY) $(JAVA) ## the long runs: a thousand simulated overlays per profile, and the soak tests
	$(BIN)/pytest -m soak --timeout 3600
	$(BIN)/motet sim --seeds 0-999

hunt: $(READY) ## fresh random seeds of all profiles on one core until Ctrl-C; findings go to run/hunt
	nice -n 10 $(BIN)/motet sim --seeds random

bench: $(READY) $(JAVA) ## the short form of every benchmark, as one table
	$(BIN)/motet bench all --short

BEFORE ?= HEAD~1
WHAT ?= route delivery journal tx
compare: $(READY) ## benchmarks (WHAT="route tx") of this tree and of commit BEFORE, in turns
	$(BIN)/python -m tools.compare $(BEFORE) $(WHAT)

house: $(READY) ## the figures that say whether the structure of the source is sound
	$(BIN)/python -m tools.house

clean: ## remove what set-up and tests have made
	rm -rf $(VENV) build .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find src -name '*.so' -delete
	find src labs tests -name __pycache__ -type d -prune -exec rm -rf {} +
