"""What `penstock log export` reads, and how it becomes a file that appears whole or not at all.

The source is a data folder, read without a lock (also beside a running server, up to its last whole batch), or a
server, whose bulk child reads for us.  Both give the same columns.  Rows become Python objects for JSON alone.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute

from penstock.cli.exportfiles import writer_for
from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind
from penstock.wire.flight.bookmarks import parse_point, parse_span

if TYPE_CHECKING:
    from penstock.history.view import View


compute: Any = pyarrow.compute  # the stubs know fewer kinds of arrays than the functions take

COLUMNS = ("lsn", "time", "exchange", "topic", "priority", "headers", "body")
"""Of messages, unless others are named."""

Progress = Callable[[int, int], object]
Source = Callable[[], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to export.  Without topic and pattern: every topic of the exchange."""

    topic: str | None = None
    pattern: str | None = None
    exchange: str = ""
    vhost: str = "/"
    start: str = "EPOCH"  # LSN, bookmark, time or word; a message there belongs to it
    end: str = "NOW"  # the same
    filter: str | None = None
    limit: int | None = None
    columns: tuple[str, ...] = COLUMNS
    records: bool = False  # all records as the log stores them, not the messages of topics


@dataclass(slots=True)
class Done:
    rows: int = 0
    bytes: int = 0
    first: int | None = None  # LSN of the first row and of the last one, where `lsn` is among the columns
    last: int | None = None
    warnings: list[str] = field(default_factory=list[str])


def span_of(wanted: Wanted, origin: int) -> str:
    """The range as the server reads it.  InvalidArgument for an end that is no place."""
    return f"[{_place(wanted.start, origin)}:{_place(wanted.end, origin)}]"


def _place(text: str, origin: int) -> str:
    text = text.strip()
    if re.fullmatch(r"\d{1,16}", text):
        return f"{origin}|{text}|"
    try:
        parse_point(text)
    except InvalidArgument:
        raise InvalidArgument(
            f"{text[:60]!r} is no place in the log: write an LSN, a bookmark, an ISO time, EPOCH or NOW"
        ) from None
    return text


# -- from files


@contextmanager
def of_folder(data: str, wanted: Wanted) -> Generator[tuple[Source, int, int]]:
    """Rows of a data folder, and the LSNs [start, end) they lie in."""
    from penstock.cli.logfiles import archive_of, open_folder
    from penstock.history.alone import stand_alone
    from penstock.history.history import History
    from penstock.wire.flight.commands import LogRange, Replay

    view: View = stand_alone(open_folder(data), archive_of(data))
    try:
        history = History(view, lambda: False)
        start, end = history.resolve(parse_span(span_of(wanted, view.origin)))
        if wanted.records:
            yield lambda: history.records(LogRange(start, end))[1], start, end
            return
        pattern = wanted.pattern if wanted.pattern is not None or wanted.topic is not None else ""
        command = Replay(
            wanted.topic,
            pattern,
            wanted.exchange,
            wanted.vhost,
            filter=wanted.filter,
            limit=wanted.limit,
            columns=wanted.columns,
        )
        yield lambda: history.replay_between(command, start, end)[1], start, end
    finally:
        view.close()


# -- from a server


@contextmanager
def of_server(url: str, wanted: Wanted) -> Generator[tuple[Source, int, int]]:
    """The same of a running server."""
    from penstock.client import connect

    with connect(url) as client:
        origin = int(client.action("position", with_vhost=False, bookmark="NOW")["origin"])
        span = span_of(wanted, origin)
        where = client.action("position", with_vhost=False, bookmark=span)
        start, end = int(where["start"]), int(where["end"])
        if wanted.records:
            yield lambda: client.log_batches(start, end), start, end
            return
        pattern = wanted.pattern if wanted.pattern is not None or wanted.topic is not None else ""
        yield (
            lambda: client.replay_batches(
                wanted.topic,
                f"[{origin}|{start}|:{origin}|{end}|)",
                pattern=pattern,
                exchange=wanted.exchange,
                filter=wanted.filter,
                limit=wanted.limit,
                columns=wanted.columns,
            ),
            start,
            end,
        )


# -- into a file


def export(
    source: Source,
    start: int,
    end: int,
    target: Path | None,
    form: str,
    body: str,
    limit: int | None,
    progress: Progress,
) -> Done:
    """Write all rows.  `target` None: standard output.  A file is renamed into its place when it is whole and synced.

    Errors: InvalidArgument when it cannot be written, LogDamaged where the log is wrong; then no file is left.
    """
    done = Done()
    part = None if target is None else target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        with open(part, "xb") if part is not None else _stdout() as sink:
            writer = writer_for(form, cast("Any", sink), body)
            try:
                for batch in _limited(source(), limit):
                    writer.write(_named(batch))
                    done.rows += batch.num_rows
                    _note_lsns(done, batch)
                    if done.last is not None:
                        progress(done.last + 1 - start, end - start)
                writer.finish()
            except BaseException:
                writer.abandon()
                raise
            done.warnings += writer.warnings
            if part is not None:
                sink.flush()
                os.fsync(sink.fileno())
        if part is not None and target is not None:
            done.bytes = part.stat().st_size
            part.replace(target)
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise InvalidArgument(f"{target or 'standard output'} cannot be written: {error.strerror or error}") from error
    finally:
        if part is not None:
            part.unlink(missing_ok=True)
    return done


@contextmanager
def _stdout() -> Generator[Any]:
    yield sys.stdout.buffer
    sys.stdout.buffer.flush()


def _limited(batches: Iterator[pa.RecordBatch], limit: int | None) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if limit is not None:
            batch = batch.slice(0, limit)
            limit -= batch.num_rows
        if batch.num_rows:
            yield batch
        if limit == 0:
            return


def _note_lsns(done: Done, batch: pa.RecordBatch) -> None:
    if "lsn" in batch.schema.names:
        lsns = batch.column("lsn")
        if done.first is None:
            done.first = cast("int", lsns[0].as_py())
        done.last = cast("int", lsns[-1].as_py())


_KINDS = pa.array([next((kind.name.lower() for kind in Kind if kind == n), str(n)) for n in range(max(Kind) + 1)])


def _named(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Kinds of record by their names."""
    at = batch.schema.get_field_index("kind")
    if at < 0:
        return batch
    names = _KINDS.take(batch.column(at).cast(pa.int32()))
    return batch.set_column(at, "kind", names)
