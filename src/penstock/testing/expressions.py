"""`evaluate` with every backend, Spark's included; the other two live in `penstock.expr`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, cast

from penstock.client.arguments import arguments_checked
from penstock.errors import InvalidArgument, SettingsError
from penstock.expr import Context
from penstock.expr import evaluate as without_spark
from penstock.expr.context import OF_THE_CONTEXT
from penstock.expr.filter import BACKENDS, Properties, Topics
from penstock.expr.tree import Scalar
from penstock.records.properties import EMPTY

MISSING = "backend spark needs pyspark, which is not installed: pip install 'penstock[spark]', and Java 17 beside it"


@arguments_checked
def evaluate(
    text: str,
    bodies: Sequence[bytes],
    backend: str = "python",
    *,
    properties: Properties = EMPTY,
    topics: Topics = None,
    lsns: Sequence[int] | None = None,
    times: Sequence[int] | int | None = None,
    origin: int | None = None,
    now: int | None = None,
    context: Context | None = None,
) -> list[Scalar]:
    """The value of an expression for each body: True, False, None (NULL), a number or a str.

    `backend`: python, arrow or spark.  Spark takes the active session or starts a local one, which takes seconds, and
    its clock is the job's: `now` is not for it.  What is asked of a topic, place, time or context that is not given is
    NULL.

    Raises ExpressionError for the text, InvalidArgument for a backend that does not exist, and SettingsError for one
    that is not installed.
    """
    given = cast("object", bodies)
    if isinstance(given, str | bytes | bytearray):
        raise InvalidArgument("bodies are one text: give a list of them")
    if not isinstance(given, Sequence):
        raise InvalidArgument(f"bodies are {given!r}, not a sequence of them")
    for place, body in enumerate(cast("Sequence[object]", given)):
        if not isinstance(body, bytes | bytearray | memoryview):
            raise InvalidArgument(f"body number {place} is {body!r}, not bytes")
    if backend not in (*BACKENDS, "spark"):
        known = ", ".join(map(repr, (*BACKENDS, "spark")))
        raise InvalidArgument(f"no expression backend {backend!r}: there is {known}")
    if backend != "spark":
        return without_spark(
            text, bodies, backend, properties=properties, topics=topics, lsns=lsns, times=times, origin=origin, now=now,
            context=context,
        )  # fmt: skip
    if find_spec("pyspark") is None:
        raise SettingsError(MISSING)
    return together(
        [text], bodies, properties=properties, topics=topics, lsns=lsns, times=times, origin=origin, context=context
    )[0]


def together(
    texts: Sequence[str],
    bodies: Sequence[bytes],
    *,
    properties: Properties = EMPTY,
    topics: Topics = None,
    lsns: Sequence[int] | None = None,
    times: Sequence[int] | int | None = None,
    origin: int | None = None,
    context: Context | None = None,
) -> list[list[Scalar]]:
    """For each expression its value for each body, by one job of Spark; parameters as of `evaluate`."""
    import pyarrow as pa

    from penstock.expr.batches import batch_of
    from penstock.spark.expression_column import evaluate as by_spark

    batch = batch_of(bodies, properties, topics, lsns, times)
    unsaid: dict[str, Any] = {"topic": pa.string(), "lsn": pa.int64(), "time": pa.timestamp("us", "UTC")}
    for name, kind in unsaid.items():
        if name not in batch.schema.names:
            batch = batch.append_column(name, cast("pa.Array[Any]", pa.nulls(len(bodies), kind)))
    columns = dict[str, str]()
    for name, _ in OF_THE_CONTEXT.values():
        held: Any = None if context is None else getattr(context, name)
        values = list(cast("Sequence[Any]", held)) if isinstance(held, list | tuple) else [held] * len(bodies)
        kind = pa.float64() if name.startswith("last_") else pa.int64() if name == "lease_count" else pa.string()
        columns[name] = f"context_{name}"
        if columns[name] not in batch.schema.names:  # two functions ask for the key
            column = cast("pa.Array[Any]", pa.array(values, kind))
            batch = batch.append_column(columns[name], column)
    return by_spark(texts, batch, origin=origin, columns=columns)
