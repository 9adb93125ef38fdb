"""Streams of pipelines that are no more: what they hold, and how they let go of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.cli.output import counted
from penstock.units import format_size


def holds(stream: Mapping[str, Any]) -> str:
    """What a stream keeps: messages of its queue, bytes of the log."""
    log = f"{format_size(stream['held_bytes'])} of the log" if stream["held_bytes"] else None
    messages = counted(stream["held"], "message") if stream["held"] else None
    return ", ".join(filter(None, (messages, log))) or "nothing"


def orphan(stream: Mapping[str, Any]) -> str:
    """A sentence about one whose pipeline is in no settings and in no driver."""
    return (
        f"stream {stream['stream']} holds {holds(stream)} for pipeline {stream['pipeline']}, which the settings do not "
        f"have: penstock stream release {stream['stream']} --drop"
    )


def orphans(streams: Iterable[Mapping[str, Any]]) -> list[str]:
    """The same for all of them that hold something."""
    return [orphan(one) for one in streams if one["orphaned"] and one["state"] == "held"]
