"""Which messages of other sites consumers with filters want: filters look at them as at any, a stretch at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.core.effects import Purpose, Scan, Scanned, Token
from penstock.expr import Matcher
from penstock.records.chunks import Chunk

STRETCH = 4_096
"""Messages that are looked at together."""

MOST = 10_000
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
        chunk = range(0) if self._asked or len(self.lsns) >= MOST else after(self._upto, STRETCH)
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
