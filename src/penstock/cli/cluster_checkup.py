"""What `penstock doctor` looks at in a cluster of servers: the register, the other members, how many there are."""

from __future__ import annotations

import socket
import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cli.checkup import Finding
from penstock.errors import InvalidArgument, Unavailable

if TYPE_CHECKING:
    from penstock.config.cluster_section import ClusterSection
    from penstock.config.settings import Settings
    from penstock.replication.register import ClusterState

READS = 5
SLOW_S = 0.25
REACH_S = 2.0
LOOPBACK = ("127.", "localhost", "[::1]", "0.0.0.0", "[::]")


def examine_cluster(settings: Settings) -> Iterator[Finding]:
    """Nothing for a server that is in none."""
    section = settings.cluster
    if section is None:
        return
    from penstock.replication.register import decode
    from penstock.server.cluster.registers import register_at

    register, took, value = register_at(section.registry), list[float](), b""
    for _ in range(READS):
        began = time.perf_counter()
        try:
            value = register.read().value
        except Unavailable as error:
            yield Finding("register", "bad", f"{section.registry}: {error}", "without it nobody is elected: start it")
            return
        took.append(time.perf_counter() - began)
    median = sorted(took)[READS // 2]
    found = f"{section.registry} answers in {median * 1000:.1f} ms"
    slow = "a slow register makes takeovers late: put it near, on disks of its own" if median > SLOW_S else ""
    yield Finding("register", "poor" if slow else "good", found, slow)
    if not value:
        advice = "`penstock cluster init` with the settings of one member makes it"
        yield Finding("cluster", "bad", "there is none in the register", advice)
        return
    try:
        state = decode(value)
    except InvalidArgument as error:
        yield Finding("cluster", "bad", str(error), "something else is kept there: give another place")
        return
    yield from _members(settings, section, state)


def _members(settings: Settings, section: ClusterSection, state: ClusterState) -> Iterator[Finding]:
    count, least = len(state.members), section.min_in_sync
    found = f"{count} members, {len(state.in_sync)} in sync, min_in_sync {least}"
    if count < least:
        yield Finding("cluster", "bad", found, "nothing can be confirmed: start more members, or lower min_in_sync")
    elif len(state.in_sync) < least:
        yield Finding("cluster", "bad", found, "nothing is confirmed until more members are in sync")
    elif count == least:
        yield Finding("cluster", "poor", found, "with one member down nothing is confirmed: have one more")
    elif least == 1:
        yield Finding("cluster", "poor", found, "what one disk alone has may be lost with it")
    else:
        yield Finding("cluster", "good", found)
    hosts = Counter(one.address.rpartition(":")[0] for one in state.members.values())
    shared = [host for host, many in hosts.items() if many > 1]
    if shared:
        advice = "they are lost together with that machine"
        yield Finding("machines", "poor", f"several members are at {', '.join(shared)}", advice)
    mine = section.advertise or str(section.listen)
    if count > 1 and mine.startswith(LOOPBACK) and not all(host.startswith(LOOPBACK) for host in hosts):
        yield Finding("advertise", "bad", mine, "the others cannot reach that: set cluster.advertise")
    for key, one in sorted(state.members.items()):
        if one.name != settings.server.name:
            yield _reached(one.name, one.address, leads=key == state.leader)


def _reached(name: str, address: str, *, leads: bool) -> Finding:
    """Whether a member's stream can be called from here."""
    what, (host, _, port) = f"member {name}", address.rpartition(":")
    told = f"{address}{', which leads' if leads else ''}"
    try:
        socket.create_connection((host.strip("[]"), int(port)), REACH_S).close()
    except (OSError, ValueError) as error:
        return Finding(what, "poor", f"{told}: {error}", "it is down, or what lies between keeps us apart")
    return Finding(what, "good", f"{told}, can be reached")
