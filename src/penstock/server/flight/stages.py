"""Stages: rows of a sink's task, kept in synced files until the commit of their batch names them.

A stage is one Arrow stream file `stage/<random>.arrows` in the data folder; its schema metadata says which query,
batch, partition and attempt it is of.  The name is random and never a user's text.  Nothing in it is visible: a commit
appends the rows of exactly the stages it names to the log.  A stage goes when its commit is durable, when its query has
moved on, or after a day.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import io
import re
import secrets
import threading
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import orjson
import pyarrow as pa

from penstock.errors import DiskFull, InvalidArgument, LogDamaged, NotFound
from penstock.records.entries import Publishes
from penstock.server.flight.calls import Caller, Slot
from penstock.server.flight.publish import chunks, end_rows, to_publishes
from penstock.wire.flight.codec import Upload, read_upload
from penstock.wire.flight.schemas import PUBLISH, Bounds, check_schema
from penstock.wire.flight.tickets import Stage

if TYPE_CHECKING:
    from penstock.ports import Clock, Disk
    from penstock.server.engine import Engine

FOLDER = "stage"
DAY_US = 86_400_000_000
QUOTA = 4 * 2**30
"""Bytes that all stages may have together."""

_KEY = b"penstock.stage"
_NAME = re.compile(r"[0-9a-f]{32}\Z")


@dataclass(frozen=True, slots=True)
class StageInfo:
    """What a stage is of, and when it was written (microseconds since the epoch)."""

    query: str
    batch: int
    partition: int
    attempt: int
    topic: str | None
    exchange: str
    vhost: str
    time: int = 0
    rows: int = 0
    bytes: int = 0


class Stages:
    """All stages of a data folder.  Thread-safe; it never touches the core."""

    def __init__(self, disk: Disk, clock: Clock, bounds: Bounds, quota: int = QUOTA) -> None:
        self.quota = quota
        self.used = 0
        self._disk = disk
        self._clock = clock
        self._bounds = bounds
        self._lock = threading.Lock()
        self._known = dict[str, StageInfo]()
        self._ready = False

    def _open(self) -> None:
        """Look once at what an earlier process left: complete stages are known again, unfinished ones go."""
        with self._lock:
            if self._ready:
                return
            self._disk.mkdir(FOLDER)
            for name in self._disk.list(FOLDER):
                stem, _, kind = name.partition(".")
                if not _NAME.match(stem):
                    continue  # not ours
                info = self._info_of(f"{FOLDER}/{name}") if kind == "arrows" else None
                if info is None:
                    self._disk.remove(f"{FOLDER}/{name}")
                else:
                    self._known[stem] = info
                    self.used += info.bytes
            self._ready = True

    def _info_of(self, path: str) -> StageInfo | None:
        """What a file says it is; None when it is no stage of ours."""
        try:
            data = self._read(path)
            schema = pa.ipc.open_stream(data).schema
            said = orjson.loads((schema.metadata or {})[_KEY])
            return replace(StageInfo(**said), bytes=len(data))
        except (OSError, pa.ArrowException, KeyError, TypeError, orjson.JSONDecodeError):
            return None

    def _read(self, path: str) -> bytes:
        file = self._disk.open(path, readonly=True)
        try:
            return file.pread(file.size(), 0)
        finally:
            file.close()

    def write(self, caller: Caller, slot: Slot, command: Stage, reader: Any) -> tuple[str, int]:
        """Keep an upload; (its id, its rows) once it is synced.

        Errors: InvalidArgument as for a publish, or when the end message and the rows disagree; DiskFull for the quota.
        """
        self._open()
        check_schema(reader.schema, PUBLISH, ("body",), "stage")
        batches: list[pa.RecordBatch] = []
        announced: int | None = None
        rows = size = 0
        for batch, metadata in chunks(reader):
            slot.touch()
            if metadata is not None:
                announced = end_rows(metadata, announced)
            if batch is None or batch.num_rows == 0:
                continue
            read_upload(batch, command.topic, self._bounds, "stage")  # refuse now what the commit could not take
            batches.append(batch)
            rows += batch.num_rows
            size += batch.nbytes
            if self.used + size > self.quota:
                raise DiskFull(f"stages have {self.used + size} bytes, and {self.quota} are allowed")
        if announced != rows or caller.gone():
            raise InvalidArgument(f"stage: {rows} rows came and the end message says {announced}; nothing was kept")
        info = StageInfo(**asdict(command), time=self._clock.wall(), rows=rows)
        schema = reader.schema.remove_metadata().with_metadata({_KEY: orjson.dumps(asdict(info))})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, schema) as writer:
            for batch in batches:
                writer.write_batch(batch.replace_schema_metadata(schema.metadata))
        return self._keep(info, sink.getvalue()), rows

    def _keep(self, info: StageInfo, data: bytes) -> str:
        stem = secrets.token_hex(16)
        part, whole = f"{FOLDER}/{stem}.part", f"{FOLDER}/{stem}.arrows"
        try:
            file = self._disk.open(part, create=True)
            try:
                file.pwrite(data, 0)
                file.sync()
            finally:
                file.close()
            self._disk.rename(part, whole)
            self._disk.sync_folder(FOLDER)
        except OSError as error:
            self._discard(part)
            raise DiskFull(f"the stage could not be written: {error.strerror or error}") from error
        with self._lock:
            self._known[stem] = replace(info, bytes=len(data))
            self.used += len(data)
        return stem

    def _discard(self, path: str) -> None:
        try:
            self._disk.remove(path)
        except OSError:
            pass  # it was never there; the next start looks again

    def uploads(self, query: str, batch: int, stages: Sequence[str]) -> list[tuple[StageInfo, Upload]]:
        """The rows of the named stages, in the order of partition, attempt and name.

        NotFound for a stage that is not there, InvalidArgument for one of another query or batch or named twice.
        """
        self._open()
        found: list[tuple[StageInfo, str]] = []
        if len(set(stages)) != len(stages):
            raise InvalidArgument("sink_commit: a stage is named twice")
        for stem in stages:
            info = self._known.get(stem)
            if info is None:
                raise NotFound(f"no stage {stem[:60]!r}: it was committed, dropped, or never written")
            if (info.query, info.batch) != (query, batch):
                raise InvalidArgument(
                    f"stage {stem} is of query {info.query!r} batch {info.batch}, not of {query!r} batch {batch}"
                )
            found.append((info, stem))
        found.sort(key=lambda item: (item[0].partition, item[0].attempt, item[1]))
        return [(info, upload) for info, stem in found for upload in self._uploads(info, stem)]

    def _uploads(self, info: StageInfo, stem: str) -> Iterator[Upload]:
        try:
            rows = 0
            for batch in pa.ipc.open_stream(self._read(f"{FOLDER}/{stem}.arrows")):
                rows += batch.num_rows
                yield read_upload(batch, info.topic, self._bounds, "stage")
        except pa.ArrowException as error:
            raise LogDamaged(f"{FOLDER}/{stem}.arrows is not what was written: {error}") from error
        if rows != info.rows:
            raise LogDamaged(f"{FOLDER}/{stem}.arrows has {rows} rows of {info.rows}")

    def drop(self, stages: Sequence[str]) -> int:
        """Remove stages; those that are gone already do no harm.  Returns how many went."""
        self._open()
        gone = 0
        for stem in stages:
            with self._lock:
                info = self._known.pop(stem, None)
                if info is None:
                    continue
                self.used -= info.bytes
            self._discard(f"{FOLDER}/{stem}.arrows")
            gone += 1
        return gone

    def drop_batch(self, query: str, batch: int) -> int:
        """Remove all stages of a query up to a batch: it has moved on."""
        self._open()
        return self.drop([stem for stem, i in list(self._known.items()) if i.query == query and i.batch <= batch])

    def sweep(self, age: int = DAY_US) -> int:
        """Remove stages older than `age` microseconds."""
        if not self._ready:
            return 0
        oldest = self._clock.wall() - age
        return self.drop([stem for stem, info in list(self._known.items()) if info.time < oldest])

    def listing(self) -> list[dict[str, object]]:
        """Every stage, oldest first, for people."""
        self._open()
        known = sorted(self._known.items(), key=lambda item: item[1].time)
        return [{"stage": stem, **asdict(info)} for stem, info in known]


def stage_publishes(engine: Engine, uploads: Sequence[tuple[StageInfo, Upload]]) -> list[Publishes]:
    """Uploads with their topics looked up; on the loop."""
    return [to_publishes(engine, upload, info.vhost, info.exchange) for info, upload in uploads]
