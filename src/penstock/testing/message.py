"""One delivery, as the client that took it sees it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import orjson

from penstock.core.effects import Verb
from penstock.records import properties as header_codec
from penstock.records.causes import death_reason
from penstock.records.field_tables import FieldValue
from penstock.testing.arguments import micros_of


class Holder(Protocol):
    """The subscription that a message was delivered to."""

    def settle(self, message: Message, verb: Verb, delay: int | None = None, reason: str | None = None) -> bool:
        """End the delivery; whether that had effect."""
        ...

    def extend(self, message: Message, seconds: float) -> bool:
        """Have its lease end so long from now; whether it was still held."""
        ...


class Message:
    """A delivered message.  `ack`, `cancel` and `expire` end the delivery; it can be settled later, or not at all."""

    def __init__(
        self,
        holder: Holder,
        *,
        queue: str,
        queue_id: int,
        topic: str,
        body: bytes,
        properties: bytes,
        lsn: int,
        bookmark: str,
        attempt: int,
        redelivered: bool,
        lease_until: float | None,
        time: float | None = None,
    ) -> None:
        self.queue = queue
        self.queue_id = queue_id
        self.topic = topic  # as people write it: `K`, or `E/K` for another exchange than the default one
        self.body = body
        self.lsn = lsn
        self.bookmark = bookmark
        self.attempt = attempt  # which delivery of this message it is, from 1
        self.redelivered = redelivered  # whether somebody may have seen it before
        self.lease_until = lease_until  # seconds since the epoch; None: the lease does not end by time
        self.time = time  # seconds since the epoch when it was stored, where `timestamp` was asked for
        self._properties = properties
        self._holder = holder

    def __repr__(self) -> str:
        return f"Message({self.topic!r}, {self.body[:40]!r}, {self.bookmark!r}, attempt {self.attempt})"

    @property
    def holder(self) -> Holder:
        """The subscription that it was delivered to."""
        return self._holder

    @property
    def properties(self) -> header_codec.Properties:
        """The publisher's properties, and what the server added to a dead letter."""
        return header_codec.decode(self._properties)

    @property
    def headers(self) -> Mapping[str, FieldValue]:
        """The publisher's headers; empty without any."""
        return self.properties.headers or {}

    @property
    def reason(self) -> str | None:
        """Of a dead letter why it died: what its consumer said (`reject(reason=)`), else RabbitMQ's word."""
        return death_reason(self.headers)

    @property
    def priority(self) -> int:
        """0 to 255."""
        return self.properties.priority or 0

    def json(self) -> Any:
        """The body parsed as JSON.  Raises ValueError when it is none."""
        return orjson.loads(self.body)

    def ack(self) -> bool:
        """Done.  True if it had effect, False if the delivery was over already.  Durable when this returns."""
        return self._holder.settle(self, Verb.ACK)

    def cancel(self) -> bool:
        """Back to the queue, as a failure: after its back-off if it has one, or out if a limit is reached."""
        return self._holder.settle(self, Verb.CANCEL)

    def retry(self, delay: float | None = None, error: str | None = None) -> bool:
        """As `cancel`, after `delay` seconds instead of the queue's back-off; `error` is in the message's story."""
        wait = None if delay is None else micros_of("delay", delay)
        return self._holder.settle(self, Verb.CANCEL, wait, error)

    def release(self) -> bool:
        """Back to its place at once, uncounted."""
        return self._holder.settle(self, Verb.RELEASE)

    def reject(self, reason: str | None = None) -> bool:
        """As `expire`; `reason` is in the message's story."""
        return self._holder.settle(self, Verb.EXPIRE, None, reason)

    def expire(self) -> bool:
        """Refused for good: a dead letter, where the queue has a place for those."""
        return self._holder.settle(self, Verb.EXPIRE)

    def extend(self, seconds: float) -> bool:
        """Have the lease end so many seconds from now, at the earliest.  True if it was still held.

        `lease_until` says the new end then; a lease that never ends by time stays so.
        """
        return self._holder.extend(self, seconds)
