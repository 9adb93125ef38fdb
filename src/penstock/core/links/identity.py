"""Which queues of two sites are one queue, who owns its messages first, and whether both sides describe it alike.

A site is one server, or one cluster: what has a log of its own, and so an origin.  Sites know each other by name; here
each that was met has a small number by which records and columns name it, and 0 is this site.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from penstock.records.queue_settings import QueueSettings


class Site(NamedTuple):
    """One server or cluster.  origin: the number of its log."""

    name: str
    origin: int
    group: str = ""


class Identity(NamedTuple):
    """What has to be equal for two queues of two sites to be one.

    within    what beside the name tells it from others: nothing of a distributed queue, a domain or group of a
              group-local one, the site of a local one
    """

    vhost: str
    name: str
    kind: str
    within: str


def identity_of(vhost: str, name: str, settings: QueueSettings, here: Site) -> Identity:
    """What a queue of this site is known as by others."""
    return identity(vhost, name, settings.kind, settings.group_local_queue_domain, here)


def identity(vhost: str, name: str, kind: str, domain: str | None, here: Site) -> Identity:
    """The same by what of the settings says so."""
    within = {"distributed": "", "group-local": domain or here.group, "local": here.name}[kind]
    return Identity(vhost, name, kind, within)


def first_owner(settings: QueueSettings, published_at: str) -> str | None:
    """The site that may lease a message before anybody has asked for it; None: each site its own copy."""
    if settings.kind == "local":
        return None
    if settings.kind == "group-local":
        return settings.initial_owner
    return published_at


class Offer(NamedTuple):
    """What one side says of a queue when a link comes up.

    topic     (exchange, key) that it shows messages of
    logged    whether the topic's messages are kept
    sends     whether it has a link to the other side that carries the topic
    barriers  the expression that says which messages are barriers
    """

    identity: Identity
    topic: tuple[str, str]
    filter: str | None
    initial_owner: str | None
    logged: bool = True
    sends: bool = True
    barriers: str | None = None


def disagreements(ours: Offer, theirs: Offer) -> Iterator[str]:
    """Why two queues with one identity cannot be one queue, a line each; without any they can."""
    name = f"queue '{ours.identity.name}' in vhost '{ours.identity.vhost}'"
    if ours.identity.kind == "local":
        yield f"{name} is local: each site has its own, and its name is no topic of a link"
        return
    for what, mine, other in (
        ("underlying topic", "/".join(ours.topic), "/".join(theirs.topic)),
        ("filter", ours.filter, theirs.filter),
        ("initial_owner", ours.initial_owner, theirs.initial_owner),
        ("barrier_expression", ours.barriers, theirs.barriers),
    ):
        if mine != other:
            yield f"{name}: its {what} is {mine!r} here and {other!r} there"
    for where, offer in (("here", ours), ("there", theirs)):
        if not offer.logged:
            yield f"{name}: its topic is not kept in the log {where}"
        if not offer.sends:
            yield f"{name}: no link carries its topic from {where} to the other side"


HERE = 0


class Peers:
    """Sites by number and by name."""

    __slots__ = ("_numbers", "sites")

    def __init__(self) -> None:
        self.sites: dict[int, Site] = {}
        self._numbers: dict[str, int] = {}

    def load(self, sites: Mapping[int, Site]) -> None:
        """Those that a durable state has."""
        for number, site in sites.items():
            self.put(number, site)

    def put(self, number: int, site: Site) -> None:
        """There is this site, or it is called otherwise now."""
        if (before := self.sites.get(number)) is not None:
            del self._numbers[before.name]
        self.sites[number] = site
        self._numbers[site.name] = number

    @property
    def here(self) -> str:
        """This site's name; empty until it is told."""
        site = self.sites.get(HERE)
        return "" if site is None else site.name

    def next(self) -> int:
        """The number of the next site that is met."""
        return max(self.sites, default=HERE) + 1

    def number(self, name: str) -> int | None:
        """By which a site is known; None: nobody has met it."""
        return self._numbers.get(name)

    def name(self, number: int) -> str:
        """Of the site with this number."""
        site = self.sites.get(number)
        return "" if site is None else site.name
