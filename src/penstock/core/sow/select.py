"""Select lists: which fields of a JSON body are sent.

    -/, +/id, +/ship/to        nothing but the id, and where it goes
    -/notes                    all but the notes

`/` is the whole body; `-` leaves out, `+` sends.  The longest path that fits a field decides, and without `-/` a field
that no path names is sent.  A path goes through an array to each of its elements.  An object or an array of which
nothing is sent is not sent either.  A body that is no JSON object has no fields, and is sent as it is.

The list of a right comes first: what it leaves out no list of a reader brings back, and of a body that is no JSON
object nothing is sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import cast

from penstock.core.sow.merge import Fields, read_object, write_object
from penstock.errors import InvalidArgument
from penstock.records.dataclass import dataclass

PARTS_MOST = 1000
STEPS_MOST = 32
"""Parts of one list, and names of one of its paths."""

NESTED_MOST = 32
"""Arrays directly within arrays that a path goes through; what lies deeper counts as one value."""

_NOTHING = object()


@dataclass(slots=True)
class _Node:
    """A place that paths lead to."""

    sent: bool | None = None  # None: as what holds it
    inner: dict[str, _Node] = field(default_factory=dict["str", "_Node"])


class SelectList:
    """A list that was read.  Unchanging; any thread."""

    __slots__ = ("_first", "_paths", "_root")

    def __init__(self, paths: Sequence[tuple[bool, tuple[str, ...]]], first: SelectList | None = None) -> None:
        """paths: whether what stands there is sent, and the names that lead there.  first: the list of a right."""
        self._paths = tuple(paths)
        self._first = first
        self._root = _Node()
        for sent, path in paths:
            node = self._root
            for name in path:
                node = node.inner.setdefault(name, _Node())
            node.sent = sent

    def with_paths(self, paths: Sequence[tuple[str, ...]]) -> SelectList:
        """The same, and these fields, which a delta needs: the key says whose the changes are."""
        own = {path for _, path in self._paths} - set(paths)
        return SelectList([one for one in self._paths if one[1] in own] + [(True, path) for path in paths], self._first)

    @property
    def parts(self) -> tuple[str, ...]:
        """The list as it is written, without that of a right."""
        return tuple(f"{'+' if sent else '-'}/{'/'.join(path)}" for sent, path in self._paths)

    def within(self, right: SelectList) -> SelectList:
        """The same, of what a right lets a reader see."""
        return SelectList(self._paths, right)

    def shows(self, path: Sequence[str]) -> bool:
        """Whether all is sent that stands at a path."""
        node, on = self._root, True
        for name in (None, *path):
            if name is not None:
                if name not in node.inner:
                    return on
                node = node.inner[name]
            on = on if node.sent is None else node.sent
        return on and all(inner.sent is not False for inner in _below(node))

    def fields(self, record: Fields) -> Fields:
        """The fields of a body that are sent; it is not changed."""
        if self._first is not None:
            record = self._first.fields(record)
        found = _sent(record, self._root, on=True, nested=0)
        return {} if found is _NOTHING else cast("Fields", found)

    def body(self, body: bytes) -> bytes:
        """A body as it is sent."""
        try:
            record = read_object(body, "a body")
        except InvalidArgument:
            return body if self._first is None else b""
        return write_object(self.fields(record))


def _below(node: _Node) -> Iterator[_Node]:
    for inner in node.inner.values():
        yield inner
        yield from _below(inner)


def _sent(value: object, node: _Node, *, on: bool, nested: int) -> object:
    """What of a value is sent; `_NOTHING` when that is nothing.  on: whether what holds it is sent."""
    on = on if node.sent is None else node.sent
    whole = value if on else _NOTHING
    if not node.inner:
        return whole
    kept: Fields | list[object]
    if isinstance(value, dict):
        kept = _sent_fields(cast("Fields", value), node, on=on)
    elif isinstance(value, list) and nested < NESTED_MOST:
        each: list[object] = [_sent(one, node, on=on, nested=nested + 1) for one in cast("list[object]", value)]
        kept = [one for one in each if one is not _NOTHING]
    else:
        return whole
    return kept if on or kept else _NOTHING


def _sent_fields(value: Fields, node: _Node, *, on: bool) -> Fields:
    """Of an object the fields that are sent, each as far as it is."""
    out: Fields = {}
    for name, one in value.items():
        inner = node.inner.get(name)
        if inner is not None:
            one = _sent(one, inner, on=on, nested=0)
        elif not on:
            continue
        if one is not _NOTHING:
            out[name] = one
    return out


def parse_select(parts: Sequence[str]) -> SelectList | None:
    """Read a list, in one text or in several, with or without the brackets around it; None: there is none.

    InvalidArgument for a part that is none, and for a path that is there twice.
    """
    paths: dict[tuple[str, ...], bool] = {}
    for part in _split(parts):
        sign, path = part[:1], part[1:]
        names = () if path == "/" else tuple(path[1:].split("/"))
        if sign not in ("+", "-") or path[:1] != "/" or not all(names):
            raise InvalidArgument(
                f"select: {part[:60]!r} is no part of a list: write +/id, -/customer/name, or -/ first"
            )
        if len(names) > STEPS_MOST:
            raise InvalidArgument(f"select: {part[:60]!r} has {len(names)} names, the most is {STEPS_MOST}")
        if names in paths:
            raise InvalidArgument(f"select: {path[:60]} is there twice")
        if len(paths) >= PARTS_MOST:
            raise InvalidArgument(f"select: the list has more than {PARTS_MOST} parts")
        paths[names] = sign == "+"
    return SelectList([(sent, names) for names, sent in paths.items()]) if paths else None


def narrowed_select(wanted: SelectList | None, right: SelectList | None) -> SelectList | None:
    """What a reader asks for, of what his right lets him see; None: all is sent."""
    return wanted if right is None else (wanted or SelectList(())).within(right)


def _split(parts: Sequence[str]) -> Iterator[str]:
    for whole in parts:
        text = whole.strip()
        if text.startswith("[") and text.endswith("]"):
            text = text[1:-1]
        for part in text.split(","):
            if not part.strip():
                raise InvalidArgument(
                    f"select: {whole[:60]!r} has an empty part: write +/id, -/customer/name, or -/ first"
                )
            yield part.strip()
