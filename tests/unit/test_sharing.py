"""What `make test` shares among processes is run once, in order, and nothing beside what is to be alone."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from choices import SEED
from sharing import ALONE, CLOCKLESS, FIRST, LAST, LONG, PROCESSES, TESTS, Shares, place_of, share_of

FILES = [
    *ALONE, "spark/test_sink.py", "spark/test_kills.py", "sites/test_sharing.py", "cluster_of_servers/test_tls.py",
    "crash/test_kills.py", "unit/cli/test_cli.py", "unit/server/test_backup.py",
    *(f"{one}/test_any.py" for one in CLOCKLESS),
]  # fmt: skip


class Process:
    """What the scheduler knows of one: it begins a test when it knows of the next, or that there is none."""

    def __init__(self, name: str) -> None:
        self.gateway = SimpleNamespace(id=name)
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


def run(count: int, tests: list[str], chance: random.Random) -> list[tuple[str, str, list[str]]]:
    """Each test in the order of their ends: where it ran, its share, and the shares that were beside it."""
    config: Any = SimpleNamespace(
        getvalue=lambda _: ["popen"] * count, option=SimpleNamespace(loadscopereorder=False), rootpath=Path()
    )
    shares = Shares(config)
    processes: list[Any] = [Process(f"gw{number}") for number in range(count)]
    for one in processes:
        shares.add_node(one)
        shares.add_node_collection(one, tests)
    shares.schedule()
    done = list[tuple[str, str, list[str]]]()
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
    return done


@pytest.mark.parametrize("count", [1, 2, PROCESSES, PROCESSES + 1, 16])
def test_each_test_is_run_once_and_what_is_alone_has_nothing_beside_it_that_knows_a_clock(count: int) -> None:
    chance, busy = random.Random(SEED), set[str]()
    for _ in range(30):
        tests = [f"tests/{file}::test_{number}" for file in FILES for number in range(chance.randrange(4))]
        done = run(count, tests, chance)
        assert Counter(share for _, share, _ in done) == Counter(share_of(one.partition("::")[0]) for one in tests)
        for process, share, beside in done:
            around = {place_of(one)[0] for one in beside}
            if place_of(share)[0] == FIRST:
                assert around <= {LAST}
                assert not around or count > PROCESSES
            if process == f"gw{count - 1}" and count > PROCESSES:
                assert place_of(share)[0] == LAST
            busy.add(process)
    assert len(busy) >= min(count, PROCESSES + 1), "some wait for ever"


def test_the_tables_name_what_there_is() -> None:
    for row in (*ALONE, *LONG, *CLOCKLESS):
        assert (TESTS / row).exists(), row
