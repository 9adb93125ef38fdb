"""Ports for servers that are told theirs before they run, or have the same one again."""

from __future__ import annotations

import contextlib
import random
import socket

LOW, HIGH = 20_000, 32_000
"""Below those that the system gives to whoever calls or asks for any."""


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on, and that the system gives to nobody who calls: a follower's is bound late.

    A socket at another address of this machine keeps other tests from choosing the same, until this process ends.
    """
    found = list[int]()
    while len(found) < count:
        port = random.randrange(LOW, HIGH)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)), socket.socket() as token:
            token.bind(("127.0.0.2", port))
            # From here on nobody is in the way who binds all addresses and says that he may, as RabbitMQ's Erlang does.
            token.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            token.detach()
            found.append(port)
    return found
