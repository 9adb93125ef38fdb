"""The address under which pipelines reach the server: on this machine its own, on a cluster one that executors reach.

Executors fetch rows from the server themselves, so 127.0.0.1 means their own machine to them.  `url` of `[spark]` says
the address; without it the one is taken that this machine has towards the master of the cluster.
"""

from __future__ import annotations

import re
import socket
from functools import lru_cache
from typing import Any

from penstock.errors import SettingsError
from penstock.spark.pipelines.definition import with_vhost

ANYWHERE = ("0.0.0.0", "::", "")
"""Hosts that mean all addresses of a machine."""

ANY_PORT = 9
"""Nothing is sent there: a datagram socket is only asked which address it would send from."""

SAY_IT = "name an address of this machine that executors reach in listen.flight, or the whole in url of [spark]"


def address_of(flight: str) -> str:
    """The URL of a server for who is on its machine.  `flight`: where it listens, host:port."""
    host, port = parted(flight)
    return url_of("127.0.0.1" if host in ANYWHERE else host, port)


def address_for(settings: Any, master: str, flight: str) -> str:
    """The URL of the server for a job with this master.

    SettingsError where the server listens on this machine alone and the cluster is elsewhere, and where nobody says
    which of the machine's addresses is the right one.
    """
    if settings.spark.url is not None:
        return with_vhost(settings.spark.url, "/")
    host, port = parted(flight)
    if master.startswith("local"):
        return address_of(flight)
    there = master_host(master)
    if host in ANYWHERE:
        if there is None:
            raise SettingsError(
                f"listen.flight is {flight}, and {master} does not say which address of this machine executors reach; "
                f"{SAY_IT}"
            )
        try:
            return url_of(own_address(there), port)
        except OSError as error:
            raise SettingsError(
                f"listen.flight is {flight}, and which address of this machine executors of {master} reach is not "
                f"known ({there}: {error}); {SAY_IT}"
            ) from None
    if is_loopback(host) and not (there is not None and is_here(there)):
        raise SettingsError(
            f"listen.flight is {flight}, where executors of {master} on other machines do not reach the server; "
            f"{SAY_IT}"
        )
    return url_of(host, port)


def parted(flight: str) -> tuple[str, str]:
    """Host and port of what a listener says."""
    host, _, port = flight.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), port


def url_of(host: str, port: str) -> str:
    """An address with the default vhost."""
    return with_vhost(f"penstock://{f'[{host}]' if ':' in host else host}:{port}", "/")


def master_host(master: str) -> str | None:
    """The machine that a master's URL names, the first where there are several; None where it names none."""
    found = re.match(r"(?:k8s://)?[a-z]+://(\[[0-9a-fA-F:]+\]|[^:/,\[\]]+)", master)
    return found[1].strip("[]") if found else None


def is_loopback(host: str) -> bool:
    """Whether an address means the machine of whoever uses it."""
    return host == "localhost" or host == "::1" or host.startswith("127.")


def is_here(host: str) -> bool:
    """Whether a machine's name is one of this machine's."""
    if is_loopback(host):
        return True
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in found:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
                return True
        except OSError:
            continue  # it is another machine's
    return False


@lru_cache(maxsize=16)
def own_address(host: str) -> str:
    """The address of this machine from which it reaches another; remembered, so that it stays the same.  OSError."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, ANY_PORT, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(probe.getsockname()[0])
