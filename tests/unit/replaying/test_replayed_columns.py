"""What a replay takes from the log: the columns that it shows, and those that say which rows are its own."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from penstock.history.history import History
from penstock.history.view import Folder, View, listing
from penstock.log.log import Log
from penstock.log.simdisk import SimDisk
from penstock.records.entries import Topic
from penstock.wire.flight.commands import MESSAGES, Replay
from sim.logkit import SMALL, FakeClock, commit, messages, opened

COMMAND: dict[str, Any] = {"vhost": "/", "topic": "orders", "bookmark": "EPOCH"}
TELLING = {"kind", "name", "via"}


@pytest.fixture
def view() -> View:
    """Two topics in turn, with a header and bodies."""
    disk = SimDisk()
    log = opened(disk, SMALL)
    for batch in range(4):
        bodies = [b'{"n":%d}' % row for row in range(50)]
        topic = Topic("/", "", ("orders", "others")[batch % 2])
        commit(log, messages(log.appended + 1, *bodies, topic=topic))
    log.close()
    log = Log.open(disk, FakeClock(), SMALL)
    listed = listing(log)
    log.close()
    return Folder(disk).view(listed)


class Asked:
    """A view that notes which columns are asked of it."""

    def __init__(self, view: View) -> None:
        self._view = view
        self.columns = list[Sequence[str] | None]()

    def batches(
        self, a: int, b: int, columns: Sequence[str] | None = None, names: Any = None
    ) -> Iterator[pa.RecordBatch]:
        self.columns.append(columns)
        return self._view.batches(a, b, columns, names)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)


def replayed(view: Any, columns: tuple[str, ...], **more: Any) -> pa.Table:
    schema, rows = History(view, lambda: False).replay(Replay(**COMMAND, columns=columns, **more))
    return pa.Table.from_batches(list(rows), schema)


@pytest.mark.parametrize(
    ("columns", "taken"),
    [(("body",), {"body"}), (("lsn", "bookmark"), {"lsn"}), (("topic", "exchange"), set[str]()), (("time", "headers"),
     {"time", "properties"})],
)  # fmt: skip
def test_a_replay_takes_no_column_that_it_does_not_show(view: View, columns: tuple[str, ...], taken: set[str]) -> None:
    asked = Asked(view)
    assert replayed(asked, columns).num_rows == 100
    assert [set(one or ()) for one in asked.columns] == [taken | TELLING]


def test_who_judges_messages_takes_all(view: View) -> None:
    asked = Asked(view)
    assert replayed(asked, ("lsn",), filter="/n < 10").num_rows == 20
    assert replayed(asked, ("lsn",), rights=((None, "/n < 10"),)).num_rows == 20
    assert asked.columns == [None, None]


@pytest.mark.parametrize("name", MESSAGES.names)
def test_a_column_alone_is_what_it_is_among_all(view: View, name: str) -> None:
    every = replayed(view, tuple(MESSAGES.names))
    assert every.num_rows == 100
    assert replayed(view, (name,)).equals(every.select([name]))
