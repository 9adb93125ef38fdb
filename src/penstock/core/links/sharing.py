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


class Sharing:
    """By queue and site.  Nothing of it lasts: it is said anew whenever a link comes up."""

    __slots__ = ("_queues", "offered")

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, Agreed]] = {}
        self.offered: dict[str, dict[tuple[str, str], tuple[Offer, int]]] = {}  # by site, of each queue there

    def hear(self, site: str, offers: Iterable[tuple[Offer, int]], *, more: bool) -> None:
        """What a site has said of its queues, all of them or some more; LSNs where they begin."""
        known = self.offered.setdefault(site, {})
        if not more:
            known.clear()
        for one, since in offers:
            name = one.identity.vhost, one.identity.name
            if name in known or len(known) < OFFERED_MOST:
                known[name] = one, since

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

    def forget(self, queue: int) -> None:
        """A queue is gone, and with it what sites agreed on."""
        self._queues.pop(queue, None)

    @property
    def queues(self) -> Iterable[int]:
        """Ids of the queues that are shared with somebody."""
        return self._queues


def dump_offer(offer: Offer, since: int) -> dict[str, object]:
    """An offer as a JSON object; `since` is the LSN of the queue's declare."""
    return {**offer._asdict(), "identity": list(offer.identity), "topic": list(offer.topic), "since": since}


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
