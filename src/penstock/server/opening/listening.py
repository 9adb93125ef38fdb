"""Sockets that listen before their door is ready: the kernel takes connections, and what clients send waits there.

A client that connects while the server recovers is answered as soon as the door stands behind the socket; it needs no
code for that, only the patience it has for any handshake.
"""

from __future__ import annotations

import os
import socket

BACKLOG = 512
"""Connections that may wait for `accept`; the system may allow fewer (`net.core.somaxconn`)."""


def bind(host: str, port: int) -> list[socket.socket]:
    """A listening socket for each address of the host; OSError when one of them is taken or not ours."""
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    sockets = list[socket.socket]()
    try:
        for family, kind, protocol, _, address in dict.fromkeys(found):
            sock = socket.socket(family, kind, protocol)
            sockets.append(sock)
            if os.name == "posix":
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            sock.bind(address)
            sock.listen(BACKLOG)
            sock.setblocking(False)
    except BaseException:
        for sock in sockets:
            sock.close()
        raise
    return sockets
