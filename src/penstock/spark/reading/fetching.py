"""What an executor does for one partition: fetch its rows, parse bodies, put bad ones aside.

Reading a part twice gives the same rows, whether they come from the server or from the log's own files.

Parts read from the log's own files, where a task sees the disk that the server writes.

The server says for each part where the files are, up to which byte they are durable, and whether this user may read
them; the files say by their headers whether they are those.  Rows are made by the code that the server itself reads the
past with, so they are the same.  A file that was replaced or deleted meanwhile is asked for anew: what the part holds
(action `hold`) is in whatever stands for it.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from penstock.errors import LogDamaged, NotFound, PreconditionFailed, told_as
from penstock.history.history import History
from penstock.history.view import Folder, Listing, View, listed_again
from penstock.log.disk import OsDisk
from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON, MessageType, needed_of
from penstock.spark.executor import keep_freed, spare_modules, task_of
from penstock.spark.options import ReadOptions
from penstock.spark.reading.bodies import Aside, BodyParser, type_of, with_all_needed
from penstock.spark.reading.columns import BOOKMARK, ERROR, Layout
from penstock.spark.reading.parts import (
    ChangePart,
    ContentPart,
    LogPart,
    Lsns,
    PlanPart,
    RecordPart,
    ReplayPart,
    RowsPart,
)
from penstock.spark.record_batches import batch_of, by_name, column, values
from penstock.spark.remote import Again, Remote, behind, followers, has_every_row, remote
from penstock.wire.flight.commands import MESSAGES, LogRange, Replay, select
from penstock.wire.flight.failures import PASSED

log = logging.getLogger("penstock.spark")


def fetch(options: ReadOptions, layout: Layout, part: object) -> Iterator[pa.RecordBatch]:
    """The rows of a part, as Spark wants them."""
    yield from _fetched(options, layout, part)
    spare_modules()


def _fetched(options: ReadOptions, layout: Layout, part: object) -> Iterator[pa.RecordBatch]:
    server = remote(options.where)
    if isinstance(part, LogPart | ReplayPart | ContentPart | RecordPart) and part.held:
        keep(server, options, part.held, part.start)
    kind: MessageType = JSON
    if layout.reads_bodies:
        kind = type_of(server, options, getattr(part, "kind", None))
        layout = with_all_needed(layout, kind)
    rows = _rows(server, options, layout, part)
    if layout.reads_bodies:
        yield from _parsed(server, options, layout, part, kind, rows)
    else:
        yield from (layout.fitted(by_name(batch)) for batch in rows)


def _parsed(
    server: Remote, options: ReadOptions, layout: Layout, part: object, kind: MessageType,
    rows: Iterator[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Rows with the columns of their bodies; bad bodies put aside."""
    keep_freed()
    by_headers = "properties" in needed_of(kind)
    parser = BodyParser(layout.schema, layout.parsed, layout.needed, kind, layout.rescued, layout.own)
    aside = Aside(server, options, part, parser.fields) if layout.strict else None
    for batch in rows:
        columns = by_name(batch)
        found, errors = parser.parse(columns["body"], columns["properties"] if by_headers else None)
        columns |= found
        if layout.error:
            columns[ERROR] = pa.array(errors, pa.string())
        if aside is not None and any(error is not None for error in errors):
            marks = values(batch, BOOKMARK) if BOOKMARK in layout.fetched else None
            aside.put(values(batch, "body"), errors, marks)
            good: Any = pa.array([error is None for error in errors])
            columns = {name: cast("Any", column).filter(good) for name, column in columns.items()}
        yield layout.fitted(columns)


def keep(server: Remote, options: ReadOptions, held: str, start: int) -> None:
    """Have the log kept from `start` on.  PreconditionFailed when something of it may have gone meanwhile."""
    upto = _passed(server, held, start)
    if upto and options.fail_on_data_loss:
        raise PreconditionFailed(
            f"{options.what}: a part of this read begins at LSN {start}, the server has kept it no longer since the "
            f"read was planned, and retention has come to LSN {upto}; plan it anew with a new load(), or set "
            "failOnDataLoss to false"
        )


def _passed(server: Remote, held: str, start: int) -> int:
    """Have the log kept from `start` on; how far retention may have come while it was not, 0 where no row has gone."""
    told = server.act("hold", read=held, start=start)
    upto = max(int(told["first"]), int(told["floor"]))
    return 0 if told["kept"] or start >= upto else upto


@dataclass(slots=True)
class _Counted:
    """Whether rows may be counted over the answers of one part, as `Again` has it.

    Of a part of a stream's batch the server itself says it, but each leader compacts in its own way: over two of them
    rows are counted where neither has left out any.
    """

    server: Remote
    options: ReadOptions
    part: LogPart | ReplayPart
    whole: bool = False  # who answered first had every row

    def begins(self) -> None:
        """The first answer is asked for, and another server may have to go on."""
        self.whole = has_every_row(self.server, self.part.start)

    def goes_on(self, moved: bool) -> None:
        """Rows came, and the others are asked for; moved: of another server.  Raises PreconditionFailed."""
        server, part = self.server, self.part
        passed = part.held and _passed(server, part.held, part.start)
        if passed or (moved and not (self.whole and has_every_row(server, part.start))):
            raise PreconditionFailed(
                f"{self.options.what}: the answer for LSNs {part.start} to {part.end - 1} broke behind some of its "
                "rows, and what answers now may have left out others: read it again"
            )


def _rows(server: Remote, options: ReadOptions, layout: Layout, part: object) -> Iterator[pa.RecordBatch]:
    columns = list(layout.fetched)
    match part:
        case LogPart():
            a, b = part.start, part.end
            yield from either(
                options,
                lambda: file_records(server, a, b, columns, options.fail_on_data_loss),
                lambda skip: spread(
                    options,
                    server,
                    (a, b),
                    "log",
                    skip,
                    _Counted(server, options, part),
                    **{"from": a, "to": b},
                    columns=columns,
                ),
            )
        case ReplayPart():
            yield from _replayed(server, options, part, columns)
        case ChangePart():
            yield from _changes(server, part, columns)
        case PlanPart():
            yield from _planned(server, options, part, layout.fetched)
        case ContentPart() | RecordPart():
            yield from _content(server, options, layout, part)
        case RowsPart():
            with pa.ipc.open_stream(pa.py_buffer(part.packed)) as stream:
                yield from stream
        case _ if type(part) is InputPartition:
            return  # Spark's own, where `partitions` gave none
        case _:
            raise TypeError(f"not a part of this source: {part!r}")


def _replayed(server: Remote, options: ReadOptions, part: ReplayPart, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Messages of topics.  Of a stream's batch the server says whether all of them are still there."""
    chosen, a, b = options.replay() if part.asked is None else part.asked, part.start, part.end
    where = span(part.origin, a, b)

    def rows(held_for: str | None) -> Iterator[pa.RecordBatch]:
        return either(
            options,
            lambda: file_messages(server, chosen, a, b, columns, options.fail_on_data_loss, held_for),
            lambda skip: spread(
                options, server, (a, b), "replay", skip, _Counted(server, options, part), vhost=server.vhost,
                bookmark=where, columns=columns, bookmark_not_found="epoch", held_for=held_for, **chosen,
            ),
        )  # fmt: skip

    given = 0
    try:
        for batch in rows(None if part.held else options.stream):
            given += batch.num_rows
            yield batch
    except PreconditionFailed as lost:
        if options.fail_on_data_loss or given or part.held:
            raise  # of what was counted anew Spark asks in another task
        log.warning("%s: it goes on with those that are left", str(lost).partition("; ")[0])
        yield from rows(None)


def spread(
    options: ReadOptions, server: Remote, lsns: tuple[int, int], operation: str, skip: int,
    again: Again | None = None, /, **fields: object,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """The rows of a DoGet about the LSNs [a, b), from the followers of a cluster where option `readFrom` says so.

    again: as of `Remote.rows`; of followers and their leader each is asked whether it has every row.
    """
    if options.read_from != "followers" or not has_every_row(server, lsns[0]):
        return server.rows(operation, skip, again, **fields)
    if fields.get("filter") is not None:  # what it is for this user, and these bodies, is the leader's to say
        names = ("topic", "pattern", "exchange", "filter")
        chosen = {name: fields[name] for name in names if name in fields}
        told = server.act("locate", vhost=server.vhost, **chosen, **{"from": lsns[0], "to": lsns[1]})
        fields["filter"] = told["filter"]
    return followers(options.where).rows(lsns, options.stream is None, operation, skip, **fields)


def _changes(server: Remote, part: ChangePart, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Rows of a planned batch of a view, each with how it changed."""
    asked = [name for name in columns if name != "change"] or ["lsn"]
    rows = server.rows("plan", stream=part.stream, batch=part.batch, part=part.part, parts=part.parts, columns=asked)
    for batch in rows:
        found = by_name(batch)
        found["change"] = pa.array(np.full(batch.num_rows, part.change, np.int32))
        yield batch_of([found[name] for name in columns], columns)


def either(
    options: ReadOptions,
    files: Callable[[], Iterator[pa.RecordBatch]],
    asked: Callable[[int], Iterator[pa.RecordBatch]],
) -> Iterator[pa.RecordBatch]:
    """Rows from the log's files where option `direct` and this machine allow it, else from the server.

    asked: the same rows from the server without the first so many.
    """
    given = 0
    if options.direct != "false":
        try:
            for batch in files():
                yield batch
                given += batch.num_rows
            return
        except (NotHere, LogDamaged, OSError) as why:
            if options.direct == "true":
                raise refuse_files(why) from why
    yield from asked(given)


def _planned(
    server: Remote, options: ReadOptions, part: PlanPart, columns: tuple[str, ...]
) -> Iterator[pa.RecordBatch]:
    """Rows of a planned batch.  Never from the files: the server must hear who has it (`core.streams`)."""
    asked: dict[str, object] = {
        "stream": part.stream,
        "batch": part.batch,
        "revision": part.revision,
        "columns": list(columns),
        "part": part.part,
        "parts": part.parts,
        "epoch": part.epoch,
        "key": part.order_by,
    }
    task = task_of()
    if task is not None:
        asked |= {"query": task[0], "query_batch": task[1]}
    try:
        yield from server.rows("plan", **asked)
    except NotFound as lost:
        if options.fail_on_data_loss or lost.reason != PASSED:
            raise


def span(origin: int, start: int, end: int) -> str:
    """The bookmark of start <= lsn < end."""
    return f"[{origin}|{start}|:{origin}|{end}|)"


def _content(
    server: Remote, options: ReadOptions, layout: Layout, part: ContentPart | RecordPart
) -> Iterator[pa.RecordBatch]:
    """Rows at the LSNs of the part, from the log: the queue, or the index of the records, may have others by now."""
    lsns, extra = part.lsns(), part.extra()
    given = [name for name in layout.fetched if name not in extra]
    asked = given if "lsn" in given else [*given, "lsn"]
    chosen: dict[str, object] = {"topic": options.view} if isinstance(part, RecordPart) else {"pattern": ".*"}
    named: dict[str, object] = chosen if isinstance(part, RecordPart) else {"queue": options.queue}
    rows = either(
        options,
        lambda: file_rows(server, named, part.exchange, lsns, asked, options.fail_on_data_loss),
        lambda skip: _at(options, server, chosen, part, lsns, asked, skip),
    )
    found = 0
    for batch in rows:
        places: Any = pa.array(np.searchsorted(lsns, cast("Lsns", column(batch, "lsn").to_numpy())))
        found += batch.num_rows
        columns = by_name(batch)
        for name, whole in extra.items():
            if name in layout.fetched:
                columns[name] = cast("Any", whole).take(places)
        yield batch_of([columns[name] for name in layout.fetched], layout.fetched)
    if found < len(lsns) and options.fail_on_data_loss:
        raise NotFound(
            f"{options.what}: the log gives {found} of the {len(lsns)} messages that were there when the read was "
            "planned; retention has passed the others, or this user may not read their topics: set failOnDataLoss to "
            "false to read without them"
        )


def _at(
    options: ReadOptions,
    server: Remote,
    chosen: dict[str, object],
    part: ContentPart | RecordPart,
    lsns: Lsns,
    columns: list[str],
    skip: int,
) -> Iterator[pa.RecordBatch]:
    """The rows at these LSNs of a replay of the range they lie in, without the first so many of them."""
    ends = int(lsns[0]), int(lsns[-1]) + 1
    range_of_them = spread(
        options, server, ends, "replay", 0, vhost=server.vhost, exchange=part.exchange,
        bookmark=span(part.origin, *ends), bookmark_not_found="epoch", columns=columns, **chosen,
    )  # fmt: skip

    def mine(batch: pa.RecordBatch) -> pa.RecordBatch:
        hit = np.isin(cast("Lsns", column(batch, "lsn").to_numpy()), lsns, assume_unique=True)
        return batch if hit.all() else batch.filter(pa.array(hit))

    return behind(map(mine, range_of_them), skip)


class NotHere(Exception):
    """This task cannot read the files, or may not; the text says why."""


@lru_cache(maxsize=16)
def folder_of(path: str) -> Folder:
    """What this process has opened of a data folder: Spark uses its Python processes for many tasks."""
    return Folder(OsDisk(path))


def located(server: Remote, fail_on_data_loss: bool, /, **fields: object) -> tuple[View, str | None]:
    """The files of a range, and the filter as it is for this user.  A range whose beginning is gone has what is left,
    unless that is to fail.

    Raises NotHere, LogDamaged for files that are not what they must be, and what the server refuses.
    """

    def look() -> tuple[View, str | None]:
        told: dict[str, Any] = server.act("locate", fail_on_data_loss=None if fail_on_data_loss else False, **fields)
        path = told["folder"]
        if path is None:
            raise NotHere(told["why"])
        if not os.path.isdir(os.path.join(path, "log")):
            raise NotHere(f"{socket.gethostname()} has no folder {path}/log")
        archived = told["log"].get("archive")
        if archived is not None and not os.path.isfile(os.path.join(archived[0], "manifest.json")):
            raise NotHere(f"{socket.gethostname()} has no archive in {archived[0]}")
        with told_as(NotHere, f"{socket.gethostname()}: ", instead=OSError):
            return folder_of(path).view(Listing.of(told["log"])), told["filter"]

    return listed_again(look)


def file_records(
    server: Remote, start: int, end: int, columns: list[str], fail_on_data_loss: bool = True
) -> Iterator[pa.RecordBatch]:
    """Records of the log, of all kinds."""
    view, _ = located(server, fail_on_data_loss, log=True, **{"from": start, "to": end})
    return History(view, _never).records(LogRange(start, end, tuple(columns)))[1]


def file_messages(
    server: Remote, chosen: dict[str, object], start: int, end: int, columns: list[str],
    fail_on_data_loss: bool = True, held_for: str | None = None,
) -> Iterator[pa.RecordBatch]:  # fmt: skip
    """Messages of topics; `chosen` as `ReadOptions.replay` gives it."""
    asked = {**chosen, "vhost": server.vhost, "held_for": held_for, "from": start, "to": end}
    view, filter = located(server, fail_on_data_loss, **asked)
    given: Any = {**chosen, "filter": filter}
    given.setdefault("topic", None)
    command = Replay(vhost=server.vhost, columns=tuple(columns), **given)
    return History(view, _never).replay_between(command, start, end)[1]


def file_rows(
    server: Remote,
    named: dict[str, object],
    exchange: str,
    lsns: npt.NDArray[np.int64],
    columns: list[str],
    fail_on_data_loss: bool = True,
) -> Iterator[pa.RecordBatch]:
    """Messages at ascending LSNs; `named` is the queue or the topic that one may read all of."""
    start, end = int(lsns[0]), int(lsns[-1]) + 1
    place = {**named, "exchange": exchange, "from": start, "to": end}
    view, _ = located(server, fail_on_data_loss, vhost=server.vhost, **place)
    history, schema = History(view, _never), select(MESSAGES, tuple(columns))
    return (history.present(batch, schema) for batch in history.rows_at(lsns))


def _never() -> bool:
    return False


def refuse_files(why: Exception) -> PreconditionFailed:
    """What `direct = true` says where the files cannot be read."""
    return PreconditionFailed(f"option direct is true, and the log's files cannot be read here: {why}")
