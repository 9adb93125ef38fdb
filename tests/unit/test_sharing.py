"""What `make test` shares among processes is run once, in order, and nothing beside what is to be alone."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import sharing
from choices import SEED
from sharing import ALONE, ASIDE, CLOCKLESS, FIRST, LAST, LONG, PROCESSES, TESTS, Shares, come_back, place_of, share_of

FILES = [
    *ALONE, "spark/test_sink.py", "spark/test_kills.py", "sites/test_sharing.py", "cluster_of_servers/test_tls.py",
    "crash/test_kills.py", "unit/cli/test_cli.py", "unit/server/test_backup.py",
    *(f"{one}/test_any.py" for one in CLOCKLESS),
]  # fmt: skip


class Process:
    """What the scheduler knows of one: it begins a test when it knows of the next, or that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
        self.workerinput = {"testrunuid": "any", "workerid": name}
        self.shutting_down = False
        self.given: list[int] = []

    def send_runtest_some(self, indices: list[int]) -> None:
        assert not self.shutting_down
        self.given += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    @property
    def begins(self) -> bool:
        return len(self.given) > (not self.shutting_down)


Done = list[tuple[str, str, list[str]]]
"""Each test in the order of their ends: where it ran, its share, and the shares that were beside it."""


def shared_among(count: int, tests: list[str]) -> tuple[Shares, list[Any]]:
    """A scheduler and its processes, each of which knows what to begin with."""
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * count, option=SimpleNamespace(loadscopereorder=False), rootpath=Path()
    )
    shares = Shares(config)
    processes: list[Any] = [Process(f"gw{number}") for number in range(count)]
    for one in processes:
        shares.add_node(one)
        shares.add_node_collection(one, tests)
    shares.schedule()
    return shares, processes


def run(count: int, tests: list[str], chance: random.Random, monkeypatch: pytest.MonkeyPatch) -> tuple[Done, list[int]]:
    """What was done, and how much of it when those aside were let come back."""
    shares, processes = shared_among(count, tests)
    done, came_back = Done(), list[int]()
    monkeypatch.setattr(
        sharing, "come_back", lambda note: came_back.append(len(done)) if note.name.endswith("gw0") else None
    )
    while busy := [one for one in processes if one.begins]:
        one = chance.choice(busy)
        beside = [share_of(tests[other.given[0]].partition("::")[0]) for other in busy if other is not one]
        index = one.given.pop(0)
        done.append((one.gateway.id, share_of(tests[index].partition("::")[0]), beside))
        shares.mark_test_complete(one, index)
        if shares.tests_finished:
            for other in processes:
                other.shutdown()
    assert not shares.has_pending
    return done, came_back


@pytest.mark.parametrize("count", [1, 2, PROCESSES, PROCESSES + 1, PROCESSES + ASIDE, 16])
def test_each_test_is_run_once_and_what_is_alone_has_nothing_beside_it_that_knows_a_clock(
    count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance, busy = random.Random(SEED), set[str]()
    for _ in range(30):
        tests = [f"tests/{file}::test_{number}" for file in FILES for number in range(chance.randrange(4))]
        done, came_back = run(count, tests, chance, monkeypatch)
        assert Counter(share for _, share, _ in done) == Counter(share_of(one.partition("::")[0]) for one in tests)
        for process, share, beside in done:
            around = {place_of(one)[0] for one in beside}
            if place_of(share)[0] == FIRST:
                assert around <= {LAST}
                assert not around or count > PROCESSES
            if process in [f"gw{number}" for number in range(count)][PROCESSES:][-ASIDE:]:
                assert place_of(share)[0] == LAST
            busy.add(process)
        clocks = [at for at, (_, share, _) in enumerate(done, 1) if place_of(share)[0] != LAST]
        assert came_back == clocks[-1:]
    assert len(busy) >= min(count, PROCESSES + ASIDE), "some wait for ever"


def test_what_a_process_has_died_of_is_not_run_again_and_all_else_that_it_had_is() -> None:
    tests = [f"tests/unit/any/test_{file}.py::test_{number}" for file in "abc" for number in range(3)]
    shares, [first, second] = shared_among(2, tests)
    shares.mark_test_complete(first, first.given.pop(0))
    lost = [tests[index] for index in first.given]
    assert shares.remove_node(first) == lost[0]
    third: Any = Process("gw2")
    shares.add_node(third)
    shares.add_node_collection(third, tests)
    shares.schedule()
    done = list[str]()
    while busy := [one for one in (second, third) if one.begins]:
        for one in busy:
            index = one.given.pop(0)
            done.append(tests[index])
            shares.mark_test_complete(one, index)
    assert shares.tests_finished
    assert sorted(done) == sorted({*tests} - {tests[0], lost[0]})
    assert shares.remove_node(second) is None
    assert shares.remove_node(third) is None


STEPS_ASIDE = """
import sys
from pathlib import Path
from sharing import step_aside

step_aside(Path(sys.argv[1]))
print("aside", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux alone has it")
def test_who_steps_aside_has_what_others_leave_until_it_comes_back(tmp_path: Path) -> None:
    note = tmp_path / "note"
    command = [sys.executable, "-c", STEPS_ASIDE, str(note)]
    environ = {**os.environ, "PYTHONPATH": str(TESTS)}
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ) as process:
        group = Path(f"/proc/{process.pid}/autogroup")
        assert process.stdout is not None
        assert process.stdout.readline() == b"aside\n"
        assert os.sched_getscheduler(process.pid) == os.SCHED_IDLE
        assert os.getsid(process.pid) == process.pid
        assert not group.exists() or group.read_text().endswith(" nice 19\n")
        come_back(note)
        assert os.sched_getscheduler(process.pid) == os.SCHED_OTHER or os.geteuid()
        assert not group.exists() or group.read_text().endswith(" nice 0\n")
        process.communicate()
    come_back(note)  # nobody is aside any more


def test_the_tables_name_what_there_is() -> None:
    for row in (*ALONE, *LONG, *CLOCKLESS):
        assert (TESTS / row).exists(), row
