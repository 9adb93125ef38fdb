"""The log's files without a server: its folder opened, segments and records listed, audited, compacted, exported.

An audit works without a lock and changes no byte, so also beside a running server: the whole log is read once, by the
audit and by the fold, which must agree.  A log whose oldest segments are gone is audited from its newest base on.
Compaction asks a running server, or works on a data folder that nobody holds.  An export reads either, up to the last
whole batch, with the same columns; its file appears whole or not at all, and rows become Python objects for JSON alone.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pyarrow as pa
import pyarrow.compute

from penstock.cli.messagefiles import new_file, writing
from penstock.cli.output import Progress, bar, note
from penstock.errors import DataFolderInUse, InvalidArgument, told_as
from penstock.history import archive_place, open_folder
from penstock.history.view import View, stand_alone
from penstock.log.archive import archive_disk
from penstock.log.catalog import Catalog, SegmentInfo
from penstock.log.disk import OsDisk
from penstock.log.reader import Reader, Vias
from penstock.log.recover import open_segments
from penstock.log.verify import segments
from penstock.records.chunks import LSN_LIMIT
from penstock.records.dataclass import dataclass
from penstock.records.kinds import Kind
from penstock.replication.messages import ARCHIVE
from penstock.units import parse_duration, parse_size
from penstock.wire.flight.bookmarks import parse_point, parse_span

if TYPE_CHECKING:
    from penstock.core.audit_histories import Report
    from penstock.log.archive.row_groups import Archive
    from penstock.log.rewrite import Made
    from penstock.log.rewrite_plan import Task


def archive_at(data: str, named: str | None = None) -> Path | None:
    """Where a data folder's archive is, if it has one; says so where it knows of one that is elsewhere.

    InvalidArgument for one that was named and is not there.
    """
    place = archive_place(data, named)
    if place is None and (Path(data) / ARCHIVE).is_file():
        note(
            f"warning: {data} has an archive in another folder; what is there alone is left out: --archive names it, "
            "where a command takes that"
        )
    return place


def archive_of(data: str, named: str | None = None) -> Archive | None:
    """The archive of a data folder, if there is one.  InvalidArgument for one that was named and is not there."""
    from penstock.log.archive.row_groups import Archive

    place = archive_at(data, named)
    return None if place is None else Archive(archive_disk(str(place)))


def listing(data: str) -> list[SegmentInfo]:
    """The segments of a data folder."""
    return segments(open_folder(data))


def records(data: str, url: str | None, first: int, last: int | None) -> Iterator[pa.RecordBatch]:
    """Records of the log with LSNs in first..last, from a server if there is a URL, else from the folder."""
    if url is None:
        archive = archive_of(str(data))
        if archive is None:
            yield from rows(open_folder(data), first, LSN_LIMIT if last is None else last)
            return
        with closing(stand_alone(open_folder(data), archive)) as view:
            yield from view.batches(first, LSN_LIMIT if last is None else last + 1)
        return
    from penstock.client import connect

    with connect(url) as client:
        yield from client.log_batches(max(first, 1), None if last is None else last + 1)


def rows(disk: OsDisk, first: int, last: int) -> Iterator[pa.RecordBatch]:
    """Rows with LSNs in first..last, control records too, as slices of the batches they were written in.

    Raises LogDamaged where bytes are not what was written.
    """
    catalog = Catalog()
    try:
        open_segments(disk, catalog, origin=0, new_first=1, repair=False)
        yield from Reader(catalog, Vias(), 0).batches(first, last + 1)
    finally:
        for segment in catalog.segments:
            segment.file.close()


def evidence(data: str, archive: str | None = None) -> View:
    """A data folder's log, and its archive where both together go back to the beginning."""
    disk, found = open_folder(data), archive_of(data, archive)
    view = stand_alone(disk, found)
    if found is None or view.complete:
        return view
    view.close()
    return stand_alone(disk)


def audit(data: str | os.PathLike[str], progress: Progress | None = None, archive: str | None = None) -> Report:
    """Counts and findings of a data folder's log.

    InvalidArgument for a folder that is none, LogDamaged where bytes are not what was written.  Without `progress` a
    bar is drawn when a person looks on.
    """
    from penstock.server.bulk.checks import audit_view

    with closing(evidence(os.fspath(data), archive)) as view, bar("records", progress) as show:
        return audit_view(view, show)


def _limit(option: str, text: str | None, parse: Callable[[str], int]) -> int | None:
    """What an option says, None without it.  InvalidArgument."""
    with told_as(InvalidArgument, f"{option}: "):
        return None if text is None else parse(text)


def compacted(data: str, age: str | None, size: str | None, compress: bool, dry_run: bool) -> dict[str, Any]:
    """The same for a folder.  DataFolderInUse when a server has it; a dry run needs no lock."""
    from penstock.log.rewrite_plan import Aims
    from penstock.server.base.clock import SystemClock
    from penstock.server.upkeep import offline

    limits = offline.Limits(_limit("--age", age, parse_duration), _limit("--size", size, parse_size))
    archive = archive_of(data)
    if archive is not None:
        limits = limits._replace(archive=archive.manifest)
    disk, clock, aims = open_folder(data), SystemClock(), Aims(compress=compress, cold=0)
    planned = offline.look(disk, clock, limits, aims)
    out: dict[str, Any] = {
        "planned": [task.plain() for task in planned], "deleted": 0, "done": 0, "freed": 0, "dropped": 0,
    }  # fmt: skip
    if dry_run:
        return out
    sizes = {one.name: (one.bytes, one.rows) for one in listing(data)}
    total = sum(task.bytes_before for task in planned)
    with bar("bytes") as show:
        done = 0

        def told(task: Task, made: Made) -> None:
            nonlocal done
            done += task.bytes_before
            show(done, total)
            out["done"] += len(task.segments)
            out["freed"] += task.bytes_before - made.end
            out["dropped"] += made.rows_before - made.rows

        try:
            gone = [sizes.get(name, (0, 0)) for name in offline.compact(disk, clock, limits, aims, told)]
        except DataFolderInUse as error:
            raise DataFolderInUse(f"{error}; leave --data away to have the running server do it") from None
        out["deleted"] = len(gone)
        out["freed"] += sum(size for size, _ in gone)
        out["dropped"] += sum(rows for _, rows in gone)
    return out


# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


compute: Any = pyarrow.compute  # the stubs know fewer kinds of arrays than the functions take

COLUMNS = ("lsn", "time", "exchange", "topic", "priority", "headers", "body")
"""Of messages, unless others are named."""

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

    def said(self) -> dict[str, Any]:
        """What a replay is asked for beside its topic and where it goes from and to."""
        every = self.pattern if self.pattern is not None or self.topic is not None else ""
        return {
            "pattern": every, "exchange": self.exchange, "filter": self.filter, "limit": self.limit,
            "columns": self.columns,
        }  # fmt: skip


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
def exported_here(data: str, wanted: Wanted) -> Generator[tuple[Source, int, int]]:
    """Rows of a data folder, and the LSNs [start, end) they lie in."""
    from penstock.history.history import History
    from penstock.wire.flight.commands import LogRange, Replay

    view: View = stand_alone(open_folder(data), archive_of(data))
    try:
        history = History(view, lambda: False)
        start, end = history.resolve(parse_span(span_of(wanted, view.origin)))
        if wanted.records:
            yield lambda: history.records(LogRange(start, end))[1], start, end
            return
        command = Replay(wanted.topic, vhost=wanted.vhost, **wanted.said())
        yield lambda: history.replay_between(command, start, end)[1], start, end
    finally:
        view.close()


# -- from a server


@contextmanager
def exported_by_server(url: str, wanted: Wanted) -> Generator[tuple[Source, int, int]]:
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
        between = f"[{origin}|{start}|:{origin}|{end}|)"
        yield lambda: client.replay_batches(wanted.topic, between, **wanted.said()), start, end


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
    with new_file(target) as sink, writing(form, sink, body) as writer:
        for batch in _limited(source(), limit):
            writer.write(_named(batch))
            done.rows += batch.num_rows
            _note_lsns(done, batch)
            if done.last is not None:
                progress(done.last + 1 - start, end - start)
    done.warnings += writer.warnings
    if target is not None:
        done.bytes = target.stat().st_size
    return done


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
