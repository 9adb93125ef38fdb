"""How much is read from a connection at a time."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise
from typing import Any, cast

from penstock.server.amqp.links import FIRST, FREE, LEAST, LONG_US, MOST, SHORT_US, Appetite


def test_it_grows_while_full_reads_are_short() -> None:
    one = Appetite()
    sizes = [one.size]
    while one.took(one.size, SHORT_US - 1):
        sizes.append(one.size)
    assert sizes[0] == FIRST
    assert sizes[-1] == MOST
    assert all(b == 2 * a for a, b in pairwise(sizes))


def test_a_short_read_says_nothing_of_a_full_one() -> None:
    one = Appetite()
    assert not one.took(one.size - 1, 0)
    assert one.size == FIRST


def test_memory_is_mapped_anew_only_for_who_fills_it() -> None:
    one = Appetite()
    while one.took(one.size, 0):
        pass
    assert one.size == MOST > FREE
    assert one.took(FREE - 1, 0)
    assert one.size == FREE
    assert not one.took(100, 0)
    assert one.took(FREE, 0)
    assert one.size == MOST


def test_long_turns_halve_what_was_read() -> None:
    one = Appetite()
    while one.took(one.size, 0):
        pass
    assert one.took(20_000, LONG_US + 1)
    assert one.size == 10_000
    while one.took(one.size, LONG_US + 1):
        pass
    assert one.size == LEAST


def test_in_between_it_stays() -> None:
    one = Appetite()
    for micros in (SHORT_US, LONG_US):
        assert not one.took(one.size, micros)


async def test_asyncio_reads_as_much_as_it_is_told() -> None:
    """`max_size` is not in asyncio's documentation: this fails should it ever be called otherwise."""
    ours, theirs = socket.socketpair()
    came = list[int]()
    done = asyncio.get_running_loop().create_future()

    class Link(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            cast("Any", transport).max_size = 1000

        def data_received(self, data: bytes) -> None:
            came.append(len(data))
            if sum(came) == 5000 and not done.done():
                done.set_result(None)

    ours.setblocking(False)
    theirs.sendall(bytes(5000))
    transport, _ = await asyncio.get_running_loop().create_connection(Link, sock=ours)
    await done
    transport.close()
    theirs.close()
    assert came == [1000] * 5
