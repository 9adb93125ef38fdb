"""The guards of a server as its settings and the process's limit of descriptors ask for them."""

from __future__ import annotations

import resource
from dataclasses import replace
from math import inf
from typing import TYPE_CHECKING

from penstock.server.guard.complaints import Complaints
from penstock.server.guard.listening import Entry
from penstock.server.guard.strangers import Guards, Terms

if TYPE_CHECKING:
    import asyncio

    from penstock.config.settings import Settings

OWN = 64
"""Descriptors that a server with open doors and a few segments needs for itself, beside those kept for the log."""

LEAST = 8
"""Strangers of a door, however few descriptors there are."""


def entry_of(settings: Settings, loop: asyncio.AbstractEventLoop) -> Entry:
    """How the doors of a server take their clients.

    Strangers of all doors together get half of the descriptors at most: the others are for those who have logged in.
    """
    section = settings.before_login
    share = (resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN) // 2 // max(1, len(settings.listen.doors()))
    sockets = min(section.sockets, max(LEAST, share))
    terms = Terms(section.time / 1e6, sockets, min(section.per_address, max(LEAST // 2, sockets // 2)))
    return _entry(terms, loop)


def connections_most() -> int:
    """Connections with a login that there are descriptors for, where no stranger has any."""
    return max(LEAST, resource.getrlimit(resource.RLIMIT_NOFILE)[0] - OWN)


def patient(loop: asyncio.AbstractEventLoop) -> Entry:
    """The same for a broker in a test's own process: nobody is sent away for being slow."""
    return _entry(replace(Terms(), time_s=inf), loop)


def _entry(terms: Terms, loop: asyncio.AbstractEventLoop) -> Entry:
    return Entry(Guards(terms, Complaints(loop.time, loop.call_later), loop.time, loop.call_later), loop.time)
