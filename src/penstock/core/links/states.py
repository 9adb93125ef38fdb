"""What a site knows of its links over a restart, and of claims to messages that have not come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple, replace
from typing import Any, NamedTuple, Protocol, cast

from penstock.core.links.identity import Site
from penstock.core.links.ownership import Claim, Claims, Why
from penstock.core.links.twins import Numbered
from penstock.errors import QueueFull
from penstock.records.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class LinkState:
    """The two links between this site and another.

    heard        up to this LSN of its log all that it told is here
    acked        up to this LSN of this log it has what it was told
    paused       somebody stopped the link to it
    downgraded   confirms do not wait for it now
    floor        what it published with a lower LSN has been here, as far as it ever comes
    """

    heard: int = 0
    acked: int = 0
    paused: bool = False
    downgraded: bool = False
    floor: int = 0

    def told(self, header: dict[str, object]) -> LinkState:
        """The same after a `LINK` record."""
        known = {name: value for name, value in header.items() if name in self.__slots__}
        return replace(self, **cast("dict[str, Any]", known))


class EarlyClaim(NamedTuple):
    """A claim to messages [first, stop) of an origin, for a queue of this id, before they have come."""

    queue: int
    origin: int
    first: int
    stop: int
    claim: Claim


DEPARTED_MOST = 1_000
"""Queues that are gone, the youngest of them, whose names are remembered for what links have still to tell of them."""


class Departed(dict[int, tuple[str, str]]):
    """Queues by their ids: vhost and name."""

    __slots__ = ()

    def note(self, queue: int, vhost: str, name: str) -> None:
        """A queue that other sites may have, too, is gone."""
        self[queue] = vhost, name
        if len(self) > DEPARTED_MOST:
            del self[min(self)]


EARLY_MOST = 20_000
"""Spans of messages of one queue and one origin of which claims are remembered."""


class Early:
    """Claims that are remembered until their messages come."""

    __slots__ = ("_claims",)

    def __init__(self, claims: Iterable[EarlyClaim] = ()) -> None:
        self._claims = dict[tuple[int, int], Claims]()
        for one in claims:
            self.add(one)

    def __iter__(self) -> Iterator[EarlyClaim]:
        for (queue, origin), claims in sorted(self._claims.items()):
            for first, stop, claim in claims.spans():
                yield EarlyClaim(queue, origin, first, stop, claim)

    def __bool__(self) -> bool:
        return bool(self._claims)

    def add(self, one: EarlyClaim) -> bool:
        """Remember it; whether it holds against what was known.

        Errors: QueueFull where that would be more than is remembered.
        """
        claims = self._claims.setdefault((one.queue, one.origin), Claims(""))
        if len(claims) >= EARLY_MOST and not claims.has(one.first, one.stop, one.claim):
            raise QueueFull(
                f"of a queue {len(claims)} claims to messages that have not come are remembered; one more would be "
                f"beyond {EARLY_MOST}"
            )
        return bool(claims.put(one.first, one.stop, one.claim))

    def came(self, origin: int, first: int, stop: int, queue: int | None = None) -> list[EarlyClaim]:
        """Messages of an origin have come, or are settled: what was remembered of them, which is forgotten.

        queue: for one queue alone.
        """
        out = list[EarlyClaim]()
        for key in [key for key in self._claims if key[1] == origin and queue in (None, key[0])]:
            claims = self._claims[key]
            out += [EarlyClaim(*key, low, high, claim) for low, high, claim in claims.spans(first, stop)]
            claims.remove(first, stop)
            if not claims:
                del self._claims[key]
        return out

    def queue_gone(self, queue: int) -> None:
        """There is no such queue any more."""
        for key in [key for key in self._claims if key[0] == queue]:
            del self._claims[key]


class Lasting(Protocol):
    """What a durable state has of sites (`core.state.durable`)."""

    peers: dict[int, Site]
    carried: dict[int, list[tuple[int, int, int]]]
    links: dict[int, LinkState]
    proxied: dict[int, str]
    early: list[EarlyClaim]
    numbered: list[Numbered]
    departed: Departed


def dump_sites(state: Lasting) -> dict[str, object]:
    """What a state has of sites, as JSON."""
    return {
        "peers": [[number, *site] for number, site in sorted(state.peers.items())],
        "carried": [[number, *runs] for number, runs in sorted(state.carried.items())],
        "links": [[number, *astuple(one)] for number, one in sorted(state.links.items())],
        "proxied": [list(one) for one in sorted(state.proxied.items())],
        "early": [[*one[:-1], *one.claim] for one in state.early],
        "numbered": [list(one) for one in state.numbered],
        "departed": [[number, *names] for number, names in sorted(state.departed.items())],
    }


def load_sites(state: Lasting, head: Mapping[str, Any]) -> None:
    """Read into a state what its counterpart wrote of other sites."""
    state.peers = {number: Site(*told) for number, *told in head.get("peers", ())}
    state.carried = {number: [tuple(run) for run in runs] for number, *runs in head.get("carried", ())}
    state.links = {number: LinkState(*told) for number, *told in head.get("links", ())}
    state.proxied = dict(head.get("proxied", ()))
    rows = cast("list[tuple[int, int, int, int, str, int, Why]]", head.get("early", ()))
    state.numbered = [Numbered(*told) for told in head.get("numbered", ())]
    state.departed = Departed({number: (vhost, name) for number, vhost, name in head.get("departed", ())})
    state.early = [EarlyClaim(*row[:4], Claim(*row[4:])) for row in rows]
