"""Links to other sites, to whoever runs them: how they are, that one waits, that this site acts for one away."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from penstock.operations.operation import NAMED, QUEUE_PATH, Answer, Operation, Path
from penstock.records.rights import ADMINISTERS, MONITORS
from penstock.wire.fields import VHOST, flag, name

if TYPE_CHECKING:
    from penstock.operations.house import House
    from penstock.server.access import Who


def links(house: House, who: Who) -> Iterable[Mapping[str, object]]:
    """Those that lead away and those that come."""
    return house.sites.facts()


def pause(house: House, who: Who, link: str) -> Answer:
    """Tell that site nothing more; the log is kept for it meanwhile."""
    return house.sites.pause(link, paused=True)


def resume(house: House, who: Who, link: str) -> Answer:
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
    "link_pause", pause, "decide", "link: tell that site nothing more, until it is resumed", ADMINISTERS,
    (name("link"),), sdk="pause_link", cli="link pause",
    path=Path("POST", "/api/links/{link}/pause", {}, "Tell that site nothing more"),
)  # fmt: skip
RESUME_LINK = Operation(
    "link_resume", resume, "decide", "link: go on", ADMINISTERS, (name("link"),), sdk="resume_link", cli="link resume",
    path=Path("POST", "/api/links/{link}/resume", {}, "Tell that site what happened meanwhile"),
)  # fmt: skip
PROXY = Operation(
    "link_proxy", proxy, "decide", "queue, off: act for owners of its messages that are away, or no longer",
    ADMINISTERS, (name("queue"), VHOST, flag("off")), sdk="proxy_transfer", cli="link proxy",
    path=Path("POST", f"{QUEUE_PATH}/proxy", NAMED, "Act for owners of its messages that are away, or not", "off"),
)  # fmt: skip
