"""The life of one message for tests: as `operations.story` tells it, with what is not durable yet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.errors import NotFound
from penstock.operations.messages import known
from penstock.operations.story import Event, Record
from penstock.operations.story import tell as tell_story
from penstock.records.entries import Control, Group, Publishes
from penstock.records.kinds import Kind
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.testing.instance import Instance, TellingLog

__all__ = ["Event", "tell"]


def tell(instance: Instance, lsn: int) -> list[Event]:
    """The events of the message at `lsn`, oldest first.  Raises NotFound when the log has no message there."""
    log, knows = instance.log, known(instance.core)
    story = tell_story(log, lsn, knows.names, knows.routes, more=_gathered(log), anew=knows.anew)
    if not story.events:
        raise NotFound(f"the log has no message {format_bookmark(log.origin, lsn)!r}")
    return story.events


def _gathered(log: TellingLog) -> Iterator[Record]:
    """Rows that are not durable yet.  Messages never wait without an answer, so these are decisions."""
    for entry in log.gathered():
        for part in entry.entries if isinstance(entry, Group) else (entry,):
            if isinstance(part, Control):
                yield _control(part)
            else:
                yield from _messages(part)


def _control(part: Control) -> Record:
    return Record(part.lsn, part.kind, part.name, part.time, part.route, part.header, part.body, 0, 0, 0, part.via)


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
