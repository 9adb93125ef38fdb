"""What Spark's workers run of an expression: one Arrow batch through the Python function, as a column of Spark's type.

Values of several kinds travel as bytes with a letter for their kind (`tagged`).  Refuses to know Spark's columns.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import repeat
from typing import Any, cast

import pyarrow as pa

from penstock.expr.compiler import compile_tree
from penstock.expr.context import Context, meter
from penstock.expr.tree import Node, Scalar
from penstock.expr.values import from_bytes, logic, number, text, to_bytes
from penstock.records.properties import EMPTY

COLUMNS = {"body": "body", "properties": "properties", "topic": "topic", "lsn": "lsn", "time": "time"}
"""Columns of a message, by the names that they have when nothing else is said."""


def function(
    node: Node, metered: bool, names: tuple[str, ...], result: str, origin: int | None
) -> Callable[..., pa.Array[Any]]:
    """What the workers run: columns in, one column out.  Compiled once a task."""
    compiled: list[Any] = []

    def run(*arrays: pa.Array) -> pa.Array:  # type: ignore[type-arg]  # pyspark reads these hints and wants them bare
        from penstock.spark.expression_udf import answer, compiled_tree

        if not compiled:
            compiled.append(compiled_tree(node, metered))
        return answer(compiled[0], dict(zip(names, arrays, strict=True)), result, origin)

    return run


def compiled_tree(node: Node, metered: bool) -> Callable[..., list[object]]:
    """The Python function of a tree."""
    return compile_tree(node, "value", metered).run


def answer(
    run: Callable[..., list[object]], columns: Mapping[str, Any], result: str, origin: int | None
) -> pa.Array[Any]:
    """One Arrow batch through the Python function, as an array of Spark's type."""

    def listed(name: str, empty: object = None) -> Any:
        found = columns.get(name)
        if found is None:
            return repeat(empty)
        values = cast("list[object]", found.to_pylist())
        return values if empty is None else [empty if value is None else value for value in values]

    context = {name: listed(name) for name in columns if name not in COLUMNS and name != "now"}
    nows = cast("list[int | None]", columns["now"].to_pylist()) if "now" in columns else []
    now = nows[0] if nows else None
    seconds = None if now is None else now / 1_000_000
    try:
        found = run(
            listed("body", b""), listed("properties", EMPTY), listed("topic"), listed("lsn"), listed("time"),
            origin, seconds, Context(**context),
        )  # fmt: skip
    finally:
        meter.stop()
    convert, kind = _CONVERTED[result]
    made: pa.Array[Any] = pa.array([convert(value) for value in found], kind)
    return made


def _whole(value: object) -> int | None:
    found = number(value)
    return found if isinstance(found, int) and -(1 << 63) <= found < 1 << 63 else None


def _double(value: object) -> float | None:
    found = number(value)
    return None if found is None else float(found)


def _string(value: object) -> str | None:
    found = text(value)
    return None if found is None else to_bytes(found).decode("utf-8", "replace")


def _binary(value: object) -> bytes | None:
    found = text(value)
    return None if found is None else to_bytes(found)


def _tagged(value: object) -> bytes | None:
    """A value with its kind: what `evaluate` carries home."""
    if value is None:
        return None
    if isinstance(value, str):
        return b"s" + to_bytes(value)
    if isinstance(value, bool):
        return b"b1" if value else b"b0"
    return b"i%d" % value if isinstance(value, int) else b"f" + cast("float", value).hex().encode()


def untagged(data: bytes | bytearray | None) -> Scalar:
    if data is None:
        return None
    kind, held = bytes(data[:1]), bytes(data[1:])
    if kind == b"s":
        return from_bytes(held)
    return held == b"1" if kind == b"b" else int(held) if kind == b"i" else float.fromhex(held.decode())


_CONVERTED: dict[str, tuple[Callable[[object], object], Any]] = {
    "boolean": (logic, pa.bool_()),
    "bigint": (_whole, pa.int64()),
    "double": (_double, pa.float64()),
    "string": (_string, pa.string()),
    "binary": (_binary, pa.binary()),
    "tagged": (_tagged, pa.binary()),
}
