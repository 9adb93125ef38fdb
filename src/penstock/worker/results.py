"""What functions come to, kept in a topic by the ids of tasks: see `penstock.client.results`, which waits for it.

A record is written in one step with the settling of its message, and only for messages whose publisher wants it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, cast

from penstock.client import Client
from penstock.client.messages import Message
from penstock.client.results import DONE, FAILED, WANTED
from penstock.client.transactions import Opening, Transaction
from penstock.errors import AccessRefused, InvalidArgument
from penstock.units import Duration, span

REASON_MOST = 500
"""Characters of an error that are kept."""


class Results:
    """The topic of an app's results.  Any thread."""

    def __init__(self, topic: str, keep: Duration) -> None:
        """keep: how long a record stays."""
        if not topic:
            raise InvalidArgument("results: name a topic")
        self.topic = topic
        self._keep = f"{span(keep, 'results_for')}us"
        self._limits = dict[str, float]()  # deliveries of a message, by queue

    def prepare(self, client: Client, queues: Iterable[str]) -> None:
        """The topic is there, and it is known how often each queue delivers a message."""
        client.declare_topic(self.topic, key=["/id"], expiration=self._keep)
        for queue in queues:
            with suppress(AccessRefused):  # then nobody knows which failure is the last
                self._limits[queue] = _deliveries(client.queue(queue)["settings"])

    def id_of(self, message: Message) -> str | None:
        """The task that a message is; None where nobody wants its result."""
        return message.message_id if message.headers.get(WANTED) else None

    def done(self, id: str, value: object) -> tuple[str, dict[str, Any]]:
        """What is published with the acknowledgement."""
        return self.topic, {"id": id, "state": DONE, "value": value}

    def is_last(self, message: Message, queue: str) -> bool:
        """Whether a failure of this delivery is the last one.  queue: its own, where the message does not say it."""
        return message.attempt >= self._limits.get(message.queue or queue, float("inf"))

    def failed(self, id: str, message: Message, verb: str, reason: str) -> None:
        """Settle a message that failed for good, and keep why."""
        transaction = Transaction(cast("Opening", message.holder.client))
        transaction.publish(self.topic, {"id": id, "state": FAILED, "error": reason[:REASON_MOST]})
        if verb == "reject":
            transaction.reject(message, reason[:REASON_MOST])
        else:
            transaction.retry(message, error=reason[:REASON_MOST])
        transaction.commit()


def _deliveries(settings: Mapping[str, Any]) -> float:
    """After how many deliveries a queue gives a message up."""
    told: dict[str, Any] = {name: one["value"] for name, one in settings.items()}
    retry: Any = told.get("retry") or {}
    returns: int | None = told.get("delivery_limit")
    limits: list[int] = [told.get("max_deliveries") or 0, retry.get("attempts") or 0]
    if returns is not None and returns >= 0:
        limits.append(returns + 1)
    return min((one for one in limits if one), default=float("inf"))
