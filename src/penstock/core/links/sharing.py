"""Which queues this site has together with others, as both sides said when their link came up."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from penstock.core.links.identity import Identity, Offer


class Agreed(NamedTuple):
    """A queue that another site has, too.

    since     LSN there from which on it takes messages: what is older it never had
    faults    why it cannot be one queue all the same: then nothing is transferred
    """

    since: int
    faults: tuple[str, ...] = ()


class Sharing:
    """By queue and site.  Nothing of it lasts: it is said anew whenever a link comes up."""

    __slots__ = ("_queues",)

    def __init__(self) -> None:
        self._queues: dict[int, dict[str, Agreed]] = {}

    def say(self, site: str, queues: Mapping[int, Agreed]) -> None:
        """With this site these queues are shared, and no others."""
        for number in {*self._queues, *queues}:
            if number in queues:
                self._queues.setdefault(number, {})[site] = queues[number]
            elif self._queues[number].pop(site, None) is not None and not self._queues[number]:
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
        return offer, int(table["since"])
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"what a site says of a queue cannot be read: {error}") from error
