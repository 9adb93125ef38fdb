"""How `make test` shares its tests among processes: which go together, which go alone, and which know no clock.

The last two processes are aside: they run what knows no clock, with what the others leave of the cores.  The others go
through all that does: first what is to have nobody but those aside beside it, then four at a time, which wait for a
server, a lease or a disk now and then.  What is left at the end they share.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, cached_property
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling
from xdist.workermanage import WorkerController

TESTS = Path(__file__).parent

ALONE = (
    "hostile/test_flight_crowds.py",  # a crowd of calls is to be noticed before it fills its door
    "soak/test_stops.py",  # under a load that nobody paces
    "soak/test_soak.py",  # it measures what it sees
)
"""Files that have none beside them which know a clock, in this order."""

LONG = ("spark", "cluster_of_servers", "conformance", "crash", "hostile")
"""Folders with files that take long, longest first: short files at the end let all processes end together.

The two whose files are one share begin before all that can be shared out.
"""

CLOCKLESS = (
    "soak/test_siege.py", "sim", "property", "scenarios", "unit/log", "unit/core", "unit/expr", "unit/core_links",
    "unit/core_queue", "unit/core_sizes", "unit/core_sow", "unit/core_views", "unit/config", "unit/memory",
    "unit/records", "unit/replication", "unit/amqp", "unit/doors", "unit/replaying",
)  # fmt: skip
"""Folders whose files wait for a core as long as it takes, longest first."""

FIRST, LATER, LAST = range(3)
"""Groups of files: those that are alone, those that know a clock, and those that know none."""

PROCESSES = 4
"""Beside each other."""

ASIDE = 2
"""What the others leave is more than one takes: in the longest part of a run they wait for a sixth of the time."""

SPARK, LEASES = "spark", "leases"
"""The share of whoever has a Spark session, and that of servers whose leases of a second are to hold."""


@cache
def share_of(file: str) -> str:
    """What one process runs as a whole: a file, or all those that share a Spark session, which takes long to start.

    Clusters are not run two at a time either: they would be late for each other.
    """
    path = Path(file)
    if path.parent.name in ("cluster_of_servers", "sites"):
        return LEASES
    of_the_session = path.parts[-3:-1] == ("tests", "spark") and path.name != "test_kills.py"  # it starts its own
    return SPARK if of_the_session else file


@cache
def place_of(share: str) -> tuple[int, int]:
    """The group of a share, and where it stands in it."""
    name = {SPARK: "spark/", LEASES: "cluster_of_servers/"}.get(share, share.rpartition("tests/")[2])
    for group, rows in ((FIRST, ALONE), (LATER, LONG), (LAST, CLOCKLESS)):
        for place, row in enumerate(rows):
            if name == row or name.startswith(f"{row}/"):
                return group, place
    return LATER, len(LONG)


def in_order(items: list[pytest.Item]) -> None:
    """Sort tests as their shares are to be taken, each share in one piece."""

    @cache
    def order(path: Path) -> tuple[tuple[int, int], bool, str]:
        share = share_of(str(path))
        return place_of(share), share != SPARK, share

    items.sort(key=lambda item: order(item.path))


def is_aside(worker: str, count: int) -> bool:
    """Of so many processes."""
    return worker in [f"gw{number}" for number in range(max(PROCESSES, count - ASIDE), count)]


def step_aside(note: Path) -> None:
    """Have what the others leave of the cores, with all that this process starts, in a session of its own: Linux gives
    each session a part of a core, whatever its processes say of themselves.  note: a file for its number.
    """
    if hasattr(os, "SCHED_IDLE"):
        os.setsid()
        note.write_text(f"{os.getpid()}")
        _take(os.getpid(), os.SCHED_IDLE, nice=19)


def come_back(note: Path) -> None:
    """Nobody is left who has to go before it; other work of the machine would, and for as long as that lasts."""
    with suppress(FileNotFoundError):  # it has not stepped aside
        pid = int(note.read_text())
        note.unlink()
        _take(pid, os.SCHED_OTHER, nice=0)


def _take(pid: int, policy: int, nice: int) -> None:
    with suppress(OSError):  # only root comes back from here; and the process may have ended
        os.sched_setscheduler(pid, policy, os.sched_param(0))
    with suppress(OSError):  # not every Linux parts the cores by sessions
        Path(f"/proc/{pid}/autogroup").write_text(f"{nice}")


def note_of(given: Mapping[str, Any]) -> Path:
    """Where one aside leaves its number.  given: what xdist tells a process of the tests."""
    return Path(tempfile.gettempdir()) / f"penstock-aside-{given['testrunuid']}-{given['workerid']}"


class Shares(LoadScopeScheduling):
    """Shares to processes as these become free."""

    def mark_test_complete(self, node: WorkerController, item_index: int, duration: float = 0) -> None:
        """Who waits for what is alone goes on when that has ended; those aside come back when all others have.

        What is done is forgotten: who counts what is left goes over it after each of thousands of tests.
        """
        test = self.registered_collections[node][item_index]
        share = self._split_scope(test)
        tests = self.assigned_work[node][share]
        del tests[test]
        if not tests:
            del self.assigned_work[node][share]
        self._reschedule(node)
        group = place_of(share)[0]
        if group == FIRST:
            for other in self.nodes:
                self._reschedule(other)
        if group != LAST and all(
            place_of(share)[0] == LAST for share in chain(self.workqueue, self._taken(self.nodes))
        ):
            for other in self.nodes:
                come_back(note_of(other.workerinput))

    def remove_node(self, node: WorkerController) -> str | None:
        """What a process has died of is not run by others, as all else is that it had."""
        work = self.assigned_work[node]
        died_of = next(((share, test) for share, tests in work.items() for test in tests), None)
        if died_of is not None:
            share, test = died_of
            del work[share][test]
            if not work[share]:
                del work[share]
        super().remove_node(node)
        return died_of and died_of[1]

    def _taken(self, nodes: Iterable[WorkerController]) -> Iterator[str]:
        """Shares that these have, and have not run to their end."""
        return chain.from_iterable(self.assigned_work[node] for node in nodes)

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        return sum(map(len, workload.values()))

    def _split_scope(self, nodeid: str) -> str:
        return share_of(nodeid.partition("::")[0])

    def _next(self, node: WorkerController) -> str | None:
        """The share that is this process's turn, if there is one."""
        if is_aside(node.gateway.id, self.numnodes):
            return next((share for share in self.workqueue if place_of(share)[0] == LAST), None)
        others = self._taken(other for other in self.nodes if other is not node)
        return None if any(place_of(share)[0] == FIRST for share in others) else next(iter(self.workqueue), None)

    def _assign_work_unit(self, node: WorkerController) -> None:
        share = self._next(node)
        if share is not None:
            tests = self.assigned_work[node][share] = self.workqueue.pop(share)
            node.send_runtest_some([self._places[test] for test in tests])

    @cached_property
    def _places(self) -> dict[str, int]:
        """Of each test in the collection, which all processes have."""
        assert self.collection is not None
        return {test: place for place, test in enumerate(self.collection)}

    def _reschedule(self, node: WorkerController) -> None:
        """A process begins its last test when it knows of another one, or that there is none."""
        while not node.shutting_down and self._pending_of(self.assigned_work[node]) < 2:
            if self._next(node) is not None:
                self._assign_work_unit(node)
            elif not self.workqueue or is_aside(node.gateway.id, self.numnodes):
                node.shutdown()
            else:
                return
