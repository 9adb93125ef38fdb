"""One-off evaluation by a backend of one's choice: Python or Arrow.  Spark's is in `penstock.testing`."""

from __future__ import annotations

from collections.abc import Sequence

from penstock.errors import InvalidArgument
from penstock.expr.context import EVERYTHING, Context
from penstock.expr.filter import Properties, Topics, compile_value
from penstock.expr.tree import Scalar
from penstock.records.properties import EMPTY

BACKENDS = ("python", "arrow")
"""Names that `evaluate` accepts; `penstock.testing.evaluate` also knows "spark"."""


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

    What is asked of a context that is not given is NULL.  Raises ExpressionError for the text and InvalidArgument for a
    backend that does not exist.
    """
    if backend not in BACKENDS:
        raise InvalidArgument(f"no expression backend {backend!r}: there is {', '.join(map(repr, BACKENDS))}")
    chosen = compile_value(text, EVERYTHING)
    if backend == "python":
        return chosen.values(
            bodies, properties, topics, lsns=lsns, times=times, origin=origin, now=now, context=context
        )
    from penstock.expr.batches import batch_of, scalars

    batch = batch_of(bodies, properties, topics, lsns, times)
    return scalars(chosen.on_batch(batch, origin=origin, now=now, context=context))
