"""Why a message left its queue without success: a closed set of causes, and beside them the words of who refused it
or failed last.

    cause             AMQP calls it     when
    forced_expire     rejected          its consumer refused it for good, and may have said why: `why`
    time_limit        expired           its time was over
    max_deliveries    delivery_limit    it was delivered, or failed, as often as its queue allows
    max_cancels       delivery_limit    the same of cancels
    maxlen            maxlen            it gave way to a limit of the queue's length
    replaced          -                 a newer one took its place
    poison            rejected          a Spark stream put it aside
    moved, redriven   -                 somebody moved it to another queue, or back to where it died first
    due               -                 it had waited at an exchange, which routed it

Several causes of one end are joined by commas.  What a consumer says is never one of them, whatever its words; of
what was put aside the word `poison` stands where a consumer's would, in the dead letter too.
"""

from __future__ import annotations

from collections.abc import Mapping

REJECTED = "rejected"

FORCED, TIME_LIMIT, MAX_DELIVERIES, MAX_CANCELS = "forced_expire", "time_limit", "max_deliveries", "max_cancels"
MAXLEN, REPLACED, POISON, MOVED, REDRIVEN, DUE = "maxlen", "replaced", "poison", "moved", "redriven", "due"
CANCELLED, LEFT_BEHIND, TWIN = "cancelled", "recovery_point", "twin"
"""Why a message was dropped, beside `maxlen` and `replaced`: it was withdrawn, is from before a recovery point, or was
published at two sites."""

ENDS = {
    FORCED: REJECTED,
    TIME_LIMIT: "expired",
    MAX_DELIVERIES: "delivery_limit",
    MAX_CANCELS: "delivery_limit",
    MAXLEN: MAXLEN,
    REPLACED: REPLACED,
    POISON: POISON,
    MOVED: MOVED,
    REDRIVEN: MOVED,
    DUE: MOVED,
}
"""What became of the message, in a word.  Those of a dead letter are AMQP's."""

COUNTED = frozenset((*ENDS, CANCELLED, LEFT_BEHIND, TWIN))
"""What is counted by name; there is nothing else."""

REASON_HEADER = "x-last-death-reason"
"""RabbitMQ's: its word for the cause of the last death."""

WHY_HEADER = "x-last-death-why"
"""Ours beside it: the words in which the last consumer refused a message, or failed at its last delivery."""

WHY_MOST = 1000
"""Characters of them."""


def amqp_reason(causes: str) -> str:
    """The first cause in AMQP's words, for the history of a dead letter."""
    end = ended(causes)
    return end if end in ("expired", "delivery_limit", "maxlen") else REJECTED


def ended(causes: str) -> str:
    """What became of a message that left for these causes."""
    return ENDS.get(causes.split(",", 1)[0], REJECTED)


def told(header: Mapping[str, object]) -> tuple[str, str]:
    """Causes and words of an EXPIRE record's header; until both were kept apart, the words stood for the cause."""
    causes, why = str(header.get("reason", FORCED)), str(header.get("why", ""))
    if COUNTED.issuperset(causes.split(",")):
        return causes, why
    return FORCED, causes


def death_reason(headers: Mapping[str, object] | None) -> str | None:
    """Why a dead letter died, by its headers: in its consumer's words, else AMQP's word; None for another message."""
    for name in (WHY_HEADER, REASON_HEADER) if headers else ():
        said = (headers or {}).get(name)
        if isinstance(said, str) and said:
            return said
    return None
