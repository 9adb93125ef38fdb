"""What a publisher does with a broker in this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from penstock.core.queue import refusing
from penstock.errors import DiskFull, InvalidArgument, LogBroken, NotFound
from penstock.records import properties as header_codec
from penstock.records.entries import Publishes, Topic
from penstock.records.field_tables import FieldValue
from penstock.testing.instance import Instance
from penstock.testing.running import VHOST, Running
from penstock.units import to_micros
from penstock.wire.flight.bookmarks import format_bookmark

SEQUENCE_MOST = 2**53 - 1
NO_END = 253_370_764_800_000_000
"""When a message that must never expire expires: the year 9999, in microseconds."""


class Publishing(Running):
    def publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None = None,
        expiration: float | None = None,
        delay: float | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        publisher: str | None = None,
        sequence: int | None = None,
    ) -> str:
        """Store a message, durably; its bookmark, or empty text when nothing was stored.

        topic        `K`, or `E/K` where an exchange E exists
        expiration   seconds from now after which it ends undelivered; 0: never, whatever the queue's own says
        delay        seconds from now before which it is not delivered
        publisher, sequence    a number at or below the publisher's highest is a duplicate, and not stored
        Nothing is stored either when no queue and no declared topic wants the message.
        Raises Refused with a code and a reason, QueueBlocked where a server would have the publisher wait for room,
        LogBroken when the outcome is unknown.
        """
        return self._publish(topic, body, priority, expiration, delay, headers, publisher, sequence, None)

    def delta_publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None = None,
        expiration: float | None = None,
        delay: float | None = None,
        headers: Mapping[str, FieldValue] | None = None,
        publisher: str | None = None,
        sequence: int | None = None,
    ) -> str:
        """Publish fields that change: the message is the present record of its key with these merged in.

        Without such a record the fields are the message; a topic without a key takes them as they are.  Parameters and
        errors as of `publish`.
        """
        return self._publish(topic, body, priority, expiration, delay, headers, publisher, sequence, True)

    def _publish(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None,
        expiration: float | None,
        delay: float | None,
        headers: Mapping[str, FieldValue] | None,
        publisher: str | None,
        sequence: int | None,
        delta: bool | None,
    ) -> str:
        check_message(body, priority, headers, publisher, sequence)
        make = self.outgoing(topic, body, priority, expiration, delay, headers)

        def work(instance: Instance) -> str:
            core, engine = instance.core, instance.engine
            if engine.broken is not None:
                raise LogBroken(engine.broken)
            if instance.log.full:
                raise DiskFull("the log has no room")
            batch = make(instance)
            batch.delta = delta
            while not engine.judges.ready([batch], lambda: None):
                instance.run_turns()
            by = core.let_in(engine.now(), batch)[1] if core.blocking else None
            if by is not None:
                raise refusing.blocked(by)
            published = core.publish(engine.now(), batch, publisher=publisher, sequence=sequence)
            instance.make_durable()
            for _, refusal in published.refused:
                raise refusal
            return format_bookmark(instance.log.origin, published.first) if published.stored else ""

        return self.command(work)

    def outgoing(
        self,
        topic: str,
        body: bytes | str,
        priority: int | None,
        expiration: float | None,
        delay: float | None,
        headers: Mapping[str, FieldValue] | None,
    ) -> Callable[[Instance], Publishes]:
        """One message, to be made when it is published, for its times count from then."""
        data = body.encode() if isinstance(body, str) else body
        most = self._settings.amqp.message_max
        if len(data) > most:
            raise InvalidArgument(f"publish: the body has {len(data)} bytes; at most {most} are taken")
        life = _micros("expiration", expiration)
        wait = _micros("delay", delay)
        header = header_codec.encode(
            header_codec.Properties(
                headers=dict(headers) if headers else None,
                delivery_mode=header_codec.PERSISTENT,
                priority=priority,
                expiration=str(life // 1000) if life else None,
            )
        )

        def make(instance: Instance) -> Publishes:
            now = instance.engine.now()
            batch = Publishes(self._topic(instance, topic), header, [data], size=len(header) + len(data))
            if life is not None:
                batch.expires_at = [now.wall + life if life else NO_END]
            if wait:
                batch.not_before = [now.wall + wait]
            return batch

        return make

    def last_sequence(self, publisher: str) -> int:
        """The highest sequence that is stored of a publisher; 0 for one that nobody knows."""
        return self.command(lambda instance: instance.core.publishers.get(publisher, 0))

    @staticmethod
    def _topic(instance: Instance, text: str) -> Topic:
        exchange, slash, key = text.partition("/")
        if slash and exchange:
            try:
                return instance.core.topic(VHOST, exchange, key)
            except NotFound:
                pass  # a key of the default exchange may hold a slash
        return instance.core.topic(VHOST, "", text)


LONGEST = 100 * 365 * 86_400 * 1_000_000
"""A hundred years in microseconds: the longest delay and life of a message."""


def _micros(what: str, seconds: float | None) -> int | None:
    if seconds is None:
        return None
    try:
        micros = to_micros(seconds)
    except (TypeError, ValueError) as error:
        raise InvalidArgument(f"{what}: {error}") from None
    if micros < 0:
        raise InvalidArgument(f"{what} is {seconds} s, below 0")
    if micros > LONGEST:
        raise InvalidArgument(f"{what} is {seconds} s, beyond a hundred years")
    return micros


def check_message(body: object, priority: object, headers: object, publisher: object, sequence: object) -> None:
    """InvalidArgument for what no door would let through."""
    if not isinstance(body, bytes | str):
        raise InvalidArgument(f"body is {body!r}, not bytes or text")
    if priority is not None and not (isinstance(priority, int) and not isinstance(priority, bool)):
        raise InvalidArgument(f"priority is {priority!r}, not a whole number in 0..255")
    if headers is not None and not isinstance(headers, Mapping):
        raise InvalidArgument(f"headers are {headers!r}, not names with their values")
    if (publisher is None) != (sequence is None):
        raise InvalidArgument("publisher and sequence belong together; one of them is missing")
    if publisher is not None and not (isinstance(publisher, str) and 1 <= len(publisher.encode()) <= 255):
        raise InvalidArgument(f"publisher is {publisher!r}, not text of 1 to 255 bytes")
    if sequence is not None and not (
        isinstance(sequence, int) and not isinstance(sequence, bool) and 1 <= sequence <= SEQUENCE_MOST
    ):
        raise InvalidArgument(f"sequence is {sequence!r}, not a whole number in 1..{SEQUENCE_MOST}")
