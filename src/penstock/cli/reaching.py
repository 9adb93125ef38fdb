"""The address under which pipelines reach the server: on this machine its own, on a cluster one that executors reach.

Executors fetch rows from the server themselves, so 127.0.0.1 means their own machine to them.  `url` of `[spark]` says
the address; without it the one is taken that this machine has towards the master of the cluster.

Where Flight is spoken with TLS alone, processes of this machine trust the very certificate that the settings name: no
CA has to be given.  Other machines do not have the file, and a client's own certificate is nobody's to guess: both are
told by `url` of `[spark]`, or the environment.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.client.urls import with_trust
from penstock.errors import SettingsError
from penstock.spark.pipelines.definition import with_vhost

ANYWHERE = ("0.0.0.0", "::", "")
"""Hosts that mean all addresses of a machine."""

ANY_PORT = 9
"""Nothing is sent there: a datagram socket is only asked which address it would send from."""

SAY_IT = "name an address of this machine that executors reach in listen.flight, or the whole in url of [spark]"

NO_DOOR = "listen.flight and listen.flight_tls are off, and pipelines read and write through Flight"


class Door(NamedTuple):
    """Where a server speaks Flight: host:port, and whether with TLS."""

    listens: str
    tls: bool = False


def door_of(settings: Any, bound: Mapping[str, Any] | None = None) -> Door | None:
    """The one for processes of one's own, without TLS where there is one; None where Flight is off.

    bound: where the server that runs listens, by door; without it, as the settings say.
    """
    for name in ("flight", "flight_tls"):
        address = getattr(settings.listen, name)
        if address is not None:
            return Door(str((bound or {}).get(name) or address), name == "flight_tls")
    return None


def address_here(settings: Any, door: Door) -> str:
    """The URL of the server of these settings for who is on its machine.

    SettingsError where it asks for a client's certificate and nobody says which.
    """
    host, port = parted(door.listens)
    host = "127.0.0.1" if host in ANYWHERE else host
    if not door.tls:
        return url_of(host, port)
    if str(settings.spark.url or "").startswith("penstocks:"):
        return with_vhost(settings.spark.url, "/")
    tls = settings.tls
    if tls.verify == "peer" and tls.fail_if_no_peer_cert and not os.environ.get("PENSTOCK_TLS_CERT"):
        raise SettingsError(
            f"listen.flight_tls is {door.listens}, where each client shows a certificate: name one in url of [spark], "
            f"as in penstocks://{_named(tls, host)}:{port}?ca=ca.pem&cert=client.pem&key=client.key, or in "
            "PENSTOCK_TLS_CERT and PENSTOCK_TLS_KEY"
        )
    return with_trust(url_of(_named(tls, host), port, "penstocks"), ca=str(Path(tls.certificate).absolute()))


def _named(tls: Any, host: str) -> str:
    """The host as the certificate calls it: one that listens on 127.0.0.1 is often called localhost."""
    from penstock.server.tls.files import load  # heavy, and of no use without TLS

    names = load(tls).certificate.names
    others = (one for one in ("localhost", "127.0.0.1", "::1") if is_loopback(host) and one in names)
    return host if host in names else next(others, host)


def address_for(settings: Any, master: str, door: Door) -> str:
    """The URL of the server for a job with this master.

    SettingsError where the server listens on this machine alone and the cluster is elsewhere, and where nobody says
    which of the machine's addresses is the right one.
    """
    if settings.spark.url is not None:
        return with_vhost(settings.spark.url, "/")
    flight = door.listens
    host, port = parted(flight)
    if master.startswith("local"):
        return address_here(settings, door)
    there = master_host(master)
    if door.tls:
        if there is not None and is_here(there):
            return address_here(settings, door)
        raise SettingsError(
            f"Flight is spoken at listen.flight_tls alone, and executors of {master} cannot know whom to trust there: "
            f"say it in url of [spark], as in penstocks://server.example:{port}?ca=/etc/penstock/ca.pem, a file on "
            "each of their machines"
        )
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


def url_of(host: str, port: str, scheme: str = "penstock") -> str:
    """An address with the default vhost."""
    return with_vhost(f"{scheme}://{f'[{host}]' if ':' in host else host}:{port}", "/")


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
