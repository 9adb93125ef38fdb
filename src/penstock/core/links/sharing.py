"""Which queues this site has together with others, as both sides said when their link came up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from penstock.core.links.identity import Identity, Offer
from penstock.records.chunks import LSN_LIMIT

OFFERED_MOST = 10_000
"""Queues of one site of which it is remembered what it said."""


class Agreed(NamedTuple):
    """A queue that another site has, too.

    since     LSN there from which on it takes messages: what is older it never had
    faults    why it cannot be one queue all the same: then nothing is transferred
    """

    since: int
    faults: tuple[str, ...] = ()


class Ended(NamedTuple):
    """A queue that a site had, too: LSNs there, of its declare and of its end."""

    since: int
    until: int


ENDED_MOST = 100
"""Queues of one name that a site has had and of which it is remembered, the youngest of them."""


class Sharing:
    """By queue and site.  Nothing of it lasts: it is said anew whenever a link comes up."""

    __slots__ = ("_ends", "_queues", "offered")

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, Agreed]] = {}
        self._ends: dict[tuple[int, str], list[Ended]] = {}  # by queue and site: what went before the present one
        self.offered: dict[str, dict[tuple[str, str], tuple[Offer, int]]] = {}  # by site, of each queue there

    def hear(
        self, site: str, offers: Iterable[tuple[Offer, int]], ended: Iterable[tuple[str, str, int]], *, more: bool
    ) -> None:
        """What a site has said of its queues, all of them or some more; LSNs where they begin.

        ended: vhosts and names of those that are gone, and where they began.
        """
        known = self.offered.setdefault(site, {})
        if not more:
            known.clear()
        for one, since in offers:
            name = one.identity.vhost, one.identity.name
            if name in known or len(known) < OFFERED_MOST:
                known[name] = one, since
        for *place, since in ended:
            name = place[0], place[1]
            if name in known and known[name][1] == since:
                del known[name]

    def say(self, site: str, queues: Mapping[int, Agreed], *, more: bool = False, gone: int = 0) -> None:
        """With this site these queues are shared, and no others.  more: others, too, as they were; but not `gone`."""
        for number in {gone, *queues} if more else {*self._queues, *queues}:
            if number in queues:
                self._queues.setdefault(number, {})[site] = queues[number]
            elif self._queues.get(number, {}).pop(site, None) is not None and not self._queues[number]:
                del self._queues[number]

    def with_site(self, queue: int, site: str) -> Agreed | None:
        """What is agreed of a queue with a site; None: it is not shared with it."""
        return self._queues.get(queue, {}).get(site)

    def end(self, queue: int, site: str, ended: Iterable[Ended], *, more: bool) -> None:
        """A site had such queues, all of them or some more: what it published meanwhile is shared all the same."""
        known = self._ends.get((queue, site), []) if more else []
        if found := sorted({*known, *ended})[-ENDED_MOST:]:
            self._ends[queue, site] = found
        else:
            self._ends.pop((queue, site), None)
        now = self.with_site(queue, site)
        if now is not None and any(one.since == now.since for one in found):
            self.say(site, {}, more=True, gone=queue)

    def had(self, queue: int, site: str, lsn: int) -> bool:
        """Whether a queue was shared with a site at an LSN there."""
        now = self.with_site(queue, site)
        if now is not None and now.since <= lsn:
            return True
        return any(one.since <= lsn < one.until for one in self._ends.get((queue, site), ()))

    def bounds(self, site: str) -> list[int]:
        """LSNs of a site at which queues began or ended there that this one has, too."""
        begins = [now.since for number in self._queues if (now := self.with_site(number, site)) is not None]
        ends = [at for (_, name), some in self._ends.items() if name == site for one in some for at in one]
        return sorted({*begins, *ends})

    def forget(self, queue: int) -> None:
        """A queue is gone, and with it what sites agreed on."""
        self._queues.pop(queue, None)
        for key in [key for key in self._ends if key[0] == queue]:
            del self._ends[key]

    @property
    def queues(self) -> Iterable[int]:
        """Ids of the queues that are shared with somebody."""
        return self._queues


def dump_offer(offer: Offer, since: int) -> dict[str, object]:
    """An offer as a JSON object; `since` is the LSN of the queue's declare."""
    return {**offer._asdict(), "identity": list(offer.identity), "topic": list(offer.topic), "since": since}


def dump_end(identity: Identity, ended: Ended) -> dict[str, object]:
    """What is said of a queue that is gone, as a JSON object."""
    return {"identity": list(identity), "since": ended.since, "until": ended.until}


def says_end(table: object) -> bool:
    """Whether it is said of a queue that it is gone, as opposed to that there is one."""
    return isinstance(table, Mapping) and "until" in table


def load_end(table: Mapping[str, Any]) -> tuple[Identity, Ended]:
    """The inverse.  ValueError for what says nothing of such a queue."""
    try:
        identity, ended = Identity(*map(str, table["identity"])), Ended(int(table["since"]), int(table["until"]))
        if not 0 <= ended.since <= ended.until < LSN_LIMIT:
            raise ValueError("it begins or ends at no LSN")
        return identity, ended
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"what a site says of the end of a queue cannot be read: {str(error)[:200]}") from error


def load_offer(table: Mapping[str, Any]) -> tuple[Offer, int]:
    """The inverse.  ValueError for what is no offer."""
    try:
        exchange, key = table["topic"]
        filter_, owner = cast("str | None", table["filter"]), cast("str | None", table["initial_owner"])
        offer = Offer(
            Identity(*map(str, table["identity"])), (str(exchange), str(key)), filter_, owner,
            bool(table["logged"]), bool(table["sends"]), cast("str | None", table.get("barriers")),
        )  # fmt: skip
        if any(one is not None and one.__class__ is not str for one in (filter_, owner, offer.barriers)):
            raise TypeError("its filter, its initial_owner and its barriers are texts, or not there")
        since = int(table["since"])
        if not 0 <= since < LSN_LIMIT:
            raise ValueError("it begins at no LSN")
        return offer, since
    except (KeyError, TypeError, ValueError, OverflowError, AttributeError) as error:
        raise ValueError(f"what a site says of a queue cannot be read: {str(error)[:200]}") from error
