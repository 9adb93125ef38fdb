"""Upkeep against appends in 120 interleavings, two processes side by side; and the proof that so many find mistakes.

The mistake that is found last is found in 80.  `PENSTOCK_SCHEDULES` sets how many (120, in a hunt 280 and more;
`make soak-interleavings` goes on for ever); a failure prints the seed and
the command that shows it again.  No schedule knows a real clock: `make test` runs them at the lowest priority, beside
the other tests.
"""

from __future__ import annotations

import gc
import os
import re
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from choices import EFFORT
from forked import ran
from sim.interleave import LIVES, Chain, simulated_threads
from sim.planted import PLANTED

TESTS = Path(__file__).resolve().parents[1]
FIRST = 5
"""The chain with which a usual run begins: in those that follow it mistakes are found soonest."""

SCHEDULES = int(os.environ.get("PENSTOCK_SCHEDULES", "120" if EFFORT == 1 else "280"))
PROCESSES = 2
SAMPLE = 120 // LIVES
"""Chains in which each planted mistake is found."""

LIMIT_S = 3600
"""What hangs ends then; at the lowest priority whole runs beside other work take long."""


def side_by_side(commands: Iterable[Sequence[str]], seconds: float) -> list[CompletedProcess[str]]:
    """The simulator, each time in a process of its own, to its end."""
    environ = {"PYTHONPATH": os.pathsep.join((str(TESTS), str(TESTS.parent / "src")))}
    with ThreadPoolExecutor(PROCESSES) as pool:
        one = partial(ran, "-m", "sim.interleave", env=environ, seconds=seconds)
        return list(pool.map(lambda options: one(*options), commands))


def test_many_interleavings(effort: int) -> None:
    chains = max(1, SCHEDULES * effort // LIVES // PROCESSES)
    commands = [
        ("--chains", str(chains), "--first", str((FIRST if effort == 1 else 1) + at * chains))
        for at in range(PROCESSES)
    ]
    for done in side_by_side(commands, LIMIT_S * effort):
        assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def test_planted_mistakes_are_found() -> None:
    names = [house.__name__ for house in PLANTED]
    parts = [names[at::PROCESSES] for at in range(PROCESSES)]
    commands = [("--chains", str(SAMPLE), "--first", str(FIRST), "--plant", *part) for part in parts]
    for part, done in zip(parts, side_by_side(commands, LIMIT_S), strict=True):
        text = done.stdout + done.stderr
        assert done.returncode == 1, f"one of {part} was not found: {text[-2000:]}"
        for name in part:
            assert re.search(
                f"replay: PYTHONPATH=tests .venv/bin/python -m sim.interleave --seed .* --plant {name}\n", text
            )


def test_a_seed_gives_the_same_run_again() -> None:
    traces = []
    for _ in range(2):
        chain = Chain(11)
        chain.trace = []
        with simulated_threads():
            for _ in range(6):
                chain.live()
        traces.append((chain.trace, chain.steps, chain.disk.files()))
    assert traces[0] == traces[1]
    assert len(traces[0][0]) > 50


def test_what_a_life_left_under_way_ends_with_it(caplog: pytest.LogCaptureFixture) -> None:
    """Not when the collector comes to it: its loop is closed by then, and whatever test runs then fails of it."""
    chain = Chain(2)
    with simulated_threads():
        for _ in range(4):
            chain.live()
    gc.collect()
    assert "a fault ended" not in caplog.text
