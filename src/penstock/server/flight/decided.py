"""Decided batches on their way from stage files to the log: what a chunk is, and how a start finishes them.

A commit over `GroupLimits.group_bytes` is a `DECIDED` record; its rows follow in chunks of bounded size, each one group
with a record of how far it brings the batch.  So wherever a crash comes, the log knows the first row that is missing,
and the next start copies from there before any door opens.  Nothing that is decided is refused: rows whose exchange is
gone by then are left out, as rows that nobody wants are.

Where stages have an order their sorted rows are merged: equal orders keep the place of their stage and of the row in
it.

With a commit may go records of a topic, those of some keys or all, in the same group as the batch (`Dropping`). A
million keys are seconds of work. Their numbers, and what is left of the index without them, are worked out in the
thread of the commit; the loop puts it in place. What others have changed meanwhile is looked at again, the rest of it
by the loop.
"""

# pyright: reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.sow.holding import Cut, Sow
from penstock.core.sow.index import Numbers
from penstock.core.sow.keyed import number_of_key
from penstock.core.state.pending import DecidedPart, DecidedState
from penstock.errors import DiskFull, InvalidArgument, LogBroken, LogDamaged, PreconditionFailed, Refused, told_as
from penstock.records.compute import cut
from penstock.records.dataclass import dataclass
from penstock.records.entries import Publishes
from penstock.records.message_bodies import listed
from penstock.server.asking.judging import breathe
from penstock.server.flight.publish import to_publishes
from penstock.server.flight.stage_files import StageInfo, check, discard, path_of, rows_of
from penstock.wire.flight.codec import Upload, read_upload
from penstock.wire.flight.commands import ORDER
from penstock.wire.flight.received import STAGED, Bounds, receive

if TYPE_CHECKING:
    from penstock.core.commands.transactions import Drop
    from penstock.ports import Disk
    from penstock.server.engine import Engine


logger = logging.getLogger("penstock.flight")

Stretch: TypeAlias = "tuple[DecidedPart, Upload]"
"""Rows of one stage."""

_TAKEN = Bounds(rows=1 << 40, batch_bytes=1 << 50, body_bytes=1 << 40)
"""What was staged has been judged; a bound that became lower since does not refuse it any more."""


@dataclass(frozen=True, slots=True)
class GroupLimits:
    """How large a group of a sink may be, and the chunks of one that is larger."""

    group_bytes: int = 64 << 20  # of the stages' files
    group_rows: int = 65_536  # of those that differ in topic, properties or times
    chunk_bytes: int = 2 << 20
    chunk_rows: int = 8192  # a chunk is decided in one turn of the loop
    alike_bytes: int = 8 << 20  # the same of rows of which nothing is looked at one by one
    alike_rows: int = 65_536
    delta_rows: int = 500  # the same of one with deltas, each of which is merged there

    @classmethod
    def within(cls, memory: int) -> Self:
        """As far as a budget of so many bytes goes: what is copied lies there as rows and as what is written of them,
        and a chunk is read while the one before is synced."""
        most = cls()
        return cls(
            group_bytes=min(most.group_bytes, memory // 8),
            chunk_bytes=min(most.chunk_bytes, memory // 64),
            alike_bytes=min(most.alike_bytes, memory // 32),
        )


class Bound(NamedTuple):
    """How large a chunk may be."""

    rows: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Chunk:
    """Rows that are copied as one group."""

    rows: int
    stretches: Sequence[Stretch]


def check_parts(disk: Disk, query: str, state: DecidedState) -> None:
    """LogDamaged naming file, query and batch unless every stage that still has rows to give is what was written."""
    start = 0
    for part in state.parts:
        start += part.rows
        if start <= state.rows:
            continue
        try:
            check(disk, part.stage, part.bytes, part.crc)
        except LogDamaged as error:
            raise _damaged(query, state, error) from error


def _damaged(query: str, state: DecidedState, error: LogDamaged) -> LogDamaged:
    return LogDamaged(
        f"{error}; query '{query}' has committed batch {state.batch}, and {state.total - state.rows} of its rows are "
        "still to come from there: nothing was removed"
    )


def alike(upload: Upload) -> bool:
    """Whether its rows have one topic, one header and no times, so that nothing is done row by row."""
    return (
        upload.name_of is None
        and isinstance(upload.properties, bytes)
        and not any((upload.not_before, upload.expires_at, upload.delay, upload.expiration))
    )


def chunks_of(
    disk: Disk,
    query: str,
    state: DecidedState,
    limits: GroupLimits,
    keyed: Container[tuple[str, str, str]] = (),
) -> Iterator[Chunk]:
    """What is missing of a batch, in order; it holds about one chunk in memory.

    `state` is not looked at again after the first chunk.  keyed: topics whose rows are looked at one by one.
    LogDamaged as `check_parts`.
    """
    few = Bound(limits.chunk_rows, limits.chunk_bytes)
    many = Bound(limits.alike_rows, limits.alike_bytes)
    gathered: list[Stretch] = []
    rows = size = 0
    bound = many  # of the chunk that is gathered
    try:
        for part, small in _missing(disk, state, limits.chunk_bytes):
            upload = _read(small, part.topic)
            same = alike(upload) and (part.vhost, part.exchange, upload.names[0]) not in keyed
            own = many if same else few._replace(rows=limits.delta_rows) if part.delta else few
            for a in range(0, small.num_rows, own.rows):
                piece = small
                if small.num_rows > own.rows:
                    piece = small.slice(a, own.rows)
                    upload = _read(piece, part.topic)
                bound = bound if same else Bound(min(bound.rows, own.rows), own.bytes)
                if rows and (rows + piece.num_rows > bound.rows or size + piece.nbytes > bound.bytes):
                    yield Chunk(rows, gathered)
                    gathered, rows, size, bound = [], 0, 0, own
                gathered.append((part, upload))
                rows, size = rows + piece.num_rows, size + piece.nbytes
    except LogDamaged as error:
        raise _damaged(query, state, error) from error
    if rows:
        yield Chunk(rows, gathered)


def _missing(disk: Disk, state: DecidedState, most: int) -> Iterator[tuple[DecidedPart, pa.RecordBatch]]:
    """The rows that are still to come, in order, in batches of about `most` bytes.  LogDamaged where there are less."""
    skip = state.rows
    for part in state.parts:
        left, start, skip = part.rows - skip, skip, max(skip - part.rows, 0)
        if left <= 0:
            continue
        for batch in rows_of(disk, part.stage, start):
            for small in cut(batch, most):
                yield part, small
                left -= small.num_rows
        if left:
            raise LogDamaged(f"{path_of(part.stage)} has {part.rows - left} rows of {part.rows}")


def _read(batch: pa.RecordBatch, topic: str | None) -> Upload:
    return read_upload(receive(batch, STAGED, _TAKEN), topic, _TAKEN)


def staged_publishes(engine: Engine, user: str, stage: DecidedPart | StageInfo, upload: Upload) -> Publishes:
    """Rows of a stage with their topics looked up; on the loop.  Raises NotFound for a missing exchange."""
    publishes = to_publishes(engine, user, upload, stage.vhost, stage.exchange)
    publishes.delta = stage.delta or None
    if stage.delta:
        publishes.bodies = listed(publishes.bodies)  # what is worked out about a body is known by its object
    return publishes


def chunk_publishes(engine: Engine, query: str, chunk: Chunk) -> list[Publishes]:
    """A chunk of a query with its topics looked up, on the loop; without the rows whose exchange is gone."""
    out, user = list[Publishes](), engine.core.sinks.owner(query)
    for part, upload in chunk.stretches:
        try:
            out.append(staged_publishes(engine, user, part, upload))
        except Refused as refusal:
            logger.warning("%d rows of stage %s go nowhere: %s", len(upload), part.stage, refusal)
    return out


def finishing(engine: Engine, disk: Disk, limits: GroupLimits | None = None) -> Iterator[tuple[int, int]]:
    """Copy what an earlier process had decided and not copied, each batch from its first missing row.

    Gives (rows copied, of how many) after each chunk.  For a start, before any door opens: it waits for the disk.
    Errors: LogDamaged, with nothing written, when a stage is missing or damaged; DiskFull; LogBroken.
    """
    limits = limits or GroupLimits.within(engine.bodies.budget.limit)
    waiting = sorted(engine.core.decided.items(), key=lambda item: item[1].lsn)
    for query, state in waiting:
        check_parts(disk, query, state)
    copied, missing = 0, sum(state.total - state.rows for _, state in waiting)
    for query, state in waiting:
        logger.info("query %s: copying batch %d from row %d of %d", query, state.batch, state.rows, state.total)
        for chunk in chunks_of(disk, query, state, limits, engine.core.sows.by_name):
            if engine.log.room.full:
                left = state.total - state.rows
                raise DiskFull(f"{left} rows of batch {state.batch} of query '{query}', which is decided, have no room")
            engine.core.sink_copy(engine.now(), query, chunk.rows, chunk_publishes(engine, query, chunk))
            engine.finish_turn()
            engine.log.flush()
            if engine.broken is not None:
                raise LogBroken(engine.broken)
            copied += chunk.rows
            yield copied, missing
        for part in state.parts:
            discard(disk, path_of(part.stage))


AT_ONCE = 16
"""Stages that are merged at a time; more are merged in several rounds."""

Batches: TypeAlias = "Iterator[pa.RecordBatch]"
Order: TypeAlias = Any
"""A number or bytes: all of one column are alike."""


def plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows without their order."""
    return batch.drop_columns([ORDER])


def check_rising(batch: pa.RecordBatch, last: Order | None) -> Order | None:
    """The last order of a batch that follows `last`.  InvalidArgument unless the orders rise."""
    column = batch.column(ORDER)
    if column.null_count:
        raise InvalidArgument(f"stage: column '{ORDER}' has {column.null_count} nulls")
    numbers = orders(batch)
    if len(numbers) and ((last is not None and numbers[0] < last) or bool((numbers[1:] < numbers[:-1]).any())):
        raise InvalidArgument(f"stage: column '{ORDER}' does not rise")
    return numbers[-1] if len(numbers) else last


def orders(batch: pa.RecordBatch) -> npt.NDArray[Any]:
    """The orders of a batch: int64, or objects that are bytes."""
    return batch.column(ORDER).to_numpy(zero_copy_only=False)


def lines(found: Sequence[tuple[str, StageInfo]]) -> list[list[tuple[str, StageInfo]]]:
    """Stages that are merged with each other, in the order in which they were found."""
    out: dict[StageInfo, list[tuple[str, StageInfo]]] = {}
    for stem, info in found:
        alike = replace(info, partition=0, attempt=0, time=0, rows=0, bytes=0, crc=0)
        out.setdefault(alike, []).append((stem, info))
    return list(out.values())


def merged(stages: Sequence[Batches]) -> Batches:
    """The rows of sorted stages in one order, columns as they are.  InvalidArgument where columns differ."""
    heads = {place: head for place, rows in enumerate(stages) if (head := next(rows, None)) is not None}
    while heads:
        schema = next(iter(heads.values())).schema
        if not all(head.schema.equals(schema) for head in heads.values()):
            raise InvalidArgument("sink_commit: ordered stages of one topic have different columns")
        several = len(heads) > 1
        table = pa.Table.from_batches(_lowest(heads, stages), schema=schema)
        if several:
            table = table.take(np.argsort(table.column(ORDER).to_numpy(), kind="stable"))
        yield from table.combine_chunks().to_batches()


def _lowest(heads: dict[int, pa.RecordBatch], stages: Sequence[Batches]) -> list[pa.RecordBatch]:
    """What of the stages' first batches comes before all the rest, by stage; the heads go on behind it."""
    bound = min(orders(head)[-1] for head in heads.values())  # nothing that comes later is below it
    taken: list[pa.RecordBatch] = []
    exhausted = True  # an earlier stage has no more of the bound
    for place, head in list(heads.items()):
        # what equals the bound in a later stage waits until the earlier ones have no more of it
        count = int(np.searchsorted(orders(head), bound, side="right" if exhausted else "left"))
        taken.append(head.slice(0, count))
        if count < head.num_rows:
            heads[place] = head.slice(count)
        elif (following := next(stages[place], None)) is None:
            del heads[place]
        else:
            heads[place] = following
            exhausted = exhausted and bool(orders(following)[0] != bound)
    return taken


T = TypeVar("T")

KEYS_AT_ONCE = 500
LEAVES_AT_ONCE = 8
"""What is worked out between two breaths: about half a millisecond."""

LEFT = 100
"""Leaves that the loop works out itself: 5 ms."""

LOOKS = 8
"""How often it is looked again; a topic that many publish to all the while would let nobody end."""


class Call(Protocol):
    """Runs something on the loop."""

    def __call__(self, work: Callable[[], T]) -> T:
        """What it gives, or the error that it raises."""
        ...


class Dropping:
    """Belongs to the thread of the commit, but for `now` and `behind`."""

    def __init__(self, engine: Engine, call: Call, vhost: str, exchange: str, topic: str) -> None:
        self._engine = engine
        self._call = call
        self._name = vhost, exchange, topic
        self._looks = 0
        self._sow: Sow
        self._cut: Cut

    def find(self, keys: Iterable[Sequence[str]] | None) -> None:
        """Work it out.  keys: of the records, in portions; None: every record.

        Errors: NotFound or InvalidArgument for the topic, InvalidArgument for what is no key of it.
        """
        self._sow = self._call(lambda: self._engine.core.sow(*self._name))
        self._cut = Cut(None if keys is None else numbers_of(self._sow, keys))
        self.look()

    def look(self) -> None:
        """Again, for what others have changed since the last time."""
        index = self._sow.index
        while self._call(lambda: self.behind):
            self._looks += 1
            for step, _ in enumerate(self._cut.look(self._call(index.snapshot))):
                if step % LEAVES_AT_ONCE == 0:
                    breathe()

    # -- the loop

    @property
    def behind(self) -> bool:
        """Whether the loop would work on it for long, and another look may help."""
        return self._looks < LOOKS and self._cut.behind(self._sow.index) > LEFT

    def now(self) -> Drop:
        """For the core.  PreconditionFailed when the topic is not the one any more that it was."""
        if self._engine.core.sows.by_id.get(self._sow.id) is not self._sow:
            raise PreconditionFailed(
                f"topic '{self._name[2]}' in vhost '{self._name[0]}' was deleted or has another key since this commit "
                "began; ask again"
            )
        return self._sow, self._cut


def numbers_of(sow: Sow, keys: Iterable[Sequence[str]]) -> Numbers:
    """The numbers of keys, ascending, each once.  InvalidArgument for what is none."""
    out: list[Numbers] = [np.zeros(0, dtype=np.uint64)]
    for portion in keys:
        for at in range(0, len(portion), KEYS_AT_ONCE):
            some = [number_of_key(sow, key) for key in portion[at : at + KEYS_AT_ONCE]]
            out.append(np.array(some, dtype=np.uint64))
            breathe()
    numbers = np.concatenate(out)
    numbers.sort()  # without the interpreter, unlike `np.unique`
    return numbers[np.append(True, numbers[1:] != numbers[:-1])] if len(numbers) else numbers


def texts(bodies: Sequence[bytes]) -> list[str]:
    """Rows of a stage that are keys.  InvalidArgument for one that is no text."""
    with told_as(InvalidArgument, "sink_commit: a key of drop is no UTF-8 text: ", instead=UnicodeDecodeError):
        return [body.decode() for body in bodies]
