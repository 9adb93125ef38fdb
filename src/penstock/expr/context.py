"""What an expression may ask about a message that is not in the message: who asks, its lease, its key, the instance.

Whoever evaluates says which of these groups it can answer (`known`); a function of another group is refused when the
text is compiled, so that no filter rests on a NULL that nobody meant.  Owns the values and their names; refuses to know
where they come from.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import repeat
from typing import Literal, TypeAlias, cast

from penstock.records.dataclass import dataclass

Group = Literal["client", "instance", "lease", "sow"]

EVERYTHING: frozenset[Group] = frozenset(("client", "instance", "lease", "sow"))
"""All groups: for evaluation by hand."""

RECORDS: frozenset[Group] = frozenset(("sow",))
"""What the filter of a query of records may ask for beside the message."""

Texts: TypeAlias = "str | Sequence[str | None] | None"
Numbers: TypeAlias = "int | float | Sequence[int | float | None] | None"


@dataclass(frozen=True, slots=True)
class Context:
    """Answers for a batch: one value for all rows, or a sequence with one for each.  None is NULL.

    `last_read` and `last_leased` are seconds since the epoch; `lease_count` is how often the message was leased.
    """

    client_name: Texts = None
    client_version: Texts = None
    user: Texts = None
    instance_name: Texts = None
    sow_key: Texts = None
    last_read: Numbers = None
    last_leased: Numbers = None
    lease_count: Numbers = None


OF_THE_CONTEXT: dict[str, tuple[str, Group]] = {
    "CLIENT_NAME": ("client_name", "client"),
    "CLIENT_VERSION": ("client_version", "client"),
    "USER": ("user", "client"),
    "AMPS_INSTANCE_NAME": ("instance_name", "instance"),
    "SOW_KEY": ("sow_key", "sow"),
    "SOW_KEY_HASH": ("sow_key", "sow"),
    "LAST_READ": ("last_read", "lease"),
    "LAST_LEASED": ("last_leased", "lease"),
    "LEASE_COUNT": ("lease_count", "lease"),
}
"""Function -> the attribute of Context that it reads, and its group."""

ASKED: dict[Group, str] = {
    "client": "who asks, which filters of subscriptions, queries and acks know, and of rights the user",
    "instance": "the instance's name, which filters of subscriptions, queries, acks and rights know",
    "lease": "the leases of the message, which change while a filter is asked once for each message",
    "sow": "the key of a record, which queries of records and their removal know",
}
"""What a function of the group asks for and who knows it, in words."""


def answers(context: object, name: str) -> Iterable[object]:
    """One attribute as a column, endless when it is the same for all rows."""
    if context is None:
        return repeat(None)
    value = cast("object", getattr(context, name))
    return repeat(value) if value is None or isinstance(value, str | int | float) else cast("Sequence[object]", value)
