# make install | demo | test | test-cluster | bench | bench-spark | bench-peers | soak | conformance
# Everything runs from .venv, which `install` makes and refreshes when pyproject.toml changes.

.DEFAULT_GOAL := help
.PHONY: help install demo demo-cluster demo-sites test pytest test-cluster check mypy pyright pyright-whole
.PHONY: test-newest bench bench-spark bench-peers soak soak-tests soak-load soak-random soak-hostile soak-spark soak-interleavings soak-schedules soak-members soak-queues soak-cluster soak-sites soak-claims conformance audit sbom clean

VENV := .venv
PYTHON_IN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

# Bytecode is kept whatever the shell says: the tests start hundreds of processes, and each would compile 400 modules anew.
unexport PYTHONDONTWRITEBYTECODE

help:
	@echo "make install      a .venv with everything, and what tests load; also Java 17 and python3-venv if you are root"
	@echo "make demo         hundreds of thousands of messages through AMQP, Flight and Spark, a kill -9, and the proof"
	@echo "make demo-cluster three servers of one log: who leads is killed, cut off, paused and stopped, and the proof"
	@echo "make demo-sites   two sites that share a queue: one is cut off, killed and healed, and the proof"
	@echo "make test         ruff, mypy, pyright and every test"
	@echo "make test-cluster the Spark side on a cluster of two workers, one of which dies; a year of flights, row by row"
	@echo "make bench        the table of speed and memory, each figure beside its budget"
	@echo "make bench-spark  the same of the Spark side"
	@echo "make bench-peers  the same work on Penstock and on RabbitMQ, NATS and Redis where they are installed"
	@echo "make soak         an hour of mixed load with kills, bit flips and random tests, one of a cluster, then interleavings until stopped"
	@echo "make soak-sites   an hour of three sites that share a queue: links cut, sites killed, each message worked once"
	@echo "make soak-cluster an hour of three servers that keep one log: kills, cuts, pauses, full disks, and the logs compared"
	@echo "make house        how big and how tangled the code is, beside what it should be"
	@echo "make conformance  unmodified clients of others against a real server"
	@echo "make test-newest  unit tests with the newest release of each dependency, on PYTHON=python3.14 if you say so"
	@echo "make audit        known faults of what the locks name, where the index of the packages tells them"
	@echo "make sbom         what the wheel brings with it, as CycloneDX, in dist/"

# With the archive of Spark's classes and the bytecode of the tests, which `make test` would else make; what keeps
# them from being made is told, and is a mistake for `make test` alone.
install: $(STAMP)
	-@$(MAKE) --no-print-directory -j $(CLASSES) $(BYTECODE)

$(STAMP): pyproject.toml tools/install tools/requirements.lock
	@tools/install

demo: $(STAMP)
	@$(PYTHON_IN) examples/demo/main.py

demo-cluster: $(STAMP)
	@$(PYTHON_IN) examples/demo/cluster.py

demo-sites: $(STAMP)
	@$(PYTHON_IN) examples/demo/sites.py

check: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/ruff format --check --quiet .
	@$(MAKE) --no-print-directory -j mypy pyright-whole

mypy pyright: $(STAMP)
	@nice -n 19 $(VENV)/bin/$@

# Two thirds of what pyright takes go to what no user imports, which mypy reads as strictly.
pyright-whole: $(STAMP)
	@nice -n 19 $(VENV)/bin/pyright src tests/typing

# What fails keeps nothing else from being run: one run tells of everything.  Types know no clock: at the lowest priority
# they take what the tests beside them leave of the cores.  tests/sharing.py says which tests go beside which, and why six
# processes keep two cores busy.  Status 5: PYTEST_ARGS chose nothing.
# Sets of names have one order in every usual run, as all choices are those of every usual run; a hunt has others.
test: export PYTHONHASHSEED := 0
test: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(MAKE) --no-print-directory $(CLASSES)
	@$(MAKE) --no-print-directory -j --keep-going mypy pyright pytest

# Once: an archive of Spark's classes, with which each Java of the tests starts in half the time.
CLASSES := $(VENV)/spark-of-tests/classes.jsa
$(CLASSES): | $(STAMP)
	@PYTHONPATH=tests nice -n 19 $(PYTHON_IN) -W ignore -m spark_java

# By make install alone: the bytecode of all tests and of what they load, which the process that collects them would else make.
BYTECODE := $(VENV)/bytecode-of-tests
$(BYTECODE): | $(STAMP)
	@said=$$(nice -n 10 $(PYTHON_IN) -m pytest --collect-only -qq 2>&1) || { echo "$$said" | tail -n 50; exit 1; }; touch $@

pytest: $(STAMP)
	@$(PYTHON_IN) -m pytest -n 6 --dist loadscope --no-loadscope-reorder $(PYTEST_ARGS) || [ $$? -eq 5 ]

test-cluster: $(STAMP)
	@$(PYTHON_IN) -m pytest -m cluster tests/cluster $(PYTEST_ARGS)

bench: $(STAMP)
	@$(PYTHON_IN) benchmarks/run.py $(BENCH_ARGS)

bench-spark: $(STAMP)
	@$(PYTHON_IN) benchmarks/run_spark.py $(BENCH_ARGS)

bench-peers: $(STAMP)
	@$(PYTHON_IN) benchmarks/run_peers.py $(BENCH_ARGS)

# Parts by name: make soak-tests (every test with every case, also those of which `make test` asks a sample), soak-load,
# soak-random, soak-hostile (the doors fuzzed from outside, then besieged for an hour while others work), soak-spark
# (cases, rivals and kills of Spark queries, odd bodies; PENSTOCK_SEED chooses which, and a failure names it),
# soak-interleavings.
# PENSTOCK_SOAK_SECONDS sets the length of the load and of the siege (3600),
# PENSTOCK_EFFORT that of the random tests (15).  Interleavings and schedules of sites, side by side, end with Ctrl-C or
# with the first failure, and so does make soak-queues, which walks the model of a queue.
soak: soak-tests soak-load soak-random soak-hostile soak-spark soak-cluster
	@$(MAKE) --no-print-directory -j3 soak-interleavings soak-schedules soak-members

soak-tests: $(STAMP) $(CLASSES)
	@PENSTOCK_EFFORT=$${PENSTOCK_EFFORT:-2} $(MAKE) --no-print-directory pytest

soak-load: $(STAMP)
	@PYTHONPATH=tests $(PYTHON_IN) -m soak.soak --out soak.jsonl

soak-random: $(STAMP)
	@PENSTOCK_EFFORT=$${PENSTOCK_EFFORT:-15} $(PYTHON_IN) -m pytest tests/property tests/sim tests/crash tests/unit \
		tests/conformance/test_damage.py tests/conformance/test_amqp_doors.py tests/conformance/test_http_door.py tests/soak/test_stops.py \
		tests/cluster_of_servers/test_upgrade.py $(PYTEST_ARGS)

soak-hostile: $(STAMP)
	@PENSTOCK_EFFORT=$${PENSTOCK_EFFORT:-15} $(PYTHON_IN) -m pytest tests/hostile $(PYTEST_ARGS)
	@PYTHONPATH=tests $(PYTHON_IN) -m soak.siege $(SOAK_ARGS)

soak-spark: $(STAMP)
	@PENSTOCK_EFFORT=$${PENSTOCK_EFFORT:-15} $(PYTHON_IN) -m pytest tests/spark/test_queue_cases.py \
		tests/spark/test_two_drivers.py tests/spark/test_kills.py tests/spark/test_sink_kills.py \
		tests/spark/test_parsing.py tests/spark/test_from_json.py tests/spark/test_odd_bodies.py tests/spark/test_expressions.py \
		$(PYTEST_ARGS)
	@PENSTOCK_EFFORT=$${PENSTOCK_EFFORT:-15} $(PYTHON_IN) -m pytest -m cluster tests/cluster/test_speculation.py \
		$(PYTEST_ARGS)

soak-interleavings: $(STAMP)
	@PYTHONPATH=tests $(PYTHON_IN) -m sim.interleave --chains 0 --first $${PENSTOCK_SEED:-1000000}

# Sites that share a queue, as simulated cores and logs: links cut, sites killed, operators who proxy, publishers that
# change sides.
soak-schedules: $(STAMP)
	@PYTHONPATH=tests $(PYTHON_IN) -m sim.sites_schedules $${PENSTOCK_SEED:-1000000}

# Members of a cluster as real rules, logs and streams on simulated disks, links and registers: killed, cut off, put back.
soak-members: $(STAMP)
	@PYTHONPATH=tests $(PYTHON_IN) -m sim.members_schedules $${PENSTOCK_SEED:-1000000}

soak-queues: $(STAMP)
	@PYTHONPATH=tests $(PYTHON_IN) -m property.queue_walk

# Three servers that keep one log, for PENSTOCK_SOAK_SECONDS (3600): kills, partitions, pauses, full and failing disks, a
# register that is gone.  It ends with the logs of all members compared.  SOAK_ARGS=--manual: a person says who leads.
# Before that, in ten minutes, all orders in which the three can be stopped and started again.
soak-cluster: $(STAMP)
	@PYTHONPATH=tests $(PYTHON_IN) -m soak.restart_orders
	@PYTHONPATH=tests $(PYTHON_IN) -m soak.cluster_soak $(SOAK_ARGS)

# Three sites that share a queue, linked over proxies: links cut, sites killed and stopped, workers everywhere.
soak-sites: $(STAMP)
	@PYTHONPATH=tests $(PYTHON_IN) -m soak.sites_soak $(SOAK_ARGS)

# Do the tests that documents name notice what breaks?  An hour and a half; CLAIMS_ARGS="--only limits" for a part.
soak-claims: $(STAMP)
	@PYTHONPATH=tests $(PYTHON_IN) -m claims.claims $(CLAIMS_ARGS)

# Ends with an error of status 1 when a fault is known, of status 3 when that could not be looked up.
audit: $(STAMP)
	@$(PYTHON_IN) tools/audit.py

sbom: $(STAMP)
	@$(PYTHON_IN) tools/sbom.py

OLDER := .venv-spark-4.2/.installed
$(OLDER): tools/older-spark tools/older-spark.lock | $(STAMP)
	@tools/older-spark

FRAMEWORKS := .venv-frameworks/.installed
$(FRAMEWORKS): tools/frameworks tools/frameworks.lock | $(STAMP)
	@tools/frameworks

SUITES := .venv-suites/.installed
$(SUITES): tools/suites tools/suites.lock | $(STAMP)
	@tools/suites

AMQPLIB := .venv-node/.installed
$(AMQPLIB): tools/amqplib tools/node/package.json tools/node/package-lock.json
	@tools/amqplib

conformance: $(STAMP) $(OLDER) $(FRAMEWORKS) $(SUITES) $(AMQPLIB)
	@PENSTOCK_CONFORMANCE=1 $(PYTHON_IN) -m pytest -m conformance $(PYTEST_ARGS)
	@PENSTOCK_SERVER__DOORS=2 $(PYTHON_IN) -m pytest tests/conformance/test_pika_*.py tests/conformance/test_close_codes.py \
		tests/conformance/test_connection_ends.py tests/conformance/test_tls.py tests/conformance/test_management.py $(PYTEST_ARGS)
	@$(MAKE) --no-print-directory pyright-whole

# What who installs today gets: the newest release of everything, where `test` has those of the lock.
test-newest:
	@$(or $(PYTHON),python3) -m venv .venv-newest
	@.venv-newest/bin/python -m pip install --disable-pip-version-check --quiet --upgrade --upgrade-strategy eager \
		--editable '.[dev]'
	@.venv-newest/bin/python -m pytest tests/unit $(PYTEST_ARGS)

house: $(STAMP)
	@$(PYTHON_IN) tools/house.py $(HOUSE_ARGS)

clean:
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis $(BYTECODE)
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
