"""What actions want to know of a queue's messages.  A queue that no action watches pays one test of an empty tuple."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from penstock.core.actions.acted import exact
from penstock.core.effects import Gone, Sink
from penstock.core.queue.order.runs import Run
from penstock.core.queue.settling.leases import SLOT
from penstock.records.chunks import pack_pairs
from penstock.records.event_actions import OnDelete, OnExpire

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue


def wants(watched: Sequence[OnExpire | OnDelete], reasons: Sequence[str]) -> bool:
    """Whether an action is for messages that expire for these reasons."""
    return any(
        isinstance(on, OnExpire) and (not on.reasons or any(reason in on.reasons for reason in reasons))
        for on in watched
    )


def names(watched: Sequence[OnExpire | OnDelete], reason: str) -> bool:
    """Whether an action asks by name for messages that leave for this reason."""
    return any(isinstance(on, OnExpire) and reason in on.reasons for on in watched)


def exact_body(queue: Queue, runs: Sequence[Run]) -> bytes:
    """The body of a record about these messages and nothing else: a start reads there what an action has to do."""
    return pack_pairs(queue.id, exact([run.chunk for run in runs]))


def gone(queue: Queue, runs: Sequence[Run], after: int, sink: Sink) -> None:
    """These are acknowledged, or were removed as they were sent: tell whoever wants to know."""
    if any(isinstance(on, OnDelete) for on in queue.actions):
        chunks = [run.chunk for run in runs if run.place != SLOT]
        if chunks:
            sink.effect(Gone(queue, chunks, after))
