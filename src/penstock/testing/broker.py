"""The broker of a test: one server in this process, whose disk can crash and whose time moves when told.

It owns names, units and the life from start to crash to restart.  Every rule is the server's own: see `instance` for
how turns run, `link` for what is asked of the server as a client asks, `broker_life` for real ports.  What a broker
does stands by noun: `publisher`, `subscriber`, `topic_records`; administration is here: the rows of `operations`.

Seconds, on the outside, are floats since the Unix epoch or lengths; LSNs are bookmarks, `<origin>|<lsn>|`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any, cast

from penstock.client.texts import texts_checked
from penstock.core.queue.explaining import Reason
from penstock.errors import InvalidArgument, NotFound
from penstock.operations.acts import OPERATIONS
from penstock.operations.messages import VERBS, known
from penstock.operations.story import Event, Record
from penstock.operations.story import tell as tell_story
from penstock.records.entries import Control, Publishes, singly
from penstock.records.kinds import Kind
from penstock.server.access import Who
from penstock.testing.broker_life import VHOST
from penstock.testing.instance import Instance, TellingLog
from penstock.testing.publisher import NO_END, Publishing
from penstock.testing.subscriber import Subscribing
from penstock.units import span
from penstock.wire.fields import Fields
from penstock.wire.flight.bookmarks import format_bookmark

__all__ = ["NO_END", "VHOST", "Broker", "Event"]

TEST = Who("test")
"""Who does it all, for records that name him."""


@texts_checked
class Broker(Publishing, Subscribing):
    """A running broker; `with` closes it.  Safe to use from one thread at a time."""

    def act(self, name: str, **fields: object) -> Mapping[str, Any]:
        """What an operation of the core answers; fields that are None are left out."""
        operation = OPERATIONS[name]
        given = Fields(name, {key: value for key, value in fields.items() if value is not None})
        arguments = given.read(operation.fields)

        def work(instance: Instance) -> Mapping[str, Any]:
            aside = self.link.aside()
            do = partial(operation.run, aside, TEST, **arguments)
            return cast("Mapping[str, Any]", aside.decide(do) if operation.manner == "decide" else do())

        return self.command(work)

    def alter(self, queue: str, **settings: object) -> int:
        """Change settings of a queue: durations as text, seconds or timedelta; None for a key's default.

        How many messages left it, because a `recovery_point` that is given here is later than they are.
        """
        return cast("int", self.act("alter", queue=queue, settings=settings)["left"])

    def stats(self, queue: str) -> dict[str, object]:
        """Figures of a queue: ready, leased, delayed, consumers ...; counts are since the last start."""
        return self.command(
            lambda instance: instance.core.stats(instance.core.queue(VHOST, queue), instance.engine.now())
        )

    def story(self, bookmark: str) -> list[Event]:
        """Every event of one message in the log, oldest first; NotFound when the log has no such message."""

        def work(instance: Instance) -> list[Event]:
            log, knows, lsn = instance.log, known(instance.core), self._lsn(instance, bookmark)
            told = tell_story(log, lsn, knows.names, knows.routes, more=_gathered(log), anew=knows.anew)
            if not told.events:
                raise NotFound(f"the log has no message {format_bookmark(log.origin, lsn)!r}")
            return told.events

        return self.command(work)

    # -- settling by name

    def ack(self, queue: str, bookmarks: Sequence[str] | str, by: str = "", option: str | None = None) -> int:
        """Settle messages wherever they are, as the queue's `leasing` allows to the client `by`; how many it affected.

        bookmarks   a sequence, or text with commas between them
        option      "cancel" or "expire" instead of an ack
        What is not there and may still come is remembered.  Durable when this returns.
        Raises InvalidArgument for a bookmark that was not given out, QueueFull when too much is remembered.
        """
        marks = bookmarks.split(",") if isinstance(bookmarks, str) else list(bookmarks)
        return self._settled("ack", queue=queue, bookmarks=marks, by=by, option=option)

    def ack_filter(self, queue: str, filter: str, by: str = "", option: str | None = None) -> int:
        """Settle whatever matches of what is in the queue, whoever holds it, as `leasing` allows; how many it affected.

        option    "cancel" or "expire" instead of an ack
        Durable when this returns.
        """
        return self._settled("ack_filter", queue=queue, filter=filter, by=by, option=option)

    def _settled(self, act: str, *, option: str | None, **fields: object) -> int:
        if option not in (None, *VERBS):
            raise InvalidArgument(f"option is {option!r}: there is 'cancel' and 'expire'")
        return cast("int", self.act(act, option=option, **fields)["affected"])

    # -- what waits

    def pause(self, queue: str, seconds: float | None = None) -> None:
        """Deliver nothing from a queue for so long; None: until `resume`.  Durable when this returns."""
        until = None if seconds is None else self.clock.wall() + span(seconds, "seconds")
        self.act("pause", queue=queue, until=until)

    def resume(self, queue: str) -> bool:
        """Deliver again; whether the queue was paused."""
        return bool(self.act("resume", queue=queue)["was_paused"])

    def cancel_message(self, bookmark: str, queue: str | None = None) -> list[str]:
        """Withdraw a message wherever it waits; the queues that it was taken from.  PreconditionFailed for none."""
        return list(self.act("cancel", bookmark=bookmark, queue=queue)["queues"])

    def reschedule_message(self, bookmark: str, delay: float, queue: str | None = None) -> list[str]:
        """Let a message wait until `delay` seconds from now; the queues where it does.  PreconditionFailed for none."""
        wait = span(delay, "delay")
        return list(self.act("reschedule", bookmark=bookmark, queue=queue, wait=wait)["queues"])

    def explain(self, queue: str, bookmark: str | None = None) -> list[Reason]:
        """Why a queue, or one message of it, is not delivered now: each reason with a code and a sentence."""
        self.command(lambda instance: instance.core.queue(VHOST, queue))  # NotFound, if it is not there
        try:
            told = self.act("explain", queue=queue, bookmark=bookmark)
        except NotFound as error:
            return [Reason("unknown", str(error))]
        reasons = told["reasons"] if bookmark is None else told["queues"][0]["reasons"]
        return [Reason(**one) for one in reasons]

    def redrive(
        self, queue: str, filter: str | None = None, count: int | None = None, dry_run: bool = False
    ) -> dict[str, object]:
        """Dead letters back to where they died first; `moved`, `matched`, `targets` and `strays` as the SDK tells."""
        return self._moved("redrive", queue, None, filter, count, dry_run)

    def move(
        self, queue: str, to: str, filter: str | None = None, count: int | None = None, dry_run: bool = False
    ) -> dict[str, object]:
        """What waits in a queue to the end of another."""
        return self._moved("move", queue, to, filter, count, dry_run)

    def _moved(
        self, act: str, queue: str, to: str | None, filter: str | None, count: int | None, dry: bool
    ) -> dict[str, object]:
        self.command(lambda instance: instance.make_durable())  # what is not on the disk is not read
        told = dict(self.act(act, queue=queue, to=to, filter=filter, count=count, dry=dry))
        del told["next"]
        return told


# -- what a story has of what is not durable yet


def _gathered(log: TellingLog) -> Iterator[Record]:
    """Messages never wait without an answer, so these are decisions."""
    for part in singly(log.gathered()):
        if isinstance(part, Control):
            yield Record(
                part.lsn, part.kind, part.name, part.time, part.route, part.header, part.body, 0, 0, 0, part.via
            )
        else:
            yield from _messages(part)


def _messages(batch: Publishes) -> Iterator[Record]:
    for row in range(len(batch)):
        topic = batch.topic_of(row)
        yield Record(
            batch.first + row,
            Kind.PUBLISH,
            topic.name,
            batch.time,
            batch.routes[row] if isinstance(batch.routes, list) else batch.routes,
            b"",
            b"",
            batch.not_before[row] if batch.not_before is not None else 0,
            batch.expires_at[row] if batch.expires_at is not None else 0,
            batch.priority[row] if batch.priority is not None else 0,
            topic.via,
        )
