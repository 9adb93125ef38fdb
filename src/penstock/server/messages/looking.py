"""What the core knows that a message's story and its reasons need; asked on the loop, used off it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from penstock.core.explaining import Reason, explain_message
from penstock.core.queue.whereabouts import told as moment
from penstock.errors import InvalidArgument
from penstock.records.causes import ENDS
from penstock.records.dataclass import dataclass
from penstock.server.messages.story import Event, Story
from penstock.wire.flight.bookmarks import parse_point

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.view import Queue
    from penstock.records.chunks import Now


@dataclass(frozen=True, slots=True)
class Known:
    """Of one moment."""

    names: Mapping[int, str]  # of queues, by id
    routes: Callable[[int], Sequence[int]]  # the queues of a route; any thread
    anew: bool  # some queue takes what is older than itself


def known(core: Core) -> Known:
    """What a story needs; on the loop."""
    anew = any(core.looked_back(queue) for queue in core.queues())
    return Known({queue.id: queue.name for queue in core.queues()}, core.queues_of_route, anew)


def lsn_of(text: str, origin: int) -> int:
    """The LSN of a message as people write it: a bookmark of this server, or the number alone.

    Errors: InvalidArgument for anything else, or another server's bookmark.
    """
    if text.isdecimal():
        return int(text)
    point = parse_point(text)
    if point.kind != "lsn" or not point.lsn:
        raise InvalidArgument(f"{text[:60]!r} names no message: write its bookmark <origin>|<lsn>|, or its LSN")
    if point.origin != origin:
        raise InvalidArgument(f"{text[:60]!r} is of the origin {point.origin}; this server's is {origin}")
    return point.lsn


def having(core: Core, lsn: int, now: Now, durable: int, vhost: str | None = None) -> list[tuple[Queue, list[Reason]]]:
    """The queues that have a message now, each with why it waits there; on the loop."""
    out = list[tuple["Queue", list[Reason]]]()
    for queue in core.queues():
        if vhost is not None and queue.vhost != vhost:
            continue
        if queue.id > lsn and not core.looked_back(queue):
            continue  # it came later
        reasons = explain_message(queue, lsn, now, durable)
        if reasons:
            out.append((queue, reasons))
    return out


def past(story: Story, queue: str, lsn: int, sees: Callable[[str], bool] = lambda queue: True) -> Reason:
    """Why a queue that does not have a message does not: what the log says became of it there.

    sees: whether who asks may know of a queue by this name.
    """
    if not story.events:
        return Reason("unknown", f"the log, which begins at LSN {story.first_lsn}, has no message at LSN {lsn}")
    here = [event for event in story.events if event.queue == queue]
    if not here:
        taken = list[str]()
        for event in story.events:
            told = event.details.get("queues")
            taken += [str(name) for name in told] if isinstance(told, list) else []  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType] - JSON
        shown = ", ".join(repr(name) for name in taken if sees(name)) or "others"
        others = f"; it went to {shown}" if taken else "; no queue took it"
        return Reason("not_routed", f"it was not routed to queue '{queue}'{others}")
    return _ended(here[-1])


_DIED = {
    "expired": "it expired",
    "delivery_limit": "it reached a limit of its deliveries",
    "maxlen": "it gave way to a limit of its queue",
    "poison": "it was put aside as poison",
}


def _ended(event: Event) -> Reason:
    when = moment(round(event.time * 1e6))
    details = event.details
    by = f" by '{details['by']}'" if details.get("by") else ""
    match event.event:
        case "settled":
            return Reason("settled", f"it was settled {when}{by}")
        case word if word in ENDS.values():
            letters = details.get("letters") or details.get("moved_to")
            after = f"; what came of it is {', '.join(map(str, letters))}" if isinstance(letters, list) else ""  # pyright: ignore[reportUnknownArgumentType] - JSON
            return Reason(word, f"{_DIED.get(word, f'it was {word}')} {when}{by}: {details['reason']}{after}")
        case "dropped":
            return Reason("dropped", f"it was dropped {when}{by}: {details.get('reason')}")
        case "purged":
            return Reason("purged", f"it was purged {when}")
        case "queue deleted":
            return Reason("deleted", f"its queue was deleted {when}")
        case _:
            return Reason("gone", f"it is not there any more; last it was {event.event} {when}")
