"""What a query shows of rows that are JSON objects: those that match, in an order, some of them.

For rows in memory, as views have them; order and filter mean what they mean for records.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict, Unpack

from penstock.core.sow.ordering import Ordered, parse_order
from penstock.errors import InvalidArgument
from penstock.expr import compile_filter


class Asked(TypedDict, total=False):
    """What a query may say."""

    filter: str | None
    order_by: str | Sequence[str] | None
    top_n: int | None
    skip_n: int | None


def chosen(bodies: Sequence[bytes], **asked: Unpack[Asked]) -> list[bytes]:
    """Rows that match, ordered, at most `top_n` behind the first `skip_n`.  Errors as `places`."""
    return [bodies[place] for place in places(bodies, **asked)]


def places(
    bodies: Sequence[bytes],
    *,
    filter: str | None = None,
    order_by: str | Sequence[str] | None = None,
    top_n: int | None = None,
    skip_n: int | None = None,
) -> list[int]:
    """The same as places in `bodies`.

    Errors: ExpressionError; InvalidArgument for numbers below 0, and for `skip_n` without `top_n`.
    """
    for name, value in (("top_n", top_n), ("skip_n", skip_n)):
        if value is not None and value < 0:
            raise InvalidArgument(f"{name} is {value}, below 0")
    if skip_n and top_n is None:
        raise InvalidArgument("skip_n needs top_n: it says how many of the first so many are passed over")
    terms = parse_order(order_by)
    there: Sequence[int] = range(len(bodies))
    if filter is not None:
        passed = compile_filter(filter).matches(bodies)
        there = [place for place in there if passed[place]]
    skip = skip_n or 0
    most = None if top_n is None else top_n + skip
    if terms:
        some = [bodies[place] for place in there]
        ordered = Ordered(terms, most)
        ordered.add(there, there, [term.value.values(some) for term in terms])
        there = ordered.lsns()
    return list(there[skip:most])
