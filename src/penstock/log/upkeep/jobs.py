"""Rewriting as a job of another process: its order and its result as plain values, bytes for what is long."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from penstock.log.upkeep.names import build
from penstock.log.upkeep.rewrite import Made, Old, Order, rewrite
from penstock.ports import Disk


def plain_order(order: Order) -> dict[str, Any]:
    """The values of `run` for an order."""
    return {
        "olds": [[one.first, one.last, one.generation, one.rows] for one in order.olds],
        "keep": order.keep if order.keep is not None else b"",
        "drops": order.keep is not None,
        "floor": order.floor,
        "compress": order.compress,
    }


def run(
    disk: Disk,
    *,
    olds: Sequence[Sequence[int]],
    keep: bytes,
    drops: bool,
    floor: int,
    compress: bool,
    progress: Callable[[int, int], object],
) -> dict[str, Any]:
    """Write the new file.  `progress` is called with bytes read and rows to be read, and may raise to give up."""
    order = Order(tuple(Old(*one) for one in olds), bytes(keep) if drops else None, floor, compress)
    total = sum(one.rows for one in order.olds)

    def between(done: int) -> bool:
        progress(done, total)
        return False

    return rewrite(disk, order, between)._asdict()


def index(disk: Disk, *, first: int, progress: Callable[[int, int], object]) -> dict[str, Any]:
    """Make the index of a segment.  `progress` is called with bytes read and 0, and may raise to give up."""

    def between(done: int) -> bool:
        progress(done, 0)
        return False

    return {"size": build(disk, first, between)}


def made_of(values: Mapping[str, Any]) -> Made:
    """The result of `run`, back from its plain values."""
    plain = {name: values[name] for name in Made._fields}
    for name in ("lsns", "offsets", "lengths"):
        plain[name] = bytes(plain[name])  # a view of the answer, which is larger
    return Made(**plain)
