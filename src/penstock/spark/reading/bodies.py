"""Bodies as typed columns, those of other types as the JSON that they are in the language.

A body is bad when it is no object of its type or when a value has no place in its column (`json_types`); all its
columns are null then and the reason is told.  A missing field is null.  The last of equal keys wins.

No body raises anything.  A column whose values are all of the kinds that Arrow takes as they are is made at once;
otherwise its judge is asked for each value.  What no judge has foreseen is a fault of ours: it makes its own body bad,
so that a batch never stands still over what is in it, and is logged.

Bad bodies that tasks put aside (`Aside`) are published at once, and stored once however often a part is read.

Whoever reads a part again gives its letters the same numbers, and the server drops what it has under a number.  So a
name stands for one cut of the rows, one schema and one set of rules: a batch that was narrowed has other parts, under
another schema or other rules other bodies are bad, and they are other publishers.  What then comes again says which
message it was, and a queue with a `dedup_window` takes that once.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from hashlib import sha256
from json import JSONDecoder
from typing import Any, Protocol, TypeAlias, cast

import numpy as np
import orjson
import pyarrow as pa

from penstock.errors import AccessRefused, InvalidArgument, PreconditionFailed
from penstock.expr.bodies import body_type
from penstock.expr.bodies.body_type import why_no_json
from penstock.records.compute import compute
from penstock.records.message_types import FIELDLESS, JSON, MESSAGE_TYPE, TYPE_IN_SCHEMA, MessageType, named, needed_of
from penstock.records.properties import EMPTY
from penstock.records.regular_expressions import topic_pattern
from penstock.spark.executor import task_of
from penstock.spark.options import WHATEVER, ReadOptions
from penstock.spark.reading.columns import Layout
from penstock.spark.reading.json_types import RULES, Judge, Misfits, Number, Rescue, Rough, Unfit, judge_of, shown
from penstock.spark.reading.like_bodies import LikeBodies, joined, times
from penstock.spark.reading.parts import ContentPart, LogPart, PlanPart, RecordPart, ReplayPart, RowsPart
from penstock.spark.reading.plain_bodies import PlainBodies, is_plain, odd_rows
from penstock.spark.record_batches import Column
from penstock.spark.remote import Remote

logger = logging.getLogger("penstock.spark.parsing")

Errors: TypeAlias = "list[str | None]"
"""For each row why it is bad; None where it is good."""

MAY_BE_ROUGH = r"[0-9.]{16}|[0-9][eE]-[0-9]{3}"
"""Bodies whose doubles might not be all that is written: up to 15 digits come back from a double, except tiny ones."""

REASON = 300
"""Letters of an unforeseen reason."""


def type_of(server: Remote, options: ReadOptions, told: MessageType | None = None) -> MessageType:
    """What the bodies are, as the server says now, unless it has told it with what is read; of several topics JSON.

    InvalidArgument where option `parse` says another type, and where columns are asked for of bodies that have none.
    """
    if options.log or options.is_pattern:
        return JSON
    kind = told or _asked(server, options)
    if options.parse not in {None, WHATEVER, kind, kind.partition(":")[0]}:  # with its schema, or by its name alone
        asked = named(str(options.parse))
        raise InvalidArgument(f"option parse is {asked}, and the bodies of {options.what} are {named(kind)}")
    if options.parse and kind in FIELDLESS:  # else every body were a bad one, and all might be put aside
        raise InvalidArgument(
            f"options schema and parse are for fields of bodies, and those of {options.what} are {kind}, which has none"
        )
    return kind


def _asked(server: Remote, options: ReadOptions) -> MessageType:
    exchange = options.exchange or None
    if options.view is not None:  # a topic with a key, or a view, whose rows are JSON
        told = server.act("topic", topic=options.view, exchange=exchange, vhost=server.vhost)
        return str(told.get(MESSAGE_TYPE) or JSON)
    if options.queue is not None:
        found = server.schema("queue", name=options.queue, vhost=server.vhost)
    else:
        found = server.schema("replay", topic=options.topic, exchange=exchange, vhost=server.vhost)
    return (found.metadata or {}).get(TYPE_IN_SCHEMA, JSON.encode()).decode()


def with_all_needed(layout: Layout, kind: MessageType) -> Layout:
    """The same read with every column of messages that its bodies are read from."""
    if not layout.reads_bodies:
        return layout
    missing = needed_of(kind).difference(layout.fetched)
    return replace(layout, fetched=(*layout.fetched, *sorted(missing))) if missing else layout


MISSES_MOST = 3
"""Batches that a reader has read in vain one after another, after which it reads no more of a part."""


class Quick(Protocol):
    """A reader of batches whose bodies are all good."""

    def columns(self, bodies: Column) -> dict[str, Column]:
        """The columns of a plain batch.  Raises where a body or a value needs a second look."""
        ...


class BodyParser:
    """Bodies into the columns of a schema."""

    def __init__(
        self,
        schema: pa.Schema,
        names: Sequence[str],
        needed: Collection[str] = (),
        kind: MessageType = JSON,
        rescued: str | None = None,
        known: Collection[str] = (),
    ) -> None:
        """needed: columns without which a body is bad, beside those that the schema says may not be null.

        kind: of the bodies.  rescued: the column of what has no column, which a value without a place makes no bad
        body then; known: names of columns beside these that what is rescued does not have.
        """
        given: Any = schema
        self._kind: MessageType = kind
        self.fields = cast("list[pa.Field[Any]]", [given.field(name) for name in names])
        truths = None if kind == JSON else body_type(kind).truths
        self._typed = [_Typed(one, truths, needed=one.name in needed or not one.nullable) for one in self.fields]
        self._rescued = rescued
        self._rescue = None if rescued is None else Rescue(self.fields, known)
        self._quick = list[Quick]()
        if kind == JSON and rescued is None:
            self._quick += [one for one in (LikeBodies.of(self._typed), PlainBodies.of(self._typed)) if one is not None]
        self._misses = dict.fromkeys(self._quick, 0)
        self._mixed = False  # the batch before had a few odd bodies

    def parse(self, bodies: Column, properties: Column | None = None) -> tuple[dict[str, Column], Errors]:
        """Columns by name, and for each row why it is bad (None: it is good).

        properties: the headers of the messages, where their type needs them.
        """
        for way in (self._apart, self._whole) if self._mixed else (self._whole, self._apart):
            if self._quick and (found := way(bodies)) is not None:
                return found
        columns = self._at_once(bodies, escapes=True)
        return self._one_by_one(bodies, properties) if columns is None else (columns, [None] * len(bodies))

    def _whole(self, bodies: Column) -> tuple[dict[str, Column], Errors] | None:
        columns = self._at_once(bodies)
        return None if columns is None else (columns, cast("Errors", [None] * len(bodies)))

    def _apart(self, bodies: Column) -> tuple[dict[str, Column], Errors] | None:
        """A batch of which a few bodies are odd, those by themselves; None where it is none, or that does not help."""
        odd = odd_rows(bodies)
        places = np.flatnonzero(odd)
        if not 0 < 2 * len(places) <= len(odd):
            return None
        others, given = np.flatnonzero(~odd), cast("Any", bodies)
        quick = self._at_once(given.take(pa.array(others)))
        self._mixed = quick is not None
        if quick is None:
            return None
        slow, told = self._one_by_one(given.take(pa.array(places)), None)
        parts = [(others, list(quick.values())), (places, [slow[name] for name in quick])]
        errors = cast("Errors", [None] * len(odd))
        for place, error in zip(places.tolist(), told, strict=True):
            errors[place] = error
        return dict(zip(quick, joined(parts), strict=True)), errors

    def _one_by_one(self, bodies: Column, properties: Column | None) -> tuple[dict[str, Column], Errors]:
        rows = Rows(bodies, self._kind, properties)
        misfits: Misfits | None = None if self._rescue is None else {}
        columns = {one.name: one.column(rows, misfits) for one in self._typed}
        if self._rescue is not None and misfits is not None:
            columns[str(self._rescued)] = self._rescue.column(rows, misfits)
        if rows.errors.count(None) < len(rows.errors):
            own = [place if error is None else None for place, error in enumerate(rows.errors)]
            good: Any = pa.array(own, pa.int64())
            columns = {name: cast("Any", column).take(good) for name, column in columns.items()}
        return columns, rows.errors

    def _at_once(self, bodies: Column, *, escapes: bool = False) -> dict[str, Column] | None:
        """The columns of a batch of good bodies by the first reader that makes them; None where each is to be read.

        escapes: of one whose bodies have some, as most of them do.
        """
        readers = [one for one in self._quick if not escapes or isinstance(one, PlainBodies)]
        if not readers or (escapes and is_plain(bodies)) or not is_plain(bodies, escapes=escapes):
            return None
        for reader in readers:
            try:
                found = reader.columns(bodies)
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - who reads body by body finds out which it is, and why
                self._misses[reader] += 1
                if self._misses[reader] >= MISSES_MOST:
                    self._quick.remove(reader)
            else:
                self._misses[reader] = 0
                return found
        return None


class Rows:
    """The objects of a batch of bodies, empty ones for those that are none."""

    def __init__(self, bodies: Column, kind: MessageType = JSON, properties: Column | None = None) -> None:
        given = cast("list[bytes | None]", bodies.to_pylist())
        heads = None if properties is None else cast("list[bytes | None]", properties.to_pylist())
        about = body_type(kind)
        self._title = about.title
        self._texts, self.errors = about.texts(given, EMPTY if heads is None else [one or EMPTY for one in heads])
        self._bodies = bodies if self._texts is given else cast("Column", pa.array(self._texts, pa.binary()))
        self._exact = False
        try:
            self._rows = cast("list[dict[str, Any]]", list(map(orjson.loads, cast("list[bytes]", self._texts))))
            whole = {*map(type, self._rows)} <= {dict}
        except ValueError:
            whole = False
        if not whole:
            self._rows = [self._object(place, orjson.loads) for place in range(len(self._texts))]

    def values(self, name: str) -> list[Any]:
        """Of a field, None where it is missing."""
        return [row.get(name) for row in self._rows]

    def exact_values(self, name: str) -> list[Any]:
        """The same with `Number` where a double may not be all that is written; so from now on for every field."""
        self.exact_objects()
        return self.values(name)

    def exact_objects(self) -> Sequence[dict[str, Any]]:
        """All rows as `exact_values` gives one field of them."""
        if not self._exact:
            self._exact = True
            given: Any = self._bodies
            rough = compute.match_substring_regex(given.fill_null(b""), pattern=MAY_BE_ROUGH)
            for place in np.flatnonzero(rough.to_numpy(zero_copy_only=False)).tolist():
                if self.errors[place] is None:
                    self._rows[place] = self._object(place, exactly)
        return self._rows

    def text(self, place: int) -> str:
        """One body as text of JSON, whatever type it is of."""
        return (self._texts[place] or b"").decode(errors="replace")

    def _object(self, place: int, read: Callable[[bytes], Any]) -> dict[str, Any]:
        if self.errors[place] is not None:
            return {}
        try:
            row: Any = read(self._texts[place] or b"")
            if type(row) is dict:
                return cast("dict[str, Any]", row)
            self.errors[place] = f"{self._title}, but no object: {'null' if row is None else shown(row)}"
        except ValueError as wrong:
            self.errors[place] = f"no JSON: {why_no_json(wrong)}"
        return {}


LEVELS = 2_000
"""More than the other reader takes: it ends at 1,024."""


def _whole(text: str) -> int | Number:
    number = int(text)
    return number if -(2**63) <= number < 2**63 else Number(text)


_DECODER: Any = JSONDecoder(parse_float=Number, parse_int=_whole)


def exactly(text: bytes) -> Any:
    """JSON with `Number` for what is no whole number of 64 bits.

    ValueError for what is none, by the rules of the reader that reads the others.
    """
    orjson.loads(text)
    decoded = text.decode()
    start = len(decoded) - len(decoded.lstrip(" \t\n\r"))
    try:
        return _DECODER.scan_once(decoded, start)[0]
    except RecursionError:
        usual = sys.getrecursionlimit()
        sys.setrecursionlimit(usual + LEVELS)
        try:
            return _DECODER.scan_once(decoded, start)[0]
        finally:
            sys.setrecursionlimit(usual)


class _Typed:
    def __init__(self, field: Any, truths: Mapping[str, bool] | None, *, needed: bool) -> None:
        self.name = cast("str", field.name)
        self.kind = field.type
        self._wary, self._judge = (judge_of(field.type, wary=wary, truths=truths) for wary in (True, False))
        self.needed = needed
        kinds, self._taken_at_once = _taken_at_once(field.type)
        self._plain = kinds if needed else kinds | {type(None)}

    def column(self, rows: Rows, misfits: Misfits | None = None) -> Column:
        """The values of all rows; null where one has no place here, and the row's error says so, or `misfits` do."""
        values = rows.values(self.name)
        if {*map(type, values)} <= self._plain:
            try:
                return self._taken_at_once(values)
            except (pa.ArrowException, OverflowError):
                pass  # one is beyond the limits, or has digits that would be lost
        try:
            try:
                return self._judged(values, self._wary)
            except Rough:
                return self._judged(rows.exact_values(self.name), self._judge)
        except Exception:  # noqa: BLE001 - whatever it is, below it is found out of which row
            return self._one_by_one(rows.exact_values(self.name), rows.errors, self._judge, misfits)

    def at_once(self, values: list[Any]) -> Column:
        """The values of all rows.  Raises where one has no place, or may not be all that is written."""
        if {*map(type, values)} <= self._plain:
            return self._taken_at_once(values)
        return self._judged(values, self._wary)

    def _judged(self, values: list[Any], judge: Judge) -> Column:
        judged = [None if value is None and not self.needed else judge(value) for value in values]
        return cast("Column", pa.array(judged, self.kind))

    def _one_by_one(self, values: list[Any], errors: Errors, judge: Judge, misfits: Misfits | None = None) -> Column:
        """The same with each row's own error."""
        judged = list[Any]()
        for place, value in enumerate(values):
            found = None
            if errors[place] is None and (value is not None or self.needed):
                try:
                    found = judge(value)
                except Unfit as unfit:
                    if misfits is None or self.needed:
                        errors[place] = unfit.of(self.name)
                    else:
                        misfits.setdefault(place, set()).add(self.name)
                except MemoryError:
                    raise
                except Exception as wrong:  # noqa: BLE001 - a fault of ours, and no reason for a batch to stand still
                    errors[place] = self._unforeseen(wrong)
            judged.append(found)
        try:
            return cast("Column", pa.array(judged, self.kind))
        except Exception:  # a judge let pass what Arrow does not take
            if judge == self._taken:
                raise
            return self._one_by_one(values, errors, self._taken, misfits)

    def _taken(self, value: Any) -> Any:
        """What the judge says, if Arrow takes it."""
        found = self._judge(value)
        pa.array([found], self.kind)
        return found

    def _unforeseen(self, wrong: Exception) -> str:
        logger.error("field %r of a body, as %s", self.name, self.kind, exc_info=wrong)
        said = f"field {self.name!r} cannot be read: {type(wrong).__name__}: {wrong}"
        return said[:REASON].encode(errors="replace").decode()


def _taken_at_once(kind: Any) -> tuple[frozenset[type], Callable[[list[Any]], Column]]:
    """Kinds of values that Arrow takes as the type's judge does, and how; it raises where one has no place."""
    types: Any = pa.types
    if types.is_float32(kind):
        return frozenset({int, float}), lambda values: _floats(values, kind)
    found = frozenset[type]()
    if types.is_integer(kind):
        found = frozenset({int})
    elif types.is_float64(kind):
        found = frozenset({int, float})
    elif types.is_string(kind):
        found = frozenset({str})
    elif types.is_boolean(kind):
        found = frozenset({bool})
    elif types.is_timestamp(kind):
        return frozenset({str}), lambda values: cast("Column", times(kind, pa.array(values, pa.string())))
    return found, lambda values: cast("Column", pa.array(values, kind))


def _floats(values: list[Any], kind: Any) -> Column:
    column = cast("Column", pa.array(values, kind))
    if np.isinf(cast("Any", column).to_numpy(zero_copy_only=False)).any():
        raise OverflowError("one is more than a float holds")
    return column


SEQUENCE_BITS = 24
"""Rows that a part of one batch may put aside: the publisher's sequence is batch and row in one number."""


class Aside:
    """Bad bodies of one part of one batch of a query, or of one `load()`, published once however often it is read."""

    def __init__(self, server: Remote, options: ReadOptions, part: object, fields: Sequence[pa.Field[Any]]) -> None:
        """fields: of the schema that says which bodies are bad."""
        self._topic, self._queue = options.bad_records_topic, options.queue
        judged = repr([RULES, *((field.name, str(field.type)) for field in fields)])
        if options.rescued is not None:
            judged += "rescued"
        schema = sha256(judged.encode()).hexdigest()[:8]
        self._server: Remote | None = server  # until the topic is known to keep what it gets
        if isinstance(part, PlanPart):
            cut = f"/{part.revision}" if part.revision else ""
            self._publisher = Publisher(server, f"bad/{part.stream}/{part.part}/{part.parts}{cut}/{schema}")
        elif isinstance(part, ReplayPart) and options.stream is not None:
            self._publisher = Publisher(server, f"bad/{options.stream}/{part.part}/{schema}")
        elif isinstance(part, LogPart | ReplayPart | ContentPart | RecordPart | RowsPart) and part.held:
            self._publisher = Publisher(server, f"spark/read/{part.held}/{part.part}", 1)
        else:
            raise TypeError(f"no part whose bad bodies could be told apart: {part!r}")

    def put(
        self, bodies: Sequence[bytes | None], errors: Sequence[str | None], bookmarks: Sequence[str] | None = None
    ) -> None:
        """Publish the bodies whose error is not None; bookmarks: of the messages, where the rows are such."""
        if self._server is not None:
            self._no_return(self._server)
            try:
                self._server.act("declare_topic", topic=self._topic, vhost=self._server.vhost)
            except AccessRefused:
                pass  # who may not declare it relies on who did; what is not kept is told below
            self._server = None
        bad = [row for row, error in enumerate(errors) if error is not None]
        headers = [{"x-error": str(errors[row])} for row in bad]
        if bookmarks is not None:
            for row, header in zip(bad, headers, strict=True):
                header["x-bookmark"] = header["x-dedup-key"] = bookmarks[row]
        self._publisher.publish(str(self._topic), [bodies[row] or b"" for row in bad], headers)

    def _no_return(self, server: Remote) -> None:
        """InvalidArgument where the queue shows what is put aside, so that it would come again, for ever."""
        if self._queue is None:
            return
        shown = str(server.act("stats", queue=self._queue, vhost=server.vhost)["topic"])
        if topic_pattern(shown)(str(self._topic)):
            raise InvalidArgument(
                f"option badRecordsTopic is {self._topic!r}, which queue {self._queue!r} shows: "
                "a bad body would come for ever"
            )


class Publisher:
    """Messages from a task, stored once: whoever repeats it gives them the same numbers."""

    def __init__(self, server: Remote, name: str, first: int | None = None) -> None:
        """`name`: of the publisher, the same each time the task runs.

        first: the number of its first message; None: this is a task of a streaming query, whose number says it.
        """
        self._server = server
        if first is not None:
            self._name, self._next = name, first
            return
        task = task_of()
        if task is None:
            raise TypeError("only a task of a streaming query may publish")
        self._name = f"spark/{task[0]}/{name}"
        self._next = (task[1] << SEQUENCE_BITS) + 1

    def publish(
        self, topic: str, bodies: Sequence[bytes], headers: Sequence[dict[str, str]], exchange: str = ""
    ) -> None:
        """Publish in order; what an earlier try has stored is not stored again."""
        batch = pa.record_batch(
            {
                "body": pa.array(bodies, pa.binary()),
                "headers": pa.array([list(one.items()) for one in headers], pa.map_(pa.string(), pa.string())),
            }
        )
        for start in range(0, len(bodies), 10_000):
            piece = batch.slice(start, 10_000)
            told = self._server.put(
                "publish",
                [piece],
                topic=topic,
                exchange=exchange,
                vhost=self._server.vhost,
                publisher=self._name,
                sequence=self._next,
                mandatory=True,  # else the next try would take what was not kept for a duplicate
            )
            if told["stored"] + told["duplicates"] < piece.num_rows:
                raise PreconditionFailed(
                    f"topic {topic!r} took {told['stored']} of {piece.num_rows} messages: declare it, or a queue that "
                    "takes them, and see that the queue is not full"
                )
            self._next += piece.num_rows
