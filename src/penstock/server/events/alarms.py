"""Alarms: what keeps the server from its work, or soon will, each with a sentence that says what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from penstock.units import format_size

if TYPE_CHECKING:
    from penstock.server.engine import Engine

SEGMENTS_LEFT = 2
"""The disk is nearly full when there is no room for so many segments of the log beyond what is kept free; it is not any
more once there is room for one more than that."""


def alarms(engine: Engine, before: Mapping[str, str], *, slowed_us: int = 0) -> dict[str, str]:
    """Those of now by name; before: those of the last look.  On the loop; asks the disk how much is free."""
    found: dict[str, str] = {}
    log, bodies = engine.log, engine.bodies
    if engine.broken is not None:
        found["log"] = f"nothing is stored any more: {engine.broken}; restart the server, it replays the log"
    if log.full:
        found["disk_full"] = "the disk is full: publishes are refused until there is room"
    elif (low := nearly_full(engine, "disk_low" in before)) is not None:
        found["disk_low"] = low
    if bodies.tight:
        limit = format_size(bodies.budget.limit)
        found["memory"] = f"server.memory ({limit}) is used up by what cannot be put aside: publishers wait"
    if log.damage.batches:
        found["damage"] = f"{log.damage.batches} batches of the log cannot be read; /healthz names them"
    if slowed_us:
        milliseconds = slowed_us / 1000
        found["upkeep"] = f"the log has outgrown log.retention: each batch of publishes waits {milliseconds:g} ms"
    if engine.core.draining:
        found["draining"] = "the server drains: it takes no new messages and no new consumers"
    return found


def nearly_full(engine: Engine, was: bool) -> str | None:
    """Why the disk of the data folder is nearly full, if so."""
    settings = engine.log.settings
    if not settings.low_space:
        return None  # it is not asked
    kept = settings.low_space + settings.reserve
    wanted = kept + (SEGMENTS_LEFT + was) * settings.segment
    free = engine.log.disk.free()
    if free >= wanted:
        return None
    return (
        f"the disk has {format_size(free // 1024 * 1024)} left: the log needs {format_size(settings.segment)} for its "
        f"next segment, and publishes are refused below {format_size(kept)}"
    )
