"""Which rows of an Arrow batch a filter matches: what Arrow can rule out first, Python's exact function for the rest.

In this order: the conditions that do not look at the body, computed by `columnar`; the shape of the bodies, by Arrow's
regular expressions over all of them, when a first look at some rows says that it pays; then `Filter`'s own function on
the rows that are left.  The answer equals `Filter.matches`.  Owns the order of that work; knows no log and no queue.

A shape is what the text of a JSON body must look like, key and value, for a filter to have a chance with it.  A name
without a backslash in the body stands there in quotes before a colon, and its value follows: `/status = 'paid'` can
only be TRUE where `"status":` is followed by `"paid"` or by an array, and `/total > 500` where `"total":` is followed
by three digits that begin with 5 or more, by four digits, or by what could become such a number (a text, an array, an
exponent, a fraction that rounds up).  Bodies with a backslash pass always.  Sharper than the needles that `scan` looks
for, and dearer: one regular expression a condition.  A shape never drops a match.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from operator import itemgetter
from typing import Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.expr.batches import View
from penstock.expr.columnar import Columnar
from penstock.expr.compiler import compile_tree
from penstock.expr.text_patterns import NEEDLES_MOST, Joined, equality_of, necessary, needles_of, searchable
from penstock.expr.tree import Affix, And, Compare, Field, Like, Literal, Node
from penstock.expr.values import parse_number, to_bytes
from penstock.records.compute import compute, having_byte
from penstock.records.dataclass import dataclass

SHAPES_MOST = 8
"""More regular expressions than this take as long as reading the bodies."""

_BLANK = r"[ \t\n\r]*"
_ODD = r"[0-9.]+[eE]|[0-9]+\.9{6}"
"""A number whose digits do not show its size: an exponent, or a fraction that may round up."""

_LARGEST = 1 << 31
_EXCHANGED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


@dataclass(frozen=True, slots=True)
class Shape:
    """Somewhere in the body the pattern matches (RE2, Latin-1), or there is a backslash."""

    pattern: str


Shapes: TypeAlias = Shape | Joined[Shape]


def shapes_of(tree: Node) -> Shapes | None:
    """The shape of bodies of which the tree can be TRUE; None: any."""
    found = necessary(tree, _of, SHAPES_MOST)
    return found if found is not None and _count(found) <= SHAPES_MOST else None


def _count(shape: Shapes) -> int:
    return 1 if isinstance(shape, Shape) else sum(map(_count, shape.parts))


def _of(tree: Node) -> Shape | None:
    match tree:
        case Like() | Affix():
            texts = needles_of(tree)
            return None if texts is None or texts.odd else Shape("|".join(map(quoted, texts.needles)))
        case Compare() if tree.operator in _EXCHANGED:
            return _order(tree)
        case _:
            return _equality(tree)


def quoted(data: bytes) -> str:
    """A pattern that matches these bytes."""
    return "".join(f"\\x{byte:02x}" if byte > 126 or byte < 32 else re.escape(chr(byte)) for byte in data)


def _named(field: Field, values: list[str]) -> Shape | None:
    """The field's last name and one of the values behind it, or an array."""
    if not searchable(field):
        return None
    name = next((step for step in reversed(field.steps) if isinstance(step, str)), None)
    if name is None:
        return None
    wanted = "|".join((*values, r"\["))
    return Shape(f'"{quoted(to_bytes(name))}"{_BLANK}:{_BLANK}(?:{wanted})')


def _equality(node: Node) -> Shape | None:
    equality = equality_of(node)
    if equality is None or len(equality.values) > NEEDLES_MOST:
        return None
    values = list[str]()
    for value in equality.values:
        if isinstance(value, str):
            if parse_number(value) is not None:
                return None  # numbers in any spelling equal it
            values.append(f'"{quoted(to_bytes(value))}"')
        elif isinstance(value, int) and 2 <= abs(value) < _LARGEST:
            values += [f"-?{abs(value)}", '"']  # a text may spell it
        else:
            return None
    if any(not isinstance(value, str) for value in equality.values):
        values.append(f"-?(?:{_ODD})")
    return _named(equality.field, values)


def _order(node: Compare) -> Shape | None:
    """`field > number` for a number of at least 2, from its first digit and their count."""
    field, literal, operator = node.left, node.right, str(node.operator)
    if isinstance(field, Literal):
        field, literal, operator = literal, field, _EXCHANGED[operator]
    if not isinstance(field, Field) or not isinstance(literal, Literal) or operator not in (">", ">="):
        return None
    value = literal.value
    if isinstance(value, bool) or not isinstance(value, int | float) or not 2 <= value < _LARGEST:
        return None
    digits = str(int(value))
    more = len(digits)
    return _named(field, [f"[{digits[0]}-9][0-9]{{{more - 1}}}", f"[0-9]{{{more + 1}}}", _ODD, '"'])


Mask: TypeAlias = "npt.NDArray[np.bool_]"

SAMPLE = 64
"""Rows that tell whether shapes are worth while."""

WORTH = 0.6
"""Shapes are when they leave no more of the sample than this: they take a third of the time of a parse."""

WORTH_MORE = 0.85
"""And one of several shapes is when it leaves no more than this of what the others left."""


class Selector:
    """A filter as it runs over batches."""

    def __init__(self, tree: Node, metered: bool) -> None:
        self._metered = metered
        outside, inside = list[Node](), list[Node]()
        for item in tree.items if isinstance(tree, And) and not metered else (tree,):
            aside = not metered and "body" not in compile_tree(item, "filter", False).needs
            (outside if aside else inside).append(item)
        self._outside = Columnar(_joined(outside), False) if outside else None
        self._inside = bool(inside)
        self._shapes = shapes_of(_joined(inside)) if inside else None

    def run(self, judge: Callable[[View], list[bool]], view: View) -> pa.BooleanArray:
        """One answer for each row, without nulls.  judge: the exact function of the filter."""
        rows = len(view)
        mask: Mask = np.ones(rows, np.bool_)
        if self._outside is not None:
            mask = _flags(self._outside.truth(view), rows)
        if self._inside and mask.any():
            left = np.flatnonzero(mask)
            if self._shapes is not None and len(left) > SAMPLE:
                left = _shaped(self._shapes, _taken(view.body, left), left)
            mask = np.zeros(rows, np.bool_)
            if len(left):
                mask[left] = judge(view if len(left) == rows else _some(view, left))
        return pa.array(mask, pa.bool_())


def _joined(items: list[Node]) -> Node:
    return items[0] if len(items) == 1 else And(tuple(items))


def _taken(column: Any, places: npt.NDArray[np.int64]) -> Any:
    return column if len(places) == len(column) else column.take(pa.array(places))


def _some(view: View, places: npt.NDArray[np.int64]) -> View:
    wanted: Any = [name for name in ("body", "properties", "topic", "lsn", "time") if name in view.batch.schema.names]
    return View(view.batch.select(wanted).take(places), view.origin, view.seconds, view.context, view.kind)


def _shaped(shapes: Shapes, bodies: Any, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places whose bodies have the shape; what would not pay to look for is left out.

    The rarest comes first, and each next one is looked for in what is left.
    """
    parts = shapes.parts if isinstance(shapes, Joined) and shapes.every else (shapes,)
    sample = bodies.slice(0, SAMPLE)
    found = [_fits(part, sample) for part in parts]
    if np.logical_and.reduce(found).mean() > WORTH:
        return places
    shares = [float(one.mean()) for one in found]
    for share, part in sorted(zip(shares, parts, strict=True), key=itemgetter(0)):
        if share > WORTH_MORE or not len(places):
            break
        fits = _fits(part, bodies)
        places, bodies = places[fits], bodies.filter(pa.array(fits))
    return places


def _fits(shapes: Shapes, bodies: Any) -> Mask:
    return _match(shapes, bodies) | having_byte(bodies, ord("\\"))


def _match(shapes: Shapes, bodies: Any) -> Mask:
    def matches(shape: Shape) -> Mask:
        return _flags(compute.match_substring_regex(bodies, pattern=shape.pattern), len(bodies))

    return shapes.mask(matches) if isinstance(shapes, Joined) else matches(shapes)


def _flags(found: Any, rows: int) -> Mask:
    if isinstance(found, pa.Scalar):
        return np.full(rows, bool(cast("Any", found).as_py()))
    return cast("Mask", found.to_numpy(zero_copy_only=False))
