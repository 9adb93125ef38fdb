"""Stages: rows of a sink's task, kept in synced files until the commit of their batch names them.

A stage is one file `stage/<random>.arrows` in the data folder (`stage_files`).  The name is random and never a user's
text.  Nothing in it is visible: a commit appends the rows of exactly the stages it names to the log.  A stage goes when
its commit is durable, when its query has moved on, or after a day; never while a decided batch is copied from it.
In a cluster its upload is answered when all who may take over have it: the commit may be asked of any of them.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from itertools import chain
from typing import TYPE_CHECKING, TypeAlias

import pyarrow as pa

from penstock.core.publishing.published import TraitsMemo
from penstock.core.state.pending import DecidedPart
from penstock.errors import DiskFull, InvalidArgument, NotFound, Unavailable, told_as
from penstock.records.compute import cut
from penstock.records.message_bodies import listed
from penstock.records.rights import ADMINISTRATOR
from penstock.server.flight.arriving import Arriving
from penstock.server.flight.calls import Caller, Intake
from penstock.server.flight.decided import AT_ONCE, check_rising, lines, merged, plain
from penstock.server.flight.publish import end_rows
from penstock.server.flight.stage_files import FOLDER, StageInfo, StageWriter, check, discard, info_of, path_of, rows_of
from penstock.server.people.access import Share, Shares, Who
from penstock.wire.flight.codec import Upload, read_upload
from penstock.wire.flight.commands import ORDER, Stage
from penstock.wire.flight.received import STAGED, STAGED_IN_ORDER, Bounds, receive

if TYPE_CHECKING:
    from penstock.ports import Clock, Disk
    from penstock.server.flight.gatekeeper import Gatekeeper
    from penstock.server.people.entitlements import Rights

logger = logging.getLogger("penstock.server")

DAY_US = 86_400_000_000
QUOTA = 4 * 2**30
"""Bytes that all stages may have together, those that are being written included."""

PORTION = 64 * 1024
"""Bytes of bodies that are made objects in one step, which holds the interpreter."""

_NAME = re.compile(r"[0-9a-f]{32}\Z")

Found: TypeAlias = "tuple[str, StageInfo]"
"""A stage's name, and what it is."""


def anybodys(user: str) -> bool:
    return True


class Stages:
    """All stages of a data folder.  Thread-safe; it never touches the core."""

    def __init__(
        self,
        disk: Disk,
        clock: Clock,
        bounds: Bounds,
        quota: int = QUOTA,
        intake: Intake | None = None,
        shares: Shares | None = None,
    ) -> None:
        """intake: where it is counted what is read of stages; nowhere without."""
        self.intake = intake or Intake(0)
        shares = shares or Shares()
        self._places, self._bytes = shares.of("stages"), shares.of("stage_bytes")
        self._bytes.bound(quota)
        self._disk = disk
        self._clock = clock
        self._bounds = bounds
        self._traits = TraitsMemo()
        self._lock = threading.Lock()
        self._known = dict[str, StageInfo]()
        self._judged: dict[str, Rights] = {}  # what the rows of a stage were judged by last; of this process alone
        self._held = set[str]()
        self._frozen = 0  # backups that are being made
        self._ready = False
        self.dropped: Callable[[Sequence[str]], object] | None = None  # told in any thread of files that went

    def _open(self) -> None:
        """Look once at what an earlier process left: complete stages are known again, unfinished uploads go.

        A stage has its name only once it is synced, so one that is not whole is damage: it is told and left alone.
        """
        with self._lock:
            if self._ready:
                return
            self._disk.mkdir(FOLDER)
            for name in self._disk.list(FOLDER):
                stem, _, kind = name.partition(".")
                if not _NAME.match(stem):
                    continue  # not ours
                if kind == "part":  # an upload that never ended
                    self._disk.remove(f"{FOLDER}/{name}")
                    continue
                info = info_of(self._disk, f"{FOLDER}/{name}") if kind == "arrows" else None
                if info is None:
                    logger.warning("%s/%s is no whole stage; left alone", FOLDER, name)
                else:
                    self._known[stem] = info
                    self._count(info)
            self._ready = True

    def write(self, caller: Caller, arriving: Arriving, command: Stage, gate: Gatekeeper) -> tuple[str, int]:
        """Keep an upload; (its id, its rows) once it is synced.

        Errors: InvalidArgument as for a publish, or when the end message and the rows disagree; DiskFull for the quota.
        """
        layout = STAGED_IN_ORDER if command.ordered else STAGED
        schema, rights = arriving.expect(layout), caller.rights
        last: int | None = None
        announced: int | None = None
        rows = 0

        def whole() -> Iterator[pa.RecordBatch]:
            nonlocal announced, rows, last
            for received, metadata in arriving.each(layout):
                if metadata is not None:
                    announced = end_rows(metadata, announced)
                if not received:
                    continue
                mine = received
                if command.ordered:
                    last = check_rising(received.batch, last)
                    mine = received.without(ORDER, STAGED)
                upload = read_upload(mine, command.topic, self._bounds)  # what a commit could not take
                refuse_headers(upload, self._traits, rows)
                gate.publish(caller, command.vhost, command.exchange, upload)
                rows += len(received)
                yield received.batch
            if announced != rows or caller.gone():
                raise InvalidArgument(f"stage: {rows} rows came and the end message says {announced}; nothing was kept")

        info = StageInfo(**asdict(command), time=self._clock.wall(), user=caller.user)
        stem = self.keep(info, schema, whole(), caller.who)
        if rights is not None and caller.rights is rights:
            self._judged[stem] = rights
        return stem, rows

    def judge(self, caller: Caller, found: Sequence[Found], gate: Gatekeeper) -> None:
        """AccessRefused unless who commits these stages may publish what they bring, as rights are now.

        They are read again where that was judged by other rights: since then some were taken away, or whoever wrote
        them is gone, or logged in by another token.  LogDamaged as `uploads`.
        """
        if (rights := caller.rights) is None:
            return
        for stem, info in found:
            if self._judged.get(stem) is rights:
                continue
            for batch in rows_of(self._disk, stem):
                with self.intake.holding(batch.nbytes):
                    upload = self._read(plain(batch) if info.ordered else batch, info)
                    gate.publish(caller, info.vhost, info.exchange, upload)
            self._judged[stem] = rights

    def keep(
        self, info: StageInfo, schema: pa.Schema, batches: Iterable[pa.RecordBatch], who: Who | None = None
    ) -> str:
        """A stage of these rows; its name, once it is synced.  Nothing is kept of rows that end in an error.

        who: writes it.  What the server makes of stages that it has may take all of the quota.
        Errors: DiskFull for the quota or the user's share of it, or when the file cannot be written.
        """
        self._open()
        who = who or Who(info.user, tuple(ADMINISTRATOR.tags))
        stem = secrets.token_hex(16)
        info = replace(info, uniform=info.topic is not None and "topic" not in schema.names)
        writer = StageWriter(self._disk, f"{FOLDER}/{stem}.part", schema, info)
        placed, taken = False, 0  # of the quota, beside what is known
        try:
            self._take(self._places, who)
            placed = True
            for batch in batches:
                self._take(self._bytes, who, batch.nbytes)
                taken += batch.nbytes
                writer.add(batch)
            known = writer.finish(path_of(stem))
        except BaseException:
            writer.abandon()
            raise
        else:
            with self._lock:
                self._known[stem] = known
                self._count(known)
        finally:
            self._places.give(who.user, placed)
            self._bytes.give(who.user, taken)
        return stem

    def _take(self, share: Share, who: Who, size: int = 1) -> None:
        with told_as(DiskFull, instead=Unavailable):
            share.take(who, size)

    @property
    def used(self) -> int:
        """Bytes of the quota that are taken, by what is being written too."""
        return self._bytes.taken

    @property
    def quota(self) -> int:
        """Bytes that all stages may have."""
        return self._bytes.whole

    def _count(self, info: StageInfo) -> None:
        self._places.put(info.user)
        self._bytes.put(info.user, info.bytes)

    def find(
        self, query: str, batch: int, stages: Sequence[str], mine: Callable[[str], bool] = anybodys
    ) -> list[Found]:
        """The named stages, in the order of partition, attempt and name.

        mine: whether a stage of this user's may be used.
        NotFound for a stage that is not there or is not, InvalidArgument for one of another query or batch or named
        twice.
        """
        self._open()
        found: list[Found] = []
        if len(set(stages)) != len(stages):
            raise InvalidArgument("sink_commit: a stage is named twice")
        for stem in stages:
            info = self._known.get(stem)
            if info is None or not mine(info.user):
                raise NotFound(f"no stage {stem[:60]!r}: it was committed, dropped, or never written")
            if (info.query, info.batch) != (query, batch):
                raise InvalidArgument(
                    f"stage {stem} is of query {info.query!r} batch {info.batch}, not of {query!r} batch {batch}"
                )
            found.append((stem, info))
        found.sort(key=lambda item: (item[1].partition, item[1].attempt, item[0]))
        return found

    def uploads(self, found: Sequence[Found]) -> list[tuple[StageInfo, Upload]]:
        """All rows of these stages.  LogDamaged for one that is not what was written."""
        out: list[tuple[StageInfo, Upload]] = []
        for stem, info in found:
            check(self._disk, stem, info.bytes, info.crc)
        for line in in_lines(found):
            info = line[0][1]
            stages = [rows_of(self._disk, stem) for stem, _ in line]
            for batch in map(plain, merged(stages)) if info.ordered else chain.from_iterable(stages):
                out.append((info, self._read(batch, info)))
        return out

    def bodies(self, found: Sequence[Found]) -> Iterator[list[bytes]]:
        """The bodies of these stages' rows, in portions.  LogDamaged as `uploads`."""
        for stem, info in found:
            check(self._disk, stem, info.bytes, info.crc)
            for batch in chain.from_iterable(cut(whole, PORTION) for whole in rows_of(self._disk, stem)):
                with self.intake.holding(batch.nbytes):
                    yield listed(self._read(batch, info).bodies)

    def _read(self, batch: pa.RecordBatch, info: StageInfo) -> Upload:
        """Rows of a stage as they came."""
        return read_upload(receive(batch, STAGED, self._bounds), info.topic, self._bounds)

    def in_order(self, found: Sequence[Found]) -> list[Found]:
        """Stages that bring the same rows in their order; those that had to be merged are new ones.

        DiskFull when there is no room for both.  LogDamaged as `uploads`.
        """
        for stem, info in found:
            if info.ordered:
                check(self._disk, stem, info.bytes, info.crc)
        out: list[Found] = []
        made: list[str] = []
        try:
            for line in in_lines(found):
                while line[0][1].ordered:
                    few, line = line[:AT_ONCE], line[AT_ONCE:]
                    one = self._merge([stem for stem, _ in few], few[0][1], last=not line)
                    made.append(one[0])
                    line.insert(0, one)
                out += line
        except BaseException:
            self.drop(made)
            raise
        self.drop([stem for stem in made if all(stem != one for one, _ in out)])
        return out

    def _merge(self, stems: Sequence[str], info: StageInfo, *, last: bool) -> Found:
        """One stage of several that rise; the last one has no order any more."""
        rows = merged([rows_of(self._disk, stem) for stem in stems])
        if last:
            rows, info = map(plain, rows), replace(info, ordered=False)
        first = next(rows)
        stem = self.keep(replace(info, rows=0, bytes=0, crc=0), first.schema, chain([first], rows))
        return stem, self._known[stem]

    def check(self, part: DecidedPart) -> None:
        """LogDamaged unless the file of a stage is what was written."""
        check(self._disk, part.stage, part.bytes, part.crc)

    def hold(self, stages: Sequence[str]) -> None:
        """Keep these whatever is asked, until `release`: a batch is copied from them."""
        with self._lock:
            self._held.update(stages)

    def release(self, stages: Sequence[str]) -> None:
        with self._lock:
            self._held.difference_update(stages)

    @property
    def frozen(self) -> bool:
        """Whether a backup keeps everything."""
        return self._frozen > 0

    def freeze(self) -> None:
        """Keep all that is there, until `thaw`: a backup copies the log, and what that has decided."""
        with self._lock:
            self._frozen += 1

    def thaw(self) -> None:
        with self._lock:
            self._frozen -= 1

    def drop(self, stages: Sequence[str], mine: Callable[[str], bool] = anybodys) -> int:
        """Remove stages; those that are held stay, those that are gone do no harm.  Returns how many went.

        mine: whether stages of this user may go.
        """
        self._open()
        gone = 0
        for stem in stages:
            with self._lock:
                if (known := self._known.get(stem)) is not None and not mine(known.user):
                    continue
                info = None if self.frozen or stem in self._held else self._known.pop(stem, None)
                if info is None:
                    continue
                self._judged.pop(stem, None)
                self._places.give(info.user)
                self._bytes.give(info.user, info.bytes)
            discard(self._disk, path_of(stem))
            if self.dropped is not None:
                self.dropped([path_of(stem)])
            gone += 1
        return gone

    def drop_batch(self, query: str, batch: int, mine: Callable[[str], bool] = anybodys) -> int:
        """Remove all stages of a query up to a batch, if they may go: it has moved on."""
        self._open()
        past = [stem for stem, info in list(self._known.items()) if info.query == query and info.batch <= batch]
        return self.drop(past, mine)

    def sweep(self, age: int = DAY_US) -> int:
        """Remove stages older than `age` microseconds."""
        if not self._ready:
            return 0
        oldest = self._clock.wall() - age
        return self.drop([stem for stem, info in list(self._known.items()) if info.time < oldest])

    def known(self) -> list[StageInfo]:
        self._open()
        return list(self._known.values())

    def listing(self) -> list[dict[str, object]]:
        """Every stage, oldest first, for people."""
        self._open()
        known = sorted(self._known.items(), key=lambda item: item[1].time)
        return [{"stage": stem, **asdict(info)} for stem, info in known]


def parts_of(found: Sequence[Found]) -> list[DecidedPart]:
    """Stages as the parts of a decided batch."""
    return [
        DecidedPart(stem, info.rows, info.bytes, info.crc, info.topic, info.exchange, info.vhost, info.delta)
        for stem, info in found
        if info.rows
    ]


def in_lines(found: Sequence[Found]) -> list[list[Found]]:
    """Stages whose rows follow each other, and apart from them those that are merged, line by line."""
    plain_ones = [[one] for one in found if not one[1].ordered]
    return plain_ones + lines([one for one in found if one[1].ordered])


def refuse_headers(upload: Upload, memo: TraitsMemo, rows: int) -> None:
    """InvalidArgument for a row whose header asks for what cannot be; `rows` came before."""
    properties = upload.properties
    for head in (properties,) if isinstance(properties, bytes) else set(properties):
        why = memo[head].refusal
        if why is not None:
            row = rows + (0 if isinstance(properties, bytes) else properties.index(head))
            raise InvalidArgument(f"stage: the headers of row {row} are refused: {why}")
