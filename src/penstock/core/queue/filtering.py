"""Consumers with a content filter: which waiting messages match, without asking twice.

There is one target list for each distinct filter text.  It evaluates the filter on whole batches as they arrive, and on
what waited before by asking for bodies (`Fetch`) a few hundred at a time.  A list holds a bounded number of positions
and how far it has walked; the walk resumes as the list empties.  First lease wins: positions that are gone are skipped
when they reach the head of a list, so a message that nobody wants blocks nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Protocol

from penstock.core.effects import Fetch, Purpose, Sink, Token
from penstock.core.queue.main_order import Main
from penstock.core.queue.returned import Returned
from penstock.core.queue.runs import Key
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes, Rows, Topic

if TYPE_CHECKING:
    from penstock.core.queue.consumers import Consumer

TARGETS_MOST = 10_000
"""Positions in one list, about: an arriving batch that is evaluated at all is taken whole."""
WALK = 500
"""Messages asked for at once."""


class Matcher(Protocol):
    """A compiled filter; `expr.Filter` is one."""

    @property
    def text(self) -> str:
        """What was compiled; equal texts match alike."""
        ...

    def matches(
        self,
        bodies: Sequence[bytes],
        properties: bytes | Sequence[bytes],
        topics: Topic | Sequence[Topic],
        *,
        lsns: Sequence[int] | None = None,
        times: Sequence[int] | None = None,
    ) -> list[bool]:
        """One answer for each message."""
        ...


class TargetList:
    """The waiting messages that one filter wants."""

    __slots__ = ("_back", "asked", "consumers", "filter", "found", "recalled", "recheck", "walked")

    def __init__(self, filter: Matcher) -> None:
        self.filter = filter
        self.consumers: list[Consumer] = []
        self.found: deque[int] = deque()  # matching, of the main order, ascending; some may be gone
        self.walked = 0  # all of the main order up to here was looked at
        self.recalled: dict[int, int] = {}  # matching, of what came back: LSN -> place; none is gone
        self._back: list[Key] = []  # heap over `recalled`; some may be gone
        self.recheck: deque[Chunk] = deque()  # came back, not yet looked at; some may be gone
        self.asked: tuple[int, Chunk, bool] | None = (
            None  # serial of the fetch under way, its chunk, whether of recheck
        )

    def head(self, main: Main) -> Key | None:
        """Where the oldest match stands; what is gone is dropped on the way."""
        found, back = self.found, self._back
        while found and not main.has(found[0]):
            found.popleft()
        while back and self.recalled.get(back[0][1]) != back[0][0]:
            heappop(back)
        if not found:
            return back[0] if back else None
        first = (found[0], found[0])
        return min(first, back[0]) if back else first

    def caught_up(self, main: Main) -> bool:
        """Whether all of the main order was looked at."""
        return not main.count or main.last() <= self.walked

    def recall(self, keys: Iterable[Key]) -> None:
        """These came back and match."""
        for place, lsn in keys:
            self.recalled[lsn] = place
            heappush(self._back, (place, lsn))

    def forget(self) -> None:
        """The queue was emptied."""
        self.found.clear()
        self.recalled.clear()
        self._back.clear()
        self.recheck.clear()


class Targets:
    """The target lists of a queue."""

    __slots__ = ("_queue", "_serial", "lists", "most")

    def __init__(self, queue: int, most: int = TARGETS_MOST) -> None:
        self._queue = queue  # id
        self._serial = 0
        self.lists: dict[str, TargetList] = {}
        self.most = most

    def join(self, consumer: Consumer, filter: Matcher, main: Main, returned: Returned) -> TargetList:
        """The list of this filter, made if it is the first consumer with it."""
        targets = self.lists.get(filter.text)
        if targets is None:
            targets = self.lists[filter.text] = TargetList(filter)
            if main.count:
                targets.walked = main.head() - 1
            targets.recheck.extend(run.chunk for run in returned.runs())
        targets.consumers.append(consumer)
        return targets

    def leave(self, consumer: Consumer) -> None:
        """A consumer has gone; its list goes with the last."""
        targets = consumer.targets
        if targets is not None:
            targets.consumers.remove(consumer)
            if not targets.consumers:
                self.lists.pop(targets.filter.text, None)

    def arrive(self, chunk: Chunk, batch: Publishes | None, rows: Sequence[int] | None, main: Main) -> None:
        """Evaluate messages that are about to be appended to the main order; without a batch the walk will do it."""
        if batch is None:
            for targets in self.lists.values():
                if targets.caught_up(main):
                    targets.walked = max(targets.walked, chunk[0] - 1)
            return
        bodies: list[bytes] = batch.bodies
        properties: bytes | list[bytes] = batch.properties
        topics: Topic | list[Topic] = batch.topics
        if rows is not None and len(rows) != len(bodies):
            bodies = [bodies[row] for row in rows]
            properties = [properties[row] for row in rows] if isinstance(properties, list) else properties
            topics = [topics[row] for row in rows] if isinstance(topics, list) else topics
        for targets in self.lists.values():
            if targets.caught_up(main):
                if len(targets.found) < self.most:
                    answers = targets.filter.matches(bodies, properties, topics, lsns=chunk)
                    targets.found.extend(lsn for lsn, wanted in zip(chunk, answers, strict=True) if wanted)
                    targets.walked = chunk[-1]
                else:
                    targets.walked = max(targets.walked, chunk[0] - 1)

    def came_back(self, chunk: Chunk) -> None:
        """Messages returned to the queue: each list has to look again."""
        for targets in self.lists.values():
            targets.recheck.append(chunk)

    def left(self, chunk: Chunk) -> None:
        """Messages that had come back are ready no more."""
        for targets in self.lists.values():
            recalled = targets.recalled
            if recalled:
                for lsn in chunk:
                    recalled.pop(lsn, None)

    def forget(self) -> None:
        """The queue was emptied of what is ready."""
        for targets in self.lists.values():
            targets.forget()

    def ask(self, main: Main, returned: Returned, sink: Sink) -> None:
        """Ask for bodies where a list has room and something to look at."""
        for targets in self.lists.values():
            if targets.asked is not None:
                continue
            if targets.recheck and len(targets.recalled) < self.most:
                chunk = self._next_recheck(targets, returned)
                if len(chunk):
                    self._fetch(targets, chunk, True, sink)
                    continue
            if 2 * len(targets.found) <= self.most and not targets.caught_up(main):
                chunk = main.after(targets.walked, WALK)
                if len(chunk):
                    self._fetch(targets, chunk, False, sink)
                else:
                    targets.walked = main.last()

    def _next_recheck(self, targets: TargetList, returned: Returned) -> Chunk:
        while targets.recheck:
            chunk = targets.recheck.popleft()
            if len(chunk) > WALK:
                targets.recheck.appendleft(chunk[WALK:])
                chunk = chunk[:WALK]
            here = sorted(lsn for _, lsn in returned.present(chunk))
            if here:
                return as_chunk(here)
        return range(0)

    def _fetch(self, targets: TargetList, chunk: Chunk, recheck: bool, sink: Sink) -> None:
        self._serial += 1
        targets.asked = (self._serial, chunk, recheck)
        sink.effect(Fetch(Token(self._queue, self._serial, Purpose.WALK), chunk))

    def fetched(self, token: Token, rows: Rows, main: Main, returned: Returned) -> None:
        """The bodies of one fetch; ignored when nobody waits for them any more."""
        for targets in self.lists.values():
            if targets.asked is not None and targets.asked[0] == token.serial:
                break
        else:
            return
        _, chunk, recheck = targets.asked
        targets.asked = None
        answers = targets.filter.matches(rows.bodies, rows.properties, rows.topics, lsns=rows.lsns, times=rows.times)
        wanted = sorted(lsn for lsn, yes in zip(rows.lsns, answers, strict=True) if yes)
        if recheck:
            if wanted:
                targets.recall(returned.present(as_chunk(wanted)))
        else:
            targets.found.extend(wanted)
            targets.walked = max(targets.walked, chunk[-1])
