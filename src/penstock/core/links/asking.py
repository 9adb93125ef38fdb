"""When a site asks an owner for messages, and for how many.

It asks only while a consumer here wants them and has room, and only for what has waited for longer than an ack usually
takes, or for a second: until then the owner's own consumers are likely to be quicker.  An ask is no record.  Where no
answer comes it is repeated, later each time; it never makes anybody an owner.  Which messages of others consumers with
filters want is found by looking at them as at any, a stretch at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from typing import NamedTuple

from penstock.core.effects import Purpose, Scan, Scanned, Token
from penstock.core.links.ownership import without_ascending
from penstock.expr import Matcher
from penstock.records.chunks import Chunk, merged_spans

PATIENCE_LEAST, PATIENCE_MOST = 50_000, 1_000_000
"""Microseconds that a message of another owner waits at least before it is asked for, and at most while it is not.

What was told late, as after hours in which no link was up, says nothing of how long an ack takes.
"""

AGAIN_FIRST = 100_000
AGAIN_MOST = 10_000_000
"""Microseconds until an ask without an answer is repeated: at first, and at most."""

ASKED_SPANS = 1_000
"""Pieces that are asked for at once: where every second message is done a piece is one message, and each costs a turn
of both sites some 15 us.
"""

BESIDES_MOST, BESIDES_SPANS = 5_000, 100
"""Messages that are named beside those of an ask, and pieces of them."""

_SHARE = 16
"""One ack moves the average by this part."""


class Waiting(NamedTuple):
    """Messages of one owner that consumers here want, [first, stop); since: microseconds, when they came here."""

    first: int
    stop: int
    owner: str
    since: int


class Ask(NamedTuple):
    """What goes to one owner."""

    owner: str
    spans: tuple[tuple[int, int], ...]

    def __len__(self) -> int:
        return sum(stop - first for first, stop in self.spans)


class _Out:
    """An ask that is under way."""

    __slots__ = ("again", "count", "wait")

    def __init__(self) -> None:
        self.count = 0
        self.again = 0  # when it may be repeated
        self.wait = AGAIN_FIRST


class Asking:
    """What one queue of one site asks for."""

    __slots__ = ("_out", "average")

    def __init__(self) -> None:
        self.average = 0  # microseconds from publish to ack, of late
        self._out: dict[str, _Out] = {}

    def acked(self, age: int) -> None:
        """A message was acknowledged so long after it was published."""
        age = min(age, PATIENCE_MOST)
        self.average += (age - self.average) // _SHARE if self.average else age

    @property
    def patience(self) -> int:
        """How long a message waits before it is asked for."""
        return max(self.average, PATIENCE_LEAST)

    @property
    def under_way(self) -> int:
        """Messages that were asked for and may still come: credit that is spoken for, while whose they are answers."""
        return sum(out.count for out in self._out.values() if out.wait <= 2 * AGAIN_FIRST)

    def may_ask(self, owner: str, now: int) -> bool:
        """Whether no ask to an owner is under way that may still be answered."""
        known = self._out.get(owner)
        return known is None or known.again <= now

    def asks(self, now: int, waiting: Iterable[Waiting], credit: int) -> list[Ask]:
        """What to ask for now, in the order of what waits; at most `credit` in all, with what is under way.

        In `ASKED_SPANS` pieces at most.
        """
        for out in self._out.values():
            if out.count and out.again <= now:
                out.count = 0
        room, pieces = credit - self.under_way, ASKED_SPANS
        chosen = dict[str, list[tuple[int, int]]]()
        for one in waiting:
            if room <= 0 or not pieces:
                break
            if one.since + self.patience > now or not self.may_ask(one.owner, now):
                continue
            stop = min(one.stop, one.first + room)
            chosen.setdefault(one.owner, []).append((one.first, stop))
            room -= stop - one.first
            pieces -= 1
        made = [Ask(owner, tuple(spans)) for owner, spans in chosen.items()]
        for ask in made:
            state = self._out.setdefault(ask.owner, _Out())
            state.count, state.again = len(ask), now + state.wait
            state.wait = min(2 * state.wait, AGAIN_MOST)
        return made

    def besides(self, ask: Ask, now: int, waiting: Iterable[Waiting]) -> tuple[tuple[int, int], ...]:
        """What would do as well as what is asked for, once an owner did not answer: nothing where it did.

        It does not say that it has leased them, or what else keeps them; it may have others that are ready.
        """
        if self._out[ask.owner].wait <= 2 * AGAIN_FIRST:
            return ()
        out, left, asked = list[tuple[int, int]](), BESIDES_MOST, merged_spans(ask.spans)
        for one in waiting:
            if one.owner != ask.owner or one.since + self.patience > now:
                continue
            for first, stop in without_ascending((one.first, one.stop), asked):
                at = min(stop, first + left)
                out.append((first, at))
                left -= at - first
                if not left or len(out) == BESIDES_SPANS:
                    return tuple(out)
        return tuple(out)

    def granted(self, owner: str, count: int) -> None:
        """An owner gave so many: it may be asked for more at once."""
        if (out := self._out.get(owner)) is not None:
            out.count = max(out.count - count, 0)
            out.again, out.wait = 0, AGAIN_FIRST

    def came_up(self, site: str, linked: Collection[str]) -> None:
        """The link to a site is there anew: what was asked over it before is forgotten on both sides.

        linked: sites to which a link leads; what was asked of others may have gone over this one, too.
        """
        self._out = {owner: out for owner, out in self._out.items() if owner != site and owner in linked}


STRETCH = 4_096
"""Messages that are looked at together."""

WANTED_MOST = 10_000
"""Messages that are wanted and not asked for yet; more are not looked for."""


class Wanted:
    """Of one queue."""

    __slots__ = ("_asked", "_serial", "_texts", "_upto", "lsns")

    def __init__(self) -> None:
        self.lsns: list[int] = []  # ascending
        self._texts: tuple[str, ...] = ()
        self._upto = 0
        self._serial = 0
        self._asked = False

    def look(
        self, queue: int, filters: Sequence[Matcher], after: Callable[[int, int], Chunk], waits: Callable[[int], bool]
    ) -> Scan | None:
        """What the filters have to look at next.  after: so many that wait behind an LSN.  waits: whether one does."""
        texts = tuple(one.text for one in filters)
        if texts != self._texts:
            self.lsns, self._texts, self._upto, self._asked = [], texts, 0, False
        self.lsns = [lsn for lsn in self.lsns if waits(lsn)]
        chunk = range(0) if self._asked or len(self.lsns) >= WANTED_MOST else after(self._upto, STRETCH)
        if not len(chunk):
            return None
        self._serial += 1
        self._asked = True
        return Scan(Token(queue, self._serial, Purpose.FOREIGN), tuple(filters), chunk)

    def found(self, answer: Scanned) -> None:
        """The filters have looked at what waits elsewhere: keep what some consumer wants."""
        if self._asked and answer.token.serial == self._serial:
            self._asked, self._upto = False, answer.upto
            self.lsns = sorted({*self.lsns, *(lsn for some in answer.found for lsn in some)})
