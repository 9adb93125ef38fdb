"""Parts read from the log's own files, where a task sees the disk that the server writes.

The server says for each part where the files are, up to which byte they are durable, and whether this user may read
them; the files say by their headers whether they are those.  Rows are made by the code that the server itself reads the
past with, so they are the same.  A file that was replaced or deleted meanwhile is asked for anew: what the part holds
(action `hold`) is in whatever stands for it.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.errors import LogDamaged, PreconditionFailed
from penstock.history.history import History
from penstock.history.view import Folder, Listing, Moved, View
from penstock.log.disk import OsDisk
from penstock.wire.flight.codec import present
from penstock.wire.flight.commands import MESSAGES, LogRange, Replay, select

if TYPE_CHECKING:
    from penstock.spark.remote import Remote

TRIES = 40
PAUSE_S = 0.05
"""Between two listings that were out of date: a file that is being replaced gets its name meanwhile."""


class NotHere(Exception):
    """This task cannot read the files, or may not; the text says why."""


@lru_cache(maxsize=16)
def folder_of(path: str) -> Folder:
    """What this process has opened of a data folder: Spark uses its Python processes for many tasks."""
    return Folder(OsDisk(path))


def located(server: Remote, **fields: object) -> tuple[View, str | None]:
    """The files of a range, and the filter as it is for this user.

    Raises NotHere, LogDamaged for files that are not what they must be, and what the server refuses.
    """
    rest = threading.Event()  # never set
    moved = ""
    for turn in range(TRIES):
        if turn > 1:
            rest.wait(PAUSE_S)
        told: dict[str, Any] = server.act("locate", **fields)
        path = told["folder"]
        if path is None:
            raise NotHere(told["why"])
        if not os.path.isdir(os.path.join(path, "log")):
            raise NotHere(f"{socket.gethostname()} has no folder {path}/log")
        archived = told["log"].get("archive")
        if archived is not None and not os.path.isfile(os.path.join(archived[0], "manifest.json")):
            raise NotHere(f"{socket.gethostname()} has no archive in {archived[0]}")
        try:
            return folder_of(path).view(Listing.of(told["log"])), told["filter"]
        except Moved as error:
            moved = str(error)
        except OSError as error:
            raise NotHere(f"{socket.gethostname()}: {error}") from error
    raise LogDamaged(f"{moved} is not the file that the server has: it was replaced, deleted or damaged")


def records(server: Remote, start: int, end: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Records of the log, of all kinds."""
    view, _ = located(server, log=True, **{"from": start, "to": end})
    return History(view, _never).records(LogRange(start, end, tuple(columns)))[1]


def messages(
    server: Remote, chosen: dict[str, object], start: int, end: int, columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Messages of topics; `chosen` as `ReadOptions.replay` gives it."""
    view, filter = located(server, vhost=server.vhost, **chosen, **{"from": start, "to": end})
    given: Any = {**chosen, "filter": filter}
    given.setdefault("topic", None)
    command = Replay(vhost=server.vhost, columns=tuple(columns), **given)
    return History(view, _never).replay_between(command, start, end)[1]


def at(
    server: Remote, named: dict[str, object], exchange: str, lsns: npt.NDArray[np.int64], columns: list[str]
) -> Iterator[pa.RecordBatch]:
    """Messages at ascending LSNs; `named` is the queue or the topic that one may read all of."""
    start, end = int(lsns[0]), int(lsns[-1]) + 1
    view, _ = located(server, vhost=server.vhost, exchange=exchange, **named, **{"from": start, "to": end})
    history, schema = History(view, _never), select(MESSAGES, tuple(columns))
    return (present(batch, schema, view.origin, history.exchange_of) for batch in history.rows_at(lsns))


def _never() -> bool:
    return False


def refuse(why: Exception) -> PreconditionFailed:
    """What `direct = true` says where the files cannot be read."""
    return PreconditionFailed(f"option direct is true, and the log's files cannot be read here: {why}")
