"""Which rows of an Arrow batch a filter matches: what Arrow can rule out first, Python's exact function for the rest.

In this order: the conditions that do not look at the body, computed by `columnar`; the shape of the bodies, by Arrow's
regular expressions over all of them, when a first look at some rows says that it pays; then `Filter`'s own function on
the rows that are left.  The answer equals `Filter.matches`.  Owns the order of that work; knows no log and no queue.
"""

# pyarrow's stubs leave the element types of arrays open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.expr.batches import View
from penstock.expr.columnar import Columnar
from penstock.expr.compiler import compile_tree
from penstock.expr.shapes import Each, Shape, Shapes, shapes_of
from penstock.expr.tree import And, Node
from penstock.records.compute import compute

if TYPE_CHECKING:
    from penstock.expr.filter import Filter

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

    def run(self, chosen: Filter, view: View) -> pa.BooleanArray:
        """One answer for each row, without nulls."""
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
                mask[left] = chosen.judge(view if len(left) == rows else _some(view, left))
        return pa.array(mask, pa.bool_())


def _joined(items: list[Node]) -> Node:
    return items[0] if len(items) == 1 else And(tuple(items))


def _taken(column: Any, places: npt.NDArray[np.int64]) -> Any:
    return column if len(places) == len(column) else column.take(pa.array(places))


def _some(view: View, places: npt.NDArray[np.int64]) -> View:
    """Some rows."""
    wanted: Any = [name for name in ("body", "properties", "topic", "lsn", "time") if name in view.batch.schema.names]
    return View(view.batch.select(wanted).take(places), view.origin, view.seconds, view.context)


def _shaped(shapes: Shapes, bodies: Any, places: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The places whose bodies have the shape; what would not pay to look for is left out.

    The rarest comes first, and each next one is looked for in what is left.
    """
    parts = shapes.parts if isinstance(shapes, Each) else (shapes,)
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
    return _match(shapes, bodies) | _escaped(bodies)


def _match(shapes: Shapes, bodies: Any) -> Mask:
    if isinstance(shapes, Shape):
        return _flags(compute.match_substring_regex(bodies, pattern=shapes.pattern), len(bodies))
    masks = [_match(part, bodies) for part in shapes.parts]
    join: Any = np.logical_and if isinstance(shapes, Each) else np.logical_or
    return cast("Mask", join.reduce(masks))


def _escaped(bodies: Any) -> Mask:
    """Bodies with a backslash: found by one look at all of them."""
    mask: Mask = np.zeros(len(bodies), np.bool_)
    _, offsets, values = bodies.buffers()
    if values is None or not len(bodies):
        return mask
    ends = np.frombuffer(offsets, "<i4")[bodies.offset : bodies.offset + len(bodies) + 1]
    held = np.frombuffer(values, np.uint8)[ends[0] : ends[-1]]
    places = np.flatnonzero(held == 0x5C) + ends[0]
    if len(places):
        mask[np.searchsorted(ends, places, side="right") - 1] = True
    return mask


def _flags(found: Any, rows: int) -> Mask:
    if isinstance(found, pa.Scalar):
        return np.full(rows, bool(cast("Any", found).as_py()))
    return cast("Mask", found.to_numpy(zero_copy_only=False))
