"""`cluster`: servers that keep one log together; and what `penstock doctor` looks at in them.

What a person does to a live one is asked of its leader; what is to be done when nobody leads is done to the register.
Looked at are the register, how many are in sync, and of each other member whether it can be called from here by the
cluster's secret, its clock and its version.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from penstock.cli.checkup import LOOPBACK, REACH_S, Finding
from penstock.cli.output import (
    DEFAULT_URL,
    Told,
    Url,
    Yes,
    connect,
    counted,
    family,
    make_sure,
    note,
    served,
    telling,
    write_table,
)
from penstock.cli.serving import ConfigFile, read_settings
from penstock.errors import (
    InvalidArgument,
    PenstockError,
    PreconditionFailed,
    ProtocolError,
    SettingsError,
    Unavailable,
)
from penstock.log.disk import OsDisk
from penstock.records.kinds import FORMAT
from penstock.replication.register import TERM_LSNS, ClusterState, Member, Tenure, decode
from penstock.replication.terms import first_base
from penstock.server.cluster import folder
from penstock.server.cluster.registers import MANUAL, Register, changed, register_at, rival_of, state_of, told_to_lead
from penstock.server.cluster.speech import ask
from penstock.server.cluster.troubles import ADVICE, APART_S
from penstock.server.sockets.certificates import Files
from penstock.version import __version__

if TYPE_CHECKING:
    from penstock.client import Client
    from penstock.config.sections import ClusterSection
    from penstock.config.settings import Settings
    from penstock.server.cluster.folder import Known


def found(settings: Settings, *, lost: bool = False) -> ClusterState:
    """The first value of a register: a cluster of one member, of a data folder that may hold a log already.

    lost: the register of the folder's own cluster is lost, and a new one goes on from its log, under another name.
    PreconditionFailed when the register, or the folder, is of a cluster already; else as `Log.open`.
    """
    from penstock.log.log import Log
    from penstock.log.writer import LogSettings
    from penstock.server.app import make_folder
    from penstock.server.base.clock import SystemClock

    if settings.cluster is None:
        raise SettingsError("the settings have no [cluster]")
    make_folder(settings.server.data)
    register = register_at(settings.cluster.registry, settings.server.data, settings.cluster.lease)
    if register.read().version:
        raise PreconditionFailed(f"the register {settings.cluster.registry} is of a cluster already")
    disk = OsDisk(settings.server.data)
    log = Log.open(disk, SystemClock(), LogSettings())
    try:
        known = folder.read(disk)
        if (why := _why_not(settings, known, lost=lost)) is not None:
            raise PreconditionFailed(f"the folder {settings.server.data} {why}")
        origin, last, ceiling = log.origin, log.recovery.last_lsn, log.recovery.next_lsn + TERM_LSNS
    finally:
        log.close(clean=False)
    known = folder.opened(disk)
    term = known.highest_term  # of the cluster before: the next one is higher, as the archive's fence has to be
    address = settings.cluster.advertise or str(settings.cluster.listen)
    state = ClusterState(
        folder.new_cluster(), origin, term=term, ceiling=ceiling, in_sync=frozenset({known.member}), to=known.member,
        members={known.member: Member(settings.server.name, address, FORMAT, known.starts)},
        terms=(Tenure(term, last + 1, last),) if term else (),
    )  # fmt: skip
    if settings.cluster.registry == MANUAL:
        [(key, member)] = state.members.items()
        state = replace(state, base=first_base(ceiling - TERM_LSNS), numbers=1, members={key: member.numbered(1)})
    folder.write(disk, known._replace(cluster=state.cluster))
    outcome = register.swap(0, state.encode())
    if not isinstance(outcome, int):
        raise Unavailable(f"the register {settings.cluster.registry} did not take the cluster ({outcome})")
    return state


def _why_not(settings: Settings, known: Known | None, *, lost: bool) -> str | None:
    """Why the folder cannot be the first member's of a new register; None: it can."""
    before = "" if known is None else known.cluster
    if not lost:
        return f"is of cluster {before} already" if before else None
    if known is None or not before:
        return "is of no cluster: without --lost-register it begins one"
    if settings.cluster is not None and settings.cluster.registry == MANUAL:
        return 'has its own copy of the register, with registry = "manual"'
    return None if known.intact else "lacks some of what it had to copy: take one whose member was in sync"


READS = 5
SLOW_S = 0.25


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
        found = f"two: {rival.leader_name} leads term {rival.term}, of which this member has nothing"
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
    yield from _twice(state)
    for key, one in sorted(state.members.items()):
        if one.name != settings.server.name:
            yield _reached(section, one.name, one.address, leads=key == state.leader)


def _twice(state: ClusterState) -> Iterator[Finding]:
    """Members that cannot be told apart: by their name in commands, by their address for those that call them."""
    for what in ("name", "address"):
        ids = dict[str, list[str]]()
        for key, one in sorted(state.members.items()):
            ids.setdefault(getattr(one, what), []).append(key)
        for told, some in ids.items():
            if len(some) > 1:
                advice = (
                    "a member whose folder was emptied is another one: penstock cluster remove, with the id of the old"
                )
                yield Finding("members", "poor", f"{', '.join(some)} have the same {what}, {told}", advice)


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
        tls = None if section.tls is None else Files("cluster", *section.tls)
        there, ahead, within = ask(address, section.secret.get_secret_value().encode(), tls, REACH_S)
    except (OSError, ValueError) as error:
        return Finding(what, "poor", f"{told}: {error}", "it is down, or what lies between keeps us apart")
    except (ProtocolError, SettingsError) as error:
        return Finding(what, "bad", f"{told}: {error}", "secret and certificates of [cluster] must fit those of others")
    apart = max(0.0, abs(ahead) - within)
    found = f"{told}, can be reached; its clock is {abs(ahead):.3f} s {'ahead' if ahead > 0 else 'behind'}"
    if apart > APART_S:
        return Finding(what, "poor", found, ADVICE)
    if there.version != __version__:
        advice = "upgrade all members, one after the other, and then: penstock cluster finalize"
        return Finding(what, "poor", f"{found}; its version is {there.version}, and {__version__} here", advice)
    return Finding(what, "good", found)


app = family("cluster", "Servers that keep one log: who leads, who follows.")

Named = Annotated[str, typer.Argument(metavar="MEMBER", help="Its name or its id.")]
Maybe = Annotated[str | None, typer.Argument(metavar="MEMBER", help="Its name or its id; any that is level without.")]


def _register(config: str | None) -> tuple[Register, str]:
    """The register, and the data folder of the member with these settings."""
    settings = read_settings(config, {})
    if settings.cluster is None:
        raise SettingsError("the settings have no [cluster]")
    cluster, data = settings.cluster, settings.server.data
    return register_at(cluster.registry, data, cluster.lease), data


@telling(app, "init")
def init(
    config: ConfigFile = None,
    lost_register: Annotated[
        bool, typer.Option("--lost-register", help="Its cluster's register is lost: begin a new one with its log.")
    ] = False,
) -> Told:
    """Make a cluster of the server with these settings, whose data folder may hold a log already.

    It must not run.  The others join with empty data folders, as they are started.

    With --lost-register stop all members, and give the one whose log is the newest: penstock audit --members tells.

    Example: penstock cluster init penstock.toml
    """
    state = found(read_settings(config, {}), lost=lost_register)
    [member] = state.members
    return {"cluster": state.cluster, "origin": state.origin, "member": member}, f"cluster {state.cluster}"


@telling(app, "status")
def status(config: ConfigFile = None) -> Told:
    """Show what the register says: who leads, who is in sync.  Reads the register and asks no server.

    With registry = "manual" that is this member's copy, as of about a second ago, or as of when its server last ran.

    Example: penstock cluster status penstock.toml
    """
    register, data = _register(config)
    _, state = state_of(register)
    rival = rival_of(OsDisk(data), state) if state.manual else None
    facts = {**told(state), **({"rival": None if rival is None else told(rival)} if state.manual else {})}
    return facts, lambda _: _show(state, rival)


def _show(state: ClusterState, rival: ClusterState | None) -> None:
    rows = [
        (one.name, key, "leader" if key == state.leader else "", "yes" if key in state.in_sync else "no", one.address)
        for key, one in sorted(state.members.items())
    ]
    write_table(("name", "member", "role", "in sync", "address"), rows, title=f"{state.cluster}, term {state.term}")
    if rival is not None:
        note(
            f"TWO LEADERS: {rival.leader_name} leads term {rival.term}, of which this member knows nothing; neither "
            "leads on until `penstock cluster promote` with --lose has said which is set aside"
        )


def told(state: ClusterState) -> dict[str, Any]:
    """What a program is told of it."""
    return {
        "cluster": state.cluster, "origin": state.origin, "format": state.format, "term": state.term,
        "leader": state.leader, "in_sync": sorted(state.in_sync), "to": state.to, "beat": state.beat,
        "committed": state.committed,
        "members": {key: {"name": one.name, "address": one.address} for key, one in sorted(state.members.items())},
        "terms": [one._asdict() for one in state.terms],
    }  # fmt: skip


@served(app, "switchover")
def switchover(client: Client, member: Maybe = None) -> Told:
    """Hand the lead over.  Nothing is lost, and nothing comes twice but what was delivered and not settled.

    Example: penstock cluster switchover penstock-2
    """
    done = client.action("cluster_switchover", member=member)
    return done, f"{done['name']} takes over; the server that led ends with status 6, to be started again"


@served(app, "remove")
def remove(client: Client, member: Named, yes: Yes = False) -> Told:
    """Make a member none any more: its process ends, and its folder does not join again.

    Example: penstock cluster remove penstock-3 --yes
    """
    make_sure(f"the process of {member} ends, and its folder does not join again: remove it?", yes)
    done = client.action("cluster_remove", member=member)
    return done, f"{member} is removed; {counted(len(done['members']), 'member')} left"


@served(app, "finalize")
def finalize(client: Client) -> Told:
    """End an upgrade of all members: the log is written as the newest format has it that all of them can read.

    Until then every member can be started with the older version again.

    Example: penstock cluster finalize
    """
    done = client.action("cluster_finalize")
    return done, f"the log is of format {done['format']} from now on"


@telling(app, "promote")
def promote(
    member: Named,
    config: ConfigFile = None,
    lose: Annotated[
        int | None, typer.Option("--lose", help="Give up what it lacks of the records that were confirmed up to here.")
    ] = None,
) -> Told:
    """Have a member lead now, whoever leads.  It asks no server: the register is changed.

    One that is in sync has everything.  Any other takes over only if --lose names the LSN up to which records are known
    to have been confirmed; the refusal says which that is.  With registry = "manual" it is run beside the folder of the
    member that is to lead, which then leads alone until others are level with it.

    Example: penstock cluster promote penstock-2 penstock.toml
    """
    register, data = _register(config)
    after = changed(register, lambda state: told_to_lead(data, state, member, lose))
    return {"to": after.to, "in_sync": sorted(after.in_sync)}, f"{member} takes over as soon as it sees it"


@telling(app, "lost")
def lost(config: ConfigFile = None) -> Told:
    """List the records that were cut off this member's log since another leader's went on without them.

    They are kept as files in `cut/` of the data folder.  None of them was ever confirmed, unless a member was promoted
    with --lose.

    Example: penstock cluster lost penstock.toml
    """
    from penstock.log.mending import cut_files

    data = Path(read_settings(config, {}).server.data)
    found = [one._asdict() for one in cut_files(OsDisk(data))] if data.is_dir() else []
    names = ("file", "first", "last", "records", "messages")
    rows = [tuple(str(one[name]) for name in names) for one in found]
    return found, lambda _: write_table(("file in cut/", "first LSN", "last LSN", "records", "messages"), rows)


GIVE_UP_S = 60.0
PROBE_S = 0.02


@telling(app, "drill")
def drill(url: Url = DEFAULT_URL) -> Told:
    """Hand the lead over and back, and tell for how long no server answered each time.

    The URL names all servers, as clients name them: those that lead meanwhile are asked, too.

    Example: penstock cluster drill --url penstock://admin:secret@node-1,node-2,node-3:8815
    """
    client = connect(url)
    first = client.action("cluster_switchover")
    note(f"{first['name']} is to take over")
    there = _gap(url, first["term"])
    second = _asked_until(url, first["from"])
    note(f"{second['name']} is to take over again")
    back = _gap(url, second["term"])
    found = {"there": {**first, "seconds": there}, "back": {**second, "seconds": back}}
    return found, f"no server answered for {there:.2f} s as {first['name']} took over, and {back:.2f} s on the way back"


def _gap(url: str, term: int) -> float:
    """Seconds from the last answer of the leader of a term to the first of the one after it."""
    last, until = time.monotonic(), time.monotonic() + GIVE_UP_S
    client: Client | None = None
    while time.monotonic() < until:
        try:
            client = client or connect(url)
            now_of = client.overview()["cluster"]["term"]
        except (PenstockError, OSError):
            client = None
        else:
            now = time.monotonic()
            if now_of > term:
                client.close()
                return round(now - last, 3)
            last = now
        time.sleep(PROBE_S)
    raise Unavailable(f"no other server answered within {GIVE_UP_S:g} s")


def _asked_until(url: str, member: str) -> dict[str, Any]:
    """Hand over to one that has to catch up first."""
    until = time.monotonic() + GIVE_UP_S
    while True:
        try:
            with closing(connect(url)) as client:
                return client.action("cluster_switchover", member=member)
        except (PreconditionFailed, Unavailable):
            if time.monotonic() > until:
                raise
            time.sleep(10 * PROBE_S)
