"""Opening the house: the core from its log, and the objects that the settings name.

Recovery order: fold what the log says, give the core its boot record, and only then let anybody in.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.core.broker import Core
from penstock.core.state.durable import DurableState
from penstock.core.state.fold import Fold
from penstock.records.chunks import Now

if TYPE_CHECKING:
    from penstock.config.settings import Settings
    from penstock.log import Log
    from penstock.ports import Clock


@dataclass(frozen=True, slots=True)
class Recovered:
    """What the fold found."""

    core: Core
    records: int
    seconds: float
    clean: bool


def open_core(log: Log, clock: Clock, settings: Settings, *, seed: int) -> Recovered:
    """The core as the log says it was, with its boot record journalled but not yet durable."""
    started = time.perf_counter()
    now = Now(clock.wall(), clock.mono())
    state, records = fold(log)
    core = Core.restore(
        state, origin=log.origin, seed=seed, actions=settings.actions, instance=settings.server.name, now=now
    )
    clean = log.recovery.clean
    core.boot(now, clean=clean, next_lsn=log.recovery.next_lsn)
    return Recovered(core, records, time.perf_counter() - started, clean)


def fold(log: Log) -> tuple[DurableState, int]:
    """Durable state from the newest usable checkpoint and everything after it; and how many records that was."""
    start = log.start_state()
    folding = Fold(DurableState.decode(start[2])) if start is not None else Fold()
    records = 0
    for table in log.replay():
        folding.feed(table)
        records += table.num_rows
    return folding.finish(), records


def apply_settings(core: Core, settings: Settings, now: Callable[[], Now]) -> None:
    """Declare what the settings name; what exists already takes the settings' values."""
    for exchange in settings.exchange:
        core.declare_exchange(
            now(),
            exchange.vhost,
            exchange.name,
            exchange.type,
            durable=exchange.durable,
            auto_delete=exchange.auto_delete,
            internal=exchange.internal,
            arguments=dict(exchange.arguments),
            passive=False,
        )
    for topic in settings.topic:
        core.declare_topic(now(), topic.vhost, topic.exchange, topic.name)
    present_queues = {(queue.vhost, queue.name): queue for queue in core.queues()}
    for queue in settings.queue:
        present = present_queues.get((queue.vhost, queue.name))
        if present is not None:
            core.alter_queue(now(), present, queue.settings)
        else:
            core.declare_queue(now(), queue.vhost, queue.name, queue.settings, durable=queue.durable, arguments={})
    for binding in settings.binding:
        core.bind(
            now(),
            binding.vhost,
            binding.source,
            binding.destination,
            binding.destination_type,
            binding.key,
            dict(binding.arguments),
        )
