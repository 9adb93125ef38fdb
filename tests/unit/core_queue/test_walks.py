"""Lists that look through what waited before them: those at different places meet, and nobody waits for long."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from penstock.core.effects import Scan
from penstock.core.queue.order.main_order import Main
from unit.core_queue import test_priority
from unit.core_queue.test_queue import Bench, First

WAITING = 40_000
STEP = 256
APART = 30


def in_order() -> Any:
    """A queue with so many messages that nobody wants."""
    q = Bench()
    q.publish(WAITING, body=b"nobody's")
    return q


def by_rank(ranks: int) -> Callable[[], Any]:
    """The same, of so many priorities."""

    def make() -> Any:
        q = test_priority.Bench()
        q.arrive(*[place % ranks for place in range(WAITING)], body=b"nobody's")
        return q

    return make


@pytest.mark.parametrize("waiting", [in_order, by_rank(3), by_rank(5_000)], ids=["in order", "levels", "ranks"])
@pytest.mark.parametrize(("lists", "most"), [(2, 1.4), (5, 2.5)])
def test_lists_that_came_at_different_times_go_on_as_one(lists: int, most: float, waiting: Callable[[], Any]) -> None:
    """Found by a backlog of 10 GB: two groups that walked alike never met, and read everything twice."""
    q = waiting()
    scans = list[Scan]()
    walks = list[tuple[set[str], int]]()  # whose, and how many messages they looked at

    def answer() -> None:
        """The next scan looks at so many messages and no more, as when its time is up."""
        scans.extend(effect for effect in q.sink.take_effects() if isinstance(effect, Scan))
        scan = scans.pop(0)
        upto = scan.chunk[min(STEP, len(scan.chunk)) - 1]
        walks.append(({cast("First", one).text for one in scan.filters}, min(STEP, len(scan.chunk))))
        q.queue.scanned(test_priority.NOW, scan.token, [[] for _ in scan.filters], upto, q.sink)
        scans.extend(effect for effect in q.sink.take_effects() if isinstance(effect, Scan))

    for number in range(lists):
        q.worker(filter=First(f"mine {number}"))
        for _ in range(APART):
            answer()
    began = len(walks)
    while scans:
        answer()
    assert q.queue.targets.all_follow
    assert len(walks[-1][0]) == lists
    assert sum(rows for _, rows in walks) <= most * WAITING
    for number in range(lists):
        turns = [at for at, (whose, _) in enumerate(walks) if f"mine {number}" in whose and at >= began]
        assert max(b - a for a, b in zip([began, *turns], turns, strict=False)) <= 2 * lists


@pytest.mark.parametrize("workers", [1, 3])
def test_who_has_room_for_one_costs_no_look_at_all_that_its_list_has(workers: int, monkeypatch: Any) -> None:
    """Found by a drain of 10 GB with fifty filters: each ack looked at thousands of positions."""
    q = Bench()
    mine = [q.worker(filter=First("x"), max_backlog=1) for _ in range(workers)]
    q.publish(2_000, body=b"x")
    q.settle(range(150, 160))  # holes, so that nothing goes by slices
    looks = [0]
    has = Main.has

    def counted(main: Main, lsn: int) -> bool:
        looks[0] += 1
        return has(main, lsn)

    monkeypatch.setattr(Main, "has", counted)
    for worker in mine * 20:
        [lsn] = q.sent(to=worker)
        assert q.settle(range(lsn, lsn + 1), by=worker) == 1
    assert looks[0] <= 20 * 20 * workers
