"""A connection between members: what it does not do while the transport has it in hand."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from penstock.replication.messages import PIECE_MOST, Ack, Bye, Bytes, Message
from penstock.server.cluster.speech import ROOM, Peer, Shown
from penstock.server.sockets import certificates
from tls_lab import Files


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


class Wire(asyncio.Transport):
    """What one side says comes to the other in pieces of any size, as much at once as that has room for."""

    def __init__(self, rng: Random) -> None:
        super().__init__()
        self.rng, self.said = rng, bytearray()

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def close(self) -> None:
        pass

    def is_closing(self) -> bool:
        return False

    def write(self, data: Any) -> None:
        self.said += data

    def deliver(self, to: Peer) -> None:
        while self.said:
            room = to.get_buffer(-1)
            assert room, "a connection that takes nothing ends"
            size = min(len(room), len(self.said), self.rng.choice((1, 7, 900, 70_000, 1 << 21)))
            room[:size] = self.said[:size]
            del self.said[:size]
            to.buffer_updated(size)


class Hearing(Listening):
    def __init__(self) -> None:
        super().__init__()
        self.messages = list[Message]()

    def heard(self, link: Peer, message: Any) -> None:
        if isinstance(message, Bytes):
            message = message._replace(data=bytes(message.data))  # it is there until more comes
        self.messages.append(message)

    def gathered(self, link: Peer) -> None:
        self.told.append("gathered")


def test_messages_of_all_sizes_come_as_they_were_sent() -> None:
    async def run(seed: int) -> None:
        rng = Random(seed)
        sides = [Hearing(), Hearing()]
        peers = [Peer(b"secret", side, lambda _: None, lambda: None, calls=not n) for n, side in enumerate(sides)]
        wires = [Wire(rng), Wire(rng)]
        for peer, wire in zip(peers, wires, strict=True):
            peer.connection_made(wire)
        for _ in range(3):
            wires[1].deliver(peers[0])
            wires[0].deliver(peers[1])
        sent = list[list[Message]]([[], []])
        for n in range(60):
            side = rng.randrange(2)
            size = rng.choice((0, 1, 500, 20_000, 300_000, PIECE_MOST))
            message = rng.choice([Bytes(n, 1, n, rng.randbytes(size)), Ack(n, n, n), Bye("x" * rng.randint(0, 1000))])
            peers[side].send(message)
            sent[1 - side].append(message)
            if rng.random() < 0.3:
                wires[side].deliver(peers[1 - side])
        wires[1].deliver(peers[0])
        wires[0].deliver(peers[1])
        assert [side.messages for side in sides] == sent
        assert max(len(peer._buffer) for peer in peers) < PIECE_MOST + 2 * ROOM, "of one message"
        for peer in peers:
            peer.close()

    for seed in range(5):
        asyncio.run(run(seed))


class Telling(Hearing):
    def __init__(self) -> None:
        super().__init__()
        self.came = asyncio.Queue[Message]()

    def heard(self, link: Peer, message: Any) -> None:
        super().heard(link, message)
        self.came.put_nowait(self.messages[-1])


def test_a_piece_goes_out_with_its_head_and_what_finds_no_room_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a real connection: one call where there is room; else what waits keeps its place."""
    calls = list[tuple[int, int]]()  # bytes given at once, and taken
    writev = os.writev

    def counted(descriptor: int, pieces: Sequence[bytes]) -> int:
        calls.append((sum(map(len, pieces)), taken := writev(descriptor, pieces)))
        return taken

    async def run() -> None:
        loop, hearing, known = asyncio.get_running_loop(), Telling(), asyncio.Queue[Peer]()
        server = await loop.create_server(
            lambda: Peer(b"secret", Hearing(), known.put_nowait, lambda: None, calls=False), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        reading, follower = await loop.create_connection(
            lambda: Peer(b"secret", hearing, lambda _: None, lambda: None, calls=True), "127.0.0.1", port
        )
        leader = await known.get()
        reading.pause_reading()
        rng, sent = Random(3), list[Message]()
        for n in range(40):
            size = rng.choice((1, 20_000, 300_000, PIECE_MOST))
            sent.append(Bytes(n, 1, n, rng.randbytes(size)))
            leader.send(sent[-1])
        assert leader.full
        reading.resume_reading()
        assert [await hearing.came.get() for _ in sent] == sent
        calls.clear()
        leader.send(Bytes(41, 1, 0, bytes(20_000)))
        await hearing.came.get()
        leader.close()
        follower.close()
        server.close()

    monkeypatch.setattr(os, "writev", counted)
    asyncio.run(run())
    assert len(calls) == 1
    given, taken = calls[0]
    assert given == taken > 20_000


class OnABrokenDisk(Hearing):
    """A member whose copy cannot be written."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self.at = at

    def heard(self, link: Peer, message: Any) -> None:
        if self.at == "heard":
            raise OSError(errno.EFBIG, "File too large")

    def gathered(self, link: Peer) -> None:
        raise OSError(errno.EIO, "Input/output error")


@pytest.mark.parametrize("at", ["heard", "gathered"])
def test_a_disk_that_fails_is_not_taken_for_a_connection_that_ended(at: str) -> None:
    """Asyncio says nothing of an OSError there: the member would go on with a copy that lacks what it was given."""

    async def run() -> None:
        loop, member, known = asyncio.get_running_loop(), OnABrokenDisk(at), asyncio.Queue[Peer]()
        failed: asyncio.Future[object] = loop.create_future()
        loop.set_exception_handler(lambda _, context: failed.set_result(context.get("exception")))
        server = await loop.create_server(
            lambda: Peer(b"secret", Hearing(), known.put_nowait, lambda: None, calls=False), "127.0.0.1", 0
        )
        port = server.sockets[0].getsockname()[1]
        await loop.create_connection(
            lambda: Peer(b"secret", member, lambda _: None, lambda: None, calls=True), "127.0.0.1", port
        )
        leader = await known.get()
        leader.send(Bytes(1, 1, 0, b"of the log"))
        error = await asyncio.wait_for(failed, 30)
        assert isinstance(error, OSError)
        leader.close()
        server.close()

    asyncio.run(run())


def test_renewed_files_hold_from_the_next_handshake_on_and_bad_ones_do_not(tmp_path: Path) -> None:
    files = Files(tmp_path)
    tls = certificates.Files("cluster", files.certificate, files.key, files.ca)
    shown = Shown(tls)
    first = shown.current().context
    assert shown.current().context is first
    files.sign_server()
    second = shown.current().context
    assert second is not first
    Path(files.key).write_text("no key")
    assert shown.current().context is second
    Path(files.key).unlink()
    assert shown.current().context is second
    files.sign_server()
    assert shown.current().context not in {first, second}
