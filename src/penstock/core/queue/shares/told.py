"""What people are told about the shares of a queue: figures, and why a message waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.core.queue.order.runs import view
from penstock.core.queue.shares.keys import NO_KEY
from penstock.units import format_duration

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.records.chunks import Chunk


def figures(queue: Contents) -> dict[str, object]:
    """For `stats`; nothing for a queue without shares."""
    shares = queue.shares
    if shares is None:
        return {}
    out: dict[str, object] = {"keys_unknown": shares.staging.count}
    if shares.groups is not None:
        out["group_keys"] = len(shares.groups.keys)
        out["group_waiting"] = shares.groups.count
    if shares.tenants is not None:
        out["tenants"] = len(shares.tenants.keys)
    return out


def reasons(queue: Contents, mono: int) -> Iterator[tuple[str, str]]:
    """Why nothing more goes: (word, sentence)."""
    pace = queue.pace
    if pace is not None and (wait := pace.wait(mono)):
        rate = f"{pace.count} in {format_duration(pace.period)}"
        yield "rate_limit", f"its rate_limit of {rate} is used up, the next may go in {format_duration(wait)}"
    most = queue.settings.max_leased[0]
    if most and queue.leased >= most:
        yield "max_leased", f"its max_leased of {most} is reached"
    shares = queue.shares
    if shares is None:
        return
    if shares.staging.count:
        yield "keys", f"keys of {shares.staging.count} of its messages are being worked out"
    if shares.groups is not None and shares.groups.count:
        yield "group_key", f"{shares.groups.count} of its messages wait behind others of their keys"
    if shares.tenants is not None and shares.tenants.count and shares.tenants.stuck(mono):
        yield "tenants", "each tenant that waits has as much out, or went as often, as it may"


def where(queue: Contents, lsn: int) -> tuple[str, str, int] | None:
    """Of a message that is ready and not offered: (word, sentence, the message that it waits for or 0)."""
    shares = queue.shares
    if shares is None:
        return None
    groups = shares.groups
    if groups is not None and groups.waits(lsn):
        key = groups.keys.of(lsn)
        front = groups.front(key)
        return "group_key", f"its key '{groups.keys.texts[key]}' is in use by the message at LSN {front}", front
    staged = [*shares.staging.chunks(), *(run.chunk for run in shares.staging.runs())]
    if any(_has(chunk, lsn) for chunk in staged):
        return "keys", "its keys are being worked out", 0
    tenants = shares.tenants
    if tenants is None or (tenant := tenants.tenant(lsn)) is None:
        return None
    if not any(_has(chunk, lsn) for chunk in (*tenant.main.chunks(), *tenant.chunks_back())):
        return None
    name = "messages without a key" if tenant.number == NO_KEY else f"tenant '{tenants.keys.texts[tenant.number]}'"
    if tenant.leased >= tenants.leased_most():
        return "max_leased", f"it is ready, but {name} may have no more than {tenant.leased} leased", 0
    return "ready", f"it is ready, one of {tenant.count} of {name}", 0


def _has(chunk: Chunk, lsn: int) -> bool:
    return lsn in chunk if isinstance(chunk, range) else bool((view(chunk) == lsn).any())
