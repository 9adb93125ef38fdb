"""What people are told about the shares of a queue: figures, and why a message waits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.core.queue.shares.keys import NO_KEY
from penstock.units import format_duration

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.places import Part


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


def where(queue: Contents, part: Part, lsn: int) -> tuple[str, str, int]:
    """Of a message that stands in this part of the queue's shares: (word, sentence, which one it waits for or 0)."""
    shares = queue.shares
    assert shares is not None
    groups, tenants = shares.groups, shares.tenants
    if part == "lines" and groups is not None:
        key = groups.keys.of(lsn)
        front = groups.front(key)
        return "group_key", f"its key '{groups.keys.texts[key]}' is in use by the message at LSN {front}", front
    tenant = tenants.tenant(lsn) if part == "tenants" and tenants is not None else None
    if tenant is None or tenants is None:
        return "keys", "its keys are being worked out", 0
    name = "messages without a key" if tenant.number == NO_KEY else f"tenant '{tenants.keys.texts[tenant.number]}'"
    if tenant.leased >= tenants.leased_most():
        return "max_leased", f"it is ready, but {name} may have no more than {tenant.leased} leased", 0
    return "ready", f"it is ready, one of {tenant.count} of {name}", 0
