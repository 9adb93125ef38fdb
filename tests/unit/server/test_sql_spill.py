"""What statements put aside, and what their processes answer: never what the log keeps of its disk, always bounded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from penstock.errors import ResourceExhausted
from penstock.server.people.access import Who
from penstock.server.sql import FOLDER, queries
from penstock.server.sql.queries import Queries, SqlLimits

MIB = 1 << 20
KEPT = 80 * MIB
SORT = "SELECT max(n) AS m FROM (SELECT row_number() OVER (ORDER BY hash(i)) + i % 2 * 0 AS n FROM range(1200000) t(i))"
"""Gathers more than 32 MiB."""

CALLER = cast("Any", SimpleNamespace(gone=lambda: False, rights=None, user="guest", who=Who("guest")))


class Disk:
    """Says what a test wants."""

    def __init__(self, free: Callable[[], int]) -> None:
        self.free = free


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Callable[..., Any]]:
    made = list[Queries]()

    def ask(free: Callable[[], int], sql: str = SORT, kept: int = KEPT, **limits: Any) -> list[dict[str, object]]:
        log = SimpleNamespace(disk=Disk(free), kept_free=kept)
        handover = SimpleNamespace(engine=SimpleNamespace(log=log), call=lambda work, *_, **__: work())
        made.append(Queries(cast("Any", handover), cast("Any", None), tmp_path, SqlLimits(memory=32 * MIB, **limits)))
        _, rows = made[-1].run(CALLER, "/", sql)
        return [row for batch in rows for row in batch.to_pylist()]

    yield ask
    for one in made:
        one.close()
        assert one.running == 0
    assert list((tmp_path / FOLDER).iterdir()) == []


def test_with_room_it_comes_to_its_end(asking: Callable[..., Any]) -> None:
    assert asking(lambda: KEPT + 1000 * MIB) == [{"m": 1_200_000}]


@pytest.mark.parametrize("room", [-KEPT, 16 * MIB])
def test_a_statement_keeps_to_what_the_log_leaves_of_the_disk(asking: Callable[..., Any], room: int) -> None:
    """Also to its part of that, where several may run."""
    with pytest.raises(ResourceExhausted, match=r"the log keeps the rest|no more than the log needs"):
        asking(lambda: KEPT + room, at_once=2)
    if room >= 0:
        assert asking(lambda: KEPT + room, "SELECT 1 AS one") == [{"one": 1}]


def test_a_disk_that_gets_short_ends_what_has_put_something_aside(tmp_path: Path, asking: Callable[..., Any]) -> None:
    """The log goes on growing while a statement runs."""

    def free() -> int:
        aside = [one for one in tmp_path.rglob("*") if one.is_file()]
        return KEPT - 1 if aside else KEPT + 1000 * MIB

    with pytest.raises(ResourceExhausted, match="no more than the log needs"):
        asking(free)


def test_each_that_may_run_at_once_has_its_part_of_the_room(tmp_path: Path) -> None:
    for free, at_once, wanted in (
        (KEPT + 150 * MIB, 2, (50 * MIB, True)),  # two, and an administrator's
        (KEPT + 200 * MIB, 1, (90 * MIB, False)),
        (KEPT + MIB, 2, (0, True)),
        (0, 4, (0, True)),
    ):
        log = SimpleNamespace(disk=Disk(lambda free=free: free), kept_free=KEPT)  # type: ignore[misc]
        handover = cast("Any", SimpleNamespace(engine=SimpleNamespace(log=log)))
        limits = SqlLimits(spill=90 * MIB, at_once=at_once)
        assert Queries(handover, cast("Any", None), tmp_path, limits).may_put_aside() == wanted


@pytest.mark.parametrize(
    ("bound", "sql"), [("ROWS_MOST", "SELECT 1 AS one"), ("WORDS_MOST", "SELECT 1 AS " + "x" * 2000)]
)
def test_a_process_that_answers_with_too_much_is_not_heard(
    asking: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, bound: str, sql: str
) -> None:
    monkeypatch.setattr(queries, bound, 40)
    with pytest.raises(ResourceExhausted, match="answers with more than it may"):
        asking(lambda: KEPT + 1000 * MIB, sql)
