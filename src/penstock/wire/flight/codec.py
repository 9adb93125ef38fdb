"""Messages between Arrow batches and the plain values of the server, with no Python step a row where rows agree.

Owns which column becomes what.  An `Upload` is a publish before anybody has looked up its topics; `message_batch` and
`present` are what readers and consumers get.

Headers become AMQP property bytes and come back once for each distinct header, not once a row, found with Arrow first:
rows of a batch mostly share theirs.  Publishing: content_type, priority, message_id, correlation_id, reply_to and the
map of headers become property bytes with delivery mode 2.  Reading: the same columns; values that are no text become
text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import InvalidArgument, PenstockError
from penstock.records.causes import death_reason
from penstock.records.chunks import Chunk
from penstock.records.compute import compute
from penstock.records.dataclass import dataclass
from penstock.records.entries import Topic
from penstock.records.message_bodies import Bodies, data_bytes, from_column
from penstock.records.one_or_each import bytes_of
from penstock.records.properties import PERSISTENT, Properties, decode, encode
from penstock.records.remembered import Remembered
from penstock.units import LATEST, LONGEST
from penstock.wire.fields import NAME_LIMIT, PROPERTIES_MOST, bounded
from penstock.wire.flight.commands import MESSAGES, TEXT_COLUMNS
from penstock.wire.flight.received import Bounds, Received, check_bodies, columns_of

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false


PLAIN = encode(Properties(delivery_mode=PERSISTENT))
"""The header of a message without any header column."""

ENTRY_LEAST = 2
"""Bytes of a header that has neither name nor value."""

_HEADER_COLUMNS = ("headers", "priority", *TEXT_COLUMNS)

_READ_COLUMNS = (*_HEADER_COLUMNS, "death_reason")
"""What a header shows to those who read."""

_SEEN_MAX = 4096
_SEEN_SIZE_MAX = 512


class Header(NamedTuple):
    """One header as the columns show it; None is null."""

    headers: tuple[tuple[str, str | None], ...] | None
    priority: int | None
    content_type: str | None
    message_id: str | None
    correlation_id: str | None
    reply_to: str | None
    death_reason: str | None  # of a dead letter


NOTHING = Header(None, None, None, None, None, None, None)

_seen = Remembered[bytes, Header](_SEEN_MAX)


def header_of(properties: bytes) -> Header:
    """What the columns show of one message's properties; remembered for short ones, 4,096 at most."""
    found = _seen.get(properties)
    if found is None:
        found = _read(properties)
        if len(properties) <= _SEEN_SIZE_MAX:
            _seen.keep(properties, found)
    return found


def _read(properties: bytes) -> Header:
    try:
        p = decode(properties)
    except PenstockError:
        return NOTHING  # stored before it was checked; the properties column has the bytes
    headers = None
    if p.headers:
        headers = tuple((name, None if value is None else _header_text(value)) for name, value in p.headers.items())
    why = death_reason(p.headers)
    return Header(headers, p.priority, p.content_type, p.message_id, p.correlation_id, p.reply_to, why)


def _header_text(value: object) -> str:
    """A header value as text: text as it is, bytes as UTF-8, the rest as JSON writes it."""
    if isinstance(value, str):
        return value
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    try:
        return orjson.dumps(value, default=_header_text, option=orjson.OPT_NON_STR_KEYS).decode()
    except (TypeError, ValueError):
        return str(value)


# -- publishing


def properties_of(columns: Mapping[str, pa.Array[Any]], rows: int, what: str) -> bytes | list[bytes]:
    """Property bytes from the header columns of a publish: one value where all rows agree.

    InvalidArgument for a priority outside 0..255 and for texts that AMQP cannot hold.
    """
    present = [name for name in _HEADER_COLUMNS if name in columns and columns[name].null_count < rows]
    if not present or not rows:
        return PLAIN
    codes: Any = None
    values: list[list[object]] = []
    spread = 1
    for name in present:
        distinct, code = _distinct(name, columns[name], what)
        values.append(distinct)
        spread *= len(distinct)
        if spread >= 1 << 62:
            return _row_by_row(present, columns, rows, what)
        codes = code if codes is None else codes * len(distinct) + code
    if spread == 1:
        return _write(present, [some[0] for some in values], what)
    combined, inverse = np.unique(codes, return_inverse=True)
    written: list[bytes] = []
    for code in cast("list[int]", combined.tolist()):
        picked: list[object] = []
        for some in reversed(values):
            code, place = divmod(code, len(some))
            picked.append(some[place])
        written.append(_write(present, picked[::-1], what))
    return [written[place] for place in cast("list[int]", inverse.tolist())]


def _refuse_long(headers: pa.Array[Any], what: str) -> None:
    """InvalidArgument for a row of more than properties may have, before it is objects: millions hold everybody up."""
    column = cast("Any", headers)
    lengths = [compute.fill_null(compute.binary_length(one), 0).to_numpy() for one in (column.keys, column.items)]
    ends = np.concatenate(([0], np.cumsum(lengths[0] + lengths[1] + ENTRY_LEAST, dtype=np.int64)))
    sizes = np.diff(ends[column.offsets.to_numpy()])[column.is_valid().to_numpy(zero_copy_only=False)]
    if (longest := int(sizes.max(initial=0))) > PROPERTIES_MOST:
        raise InvalidArgument(f"{what}: the headers of a message have {longest} bytes, {PROPERTIES_MOST} are allowed")


def _distinct(name: str, column: pa.Array[Any], what: str) -> tuple[list[object], Any]:
    """Distinct values and the place of each row's among them, int64."""
    if name == "headers":
        if column.nbytes > PROPERTIES_MOST:
            _refuse_long(column, what)
        places = dict[object, int]()
        code = np.fromiter(
            (places.setdefault(None if not item else tuple(item), len(places)) for item in column.to_pylist()),
            np.int64,
            len(column),
        )
        return list(places), code
    encoded: Any = compute.dictionary_encode(column, null_encoding="encode")
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _row_by_row(names: Sequence[str], columns: Mapping[str, pa.Array[Any]], rows: int, what: str) -> list[bytes]:
    lists = [columns[name].to_pylist() for name in names]
    return [_write(names, [some[row] for some in lists], what) for row in range(rows)]


def _write(names: Sequence[str], values: Sequence[object], what: str) -> bytes:
    found = cast("dict[str, Any]", dict(zip(names, values, strict=True)))
    priority = found.get("priority")
    if priority is not None and not 0 <= priority <= 255:
        raise InvalidArgument(f"{what}: priority is {priority}, not in 0..255")
    headers = found.pop("headers", None)
    try:
        return bounded(
            encode(Properties(headers=dict(headers) if headers else None, delivery_mode=PERSISTENT, **found))
        )
    except InvalidArgument as error:
        raise InvalidArgument(f"{what}: {error}") from error


# -- reading


def header_columns(
    properties: bytes | Sequence[bytes] | pa.Array[Any], rows: int, wanted: Iterable[str]
) -> dict[str, pa.Array[Any]]:
    """The wanted header columns of so many messages."""
    names = [name for name in wanted if name in _READ_COLUMNS]
    if not names:
        return {}
    if isinstance(properties, bytes):
        distinct, places = [properties], None
    else:
        column = properties if isinstance(properties, pa.Array) else pa.array(properties, pa.binary())
        encoded: Any = compute.dictionary_encode(column, null_encoding="encode")
        distinct = cast("list[bytes]", encoded.dictionary.to_pylist())
        places = encoded.indices if len(distinct) > 1 else None
    found = [header_of(item) if item else NOTHING for item in distinct]
    out: dict[str, pa.Array[Any]] = {}
    for name in names:
        values = [getattr(header, name) for header in found]
        out[name] = _column(values, MESSAGES.field(name).type, rows, places)
    return out


def _column(values: list[Any], kind: Any, rows: int, places: Any) -> pa.Array[Any]:
    if all(value is None for value in values):
        return cast("pa.Array[Any]", pa.nulls(rows, kind))
    array = cast("pa.Array[Any]", pa.array(values, kind))
    if places is None:
        places = pa.array(np.zeros(rows, np.int32))
    return array.take(places)


# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
# pyright: reportUnknownLambdaType=false, reportUnknownParameterType=false


@dataclass(slots=True)
class Upload:
    """One batch of messages as its publisher gave it.

    Times are microseconds since the epoch, 0 is none; durations are microseconds from when it is taken, -1 is none.
    """

    bodies: Bodies
    properties: bytes | list[bytes]
    names: list[str]  # distinct topics
    name_of: list[int] | None  # place of each row's topic in `names`; None: all rows have the first
    not_before: list[int] | None
    expires_at: list[int] | None
    delay: list[int] | None  # instead of not_before
    expiration: list[int] | None  # instead of expires_at
    size: int  # bytes of bodies and properties

    def __len__(self) -> int:
        return len(self.bodies)

    def starts(self, time: int) -> list[int] | None:
        """From when on each row may be delivered, taken at `time`; None: all at once."""
        return _counted_from(time, self.not_before, self.delay)

    def ends(self, time: int) -> list[int] | None:
        """When each row expires, taken at `time`; None: none does."""
        return _counted_from(time, self.expires_at, self.expiration)


def _counted_from(time: int, at: list[int] | None, after: list[int] | None) -> list[int] | None:
    """Times, of which some are given as durations from `time`."""
    if after is None:
        return at
    if at is None:
        return [time + span if span >= 0 else 0 for span in after]
    return [time + span if span >= 0 else when for when, span in zip(at, after, strict=True)]


def read_upload(received: Received, topic: str | None, bounds: Bounds) -> Upload:
    """Messages from a stranger's batch.

    `topic` serves rows without one.  InvalidArgument says which column is wrong; nothing of the batch is taken then.
    """
    what, columns = received.layout.what, columns_of(received)
    bodies = columns["body"]
    check_bodies(bodies, bounds, what)
    rows = len(bodies)
    properties = properties_of(columns, rows, what)
    names, name_of = _topics(columns.get("topic"), topic, rows, what)
    heads, size = bytes_of(properties, rows), data_bytes(bodies)
    _one_of("not_before", "delay", columns, what)
    _one_of("expires_at", "expiration", columns, what)
    return Upload(
        from_column(bodies, size),
        properties,
        names,
        name_of,
        _times("not_before", columns, what),
        _times("expires_at", columns, what),
        _spans("delay", columns, what),
        _spans("expiration", columns, what),
        heads + size,
    )


def _topics(
    column: pa.Array[Any] | None, topic: str | None, rows: int, what: str
) -> tuple[list[str], list[int] | None]:
    if column is None or column.null_count == rows:
        if topic is None:
            if not rows:
                return [""], None
            raise InvalidArgument(f"{what}: no topic: name one in the command or in column 'topic'")
        return [topic], None
    if column.null_count:
        if topic is None:
            raise InvalidArgument(f"{what}: column 'topic' has nulls and the command names no topic")
        column = cast("pa.Array[Any]", compute.fill_null(column, topic))
    encoded: Any = compute.dictionary_encode(column)
    names = cast("list[str]", encoded.dictionary.to_pylist())
    for name in names:
        if len(name.encode()) > NAME_LIMIT:
            raise InvalidArgument(f"{what}: topic {name[:40]!r}... is longer than {NAME_LIMIT} bytes")
    return names, None if len(names) == 1 else cast("list[int]", encoded.indices.to_pylist())


def _times(name: str, columns: Mapping[str, pa.Array[Any]], what: str) -> list[int] | None:
    column = columns.get(name)
    if column is None or column.null_count == len(column):
        return None
    numbers = cast("pa.Array[Any]", column.cast(pa.int64()).fill_null(0))
    ends = compute.min_max(numbers).as_py()
    for end in (ends["min"], ends["max"]):
        if not 0 <= end <= LATEST:
            raise InvalidArgument(f"{what}: {name} is {end} us since 1970, which is not in the years 1970 to 9999")
    return cast("list[int]", numbers.to_pylist())


def _spans(name: str, columns: Mapping[str, pa.Array[Any]], what: str) -> list[int] | None:
    column = columns.get(name)
    if column is None or column.null_count == len(column):
        return None
    ends = compute.min_max(column).as_py()
    for end in (ends["min"], ends["max"]):
        if not 0 <= end <= LONGEST:
            raise InvalidArgument(f"{what}: {name} is {end} us, which is not between 0 and 1,000 years")
    return cast("list[int]", column.fill_null(-1).to_pylist())


def _one_of(time: str, span: str, columns: Mapping[str, pa.Array[Any]], what: str) -> None:
    """InvalidArgument for a row that has both."""
    at, after = columns.get(time), columns.get(span)
    if at is None or after is None:
        return
    both = compute.and_(compute.is_valid(at), compute.is_valid(after))
    if (row := cast("int", compute.index(both, True).as_py())) >= 0:
        raise InvalidArgument(f"{what}: row {row} has both {time} and {span}: give one of them")


FEW = 64
"""Below so many rows a Python loop is quicker than calling Arrow's functions."""


# -- what readers get


def lsn_column(chunk: Chunk | Sequence[int]) -> pa.Array[Any]:
    if isinstance(chunk, range):
        return cast("pa.Array[Any]", pa.array(np.arange(chunk.start, chunk.stop, chunk.step, dtype=np.int64)))
    return cast("pa.Array[Any]", pa.array(np.asarray(chunk, dtype=np.int64)))


def bookmark_column(origin: int, lsns: pa.Array[Any]) -> pa.Array[Any]:
    """`<origin>|<lsn>|` of each row."""
    if len(lsns) < FEW:
        return cast("pa.Array[Any]", pa.array([f"{origin}|{lsn}|" for lsn in lsns.to_pylist()], pa.string()))
    return cast("pa.Array[Any]", compute.binary_join_element_wise(str(origin), lsns.cast(pa.string()), "", "|"))


def constant(kind: Any, value: object, rows: int) -> pa.Array[Any]:
    """The same value in each row."""
    if value is None:
        return cast("pa.Array[Any]", pa.nulls(rows, kind))
    return cast("pa.Array[Any]", pa.repeat(pa.scalar(cast("Any", value), kind), rows))


def text_column(values: str | Sequence[str | None], rows: int) -> pa.Array[Any]:
    """One text for all rows, or one a row, None for none."""
    if isinstance(values, str):
        return constant(pa.string(), values, rows)
    return cast("pa.Array[Any]", pa.array(values, pa.string()))


def topic_columns(topics: Topic | list[Topic], rows: int) -> dict[str, Callable[[], pa.Array[Any]]]:
    """Names and exchanges, for `message_batch`."""
    names = topics.name if isinstance(topics, Topic) else [topic.name for topic in topics]
    exchanges = topics.exchange if isinstance(topics, Topic) else [topic.exchange for topic in topics]
    return {"topic": lambda: text_column(names, rows), "exchange": lambda: text_column(exchanges, rows)}


def message_batch(
    schema: pa.Schema,
    rows: int,
    properties: bytes | Sequence[bytes] | pa.Array[Any],
    given: Mapping[str, Callable[[], pa.Array[Any]]],
) -> pa.RecordBatch:
    """A batch of `schema`: columns from `given`, from the header, or null."""
    names = cast("Sequence[str]", schema.names)
    heads = header_columns(properties, rows, [name for name in names if name in _READ_COLUMNS and name not in given])
    columns: list[pa.Array[Any]] = []
    for name in names:
        if name in given:
            columns.append(given[name]())
        elif name in heads:
            columns.append(heads[name])
        else:
            columns.append(constant(schema.field(name).type, None, rows))
    return pa.RecordBatch.from_arrays(columns, schema=schema)


_OF_THE_LOG = {
    "lsn": "lsn", "bookmark": "lsn", "topic": "name", "exchange": "via", "time": "time", "priority": "priority",
    "body": "body",
}  # fmt: skip


def presented(names: Iterable[str]) -> set[str]:
    """The log's columns of which `present` makes columns of these names: those of no other come from the headers."""
    return {_OF_THE_LOG.get(name, "properties") for name in names}


def present(
    batch: pa.RecordBatch, schema: pa.Schema, origin: int, exchange_of: Callable[[int], str],
    extra: Mapping[str, Callable[[], pa.Array[Any]]] | None = None,
) -> pa.RecordBatch:  # fmt: skip
    """Rows of messages from the log, in its own columns, as readers get them; `presented` says which it takes.

    `exchange_of` names the exchange of a `via` id.  `schema` is a choice of `schemas.MESSAGES`.
    """
    rows = batch.num_rows
    properties = batch.column("properties") if "properties" in batch.schema.names else b""
    return message_batch(
        schema,
        rows,
        properties,
        {
            "lsn": lambda: batch.column("lsn"),
            "bookmark": lambda: bookmark_column(origin, batch.column("lsn")),
            "topic": lambda: batch.column("name"),
            "exchange": lambda: _exchanges(batch.column("via"), exchange_of),
            "time": lambda: batch.column("time"),
            "properties": lambda: batch.column("properties"),
            "priority": lambda: batch.column("priority"),
            "body": lambda: batch.column("body"),
            **(extra or {}),
        },
    )


def _exchanges(via: pa.Array[Any], exchange_of: Callable[[int], str]) -> pa.Array[Any]:
    if via.null_count == len(via):
        return constant(pa.string(), "", len(via))
    encoded: Any = compute.dictionary_encode(via, null_encoding="encode")
    names = ["" if item is None else exchange_of(item) for item in encoded.dictionary.to_pylist()]
    return cast("pa.Array[Any]", pa.array(names, pa.string()).take(encoded.indices))
