"""What a message type is to those who read bodies: a parser, and what follows from it alike for every type.

    read(body)     the value as the language has it: objects, lists, texts, numbers, truth, None
    exact(body)    the value with all that the type tells apart, which `write` writes again: for merging
    json(body)     the body as JSON text
    write(fields)  a body of these fields; a type without it has no deltas and no select lists

These take a body whole, with all that a parser needs: `whole` makes such of messages' bodies and headers, and `needs`
has the columns of a message that it takes this from.

ValueError, with a sentence, for a body that is none of its type; nothing else is raised for what is in a body.  Texts
are byte strings, as everywhere in the language; what a type has beyond that is told in text: binary values in base64,
points in time as ISO 8601 in UTC, decimal numbers by their digits.

Refuses to know the types: whoever reads a body asks its row (`penstock.expr.bodies`) and never for a name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from math import isfinite
from typing import Any, NewType, Protocol, TypeAlias, cast

import orjson

from penstock.errors import InvalidArgument
from penstock.expr.batches import NOTHING, Properties, Table, header_tables, root
from penstock.expr.values import to_bytes
from penstock.records.dataclass import dataclass
from penstock.records.message_bodies import DEPTH, deeper
from penstock.records.message_types import BODY, BODY_AND_HEADERS, behind

Fields: TypeAlias = dict[str, object]

Whole = NewType("Whole", bytes)
"""A body with all that its parser needs, be that in the body or in a header."""

Reading: TypeAlias = Callable[[Whole], object]
Writing: TypeAlias = Callable[[Fields], bytes]
"""The inverse of `exact`, of an object.  ValueError for what the type cannot hold."""


class Parser(Protocol):
    """How bodies of one type are read.  Any thread; ValueError for a body that is none."""

    @property
    def read(self) -> Reading:
        """Gives the value as the language has it."""
        ...

    @property
    def exact(self) -> Reading:
        """Gives the value with all that the type tells apart."""
        ...

    @property
    def json(self) -> Callable[[Whole], bytes]:
        """Gives the body as JSON text."""
        ...


class Made:
    """A parser of a function that gives the value as the language has it, and one that gives it exactly."""

    def __init__(self, read: Reading, exact: Reading | None = None) -> None:
        self.read: Reading = read
        self.exact: Reading = exact or read

    def json(self, body: Whole) -> bytes:
        """What is read, as JSON text."""
        return json_text(self.read(body))


@dataclass(eq=False, slots=True)
class BodyType:
    """One message type.  Unchanging; any thread."""

    name: str
    title: str  # for a sentence, "JSON"
    parser: Parser
    write: Writing | None = None
    inline: tuple[str, ...] = ("record = table(body)",)
    """Lines of Python that make `record` of `body` in a compiled expression."""
    is_json: bool = False  # a body is JSON text as it is
    searchable: bool = False
    """Names and values stand in a body as an expression spells them: texts can be looked for in it."""
    slowness: int = 1  # how many times as long as JSON a small body takes to read, about
    us_a_byte: float = 0.0
    """Microseconds that a byte takes where values are dense, about; the densest bodies take twice as long.  0: it is
    never long."""
    truths: Mapping[str, bool] | None = None
    """Every value is a text, and what comes once is no list: which texts are true or false.  None: it is not so."""
    header: str | None = None  # that says which schema a body has; None: its parser needs no header
    read: Reading = field(init=False)
    exact: Reading = field(init=False)
    json: Callable[[Whole], bytes] = field(init=False)
    needs: frozenset[str] = field(init=False)
    table: Callable[[Whole], Table] = field(init=False)

    def __post_init__(self) -> None:
        self.read, self.exact, self.json = self.parser.read, self.parser.exact, self.parser.json
        self.needs = BODY if self.header is None else BODY_AND_HEADERS
        if self.header is not None:
            self.inline = ("record = table(one_whole(body, header))",)
        self.table = _table_of(self.read)

    def whole(self, bodies: Sequence[bytes], properties: Properties) -> Sequence[Whole]:
        """Bodies as parsers take them: as they are, or each behind the id that its header has."""
        if self.header is None:
            return cast("Sequence[Whole]", bodies)
        if isinstance(properties, bytes):
            before = self._before(properties)
            return [Whole(before + body) for body in bodies]
        return [Whole(self._before(one) + body) for body, one in zip(bodies, properties, strict=True)]

    def one_whole(self, body: bytes, properties: bytes) -> Whole:
        return Whole(body) if self.header is None else Whole(self._before(properties) + body)

    def _before(self, properties: bytes) -> bytes:
        return behind(header_tables(properties)[0].get(cast("str", self.header)))

    def tables(self, bodies: Sequence[bytes], properties: Properties) -> list[Table]:
        """The fields of each."""
        return list(map(self.table, self.whole(bodies, properties)))

    def texts(self, bodies: list[bytes | None], properties: Properties) -> tuple[list[bytes | None], list[str | None]]:
        """Bodies as JSON text in which numbers that JSON has not have names (`named_text`), None for one that cannot be
        read, and for each why it cannot.  JSON is not looked at.
        """
        why: list[str | None] = [None] * len(bodies)
        if self.is_json:
            return bodies, why
        out: list[bytes | None] = []
        for place, body in enumerate(self.whole([body or b"" for body in bodies], properties)):
            try:
                out.append(named_text(self.read(body)))
            except ValueError as error:
                out.append(None)
                why[place] = f"no {self.title}: {error}"
        return out, why

    def object(self, body: bytes, what: str) -> Fields:
        """The fields of a body, exactly, to be written again.

        InvalidArgument, naming `what`, for one that is no object of this type, and for a type that is not written.
        """
        if self.write is None:
            raise self.unwritten()
        assert self.header is None, "what is written here begins with nothing"
        try:
            value = self.exact(Whole(body))
        except ValueError as error:
            raise InvalidArgument(f"{what} is no {self.title}: {why_no_json(error)[:100]}") from None
        if not isinstance(value, dict):
            raise InvalidArgument(f"{what} is no {self.title} object, so it has no fields to merge")
        return cast("Fields", value)

    def unwritten(self) -> InvalidArgument:
        """Why there are no deltas and no select lists."""
        return InvalidArgument(f"{self.title} is not written here, so it has no deltas and no select lists")


def _table_of(read: Reading) -> Callable[[Whole], Table]:
    def table(body: Whole) -> Table:
        """The fields of a body; none if it cannot be read."""
        try:
            record = read(body)
        except ValueError:
            return NOTHING
        return cast("Table", record) if record.__class__ is dict else root(cast("Any", record))

    return table


def add(fields: Fields, name: str, value: object) -> None:
    """One more value of a field: a name that is there again has a list."""
    if name not in fields:
        fields[name] = value
        return
    present = fields[name]
    if isinstance(present, list):
        cast("list[object]", present).append(value)
    else:
        fields[name] = [present, value]


Words: TypeAlias = "Mapping[re.Pattern[str], str]"
"""What is told instead of what a library says of a body, where this is the words of a program, by a pattern of
`Class: text`."""

NOT_UTF8 = "a text in it is not UTF-8"


def refusal(error: Exception, words: Words) -> ValueError:
    """Why a body is none of its type, of what was raised."""
    said = f"{type(error).__name__}: {error}"
    for pattern, told in words.items():
        if pattern.match(said):
            return ValueError(told)
    return ValueError(str(error) or type(error).__name__)


_OF_JSON: Words = {
    re.compile(".*not valid UTF-8"): "it is not UTF-8",
    re.compile(".*failed to allocate memory"): "it opens more levels than it closes",
}


def why_no_json(error: ValueError) -> str:
    """What the reader of JSON says of a body, with the place in it."""
    return str(refusal(error, _OF_JSON))


def bounded(value: object) -> object:
    """A value that is nested no deeper than bodies may be.  ValueError for another."""
    if deeper(value, DEPTH):
        raise too_deep()
    return value


def too_deep() -> ValueError:
    """Why a body is none that is read."""
    return ValueError(f"it is nested more than {DEPTH} levels deep")


def json_text(value: object) -> bytes:
    """A value of the language as JSON: NaN and infinities are null, bytes that are no UTF-8 are replaced."""
    try:
        return orjson.dumps(value)
    except TypeError:  # an integer beyond 64 bits, or a text that is no UTF-8
        return json.dumps(_clean(value), separators=(",", ":"), ensure_ascii=False).encode()


def named_text(value: object) -> bytes:
    """The same where NaN and infinities are the texts `"NaN"`, `"Infinity"` and `"-Infinity"`, by which who has a place
    for such a number knows it from a NULL.
    """
    text = json_text(value)
    return json_text(_named(value)) if b"null" in text and _has_unnumbered([value]) else text


def _has_unnumbered(values: Iterable[object]) -> bool:
    """Whether a number that JSON has not is among these, or in them.  Asked of each body with a NULL."""
    for one in values:
        kind = one.__class__
        if kind is float:
            if not isfinite(cast("float", one)):
                return True
        elif kind is dict:
            if _has_unnumbered(cast("dict[object, object]", one).values()):
                return True
        elif kind is list and _has_unnumbered(cast("list[object]", one)):
            return True
    return False


def _named(value: object) -> object:
    if isinstance(value, dict):
        return {name: _named(one) for name, one in cast("dict[object, object]", value).items()}
    if isinstance(value, list):
        return [_named(one) for one in cast("list[object]", value)]
    if isinstance(value, float) and not isfinite(value):
        return "NaN" if value != value else "Infinity" if value > 0 else "-Infinity"
    return value


def _clean(value: object) -> object:
    if isinstance(value, dict):
        return {cast("str", _clean(name)): _clean(one) for name, one in cast("dict[object, object]", value).items()}
    if isinstance(value, list):
        return [_clean(one) for one in cast("list[object]", value)]
    if isinstance(value, str):
        return to_bytes(value).decode("utf-8", "replace")
    if isinstance(value, float) and not isfinite(value):
        return None
    return value
