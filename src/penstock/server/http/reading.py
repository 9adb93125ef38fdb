"""Where bodies of requests lie until they are whole and read, with a bound on all of them together.

In the door's process, or in the server's own where there is none; whose they are was found right before.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any

from penstock.errors import Unavailable
from penstock.units import format_size
from penstock.wire.http.bodies import AT_ONCE, Reading, Receive, read_as, read_body

HELD_MOST, HELD_OF_USER = 128 << 20, 64 << 20
"""Bytes of bodies beyond `AT_ONCE` that are being sent, in all and by one user."""


class Room:
    """Where bodies lie until they are whole and read.  The large ones are read one at a time, beside the loop."""

    def __init__(self, made: Callable[[Reading, Any], Any] | None = None) -> None:
        """made: what becomes of what was read, in the same turn."""
        self._made = made
        self._held = Counter[str]()  # by user
        self._all = 0
        self._one = asyncio.Lock()

    async def read(self, user: str, announced: str, receive: Receive, wanted: Reading) -> Any:
        """What is wanted of a body.  Raises InvalidArgument, and Unavailable where there is no room.

        announced: its Content-Length.
        """
        size, mine = 0, 0

        def held(more: int) -> None:
            nonlocal size, mine
            size += more
            if size > AT_ONCE:
                more, mine = size - mine, size
                self._take(user, more)

        try:
            body = await read_body(announced, receive, wanted.most, held)
            if size <= AT_ONCE:
                return self._read(wanted, body)
            async with self._one:
                return await asyncio.to_thread(self._read, wanted, body)
        finally:
            if mine:
                self._take(user, -mine)

    def _read(self, wanted: Reading, body: bytes) -> Any:
        found = read_as(wanted, body)
        return found if self._made is None else self._made(wanted, found)

    def _take(self, user: str, more: int) -> None:
        self._all += more
        self._held[user] += more
        if not self._held[user]:
            del self._held[user]
        if more > 0 and (self._all > HELD_MOST or self._held[user] > HELD_OF_USER):
            raise Unavailable(
                f"bodies of more than {format_size(AT_ONCE)} that are being sent have {format_size(self._all)}, "
                f"{format_size(self._held[user])} of them user '{user}': try again later"
            )
