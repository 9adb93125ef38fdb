"""The server as a whole: who is connected, how it is, that it runs empty; who reads on and on; its cluster; its links.

Durable streams and Spark pipelines, as their drivers tell of them, read on and on.  Of a cluster is said who leads, who
is a member, and which format its log has; of links to other sites how they are, that one waits, that this site acts for
one that is away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, InvalidArgument, NotFound, PreconditionFailed, shown
from penstock.operations.operation import NAMED, QUEUE_PATH, Answer, Beside, House, Operation, Path
from penstock.records.rights import ADMINISTERS, ADMINISTRATOR, LOGIN, MONITORING, MONITORS, REPORTS, WATCHES
from penstock.wire.fields import VHOST, count, flag, name, table, text, texts

if TYPE_CHECKING:
    from penstock.replication.register import ClusterState
    from penstock.server.people.access import Who


REASON_MOST = 200


def connections(house: House, who: Who, user: str | None) -> Iterator[dict[str, object]]:
    """Of all vhosts, those of a user or of everybody; without a tag for more one's own."""
    mine = None if MONITORING.holds(who.tags) else who.user
    if mine is None or user in {None, mine}:
        yield from house.connections(user or mine)


async def close_connection(house: House, who: Who, connection: str | None, user: str | None, reason: str) -> Answer:
    """One, or all of a user, with code 320; those of others take the tag administrator."""
    if (connection is None) == (user is None):
        raise InvalidArgument(f"connection_close: connection is {shown(connection)}, not one of connection and user")
    whole = ADMINISTRATOR.holds(who.tags)
    if who.token and not whole:
        raise AccessRefused(f"a token closes connections with the tag {ADMINISTRATOR.name!r} alone")
    if user not in {None, who.user} and not whole:
        raise AccessRefused(
            f"user '{who.user}' closes his own connections; those of others take the tag {ADMINISTRATOR.name!r}"
        )
    found = house.connections(user if user is not None or whole else who.user)
    names = [str(one["name"]) for one in found if connection in {None, one["name"]}]
    if connection is not None and not names:
        raise NotFound(f"no connection '{connection}'")
    for one in names:
        house.close(one, reason)
    return {"closed": names}


def drain(house: House, who: Who, undo: bool, look: bool) -> Answer:
    """Take no new messages and consumers, and grant nothing; or go on, or only look.  The answer is what is left."""
    core = house.core
    if not look and core.draining == undo:
        core.drain(house.now(), not undo)
        house.unblock()
    leased = [queue.leased for queue in core.queues() if queue.leased]
    return {
        "draining": core.draining,
        "empty": core.draining and not leased,
        "leased": sum(leased),
        "queues": len(leased),  # that have leases
        "connections": house.open_connections,
    }


async def overview(house: House, who: Who) -> Answer:
    """Health, memory, log, and what went through; where the doors are for who may know."""
    addresses = {"addresses": house.addresses()} if MONITORING.holds(who.tags) else {}
    return {**(await house.overview(who)), **addresses}


_HERE = "RabbitMQ has no such path, and of ours the overview and the metrics say the same"

CONNECTIONS = Operation(
    "connections", connections, "list", "user: open AMQP connections of all vhosts, or those of a user", LOGIN,
    (text("user"),), key="connections", sdk="connections", cli="connection list",
)  # fmt: skip
CLOSE_CONNECTION = Operation(
    "connection_close", close_connection, "change",
    "connection or user, reason: close one, or all of a user, with code 320", LOGIN,
    (text("connection"), text("user"), text("reason", "closed by an operator", REASON_MOST)),
    sdk="close_connection", cli="connection close",
)  # fmt: skip
DRAIN = Operation(
    "drain", drain, "decide", "undo, look: take no new messages and consumers, and grant nothing; what is left",
    ADMINISTERS, (flag("undo"), flag("look")), sdk="drain", cli="drain", missing=_HERE,
)  # fmt: skip
OVERVIEW = Operation(
    "overview", overview, "sum", "health, connections, memory and log, and what went through", LOGIN,
    sdk="overview", cli="top", missing=_HERE,
)  # fmt: skip


PIPELINES_MOST = 1000


def streams(house: House, who: Who) -> Iterable[Mapping[str, object]]:
    """Every durable reader as facts: what it holds and has not read yet."""
    return house.streams()


def pipeline_report(
    house: Beside, who: Who, driver: str, host: str, pid: int, state: str, pipelines: Mapping[str, object]
) -> Answer:
    """A driver's word about its pipelines, which it gives every second."""
    house.pipelines.tell(driver, host, pid, state, pipelines)
    return {}


def pipeline_leave(house: Beside, who: Who, pipelines: Sequence[str] | None) -> Answer:
    """These are not listed any more."""
    house.pipelines.leave(pipelines or ())
    return {}


def pipeline_status(house: Beside, who: Who, pipeline: str | None) -> Answer:
    """The last word about one, or about all that the settings name or a driver has told of."""
    found = [one for one in house.pipelines.all() if pipeline in {None, one["pipeline"]}]
    if pipeline is not None and not found:
        raise NotFound(f"no pipeline {pipeline!r}: no settings name it, and no driver has told of it")
    return {"pipelines": found}


_OF_DRIVERS = "drivers alone ask for it"

STREAMS = Operation(
    "streams", streams, "list", "every durable reader, what it holds and what it has not read yet", WATCHES,
    key="streams", sdk="streams", cli="stream list",
)  # fmt: skip
PIPELINE_REPORT = Operation(
    "pipeline_report", pipeline_report, "read", "driver, host, pid, state, pipelines: how a driver's pipelines are",
    REPORTS, (name("driver"), text("host", ""), count("pid", default=0), text("state", ""), table("pipelines")),
    missing=_OF_DRIVERS,
)  # fmt: skip
PIPELINE_LEAVE = Operation(
    "pipeline_leave", pipeline_leave, "read", "pipelines: these have left the settings", REPORTS,
    (texts("pipelines", PIPELINES_MOST),), missing=_OF_DRIVERS,
)  # fmt: skip
PIPELINE_STATUS = Operation(
    "pipeline_status", pipeline_status, "read", "pipeline: how it is, or all of them", WATCHES, (text("pipeline"),),
    cli="pipeline status", missing="who programs asks for the action, or over HTTP",
)  # fmt: skip


def switchover(house: House, who: Who, member: str | None) -> Answer:
    """The doors close, all that was taken is copied, another leads, and this process ends to follow."""
    return house.cluster.switch(member)


async def remove(house: House, who: Who, member: str) -> Answer:
    """One that is not needed any more, or whose machine is gone.  Its process ends when it sees it."""
    after = await house.cluster.change(partial(removed, member=member))
    return {"members": sorted(after.members), "in_sync": sorted(after.in_sync)}


def removed(state: ClusterState, member: str) -> ClusterState:
    """The value without it.  NotFound, InvalidArgument for the leader."""
    return state.without_member(state.key_of(member))


async def finalize(house: House, who: Who) -> Answer:
    """After an upgrade of all members: from now on the log is written so that older versions cannot read it."""
    after = await house.cluster.change(finalized)
    return {"format": after.format}


def finalized(state: ClusterState) -> ClusterState:
    """The value with the newest format that all can read.  PreconditionFailed where that is the present one."""
    after = state.finalized()
    if after == state:
        reads = ", ".join(f"{one.name} reads {one.reads}" for _, one in sorted(state.members.items()))
        raise PreconditionFailed(f"the log is of format {state.format} already: {reads}")
    return after


_BY_HAND = "who runs a cluster asks by command or over HTTP"

SWITCHOVER = Operation(
    "cluster_switchover", switchover, "look", "member: hand the lead over, to this one or to any that is level",
    ADMINISTERS, (text("member"),), cli="cluster switchover", missing=_BY_HAND,
    path=Path("POST", "/api/cluster/switchover", {}, "Hand the lead over to a member that is level", "member"),
)  # fmt: skip
REMOVE = Operation(
    "cluster_remove", remove, "change", "member: it is none any more", ADMINISTERS, (name("member"),),
    cli="cluster remove", missing=_BY_HAND,
    path=Path("POST", "/api/cluster/remove", {}, "Remove a member that does not lead", "member"),
)  # fmt: skip
FINALIZE = Operation(
    "cluster_finalize", finalize, "change", "the newest format of the log that all members can read", ADMINISTERS,
    cli="cluster finalize", missing=_BY_HAND,
    path=Path("POST", "/api/cluster/finalize", {}, "End an upgrade: the newest format that all members can read"),
)  # fmt: skip


# -- links


def links(house: House, who: Who) -> Iterable[Mapping[str, object]]:
    """Those that lead away and those that come."""
    return house.sites.facts()


def pause_link(house: House, who: Who, link: str) -> Answer:
    """Tell that site nothing more; the log is kept for it meanwhile."""
    return house.sites.pause(link, paused=True)


def resume_link(house: House, who: Who, link: str) -> Answer:
    """Go on where that site says it is."""
    return house.sites.pause(link, paused=False)


def proxy(house: House, who: Who, queue: str, vhost: str, off: bool) -> Answer:
    """Act for owners of a queue's messages that are away: what consumers here want of theirs is this site's own.

    If such an owner is alive, and only cut off, both may deliver a message.
    """
    found = house.core.queue(vhost, queue)
    house.core.proxy(house.now(), found, not off, by=who.user)
    return {"queue": queue, "vhost": vhost, "proxied_transfer": not off}


LINKS = Operation(
    "links", links, "list", "links to other sites and from them: state, how far they are, what went over", MONITORS,
    key="links", sdk="links", cli="link status",
    path=Path("GET", "/api/links", {}, "Links to other sites and from them"),
)  # fmt: skip
PAUSE_LINK = Operation(
    "link_pause", pause_link, "decide", "link: tell that site nothing more, until it is resumed", ADMINISTERS,
    (name("link"),), sdk="pause_link", cli="link pause",
    path=Path("POST", "/api/links/{link}/pause", {}, "Tell that site nothing more"),
)  # fmt: skip
RESUME_LINK = Operation(
    "link_resume", resume_link, "decide", "link: go on", ADMINISTERS, (name("link"),), sdk="resume_link",
    cli="link resume", path=Path("POST", "/api/links/{link}/resume", {}, "Tell that site what happened meanwhile"),
)  # fmt: skip
PROXY = Operation(
    "link_proxy", proxy, "decide", "queue, off: act for owners of its messages that are away, or no longer",
    ADMINISTERS, (name("queue"), VHOST, flag("off")), sdk="proxy_transfer", cli="link proxy",
    path=Path("POST", f"{QUEUE_PATH}/proxy", NAMED, "Act for owners of its messages that are away, or not", "off"),
)  # fmt: skip
