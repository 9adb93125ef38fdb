"""Queues: made, deleted, purged, halted."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING

from penstock.config.queue_arguments import (
    GENERATED,
    given_arguments,
    given_names,
    queue_settings,
    queue_settings_from_mapping,
)
from penstock.config.queue_settings import QUEUE_KEYS
from penstock.config.queue_values import in_line, written
from penstock.errors import NotFound, PreconditionFailed
from penstock.operations.operation import RABBITMQ, Answer, Operation
from penstock.records.queue_settings import ruling_of
from penstock.records.rights import TENDS, USES, uses
from penstock.wire.fields import VHOST, count, flag, name, table

if TYPE_CHECKING:
    from penstock.core.queue.view import Queue
    from penstock.operations.house import House
    from penstock.records.queue_settings import QueueSettings
    from penstock.server.access import Who


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
            raise NotFound(f"no queue '{queue}' in vhost '{vhost}'") from None
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
                f"queue '{queue.name}' in vhost '{queue.vhost}' is there with {key} = {_told(key, present)}, "
                f"not {_told(key, asked)}; alter it, or ask for what is there"
            )


def _told(key: str, value: object) -> str:
    """A setting as people write it: durations with their unit."""
    known = QUEUE_KEYS.get(key)
    return in_line(value if known is None else written(known, value, "file"))


def declare_by_arguments(
    house: House, who: Who, queue: str, vhost: str, durable: bool, auto_delete: bool, arguments: Mapping[str, object],
    held: Mapping[str, object] | None = None,
) -> Answer:  # fmt: skip
    """Make a queue as AMQP does, or find an equal one.

    held: those of the arguments that settings are made of; None: all.
    """
    core, held = house.core, arguments if held is None else held
    settings = queue_settings(held, queue=queue, vhost=vhost)
    present = core.find_queue(vhost, queue)
    if who.rights is not None:
        who.rights.declare(vhost, queue, settings, present)
    core.declare_queue(
        house.now(), vhost, queue, settings, durable=durable, auto_delete=auto_delete, arguments=arguments,
        given=given_arguments(held), server_named=queue.startswith(GENERATED),
    )  # fmt: skip
    return {"queue": queue, "new": present is None}


def delete(house: House, who: Who, queue: str, vhost: str, if_unused: bool, if_empty: bool) -> Answer:
    """A queue goes with what waits in it: how many messages were ready."""
    found = house.core.queue(vhost, queue)
    return {"messages": house.core.delete_queue(house.now(), found, if_unused=if_unused, if_empty=if_empty)}


def purge(house: House, who: Who, queue: str, vhost: str) -> Answer:
    """What is ready goes."""
    return {"messages": house.core.purge_queue(house.now(), house.core.queue(vhost, queue))}


def pause(house: House, who: Who, queue: str, vhost: str, until: int | None, wait: int | None) -> Answer:
    """Deliver nothing before a time, or a number of microseconds from now; without both, for good."""
    now = house.now()
    found = house.core.queue(vhost, queue)
    at = until if wait is None else now.wall + wait
    house.core.pause_queue(now, found, at, by=who.user)
    return {"queue": queue, "paused": True, "paused_until": None if at is None else at / 1e6}


def resume(house: House, who: Who, queue: str, vhost: str) -> Answer:
    """Deliver again."""
    found = house.core.queue(vhost, queue)
    return {"queue": queue, "was_paused": house.core.resume_queue(house.now(), found, by=who.user)}


_QUEUE = name("queue")

DECLARE = Operation(
    "declare", declare, "decide", "queue, settings: make a queue, or find that it is there as asked", USES,
    (_QUEUE, VHOST, flag("durable", True), flag("auto_delete"), flag("passive"), table("settings")),
    sdk="declare", cli="queue declare", missing="over HTTP queues are declared with arguments, as RabbitMQ's tools do",
)  # fmt: skip
DECLARE_BY_ARGUMENTS = Operation(
    "declare_by_arguments", declare_by_arguments, "decide", "queue, arguments: as AMQP declares", USES,
    (_QUEUE, VHOST, flag("durable", True), flag("auto_delete"), table("arguments")), action=False, missing=RABBITMQ,
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
    TENDS, (_QUEUE, VHOST, count("until", 1, 1 << 61), count("wait", 1, 1 << 61)), sdk="pause", cli="queue pause",
)  # fmt: skip
RESUME = Operation(
    "resume", resume, "decide", "queue: deliver again", TENDS, (_QUEUE, VHOST), sdk="resume", cli="queue resume"
)

ROWS = (DECLARE, DECLARE_BY_ARGUMENTS, DELETE, PURGE, PAUSE, RESUME)
