"""What sites tell of messages that have not come, for queues that are not here: it is for the next one of the name.

Another site's link may bring them yet, and by then the queue may be declared.  Whoever has a queue remembers the same
by its id: claims as `Early`, settles as deferred acks.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from penstock.core.links.ownership import Claim, Claims, Span
from penstock.records.chunks import LSN_LIMIT

FORETOLD_MOST = 20_000
"""Spans that are remembered; of more all is forgotten."""


def done_by(site: str, twins: bool = False) -> Claim:
    """Stands where claims stand: a site has said that these are done, which holds against every claim.

    twins: they went because others are the same messages, which are not done by that.
    """
    return Claim(site, LSN_LIMIT, "yielded" if twins else "first")


def is_done(claim: Claim) -> bool:
    """Whether it is no claim, and says that messages are done."""
    return claim.serial == LSN_LIMIT


def is_twin(claim: Claim) -> bool:
    """Whether they went because others are the same messages."""
    return is_done(claim) and claim.why == "yielded"


NOBODY = "\0"
"""Owns what this site was given and could not take while nobody had a queue for it, as far as it knew: no site's name.
"""


class Name(NamedTuple):
    """Messages of an origin, for a queue that is known by its name."""

    vhost: str
    queue: str
    origin: int


class Foretold:
    """By name."""

    __slots__ = ("_claims",)

    def __init__(self, rows: Iterable[tuple[Name, int, int, Claim]] = ()) -> None:
        self._claims = dict[Name, Claims]()
        for name, first, stop, claim in rows:  # all of them, however many it had
            self._claims.setdefault(name, Claims("")).put(first, stop, claim)

    def __iter__(self) -> Iterator[tuple[Name, int, int, Claim]]:
        for name, claims in sorted(self._claims.items()):
            for first, stop, claim in claims.spans():
                yield name, first, stop, claim

    def __bool__(self) -> bool:
        return bool(self._claims)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Foretold) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Foretold:
        """The same, of which one may go on without the other."""
        return Foretold(self)

    def new(self, name: Name, spans: Iterable[Span], claim: Claim) -> list[Span]:
        """Those of which something is said that holds against what was known."""
        known = self._claims.get(name)
        return [span for span in spans if known is None or not known.has(*span, claim)]

    def add(self, name: Name, spans: Iterable[Span], claim: Claim) -> None:
        """Remember it."""
        if sum(map(len, self._claims.values())) >= FORETOLD_MOST:
            self._claims.clear()
        claims = self._claims.setdefault(name, Claims(""))
        for span in spans:
            claims.put(*span, claim)

    def came(self, origin: int, first: int, stop: int) -> None:
        """Messages of an origin have come, to whatever queues there are."""
        for name in [name for name in self._claims if name.origin == origin]:
            said = [one for one in self._of(name, first, stop) if one[2].owner != NOBODY]
            self._remove(name, [one[:2] for one in said])

    def unplaced(self) -> list[tuple[Name, int, int, Claim]]:
        """What nobody owns."""
        return [one for one in self if one[3].owner == NOBODY]

    def placed(self, name: Name, spans: Iterable[Span]) -> None:
        """What nobody owned has an owner now."""
        for first, stop in spans:
            said = [one for one in self._of(name, first, stop) if one[2].owner == NOBODY]
            self._remove(name, [one[:2] for one in said])

    def _of(self, name: Name, first: int = 0, stop: int = LSN_LIMIT) -> list[tuple[int, int, Claim]]:
        claims = self._claims.get(name)
        return [] if claims is None else list(claims.spans(first, stop))

    def _remove(self, name: Name, spans: Iterable[Span]) -> None:
        for span in spans:
            self._claims[name].remove(*span)
        if name in self._claims and not self._claims[name]:
            del self._claims[name]

    def take(self, vhost: str, queue: str) -> list[tuple[int, int, int, Claim]]:
        """A queue of this name is declared: what was said, as origin, first, stop and claim; it is forgotten."""
        out = list[tuple[int, int, int, Claim]]()
        for name in sorted(name for name in self._claims if name[:2] == (vhost, queue)):
            said = [one for one in self._of(name) if one[2].owner != NOBODY]
            out += [(name.origin, *one) for one in said]
            self._remove(name, [one[:2] for one in said])
        return out
