# make install | demo | test | bench | soak | conformance
# Everything runs from .venv, which `install` makes and refreshes when pyproject.toml changes.

.DEFAULT_GOAL := help
.PHONY: help install demo test check bench soak conformance clean

VENV := .venv
PYTHON_IN := $(VENV)/bin/python
STAMP := $(VENV)/.installed

help:
	@echo "make install      a .venv with everything; also python3-venv and Java 17 where absent and you are root"
	@echo "make demo         hundreds of thousands of messages through AMQP, Flight and Spark, a kill -9, and the proof"
	@echo "make test         ruff, mypy, pyright and every test"
	@echo "make bench        the table of speed and memory, each figure beside its budget"
	@echo "make soak         the random and crash tests, with ten times the effort"
	@echo "make conformance  unmodified clients of others against a real server"

install: $(STAMP)

$(STAMP): pyproject.toml tools/install
	@tools/install

demo: $(STAMP)
	@$(PYTHON_IN) examples/demo/main.py

check: $(STAMP)
	@$(VENV)/bin/ruff check .
	@$(VENV)/bin/mypy
	@$(VENV)/bin/pyright

test: check
	@$(PYTHON_IN) -m pytest -m "not soak" $(PYTEST_ARGS)

bench: $(STAMP)
	@$(PYTHON_IN) benchmarks/run.py $(BENCH_ARGS)

soak: $(STAMP)
	@PENSTOCK_EFFORT=10 $(PYTHON_IN) -m pytest tests/property tests/sim tests/crash tests/unit $(PYTEST_ARGS)

conformance: $(STAMP)
	@$(PYTHON_IN) -m pytest -m conformance $(PYTEST_ARGS)

clean:
	@rm -rf build dist .mypy_cache .pytest_cache .ruff_cache .hypothesis
	@find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
