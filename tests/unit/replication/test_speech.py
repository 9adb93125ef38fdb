"""A connection between members: what it does not do while the transport has it in hand."""

from __future__ import annotations

import asyncio
from typing import Any

from penstock.server.cluster.speech import Peer


class Listening:
    """A member that is told of a link."""

    def __init__(self) -> None:
        self.told = list[str]()

    def writable(self, link: Peer) -> None:
        self.told.append("writable")

    def heard(self, link: Peer, message: Any) -> None:
        raise AssertionError

    def gathered(self, link: Peer) -> None:
        raise AssertionError

    def lost(self, link: Peer | None) -> None:
        self.told.append("lost")


def test_nothing_is_written_while_the_transport_writes() -> None:
    """Asyncio resumes a protocol in the middle of its own write: one that fails within ends the connection twice."""

    async def run() -> None:
        member = Listening()
        peer = Peer(b"secret", member, lambda _: None, lambda: None, calls=True)
        peer.pause_writing()
        assert peer.full
        peer.resume_writing()
        assert member.told == []
        await asyncio.sleep(0)
        assert member.told == ["writable"]
        assert not peer.full

    asyncio.run(run())
