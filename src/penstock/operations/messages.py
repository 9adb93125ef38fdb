"""Messages by name or by filter, and why a queue does not deliver: explain, story, cancel, reschedule, redrive, move;
and settling by whoever may read the queue.

Positions and decisions are the loop's; the log is read beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeVar, cast

from penstock.core.effects import Verb
from penstock.core.queue.explaining import Reason, explain_message, explain_queue
from penstock.core.queue.explaining import told as moment
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed
from penstock.expr import compile_filter
from penstock.expr.context import Context
from penstock.expr.filter import bound
from penstock.operations.moving import CALL_MOST, Wanted, move
from penstock.operations.operation import NAMED, QUEUE_PATH, Answer, Beside, Body, Operation, Path
from penstock.operations.story import ENDINGS, Event, Story, tell
from penstock.records.chunks import Chunk, Now
from penstock.records.dataclass import dataclass
from penstock.records.rights import TENDS, Right, sees, uses
from penstock.server.people.entitlements import narrowed
from penstock.units import LATEST, LONGEST
from penstock.wire.fields import VHOST, count, flag, name, nearest, numbers, text, texts
from penstock.wire.flight.bookmarks import MARKS_MOST, format_bookmark, parse_mark, read_marks
from penstock.wire.flight.tickets import TEXT_LIMIT

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.server.people.access import Who

T = TypeVar("T")

# -- what is known of a message


@dataclass(frozen=True, slots=True)
class Known:
    """Names and routes of the queues at one moment, for a story."""

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
    point = parse_mark(text, ", or its LSN")
    if point.origin != origin:
        raise InvalidArgument(f"{text[:60]!r} is of the origin {point.origin}; this server's is {origin}")
    return point.lsn


def having(
    core: Core, queues: Sequence[Queue], lsn: int, now: Now, durable: int, who: Who
) -> list[tuple[Queue, list[Reason]]]:
    """Those of the queues that have a message now, each with why it waits there; on the loop."""
    out = list[tuple["Queue", list[Reason]]]()
    for queue in queues:
        if queue.id > lsn and not core.looked_back(queue):
            continue  # it came later
        reasons = explain_message(queue, lsn, now, durable, read=_reads(who, queue.vhost, queue.name))
        if reasons:
            out.append((queue, reasons))
    return out


PORTION = 500
"""Queues that are asked about a message in one step of the loop; there may be a hundred thousand."""


def _asked(house: Beside, vhost: str, queue: str | None, ask: Callable[[Sequence[Queue]], Sequence[T]]) -> list[T]:
    """What is told of a queue, or of those of a vhost, so many at a time; on the loop.  NotFound."""

    def those() -> Sequence[Queue]:
        core = house.core
        return [one for one in core.queues() if one.vhost == vhost] if queue is None else [core.queue(vhost, queue)]

    queues, out = house.call(those, durable=False), list[T]()
    for start in range(0, len(queues), PORTION):
        out += house.call(partial(ask, queues[start : start + PORTION]), durable=False)
    return out


def _reads(who: Who, vhost: str, queue: str) -> bool:
    """Whether he is told what stands in messages: their keys, and words about them."""
    return who.rights is None or who.rights.reads_queue(vhost, queue) is True


def past(story: Story, queue: str, lsn: int, sees: Callable[[str], bool], read: bool) -> Reason:
    """Why a queue that does not have a message does not: what the log says became of it there.

    sees: whether who asks may know of a queue by this name.  read: whether he reads this one.
    """
    if not story.events:
        return Reason("unknown", f"the log, which begins at LSN {story.first_lsn}, has no message at LSN {lsn}")
    taken = _had(story)
    if queue not in taken:
        shown = ", ".join(repr(name) for name in taken if sees(name)) or "others"
        others = f"; it went to {shown}" if taken else "; no queue took it"
        return Reason("not_routed", f"it was not routed to queue '{queue}'{others}")
    last = story.events[-1]
    for event in reversed(story.events):
        if event.queue == queue and event.event in ENDINGS:
            return _ended(event, read)
    if last.event == "restarted":
        return Reason("gone", f"it ended with the process before the start {_when(last)}, or its queue did")
    return Reason("gone", f"it is not there any more; last it was {last.event} {_when(last)}")


_DIED = {
    "expired": "it expired",
    "delivery_limit": "it reached a limit of its deliveries",
    "maxlen": "it gave way to a limit of its queue",
    "poison": "it was put aside as poison",
}


def _when(event: Event) -> str:
    return moment(round(event.time * 1e6))


def _ended(event: Event, read: bool) -> Reason:
    """read: whether the words of who refused it are told, and not the cause alone."""
    when = _when(event)
    details = event.details
    by = f" by '{details['by']}'" if details.get("by") else ""
    match event.event:
        case "settled":
            return Reason("settled", f"it was settled {when}{by}")
        case "dropped":
            return Reason("dropped", f"it was dropped {when}{by}: {details.get('reason')}")
        case "purged":
            return Reason("purged", f"it was purged {when}")
        case "queue deleted":
            return Reason("deleted", f"its queue was deleted {when}")
        case word:
            letters = details.get("letters") or details.get("moved_to")
            after = f"; what came of it is {', '.join(map(str, letters))}" if isinstance(letters, list) else ""  # pyright: ignore[reportUnknownArgumentType] - JSON
            why = details["reason"] if read else details.get("cause", details["reason"])
            return Reason(word, f"{_DIED.get(word, f'it was {word}')} {when}{by}: {why}{after}")


# -- why it is not delivered, and what happened to it


def explain(house: Beside, who: Who, queue: str | None, vhost: str, bookmark: str | None) -> Answer:
    """Of a queue its `reasons`; of a message `queues`, each that has or had it, with reasons."""
    core = house.core
    if bookmark is None:
        if queue is None:
            raise InvalidArgument("explain: name a queue, or a bookmark, or both")
        reasons = house.call(lambda: explain_queue(core.queue(vhost, queue), house.now()), durable=False)
        return {"queue": queue, "reasons": _plain(reasons)}
    lsn = lsn_of(bookmark, house.log.origin)

    def find(queues: Sequence[Queue]) -> list[tuple[str, list[Reason]]]:
        found = having(core, queues, lsn, house.now(), house.log.durable, who)
        return [(one.name, why) for one, why in found]

    told = {one: _plain(why) for one, why in _asked(house, vhost, queue, find)}
    last = house.call(lambda: core.last_lsn, durable=False)
    if lsn > last:
        raise NotFound(f"no message has the LSN {lsn}: the last that was given out is {last}")
    if not told or queue is None:
        rights = who.rights

        def seen(one: str) -> bool:
            return rights is None or rights.sees_queue(vhost, one)

        story = _read(house, lsn, vhost)
        if not story.events and not told:
            raise _unknown(story, lsn, house.log.origin)
        for one in [queue] if queue is not None else _had(story):
            told.setdefault(one, _plain([past(story, one, lsn, seen, _reads(who, vhost, one))]))
        if not told:
            told[""] = _plain([Reason("not_routed", "no queue took it: a topic keeps it")])
    queues = [{"queue": one, "reasons": why} for one, why in told.items()]
    return {"bookmark": format_bookmark(house.log.origin, lsn), "lsn": lsn, "queues": queues}


def story(house: Beside, who: Who, bookmark: str, vhost: str) -> Answer:
    """`events` of one message, oldest first, and how far the log was read for them."""
    log = house.log
    lsn = lsn_of(bookmark, log.origin)
    found = _read(house, lsn, vhost)
    if not found.events:
        raise _unknown(found, lsn, log.origin)
    return {
        "bookmark": format_bookmark(log.origin, lsn),
        "lsn": lsn,
        "events": [
            {
                "event": one.event, "queue": one.queue, "time": one.time, "bookmark": one.bookmark,
                "details": dict(one.details),
            }
            for one in found.events
        ],
        "log_begins": found.first_lsn,
        "read_to": found.read_to,
        "whole": found.whole,
    }  # fmt: skip


def _read(house: Beside, lsn: int, vhost: str) -> Story:
    what = house.call(lambda: known(house.core), durable=False)
    return tell(house.log, lsn, what.names, what.routes, house.gone, anew=what.anew, vhost=vhost)


def _plain(reasons: Sequence[Reason]) -> list[dict[str, str]]:
    return [reason._asdict() for reason in reasons]


def _had(story: Story) -> list[str]:
    """The queues that had the message, by its story."""
    out = dict[str, None]()
    for event in story.events:
        told = event.details.get("queues")
        if isinstance(told, list):
            out.update(dict.fromkeys(str(name) for name in told))  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType] - JSON
        if event.queue:
            out[event.queue] = None
    return list(out)


def _unknown(story: Story, lsn: int, origin: int) -> NotFound:
    return NotFound(
        f"the log has no message {format_bookmark(origin, lsn)!r}: it begins at LSN {story.first_lsn}, and what stands "
        "there is no message, or retention has passed it"
    )


# -- one message where it waits


def cancel(house: Beside, who: Who, bookmark: str, queue: str | None, vhost: str) -> Answer:
    """`queues`: those that it was taken from."""

    def work(now: Now, queues: Sequence[Queue], chunk: Chunk) -> list[tuple[Queue, int]]:
        return house.core.cancel_messages(now, queues, chunk, by=who.user)

    return _each(house, who, bookmark, queue, vhost, work)


def reschedule(
    house: Beside, who: Who, bookmark: str, queue: str | None, vhost: str, when: int | None, wait: int | None
) -> Answer:
    """`queues`: those where it waits until then."""
    if (when is None) == (wait is None):
        raise InvalidArgument("reschedule: say `when`, or how long to `wait`")

    def work(now: Now, queues: Sequence[Queue], chunk: Chunk) -> list[tuple[Queue, int]]:
        at = when if when is not None else now.wall + (wait or 0)
        return house.core.reschedule_messages(now, queues, chunk, at, by=who.user)

    return _each(house, who, bookmark, queue, vhost, work)


def _each(
    house: Beside, who: Who, bookmark: str, queue: str | None, vhost: str,
    work: Callable[[Now, Sequence[Queue], Chunk], list[tuple[Queue, int]]],
) -> Answer:  # fmt: skip
    """Do something to a message in one queue, or wherever it waits.  PreconditionFailed says where it is, or was."""
    lsn = lsn_of(bookmark, house.log.origin)

    def has(queues: Sequence[Queue]) -> list[Queue]:
        return [one for one in queues if one.stopped or one.lives(lsn)]

    found = _asked(house, vhost, queue, has)

    def do() -> list[str]:
        there = [one for one in found if house.core.find_queue(vhost, one.name) is one]
        return [one.name for one, _ in work(house.now(), there, range(lsn, lsn + 1))]

    done = house.decide(do)
    if not done:
        sentences = list[str]()
        for one in cast("list[dict[str, object]]", explain(house, who, queue, vhost, str(lsn))["queues"]):
            whys = "; ".join(reason["text"] for reason in cast("list[dict[str, str]]", one["reasons"]))
            sentences.append(f"queue '{one['queue']}': {whys}" if one["queue"] else whys)
        raise PreconditionFailed(f"the message at LSN {lsn} does not wait: {'. '.join(sentences)}")
    return {"lsn": lsn, "queues": done}


# -- from queue to queue


def redrive(
    house: Beside, who: Who, queue: str, vhost: str, filter: str | None, count: int, after: int, dry: bool,
    lsns: Sequence[int] | None,
) -> Answer:  # fmt: skip
    """`moved`, `matched`, `targets` by queue, `strays` that stay by why, `next`: where to go on."""
    some = None if lsns is None else tuple(lsns)
    return _moved(house, Wanted(queue, vhost, None, filter, count, after, dry, who.user, some))


def move_to(
    house: Beside, who: Who, queue: str, to: str, vhost: str, filter: str | None, count: int, after: int, dry: bool
) -> Answer:
    """As `redrive`, of what waits in a queue, to the end of another."""
    return _moved(house, Wanted(queue, vhost, to, filter, count, after, dry, who.user))


def _moved(house: Beside, wanted: Wanted) -> Answer:
    if wanted.filter is not None:
        compile_filter(wanted.filter)
    house.usable()
    return move(house, wanted).told()


# -- settling


def ack(
    house: Beside, who: Who, queue: str, vhost: str, bookmarks: Sequence[str] | None, option: str, by: str
) -> Answer:
    """`affected`: how many messages were settled, wherever they were."""
    marks, verb = read_marks(bookmarks or ()), _verb("ack", option)

    def work() -> int:
        return house.core.acknowledge(house.now(), house.core.queue(vhost, queue), marks, verb, client=by or house.peer)

    return {"affected": house.decide(work)}


def ack_filter(house: Beside, who: Who, queue: str, vhost: str, filter: str, option: str, by: str) -> Answer:
    """The same, of what matches and the user may read."""
    verb, core, client = _verb("ack_filter", option), house.core, by or house.peer
    asked = bound(filter, Context(client_name=client, user=who.user, instance_name=core.instance))
    right = None if who.rights is None else who.rights.read_queue(vhost, queue)
    wanted = narrowed(asked, right) or compile_filter(asked)

    def begin(tell: Callable[[Queue | None, int], None]) -> None:
        found = core.queue(vhost, queue)
        told = partial(tell, None if verb is Verb.ACK else found)
        mine = wanted.reading(found.settings.message_type)
        core.settle_matching(house.now(), found, mine, told, verb, client=client)

    return {"affected": house.later(begin)}


VERBS = {"": Verb.ACK, "ack": Verb.ACK, "cancel": Verb.CANCEL, "expire": Verb.EXPIRE}


def _verb(act: str, option: str) -> Verb:
    verb = VERBS.get(option)
    if verb is None:
        raise InvalidArgument(f"{act}: option {option[:60]!r} is unknown{nearest(option, filter(None, VERBS))}")
    return verb


def _explaining(body: Body) -> Right:
    return LOOKS if isinstance(body.get("queue"), str) else TENDS


LOOKS = sees("queue", "queue")

_QUEUE, _BOOKMARK = name("queue"), name("bookmark", TEXT_LIMIT)
_MOVED = (
    VHOST, text("filter", most=TEXT_LIMIT), count("count", 1, CALL_MOST, CALL_MOST), count("after", default=0),
    flag("dry"),
)  # fmt: skip
_HERE = "over HTTP messages are told by what a queue shows of them"

EXPLAIN = Operation(
    "explain", explain, "read", "queue, bookmark: why it, or one message, is not delivered now", _explaining,
    (text("queue"), VHOST, text("bookmark", most=TEXT_LIMIT)), sdk="explain", cli="queue explain",
    path=Path("GET", f"{QUEUE_PATH}/explain", NAMED, "Why nothing, or one message (bookmark=), is not delivered",
              "bookmark", LOOKS),
)  # fmt: skip
STORY = Operation(
    "story", story, "read", "bookmark: what happened to one message", TENDS, (_BOOKMARK, VHOST),
    sdk="story", cli="message show", missing=_HERE,
)  # fmt: skip
CANCEL = Operation(
    "cancel", cancel, "read", "bookmark, queue: withdraw a message where it waits", TENDS,
    (_BOOKMARK, text("queue"), VHOST), sdk="cancel", cli="message cancel", missing=_HERE,
)  # fmt: skip
RESCHEDULE = Operation(
    "reschedule", reschedule, "read", "bookmark, queue, when or wait (microseconds): let it wait until then", TENDS,
    (_BOOKMARK, text("queue"), VHOST, count("when", 1, LATEST), count("wait", 0, LONGEST)),
    sdk="reschedule", cli="message reschedule", missing=_HERE,
)  # fmt: skip
REDRIVE = Operation(
    "redrive", redrive, "read", "queue, filter, count, after, dry, lsns: dead letters back to their origin", TENDS,
    (_QUEUE, *_MOVED, numbers("lsns", CALL_MOST)), sdk="redrive", cli="queue redrive",
    path=Path("POST", f"{QUEUE_PATH}/redrive", NAMED, "Dead letters back to where they came from",
              "filter count after dry"),
)  # fmt: skip
MOVE = Operation(
    "move", move_to, "read", "queue, to, filter, count, after, dry: what waits to another queue", TENDS,
    (_QUEUE, name("to"), *_MOVED), sdk="move", cli="queue move",
    path=Path("POST", f"{QUEUE_PATH}/move", NAMED, "What waits to another queue", "to filter count after dry"),
)  # fmt: skip
ACK = Operation(
    "ack", ack, "read", "queue, bookmarks, option, by: settle messages wherever they are; how many it affected",
    uses(("read all", "queue", "queue")),
    (_QUEUE, VHOST, texts("bookmarks", MARKS_MOST), text("option", ""), text("by", "")), sdk="ack", missing=_HERE,
)  # fmt: skip
ACK_FILTER = Operation(
    "ack_filter", ack_filter, "read", "queue, filter, option, by: settle whatever matches; how many it affected",
    uses(("read", "queue", "queue")),
    (_QUEUE, VHOST, name("filter", TEXT_LIMIT), text("option", ""), text("by", "")), sdk="ack_filter", missing=_HERE,
)  # fmt: skip
