"""What a driver of pipelines is given: which pipelines go together, the job that says so, and where their server is.

Pipelines with one master, one size of heap and the same settings of Spark's core share a process; another one of these
needs a process of its own.  A pipeline that is in no job any more may leave streams that hold something (`orphans`).

Executors fetch rows from the server themselves, so 127.0.0.1 means their own machine to them.  `url` of `[spark]` says
the address; without it the one is taken that this machine has towards the master of the cluster.  Where Flight is
spoken with TLS alone, processes of this machine trust the very certificate that the settings name.  Other machines do
not have the file, and a client's own certificate is nobody's to guess: both are told by `url` of `[spark]`, or the
environment.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from penstock.cli.output import counted
from penstock.client.urls import split_address, with_trust
from penstock.errors import SettingsError, told_as
from penstock.spark.pipelines.definition import with_vhost
from penstock.units import format_address, format_size, parted_address

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
    host, port = parted_address(door.listens)
    host = "127.0.0.1" if host in ANYWHERE else host
    if not door.tls:
        return url_of(host, port)
    if str(settings.spark.url or "").startswith("penstocks:"):
        return with_vhost(settings.spark.url, "/")
    tls = settings.tls
    if tls.verify == "peer" and tls.fail_if_no_peer_cert and not os.environ.get("PENSTOCK_TLS_CERT"):
        there = format_address(_named(tls, host), port)
        raise SettingsError(
            f"listen.flight_tls is {door.listens}, where each client shows a certificate: name one in url of [spark], "
            f"as in penstocks://{there}?ca=ca.pem&cert=client.pem&key=client.key, or in "
            "PENSTOCK_TLS_CERT and PENSTOCK_TLS_KEY"
        )
    return with_trust(url_of(_named(tls, host), port, "penstocks"), ca=str(Path(tls.certificate).absolute()))


def _named(tls: Any, host: str) -> str:
    """The host as the certificate calls it: one that listens on 127.0.0.1 is often called localhost."""
    from penstock.server.sockets.tls import load  # heavy, and of no use without TLS

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
    host, port = parted_address(flight)
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


def url_of(host: str, port: str, scheme: str = "penstock") -> str:
    """An address with the default vhost."""
    return with_vhost(f"{scheme}://{format_address(host, port)}", "/")


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


SHARED = "driver"
"""The name of the driver of pipelines that ask for nothing of their own."""

SILENT_S = 3600.0
"""After so long without a word a run by hand was killed."""

_OF_A_RUN = re.compile(r"(?:driver|status|scratch)-run-(\d+)(?:\.(?:json|log|part))?")

QUIET_LOG = {"spark.log.level": "INFO"}
"""What `--spark-log` asks of Spark."""


def groups(settings: Any) -> dict[str, list[Any]]:
    """Pipelines, and views that Spark computes, by the name of the driver that runs them."""
    found: dict[str, list[Any]] = {}
    for one in settings.pipeline:
        found.setdefault(driver_of(one, settings), []).append(one)
    if views := [one for one in settings.view if one.engine == "spark"]:
        found.setdefault(SHARED, []).extend(views)
    return found


def driver_of(pipeline: Any, settings: Any) -> str:
    """The name of its driver: `driver`, or one that its own resources make."""
    own = resources(pipeline, settings)
    if own == resources(None, settings):
        return SHARED
    return hashlib.sha256(json.dumps(own, sort_keys=True).encode()).hexdigest()[:8]


def resources(pipeline: Any, settings: Any) -> dict[str, Any]:
    """What belongs to a process: master, heap, and settings of Spark that are none of SQL."""
    spark = settings.spark
    conf = dict(spark.conf)
    if pipeline is not None:
        conf |= {name: value for name, value in pipeline.conf.items() if not name.startswith("spark.sql.")}
    memory = (pipeline.memory if pipeline is not None else None) or spark.memory
    return {
        "master": (pipeline.master if pipeline is not None else None) or spark.master,
        "memory": f"{max(256, memory >> 20)}m",
        "conf": conf,
    }


def folder_of(settings: Any) -> Path:
    """Where checkpoints and everything about pipelines lie."""
    if settings.spark.checkpoints:
        return Path(settings.spark.checkpoints).absolute()
    return Path(settings.server.data).absolute() / "spark"


def job(
    settings: Any, pipelines: Sequence[Any], name: str, url: str, *, path: Sequence[str] = (), spark_log: bool = False
) -> dict[str, Any]:
    """The job of a driver; `path`: folders where the users' own modules are."""
    user, password = login(settings)
    own = resources(_own(pipelines), settings)
    return {
        "name": name,
        "url": url,
        "user": user,
        "password": password,
        "folder": str(folder_of(settings)),
        **own,
        "conf": {**own["conf"], **(QUIET_LOG if spark_log else {})},
        "path": list(path),
        "openlineage": settings.spark.openlineage,
        "pipelines": [one.model_dump(mode="json", by_alias=True) for one in pipelines],
    }


def sweep(folder: Path, now: float) -> list[Path]:
    """Remove what runs that were killed have left: logs, statuses, and Spark's scratch files.

    now: seconds since the epoch.  A run tells how it is every second, so one that was silent for long is none any
    more, on whichever machine it was.
    """
    left: dict[str, list[Path]] = {}
    for path in folder.iterdir() if folder.is_dir() else ():
        if match := _OF_A_RUN.fullmatch(path.name):
            left.setdefault(match[1], []).append(path)
    removed: list[Path] = []
    for number, paths in left.items():
        heard = max((path.lstat().st_mtime for path in paths if path.is_file()), default=0.0)
        if now - heard < SILENT_S or Path(f"/proc/{number}").exists():
            continue
        for path in paths:
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
            removed.append(path)
    return sorted(removed)


def url_for(settings: Any, pipelines: Sequence[Any], door: Door) -> str:
    """Where the driver and the executors of these pipelines find the server that has this door.

    SettingsError where executors would not find it, or their user would not be let in from other machines.
    """
    master = resources(_own(pipelines), settings)["master"]
    url = address_for(settings, master, door)
    user = settings.users[0]
    if user.loopback_only and not master.startswith("local") and not is_loopback(str(split_address(url).hostname)):
        raise SettingsError(
            f"pipelines log in as the first user, {user.name}, who is refused from other machines, and executors of "
            f"{master} come from there: make a [[user]] of your own the first"
        )
    return url


def _own(pipelines: Sequence[Any]) -> Any:
    """The pipeline that says what its driver is like: all of one driver say the same, and views say nothing."""
    return next((one for one in pipelines if hasattr(one, "master")), None)


def login(settings: Any) -> tuple[str, str]:
    """The first user of the settings: pipelines act as they."""
    user = settings.users[0]
    if user.password is None and user.password_file is None:
        raise SettingsError(
            f"pipelines log in as the first user, {user.name}, who has only a hash: give a password or password_file"
        )
    from penstock.server.people.users import password_of

    with told_as(SettingsError, f"[[user]] {user.name}: ", instead=SettingsError):
        return str(user.name), password_of(user)


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
