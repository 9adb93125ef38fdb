"""Which queues of two sites are one queue, and which of its own this site has together with others.

What makes them one, who owns its messages first, and whether both sides describe it alike, is a rule; which queues are
shared is what both sides have said while their links were up.

A site is one server, or one cluster: what has a log of its own, and so an origin.  Sites know each other by name; here
each that was met has a small number by which records and columns name it, and 0 is this site.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from penstock.records.chunks import LSN_LIMIT
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


Heard: TypeAlias = "tuple[tuple[int, int], ...]"
"""Origins, and LSNs there."""


class Offer(NamedTuple):
    """What one side says of a queue when a link comes up.

    topic     (exchange, key) that it shows messages of
    logged    whether the topic's messages are kept
    sends     whether it has a link to the other side that carries the topic
    barriers  the expression that says which messages are barriers
    back      LSN there from which on it has looked for what was published before it; None: it does not say
    heard     by origin: what that one calls so, and what comes behind it, came when the queue was there, all of an
              origin that is not named; None: it does not say
    leads     whether it is the `initial_owner`, or has a link to that one; an older site does not say otherwise
    """

    identity: Identity
    topic: tuple[str, str]
    filter: str | None
    initial_owner: str | None
    logged: bool = True
    sends: bool = True
    barriers: str | None = None
    back: int | None = None
    heard: Heard | None = None
    leads: bool = True


def heard_of(heard: Heard | None, origin: int) -> int:
    """From which LSN there on messages of an origin came when the queue was there; `LSN_LIMIT`: that is not known."""
    return LSN_LIMIT if heard is None else dict(heard).get(origin, 0)


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

    __slots__ = ("_numbers", "here", "sites")

    def __init__(self) -> None:
        self.here = ""  # this site's name; empty until it is told
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
        if number == HERE:
            self.here = site.name

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


HEARD_MOST = 10_000
"""Origins of which an offer says how far they were heard."""

OFFERED_MOST = 10_000
"""Queues of one site of which it is remembered what it said.  Of more nobody would know whether they are shared, so a
link that carries more is refused."""


class Agreed(NamedTuple):
    """A queue that another site has, too.

    since     LSN there of its declare
    faults    why it cannot be one queue all the same: then nothing is transferred
    takes     LSN there from which on it takes messages: what is older it never had
    heard     as its offer says it
    """

    since: int
    faults: tuple[str, ...] = ()
    takes: int = 0
    heard: Heard | None = None


class Ended(NamedTuple):
    """A queue that a site had, too: LSNs there, of its declare and of its end.

    owner    its `initial_owner`; empty: it had none
    topic    what it showed; empty: an older site says so
    """

    since: int
    until: int
    owner: str = ""
    topic: tuple[str, str] = ("", "")


class Lacking(NamedTuple):
    """A queue that others have and this site has not; topic: (exchange, key) that it shows messages of."""

    identity: Identity
    topic: tuple[str, str]


ENDED_MOST = 1_000
"""Queues that a site has had and of which it is remembered, the youngest of them: as many as it remembers itself."""


class Sharing:
    """By queue and site.  Nothing of it lasts: it is said as a link comes up, and what changes before what follows."""

    __slots__ = ("_ends", "changes", "left_out", "offered", "queues")

    def __init__(self) -> None:
        self.changes = 0  # grows with each of what is agreed on
        self.left_out = Counter[str]()  # by site: queues that are too many to be remembered
        self.queues: dict[int, dict[str, Agreed]] = {}  # shared with somebody, by id: with which sites, and how
        self._ends: dict[str, dict[Identity, list[Ended]]] = {}  # by site: what went there before the present one
        self.offered: dict[str, dict[tuple[str, str], tuple[Offer, int]]] = {}  # by site, of each queue there

    def hear(
        self, site: str, offers: Iterable[tuple[Offer, int]], ended: Iterable[tuple[Identity, Ended]], *, more: bool
    ) -> None:
        """What a site has said of its queues, all of them or some more, LSNs where they begin; and of some that ended.

        What it published while it had those is shared all the same.
        """
        self.changes += 1
        known = self.offered.setdefault(site, {})
        if not more:
            known.clear()
            self.left_out[site] = 0
        for one, since in offers:
            name = one.identity.vhost, one.identity.name
            if name in known or len(known) < OFFERED_MOST:
                known[name] = one, since
            else:
                self.left_out[site] += 1
        ends = {(end.until, end, one) for one, some in self._ends.get(site, {}).items() for end in some}
        for gone, end in ended:
            name = gone.vhost, gone.name
            if name in known and known[name][1] == end.since:
                del known[name]
            ends.add((end.until, end, gone))
        self._ends[site] = {}
        for _, end, gone in sorted(ends)[-ENDED_MOST:]:
            self._ends[site].setdefault(gone, []).append(end)

    def say(self, site: str, queues: Mapping[int, Agreed], *, more: bool = False, gone: int = 0) -> None:
        """With this site these queues are shared, and no others.  more: others, too, as they were; but not `gone`."""
        for number in {gone, *queues} if more else {*self.queues, *queues}:
            if number in queues:
                self.queues.setdefault(number, {})[site] = queues[number]
                self.changes += 1
            elif self.queues.get(number, {}).pop(site, None) is not None:
                self.changes += 1
                if not self.queues[number]:
                    del self.queues[number]

    def with_site(self, queue: int, site: str) -> Agreed | None:
        """What is agreed of a queue with a site; None: it is not shared with it."""
        return self.queues.get(queue, {}).get(site)

    def had(self, queue: int, identity: Identity, site: str, lsn: int) -> bool:
        """Whether a queue, which is known as this, was shared with a site at an LSN there."""
        now = self.with_site(queue, site)
        return (now is not None and now.takes <= lsn) or self._ended_behind(site, identity, lsn)

    def took(self, site: str, identity: Identity, lsn: int) -> bool:
        """Whether a queue that is known as this took messages of a site at an LSN there, as that one has said."""
        offer, since = self.offered.get(site, {}).get((identity.vhost, identity.name), (NO_QUEUE, 0))
        return (offer.identity == identity and since <= lsn) or self._ended_behind(site, identity, lsn)

    def _ended_behind(self, site: str, identity: Identity, lsn: int) -> bool:
        """Whether one that a site has no more was there at this LSN."""
        return any(one.since <= lsn < one.until for one in self._ends.get(site, {}).get(identity, ()))

    def first_owned_by(self, site: str) -> Iterator[Lacking]:
        """Queues that others have, or had, of which this site is the `initial_owner`; some more than once."""
        for some in self.offered.values():
            yield from (Lacking(one.identity, one.topic) for one, _ in some.values() if one.initial_owner == site)
        for gone in self._ends.values():
            for one, ends in gone.items():
                yield from (Lacking(one, end.topic) for end in ends if end.owner == site)

    def topics(self, vhost: str, queue: str) -> set[tuple[str, str]]:
        """What queues of this name that other sites have, or had, show; empty: nobody has told of one."""
        found = {known[vhost, queue][0].topic for known in self.offered.values() if (vhost, queue) in known}
        ended = (some for gone in self._ends.values() for one, some in gone.items() if one[:2] == (vhost, queue))
        return found | {end.topic for some in ended for end in some}

    def bounds(self, site: str) -> list[int]:
        """LSNs of a site at which queues began or ended there that this one may have, too."""
        begins = [now.takes for number in self.queues if (now := self.with_site(number, site)) is not None]
        ends = [at for some in self._ends.get(site, {}).values() for one in some for at in (one.since, one.until)]
        return sorted({*begins, *ends})

    def forget(self, queue: int) -> None:
        """A queue is gone, and with it what sites agreed on."""
        self.changes += self.queues.pop(queue, None) is not None


def dump_offer(offer: Offer, since: int) -> dict[str, object]:
    """An offer as a JSON object; `since` is the LSN of the queue's declare."""
    heard = None if offer.heard is None else [list(one) for one in offer.heard]
    lists: dict[str, object] = {"identity": list(offer.identity), "topic": list(offer.topic), "heard": heard}
    return {**offer._asdict(), **lists, "since": since}


NO_QUEUE = Offer(Identity("", "", "", ""), ("", ""), None, None, sends=False)
"""What is beside the offers says this, which a site that does not know that takes for an offer of a queue."""

ENDS_EACH = 100
"""Queues that are gone of which one object says so."""


def dump_ends(ended: Sequence[tuple[Identity, Ended]]) -> list[dict[str, object]]:
    """What is said of queues that are gone, as JSON objects, to stand among offers."""
    said = [_plain(one, end) for one, end in ended]
    return [dump_offer(NO_QUEUE, 0) | {"ends": said[at : at + ENDS_EACH]} for at in range(0, len(said), ENDS_EACH)]


def _plain(one: Identity, end: Ended) -> dict[str, object]:
    first = {"initial_owner": end.owner} if end.owner else {}
    return {"identity": list(one), "since": end.since, "until": end.until, "topic": list(end.topic), **first}


def says_end(table: object) -> bool:
    """Whether it says of queues that they are gone; some sites say so of each by itself."""
    return isinstance(table, Mapping) and ("ends" in table or "until" in table)


def load_ends(table: Mapping[str, Any]) -> list[tuple[Identity, Ended]]:
    """The queues of which it says that they are gone.  ValueError for what says nothing of such ones."""
    if not says_end(table):
        return []
    try:
        said = cast("list[Mapping[str, Any]]", table.get("ends", [table]))
        if len(said) > ENDED_MOST:
            raise ValueError(f"there are {len(said)} of them, and {ENDED_MOST} may be")
        return [_end(one) for one in said]
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"what a site says of the end of a queue cannot be read: {str(error)[:200]}") from error


def _end(table: Mapping[str, Any]) -> tuple[Identity, Ended]:
    exchange, key = map(str, table.get("topic", ("", "")))
    ended = Ended(int(table["since"]), int(table["until"]), str(table.get("initial_owner", "")), (exchange, key))
    if not 0 <= ended.since <= ended.until < LSN_LIMIT:
        raise ValueError("it begins or ends at no LSN")
    return Identity(*map(str, table["identity"])), ended


def load_offer(table: Mapping[str, Any]) -> tuple[Offer, int]:
    """The inverse.  ValueError for what is no offer."""
    try:
        exchange, key = table["topic"]
        filter_, owner = cast("str | None", table["filter"]), cast("str | None", table["initial_owner"])
        offer = Offer(
            Identity(*map(str, table["identity"])), (str(exchange), str(key)), filter_, owner,
            bool(table["logged"]), bool(table["sends"]), cast("str | None", table.get("barriers")),
            *_reach(table.get("back"), table.get("heard")), bool(table.get("leads", True)),
        )  # fmt: skip
        if any(one is not None and one.__class__ is not str for one in (filter_, owner, offer.barriers)):
            raise TypeError("its filter, its initial_owner and its barriers are texts, or not there")
        since = int(table["since"])
        if not 0 <= since < LSN_LIMIT:
            raise ValueError("it begins at no LSN")
        return offer, since
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"what a site says of a queue cannot be read: {str(error)[:200]}") from error


def _reach(back: object, heard: object) -> tuple[int | None, Heard | None]:
    pairs = None if heard is None else tuple((int(origin), int(lsn)) for origin, lsn in cast("Any", heard))
    if pairs is not None and len(pairs) > HEARD_MOST:
        raise ValueError(f"it says of {len(pairs)} origins what it has heard, and {HEARD_MOST} may be")
    for lsn in [lsn for _, lsn in pairs or ()] + ([] if back is None else [int(cast("Any", back))]):
        if not 0 <= lsn < LSN_LIMIT:
            raise ValueError(f"{lsn} is no LSN")
    return None if back is None else int(cast("Any", back)), pairs
