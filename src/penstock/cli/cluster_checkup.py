"""What `penstock doctor` looks at in a cluster of servers: the register, how many are in sync, and of each other member
whether it can be called from here by the cluster's secret, its clock and its version.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from penstock.cli.checkup import LOOPBACK, REACH_S, Finding
from penstock.errors import InvalidArgument, ProtocolError, SettingsError, Unavailable
from penstock.log.disk import OsDisk
from penstock.replication.register import decode
from penstock.server.cluster.changing import rival_of
from penstock.server.cluster.registers import MANUAL, register_at
from penstock.server.cluster.speech import Tls, ask
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.config.sections import ClusterSection
    from penstock.config.settings import Settings
    from penstock.replication.register import ClusterState

READS = 5
SLOW_S = 0.25
CLOCKS_APART_S = 1.0


def examine_cluster(settings: Settings) -> Iterator[Finding]:
    """Nothing for a server that is in none."""
    section = settings.cluster
    if section is None:
        return
    register = register_at(section.registry, settings.server.data, section.lease)
    took, value = list[float](), b""
    for _ in range(READS):
        began = time.perf_counter()
        try:
            value = register.read().value
        except Unavailable as error:
            yield Finding("register", "bad", f"{section.registry}: {error}", "without it nobody is elected: start it")
            return
        took.append(time.perf_counter() - began)
    median = sorted(took)[READS // 2]
    what = "this member's copy" if section.registry == MANUAL else section.registry
    found = f"{what} answers in {median * 1000:.1f} ms"
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
    if state.manual and (rival := rival_of(OsDisk(settings.server.data), state)) is not None:
        leader = "nobody" if rival.leader is None else rival.members[rival.leader].name
        found = f"two: {leader} leads term {rival.term}, of which this member has nothing"
        yield Finding("leaders", "bad", found, "`penstock cluster promote` with --lose sets one of them aside")
    yield from _members(settings, section, state)


def _members(settings: Settings, section: ClusterSection, state: ClusterState) -> Iterator[Finding]:
    yield _enough(len(state.members), len(state.in_sync), section.min_in_sync)
    hosts = Counter(one.address.rpartition(":")[0] for one in state.members.values())
    shared = [host for host, many in hosts.items() if many > 1]
    if shared:
        advice = "they are lost together with that machine"
        yield Finding("machines", "poor", f"several members are at {', '.join(shared)}", advice)
    mine = section.advertise or str(section.listen)
    if len(state.members) > 1 and mine.startswith(LOOPBACK) and not all(host.startswith(LOOPBACK) for host in hosts):
        yield Finding("advertise", "bad", mine, "the others cannot reach that: set cluster.advertise")
    for key, one in sorted(state.members.items()):
        if one.name != settings.server.name:
            yield _reached(section, one.name, one.address, leads=key == state.leader)


def _enough(members: int, in_sync: int, least: int) -> Finding:
    """Whether there are members enough for confirms, and to lose one."""
    found = f"{members} members, {in_sync} in sync, min_in_sync {least}"
    if members < least:
        return Finding("cluster", "bad", found, "nothing can be confirmed: start more members, or lower min_in_sync")
    if in_sync < least:
        return Finding("cluster", "bad", found, "nothing is confirmed until more members are in sync")
    if members == least:
        return Finding("cluster", "poor", found, "with one member down nothing is confirmed: have one more")
    if least == 1:
        return Finding("cluster", "poor", found, "what one disk alone has may be lost with it")
    return Finding("cluster", "good", found)


def _reached(section: ClusterSection, name: str, address: str, *, leads: bool) -> Finding:
    """Whether a member's stream can be called from here with the cluster's secret, and what its clock says."""
    what, told = f"member {name}", f"{address}{', which leads' if leads else ''}"
    try:
        tls = None if section.tls is None else Tls(*section.tls)
        there, ahead, within = ask(address, section.secret.get_secret_value().encode(), tls, REACH_S)
    except (OSError, ValueError) as error:
        return Finding(what, "poor", f"{told}: {error}", "it is down, or what lies between keeps us apart")
    except (ProtocolError, SettingsError) as error:
        return Finding(what, "bad", f"{told}: {error}", "secret and certificates of [cluster] must fit those of others")
    apart = max(0.0, abs(ahead) - within)
    found = f"{told}, can be reached; its clock is {abs(ahead):.3f} s {'ahead' if ahead > 0 else 'behind'}"
    if apart > CLOCKS_APART_S:
        advice = "delays, expirations and schedules go by the clock of whoever leads: keep clocks together, as by NTP"
        return Finding(what, "poor", found, advice)
    if there.version != __version__:
        advice = "upgrade all members, one after the other, and then: penstock cluster finalize"
        return Finding(what, "poor", f"{found}; its version is {there.version}, and {__version__} here", advice)
    return Finding(what, "good", found)
