"""Who may lease a message: claims, which of two holds, what an owner grants, and what a proxy takes.

A claim has a serial: the first owner's is 0, and each transfer is one above the claim that it was made from.  Sites
hear claims in different orders and over different links, so which of two holds is one total order, and every site that
has heard the same claims knows the same owner.  Equal serials are made by two sites that did not know of each other,
which only proxied transfer brings about: a grant of the owner holds against a proxy's, then the lower name.

What sites tell of messages that have not come, for queues that are not here, is for the next one of the name: another
site's link may bring them yet, and by then the queue may be declared.  Whoever has a queue remembers the same by its
id: claims as `Early`, settles as deferred acks.  What went back is remembered, too, of each heir once (`Returned`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import compress
from operator import itemgetter, lt
from typing import ClassVar, Generic, Literal, NamedTuple, Self, TypeAlias, TypeVar, get_args

import numpy as np

from penstock.core.state.lsns import Ints
from penstock.errors import QueueFull
from penstock.records.chunks import LSN_LIMIT, merged_spans

Why: TypeAlias = Literal["first", "transfer", "yielded", "proxied"]

WHYS: tuple[Why, ...] = get_args(Why)
"""Of two claims with one serial the earlier of these holds."""

RANKS: Mapping[Why, int] = {why: rank for rank, why in enumerate(WHYS)}

Span: TypeAlias = tuple[int, int]
"""LSNs [a, b) of this log."""


class Claim(NamedTuple):
    """A site may lease a message."""

    owner: str
    serial: int = 0
    why: Why = "first"

    def to(self, owner: str, why: Why) -> Claim:
        """The claim that this one's owner, or who acts for it, hands on.

        One serial is the highest, so that nobody who makes up high ones has honest sites tell what may not be told.
        """
        return Claim(owner, min(self.serial + 1, LSN_LIMIT - 1), why)


def holds_against(one: Claim, other: Claim) -> bool:
    """Whether the first claim holds where both were made."""
    return (-one.serial, RANKS[one.why], one.owner) < (-other.serial, RANKS[other.why], other.owner)


class Claims:
    """The claims to the messages of one queue; what nobody claimed belongs to this site."""

    __slots__ = ("_claims", "_ends", "_owners", "_starts", "ceded", "doubled", "here")

    def __init__(self, here: str) -> None:
        self.here = Claim(here)
        self.ceded = 0  # messages that ceased to be this site's, since the start
        self._owners = Counter[str]()  # of how many spans
        self.doubled = 0  # messages that two sites took without each other, since the start
        self._starts = list[int]()
        self._ends = list[int]()
        self._claims = list[Claim]()

    def of(self, lsn: int) -> Claim:
        """The claim to one message."""
        at = bisect_right(self._starts, lsn) - 1
        return self._claims[at] if at >= 0 and lsn < self._ends[at] else self.here

    def spans(self, first: int = 0, stop: int = LSN_LIMIT) -> Iterator[tuple[int, int, Claim]]:
        """All that was claimed of [first, stop), ascending."""
        at = max(bisect_right(self._starts, first) - 1, 0)
        for i in range(at, len(self._starts)):
            low, high = max(self._starts[i], first), min(self._ends[i], stop)
            if low >= stop:
                return
            if low < high:
                yield low, high, self._claims[i]

    def of_these(self, owners: Collection[str], below: int) -> list[Span]:
        """What these sites own, ascending: all that begins below an LSN."""
        upto = bisect_left(self._starts, below)
        some = zip(self._starts[:upto], self._ends[:upto], self._claims[:upto], strict=True)
        return [(first, stop) for first, stop, claim in some if claim.owner in owners]

    def owned_by(self, site: str, first: int, stop: int) -> int:
        """How many of the messages [first, stop) were given to another site."""
        return sum(high - low for low, high, claim in self.spans(first, stop) if claim.owner == site)

    def put(self, first: int, stop: int, claim: Claim) -> list[Span]:
        """Hear a claim to [first, stop); where it holds against what was known, as spans.

        The first owner of a message is told with it, so that claim holds wherever nothing was claimed.
        """
        free = (claim.why == "first" and claim != self.here) or holds_against(claim, self.here)
        changed, at, theirs = list[Span](), first, claim.owner != self.here.owner
        for low, high, before in self.spans(first, stop):
            if at < low and free:
                changed.append((at, low))
                self.ceded += theirs * (low - at)
            if holds_against(claim, before):
                changed.append((low, high))
                self.ceded += (theirs and before.owner == self.here.owner) * (high - low)
            if claim.serial and claim.serial == before.serial and claim.owner != before.owner:
                self.doubled += high - low
            at = high
        if at < stop and free:
            changed.append((at, stop))
            self.ceded += theirs * (stop - at)
        for low, high in changed:
            self._set(low, high, claim)
        return changed

    def forget_but(self, lsns: Ints) -> None:
        """No others than these, ascending, are in the queue."""
        kept = list(map(lt, *(np.searchsorted(lsns, some).tolist() for some in (self._starts, self._ends))))
        self._starts, self._ends = list(compress(self._starts, kept)), list(compress(self._ends, kept))
        self._claims = list(compress(self._claims, kept))
        self._owners = Counter(one.owner for one in self._claims)

    def remove(self, first: int, stop: int) -> None:
        """Nobody owns the messages [first, stop) any more."""
        self._set(first, stop, None)

    def others(self) -> list[str]:
        """The other sites that own some."""
        return [owner for owner, spans in self._owners.items() if spans and owner != self.here.owner]

    def __len__(self) -> int:
        """Spans, each of one claim."""
        return len(self._starts)

    def has(self, first: int, stop: int, claim: Claim) -> bool:
        """Whether hearing this claim would change nothing: all of [first, stop) is claimed by what holds against it."""
        for low, high, before in self.spans(first, stop):
            if first < low or holds_against(claim, before):
                return False
            first = high
        return first >= stop

    def _set(self, first: int, stop: int, claim: Claim | None) -> None:
        starts, ends, claims = self._starts, self._ends, self._claims
        low = bisect_left(ends, first)  # one that ends where this begins may be joined with it
        high = bisect_right(starts, stop)
        joined = list[tuple[int, int, Claim]]()
        pieces = list(zip(starts[low:high], ends[low:high], claims[low:high], strict=True))
        left = [(a, min(b, first), one) for a, b, one in pieces if a < first]
        right = [(max(a, stop), b, one) for a, b, one in pieces if b > stop]
        middle = [] if claim is None else [(first, stop, claim)]
        for a, b, one in (*left, *middle, *right):
            if joined and joined[-1][1] == a and joined[-1][2] == one:
                joined[-1] = (joined[-1][0], b, one)
            else:
                joined.append((a, b, one))
        for _, _, one in pieces:
            self._owners[one.owner] -= 1
        for _, _, one in joined:
            self._owners[one.owner] += 1
        starts[low:high] = [a for a, _, _ in joined]
        ends[low:high] = [b for _, b, _ in joined]
        claims[low:high] = [one for _, _, one in joined]


class Grant(NamedTuple):
    """Messages that change their owner by one record."""

    first: int
    stop: int
    claim: Claim


def grants(claims: Claims, asked: Iterable[Span], ready: Iterable[Span], asker: str) -> list[Grant]:
    """What the owner gives to who asks: messages of its own that are ready when everybody here has had a turn.

    ready: ascending.  Leased ones never, for their lease is not over; what was granted is no longer the owner's, so the
    first who asks wins, and there is no answer to the others.
    """
    waiting = list(ready)
    out = list[Grant]()
    for first, stop in asked:
        for low, high in _touching(waiting, first, stop):
            out += _of_own(claims, max(first, low), min(stop, high), asker)
    return out


def _of_own(claims: Claims, first: int, stop: int, asker: str) -> Iterator[Grant]:
    at = first
    for low, high, claim in claims.spans(first, stop):
        if at < low:
            yield Grant(at, low, claims.here.to(asker, "transfer"))
        if claim.owner == claims.here.owner:
            yield Grant(low, high, claim.to(asker, "transfer"))
        at = high
    if at < stop:
        yield Grant(at, stop, claims.here.to(asker, "transfer"))


def proxied(claims: Claims, asked: Iterable[Span], asker: str, absent: Iterable[str]) -> list[Grant]:
    """What a site on which an operator has turned proxied transfer on gives in the name of owners that are away."""
    away = set(absent)
    out = list[Grant]()
    for first, stop in asked:
        for low, high, claim in claims.spans(first, stop):
            if claim.owner in away and claim.owner != claims.here.owner:
                out.append(Grant(low, high, claim.to(asker, "proxied")))
    return out


def without(span: Span, others: Iterable[Span]) -> list[Span]:
    """What of a span is in none of the others."""
    return without_ascending(span, merged_spans(others))


def without_ascending(span: Span, others: Sequence[Span]) -> list[Span]:
    """The same of others that ascend and are disjoint: only those are looked at that it touches."""
    out, (first, stop) = list[Span](), span
    for low, high in _touching(others, first, stop):
        if first < low:
            out.append((first, low))
        first = high
    if first < stop:
        out.append((first, stop))
    return out


def _touching(spans: Sequence[Span], first: int, stop: int) -> Iterator[Span]:
    """Those of ascending and disjoint spans that have something of [first, stop)."""
    for at in range(max(bisect_left(spans, (first, 0)) - 1, 0), len(spans)):
        low, high = spans[at]
        if low >= stop:
            return
        if high > first:
            yield low, high


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


K = TypeVar("K", bound=tuple[object, ...])


class ClaimsOf(Generic[K]):
    """Claims to messages that are not here, by whose they are."""

    __slots__ = ("_claims",)

    def __init__(self, rows: Iterable[tuple[K, int, int, Claim]] = ()) -> None:
        self._claims = dict[K, Claims]()
        self._put(rows)

    def _put(self, rows: Iterable[tuple[K, int, int, Claim]]) -> None:
        """All of them, however many it had."""
        for key, first, stop, claim in rows:
            self._claims.setdefault(key, Claims("")).put(first, stop, claim)

    def rows(self) -> Iterator[tuple[K, int, int, Claim]]:
        """All of them, in order."""
        for key, claims in sorted(self._claims.items(), key=itemgetter(0)):
            for first, stop, claim in claims.spans():
                yield key, first, stop, claim

    def __bool__(self) -> bool:
        return bool(self._claims)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and list(self.rows()) == list(other.rows())

    __hash__ = None  # type: ignore[assignment]

    def copy(self) -> Self:
        """The same, of which one may go on without the other."""
        made = type(self)()
        made._put(self.rows())
        return made


class Bounded(ClaimsOf[K]):
    """The same of so many spans as `MOST`; of more all is forgotten."""

    __slots__ = ()

    MOST: ClassVar[int]

    def __iter__(self) -> Iterator[tuple[K, int, int, Claim]]:
        return self.rows()

    def add(self, key: K, spans: Iterable[Span], claim: Claim) -> None:
        if sum(map(len, self._claims.values())) >= self.MOST:
            self._claims.clear()
        self._put((key, *span, claim) for span in spans)


class Foretold(Bounded[Name]):
    """By name."""

    __slots__ = ()

    MOST = FORETOLD_MOST

    def new(self, name: Name, spans: Iterable[Span], claim: Claim) -> list[Span]:
        """Those of which something is said that holds against what was known."""
        known = self._claims.get(name)
        return [span for span in spans if known is None or not known.has(*span, claim)]

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


LAST = "\U0010ffff"
"""Of two claims that differ in their owners alone this one's never holds."""

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

    def since(self, place: Place, span: Span, claim: Claim) -> list[Span]:
        """Those that went to whatever heir, of whom this claim is news."""
        place = place._replace(heir="")
        news = claim._replace(owner=LAST) if is_done(claim) else claim  # done is done, whoever has said so
        return self.but(place, without(span, self.but(place, [span])), news)

    def of(self, place: Place, first: int, stop: int) -> list[tuple[int, int, Claim]]:
        """What went to an heir, and to nobody after that."""
        known = self._claims.get(place)
        if known is None:
            return []
        others = {one.heir for one in self._claims if one[:3] == place[:3]} - {place.heir}
        found = list[tuple[int, int, Claim]]()
        for low, high, claim in known.spans(first, stop):
            left = [(low, high)]
            for heir in others:
                left = self.but(place._replace(heir=heir), left, claim)
            found += [(*span, claim) for span in left]
        return found


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


class EarlyClaim(NamedTuple):
    """A claim to messages [first, stop) of an origin, for a queue of this id, before they have come."""

    queue: int
    origin: int
    first: int
    stop: int
    claim: Claim


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
