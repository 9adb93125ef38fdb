"""Queues: made, altered, deleted, purged, halted, counted; and shown with their first messages and subscriptions.

Positions come from the loop, ages and priorities from the log's own columns.  Looking changes nothing and leases
nothing; no body is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields
from itertools import islice
from typing import TYPE_CHECKING, cast

import pyarrow as pa

from penstock.config.queue_arguments import (
    GENERATED,
    given_arguments,
    given_names,
    queue_settings,
    queue_settings_from_mapping,
    typed,
)
from penstock.config.queue_settings import QUEUE_KEYS
from penstock.config.queue_values import in_line, written
from penstock.core.commands.queues import pause_told, statistics
from penstock.core.queue.dispatching.consumers import UNLIMITED, Consumer
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed
from penstock.history.history import History
from penstock.operations.operation import NAMED, QUEUE_PATH, RABBITMQ, Answer, Beside, House, Operation, Path
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import QueueSettings, ruling_of, time_of
from penstock.records.rights import SEES, TENDS, USES, sees, uses
from penstock.units import LATEST, LONGEST
from penstock.wire.fields import VHOST, count, flag, name, table
from penstock.wire.flight.bookmarks import format_bookmark

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.core.queue.queue import Queue
    from penstock.records.chunks import Now
    from penstock.server.people.access import Who


def declare(
    house: House, who: Who, queue: str, vhost: str, durable: bool, auto_delete: bool, passive: bool,
    settings: Mapping[str, object],
) -> Answer:  # fmt: skip
    """Make a queue of our settings, or find it as asked; its counts."""
    core, now = house.core, house.now()
    asked = queue_settings_from_mapping(settings, queue)
    if who.rights is not None:
        who.rights.declare(vhost, queue, asked, core.find_queue(vhost, queue))
    try:
        found = core.queue(vhost, queue)
    except NotFound:
        if passive:
            raise
        given = given_names(settings)
        found = core.declare_queue(now, vhost, queue, asked, durable=durable, auto_delete=auto_delete, given=given)
    else:
        if not passive:
            refuse_different(found, asked, durable, auto_delete)
        core.used_queue(now, found)
    return {"queue": queue, "vhost": vhost, **core.stats(found, now)}


def refuse_different(queue: Queue, settings: QueueSettings, durable: bool, auto_delete: bool) -> None:
    """PreconditionFailed unless the queue is what was asked for, whatever policies make of it."""
    own = ruling_of(queue.settings, queue.ruling).own
    for key, asked, present in (
        ("durable", durable, queue.durable),
        ("auto_delete", auto_delete, queue.auto_delete),
        *((one.name, getattr(settings, one.name), getattr(own, one.name)) for one in fields(settings)),
    ):
        if asked != present:
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' is there with {key} = {told_value(key, present)}, "
                f"not {told_value(key, asked)}; alter it, or ask for what is there"
            )


def told_value(key: str, value: object) -> str:
    """A setting as people write it: durations with their unit."""
    known = QUEUE_KEYS.get(key)
    return in_line(value if known is None else written(known, value, "file"))


def declare_by_arguments(
    house: House, who: Who, queue: str, vhost: str, durable: bool, auto_delete: bool, arguments: Mapping[str, object]
) -> Answer:
    """Make a queue as AMQP does, or find an equal one."""
    core = house.core
    default = core.default_types.get(vhost)
    arguments = typed(arguments, default, durable=durable, exclusive=False, auto_delete=auto_delete)
    settings = queue_settings(arguments, queue=queue, vhost=vhost)
    present = core.find_queue(vhost, queue)
    if who.rights is not None:
        who.rights.declare(vhost, queue, settings, present)
    core.declare_queue(
        house.now(), vhost, queue, settings, durable=durable, auto_delete=auto_delete, arguments=arguments,
        given=given_arguments(arguments), server_named=queue.startswith(GENERATED),
    )  # fmt: skip
    return {"queue": queue, "new": present is None}


def alter(house: Beside, who: Who, queue: str, vhost: str, settings: Mapping[str, object]) -> Answer:
    """`left`: how many messages left it, because a `recovery_point` that is given is later than they are."""
    core = house.core
    point = {key: value for key, value in settings.items() if "recovery_point" in given_names({key: value})}
    time = time_of(queue_settings_from_mapping(point, queue).recovery_point)
    places = {time: house.lsn_at(time)} if time is not None and time <= house.now().wall else {}

    def work() -> Answer:
        found = core.queue(vhost, queue)
        present = core.ruling(found)
        own = queue_settings_from_mapping(settings, queue, present.own, present.given)
        if who.rights is not None:
            who.rights.alter(vhost, queue, own, present.own)
        return {
            "queue": queue,
            "left": core.alter_queue(house.now(), found, own, given_names(settings, present.given), places),
        }

    return house.decide(work)


def delete(house: House, who: Who, queue: str, vhost: str, if_unused: bool, if_empty: bool) -> Answer:
    """A queue goes with what waits in it: how many messages were ready."""
    found = house.core.queue(vhost, queue)
    return {"messages": house.core.delete_queue(house.now(), found, if_unused=if_unused, if_empty=if_empty)}


def purge(house: House, who: Who, queue: str, vhost: str) -> Answer:
    """Remove what is ready; what is leased or delayed stays."""
    return {"messages": house.core.purge_queue(house.now(), house.core.queue(vhost, queue))}


def pause(house: House, who: Who, queue: str, vhost: str, until: int | None, wait: int | None) -> Answer:
    """Deliver nothing before a time, or a number of microseconds from now; without both, for good."""
    if None not in (until, wait):
        raise InvalidArgument("pause: say `until`, or how long to `wait`, or neither")
    now = house.now()
    found = house.core.queue(vhost, queue)
    at = until if wait is None else now.wall + wait
    house.core.pause_queue(now, found, at, by=who.user)
    return {"queue": queue, "paused": True, "paused_until": None if at is None else at / 1e6}


def resume(house: House, who: Who, queue: str, vhost: str) -> Answer:
    """Deliver again; `was_paused` says whether it had been halted."""
    found = house.core.queue(vhost, queue)
    return {"queue": queue, "was_paused": house.core.resume_queue(house.now(), found, by=who.user)}


# -- looking


def stats(house: House, who: Who, queue: str, vhost: str) -> Answer:
    """Its counts, what rules it, and the settings that are not the default."""
    core = house.core
    found = core.queue(vhost, queue)
    facts, settings = core.policy_facts(found), settings_in_force(core, found)
    return {**counts(core, found, house.now()), **facts, "settings": settings}


def queues(house: House, who: Who, vhost: str) -> Iterator[dict[str, object]]:
    """Every queue of a vhost that the user may see, by name, with its counts."""
    found = [one for one in house.core.queues() if one.vhost == vhost]
    for one in sorted(found, key=lambda one: one.name):
        if who.rights is None or who.rights.sees_queue(vhost, one.name):
            yield counts(house.core, one, house.now())


def counts(core: Core, queue: Queue, now: Now) -> dict[str, object]:
    """A queue and its counts."""
    return {"queue": queue.name, "vhost": queue.vhost, **core.stats(queue, now)}


def settings_in_force(core: Core, queue: Queue) -> dict[str, dict[str, object]]:
    """Those that are not the default: `value`, and `from`, which is `argument` or names what rules."""
    return {
        key: {"value": written(QUEUE_KEYS[key], getattr(queue.settings, key), "python"), "from": source}
        for key, source in core.sources(queue).items()
        if source != "default"
    }


_QUEUE = name("queue")

_LIKE_RABBITMQ = "over HTTP queues are declared with arguments, ruled by policies and shown as RabbitMQ's tools do"

DECLARE = Operation(
    "declare", declare, "decide", "queue, settings: make a queue, or find that it is there as asked", USES,
    (_QUEUE, VHOST, flag("durable", True), flag("auto_delete"), flag("passive"), table("settings")),
    sdk="declare", cli="queue declare", missing=_LIKE_RABBITMQ,
)  # fmt: skip
DECLARE_BY_ARGUMENTS = Operation(
    "declare_by_arguments", declare_by_arguments, "decide", "queue, arguments: as AMQP declares", USES,
    (_QUEUE, VHOST, flag("durable", True), flag("auto_delete"), table("arguments")), action=False, missing=RABBITMQ,
)  # fmt: skip
ALTER = Operation(
    "alter", alter, "read", "queue, settings: change settings of a queue", TENDS, (_QUEUE, VHOST, table("settings")),
    sdk="alter", cli="queue alter", missing=_LIKE_RABBITMQ,
)  # fmt: skip
DELETE = Operation(
    "delete", delete, "decide", "queue, if_unused, if_empty: remove a queue and what waits in it",
    uses(("configure", "queue", "queue")), (_QUEUE, VHOST, flag("if_unused"), flag("if_empty")),
    sdk="delete", cli="queue delete",
)  # fmt: skip
PURGE = Operation(
    "purge", purge, "decide", "queue: remove what is ready", uses(("read all", "queue", "queue")), (_QUEUE, VHOST),
    sdk="purge", cli="queue purge",
)  # fmt: skip
PAUSE = Operation(
    "pause", pause, "decide", "queue, until or wait (microseconds): deliver nothing before; without them, for good",
    TENDS, (_QUEUE, VHOST, count("until", 1, LATEST), count("wait", 1, LONGEST)), sdk="pause", cli="queue pause",
)  # fmt: skip
RESUME = Operation(
    "resume", resume, "decide", "queue: deliver again", TENDS, (_QUEUE, VHOST), sdk="resume", cli="queue resume",
    path=Path("POST", f"{QUEUE_PATH}/resume", NAMED, "Deliver again"),
)  # fmt: skip

STATS = Operation(
    "stats", stats, "look", "queue: its counts", sees("queue", "queue"), (_QUEUE, VHOST), sdk="queue", cli="queue show",
    missing=_LIKE_RABBITMQ,
)  # fmt: skip
QUEUES = Operation(
    "list", queues, "list", "every queue of a vhost with its counts", SEES, (VHOST,), key="queues", sdk="queues",
    cli="queue list", missing=_LIKE_RABBITMQ,
)  # fmt: skip


# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false


MESSAGES_MOST = 1000
SUBSCRIPTIONS_MOST = 1000


@dataclass(slots=True)
class Standing:
    """One message where it stands."""

    lsn: int
    state: str
    deliveries: int = 0
    holder: str = ""
    granted: int = 0


def details(house: Beside, who: Who, queue: str, vhost: str, limit: int) -> Answer:
    """The queue, who subscribes, and `messages`: the first of it, by LSN, in whatever state."""
    core, log = house.core, house.log

    def look() -> tuple[dict[str, object], list[Standing], dict[int, int | None], Now, bool]:
        found, now = core.queue(vhost, queue), house.now()
        first, by_value = first_messages(found, limit), found.settings.priority_expression is not None
        values = {one.lsn: found.valued(one.lsn) for one in first} if by_value else {}
        return described(core, found, now), first, values, now, found.halted

    facts, standing, values, now, halted = house.call(look)
    columns = {lsn: (time, priority) for lsn, time, priority in _columns(house, standing)}
    messages = [
        {
            "lsn": one.lsn,
            "bookmark": format_bookmark(log.origin, one.lsn),
            "state": one.state,
            "deliverable": one.state == "ready" and not halted,
            "age": round(max(now.wall - columns[one.lsn][0], 0) / 1e6, 6) if one.lsn in columns else None,
            "priority": values.get(one.lsn) if values else columns[one.lsn][1] if one.lsn in columns else None,
            "deliveries": one.deliveries,
            "leased_to": one.holder or None,
            "leased_age": round(max(now.mono - one.granted, 0) / 1e6, 6) if one.granted else None,
        }
        for one in standing
    ]
    return {**facts, "messages": messages}


def described(core: Core, queue: Queue, now: Now) -> dict[str, object]:
    """The queue itself and who subscribes; on the loop."""
    figures = statistics(queue, now, core.stamps, core.proxied)
    consumers = list(islice(queue.consumers, SUBSCRIPTIONS_MOST))
    return {
        "queue": queue.name,
        "vhost": queue.vhost,
        **pause_told(queue),
        "depth": figures["queue_depth"],
        "internal_depth": figures["owned"],
        "insert_count": queue.arrived,
        "delete_count": queue.gone(),
        "seconds_behind": figures["seconds_behind"],
        "age_of_oldest_lease": figures["age_of_oldest_lease"],
        "backlog": figures["backlog"],
        "expired_leases": queue.so_far.expired_leases,
        "subscriptions": [_subscription(one) for one in consumers],
        "subscriptions_total": len(queue.consumers),
    }


def _subscription(consumer: Consumer) -> dict[str, object]:
    return {
        "client": consumer.client,
        "tag": consumer.tag,
        "state": _state(consumer),
        "backlog": consumer.outstanding,
        "max_backlog": None if consumer.limit >= UNLIMITED else consumer.limit,
        "filter": None if consumer.filter is None else consumer.filter.text,
        "priority": consumer.priority,
    }


def _state(consumer: Consumer) -> str:
    if consumer.choked:
        return "blocked"
    if consumer.room <= 0:
        return "full"
    return "silent" if consumer.silent else "open"


def first_messages(queue: Queue, most: int) -> list[Standing]:
    """The oldest messages, by LSN, in whatever state; on the loop."""
    found = list[Standing]()
    for state, run, holder in queue.first(most):
        held = ("", 0) if holder is None else (holder.client or holder.tag, run.granted)  # it keeps when it was granted
        found += [Standing(lsn, state, run.tally.attempt, *held) for lsn in run.chunk]
    return sorted(found, key=lambda one: one.lsn)[:most]


def _columns(house: Beside, standing: list[Standing]) -> Iterator[tuple[int, int, int]]:
    """LSN, time and priority of the messages that the log has."""
    history = History(house.log, house.gone)
    for batch in history.rows_at([one.lsn for one in standing]):
        lsns = cast("list[int]", batch.column("lsn").to_pylist())
        times = cast("list[int]", batch.column("time").cast(pa.int64()).to_pylist())
        priorities = cast("list[int | None]", batch.column("priority").to_pylist())
        for lsn, time, priority in zip(lsns, times, priorities, strict=True):
            yield lsn, time, priority or 0


DETAILS = Operation(
    "details", details, "read", "queue, limit: its first messages and its subscriptions", sees("queue", "queue"),
    (name("queue"), VHOST, count("limit", 1, MESSAGES_MOST, MESSAGES_MOST)), sdk="details", cli="queue show",
    missing="over HTTP a queue's consumers stand beside it, and its messages are peeked at",
)  # fmt: skip
