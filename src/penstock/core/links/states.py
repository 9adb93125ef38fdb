"""What a site knows of its links over a restart, and of claims to messages that have not come."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from penstock.core.links.ownership import Bounded, Claim, Claims, ClaimsOf, Span, holds_against
from penstock.errors import QueueFull
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import QueueSettings


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


class Gone(NamedTuple):
    """A queue that is gone, as other sites know it: it took messages from the LSN on that is its id, up to `until`.

    kind      empty: an older checkpoint has it, which knew no more than its name, and it ended before that was written
    topic     (exchange, key) that it showed messages of
    domain    the settings' `group_local_queue_domain`
    owner     their `initial_owner`; empty: it had none, or an older checkpoint has it
    """

    vhost: str
    name: str
    kind: str
    domain: str | None
    topic: tuple[str, str]
    until: int = 0
    owner: str = ""

    def dump(self) -> list[object]:
        """As JSON: who owned its messages first stands behind the topic, where an older version passes it over."""
        topic = [*self.topic, self.owner] if self.owner else self.topic
        return [self.vhost, self.name, self.kind, self.domain, topic, self.until]


def load_gone(vhost: str, name: str, kind: str, domain: str | None, topic: Sequence[str], until: int) -> Gone:
    """The inverse of `Gone.dump`."""
    exchange, key, *owner = topic
    return Gone(vhost, name, kind, domain, (exchange, key), until, owner[0] if owner else "")


class Departed(dict[int, Gone]):
    """Queues by their ids."""

    __slots__ = ()

    def note(self, queue: int, vhost: str, name: str, settings: QueueSettings, until: int = 0) -> None:
        """A queue that other sites may have, too, is gone."""
        topic = settings.exchange, settings.underlying_topic or name
        owner = settings.initial_owner or ""
        self[queue] = Gone(vhost, name, settings.kind, settings.group_local_queue_domain, topic, until, owner)
        if len(self) > DEPARTED_MOST:
            del self[min(self)]

    def ended(self, queue: int, lsn: int) -> None:
        """Its end stands there in the log."""
        if (one := self.get(queue)) is not None:
            self[queue] = one._replace(until=lsn)

    @property
    def names(self) -> list[tuple[int, str, str]]:
        """All that checkpoints had of them before `Gone`, and that members of a cluster which are older still read."""
        return [(number, one.vhost, one.name) for number, one in sorted(self.items())]

    def named(self, names: Iterable[tuple[int, str, str]], until: int) -> None:
        """A checkpoint that knew the records up to `until` has these names."""
        for number, vhost, name in names:
            self.setdefault(number, Gone(vhost, name, "", None, ("", ""), until))

    def told(self, upto: int) -> bool:
        """Every site has been told of what ended up to there: forget it; whether there was any."""
        over = [queue for queue, one in self.items() if one.until <= upto]
        for queue in over:
            del self[queue]
        return bool(over)


RETURNED_MOST = 20_000
"""Spans of which it is remembered that they went back; of more it is forgotten, and told once more."""


class Place(NamedTuple):
    """Messages of an origin, in a queue that is known by its name, and whom this site has given them to."""

    vhost: str
    queue: str
    origin: int
    heir: str


class Returned(Bounded[Place]):
    """What this site was given and could not take, and whose it said then that it is: of each heir once."""

    __slots__ = ()

    MOST = RETURNED_MOST

    def but(self, place: Place, spans: Iterable[Span], claim: Claim | None = None) -> list[Span]:
        """Those that did not go to an heir, or to none if that is empty; claim: or before this was claimed."""
        left = list(spans)
        for one, known in self._claims.items() if self._claims else ():
            if one[:3] == place[:3] and place.heir in (one.heir, ""):
                left = [some for span in left for some in _but(known, *span, claim)]
        return left


def _but(known: Claims, first: int, stop: int, claim: Claim | None) -> Iterator[Span]:
    """Those of [first, stop) that nothing is known of; or nothing that holds against a claim."""
    for low, high, before in known.spans(first, stop):
        if first < low:
            yield first, low
        if claim is not None and holds_against(claim, before):
            yield low, high
        first = high
    if first < stop:
        yield first, stop


EARLY_MOST = 20_000
"""Spans of messages of one queue and one origin of which claims are remembered."""


class Early(ClaimsOf[tuple[int, int]]):
    """Claims that are remembered until their messages come."""

    __slots__ = ()

    def __init__(self, claims: Iterable[EarlyClaim] = ()) -> None:
        super().__init__(((one.queue, one.origin), one.first, one.stop, one.claim) for one in claims)

    def __iter__(self) -> Iterator[EarlyClaim]:
        return (EarlyClaim(*key, first, stop, claim) for key, first, stop, claim in self.rows())

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
