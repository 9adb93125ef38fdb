"""Keys of messages, and messages whose keys are not known yet.

A key is the text that an expression gives, and a small number for it, its own as long as a living message has it; then
another key may get it, and 0 is the number of no key.  A message costs 16 bytes here, 9 where keys are few.

Keys are unknown after a start, after a change of the expression, in batches too large to be evaluated at once.  Such
messages wait in the order of the queue; the oldest are read and evaluated off the loop, a step at a time, and let in as
their keys are told.  Nothing that comes later is let in before them.  What was out already (leased, in back-off) is
asked about before all others, for its keys are in use.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b
from itertools import chain

import numpy as np

from penstock.core.arena import Move
from penstock.core.queue.order import scattered
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.returned import Returned, Waiting
from penstock.core.queue.order.runs import Key, Run, sift_runs
from penstock.records.chunks import Chunk, as_chunk

STEP = 512
"""Messages whose keys are worked out at once."""

Told = Sequence[str | None]
"""The keys of one message, by each of its queue's expressions."""


class Staging(Waiting):
    """What waits for its keys."""

    __slots__ = ("answers", "asked", "next", "out", "serial")

    def __init__(self) -> None:
        super().__init__(Main(), Returned())
        self.next: list[Run] = []  # the oldest, which the world is asked about, in the order of the queue
        self.answers: dict[int, Told] = {}  # what it told of those, where older ones are still open
        self.out: dict[int, bool] = {}  # messages that are leased (True) or in back-off
        self.asked: Chunk = range(0)  # the question under way
        self.serial = 0

    def __bool__(self) -> bool:
        return bool(self.count or self.out)

    @property
    def count(self) -> int:
        return self.main.count + self.returned.count + sum([len(run.chunk) for run in self.next])

    # -- questions

    def question(self, out_alone: bool) -> Chunk:
        """What is to be asked next; empty: nothing.  `out_alone`: only about what is out."""
        if self.out:
            some = array("q", sorted(self.out)[:STEP])
            return as_chunk(some)
        if out_alone:
            return range(0)
        if not self.next:
            self.next = super().take(STEP)
        return as_chunk(array("q", sorted([lsn for run in self.next for lsn in run.chunk if lsn not in self.answers])))

    def told(self) -> Iterator[tuple[Run, int, Told]]:
        """The oldest whose keys were told, in order, one after the other; they are no longer here."""
        answers = self.answers
        while self.next:
            run = self.next[0]
            chunk = run.chunk
            n = 0
            while n < len(chunk) and chunk[n] in answers:
                n += 1
            if n == len(chunk):
                self.next.pop(0)
            elif n:
                run.chunk = chunk[n:]
            for lsn in chunk[:n]:
                yield run, lsn, answers.pop(lsn)
            if n < len(chunk):
                return

    # -- what leaves

    def extract(self, wanted: Chunk) -> list[Run]:
        out = super().extract(wanted)
        known, self.next = sift_runs(self.next, wanted)
        for run in known:
            for lsn in run.chunk:
                self.answers.pop(lsn, None)
        out += known
        for run in out:
            run.solid = False
        return out

    # -- asked

    def runs(self) -> Iterator[Run]:
        """The others: returned, due, or asked about."""
        yield from super().runs()
        yield from self.next

    def back(self) -> Iterator[Chunk]:
        """The same as ascending chunks."""
        yield from super().back()
        yield from (run.chunk for run in self.next)

    def pieces(self) -> Iterator[Chunk]:
        return chain(self.chunks(), self.back())

    def among(self, wanted: Chunk) -> list[Run]:
        """Those of the wanted that are here, as runs; they stay."""
        return [*super().among(wanted), *sift_runs(self.next, wanted)[0]]

    def copies(self) -> tuple[list[Run], list[scattered.Told]]:
        """The others than `chunks`, as runs and as columns that will not change."""
        runs, columns = super().copies()
        return [*runs, *[run.copy() for run in self.next]], columns

    def head(self) -> Key:
        return min([super().head(), *map(self.returned.key, self.next)])

    def floor(self) -> int:
        return min([super().floor(), *(run.chunk[0] for run in self.next)])


NO_KEY = 0
"""The number of messages whose key is NULL."""

TEXT_MOST = 200
"""Characters of a key that are kept; of a longer one the beginning and a sum that tells it from others."""


def key_text(value: object) -> str | None:
    """The key that a value of an expression is; None for NULL.  Keys are compared as text: 5, 5.0 and '5' are one."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool):
        text = "true" if value else "false"
    elif isinstance(value, float) and value.is_integer():
        text = str(int(value))
    else:
        text = str(value)
    if len(text) <= TEXT_MOST:
        return text
    return f"{text[:32]}... {blake2b(text.encode(errors='surrogateescape'), digest_size=16).hexdigest()}"


class Keys:
    """The keys of one queue by one expression."""

    __slots__ = ("_free", "_ids", "_known", "_late", "living", "texts")

    def __init__(self) -> None:
        self._ids: dict[str, int] = {}
        self.texts: list[str] = [""]  # by number; empty: not in use
        self.living = array("q", (0,))  # messages that have it, by number
        self._free = list[int]()
        self._known = Ranks()  # numbers by LSN
        self._late: dict[int, int] = {}  # the same of messages that were told behind newer ones

    def __len__(self) -> int:
        return len(self._ids)

    # -- in

    def add(self, chunk: Chunk, texts: Sequence[str | None]) -> list[int]:
        """Messages that live from now on, and their keys; the numbers."""
        ids, living = self._ids, self.living
        out = list[int]()
        for text in texts:
            if text is None:
                out.append(NO_KEY)
                continue
            number = ids.get(text)
            if number is None:
                number = self._new(text)
            living[number] += 1
            out.append(number)
        if len(chunk) and chunk[0] > self._known.last:
            self._known.add(chunk, out)
        else:
            self._late.update(zip(chunk, out, strict=True))
        return out

    def _new(self, text: str) -> int:
        if self._free:
            number = self._free.pop()
            self.texts[number] = text
        else:
            number = len(self.texts)
            self.texts.append(text)
            self.living.append(0)
        self._ids[text] = number
        return number

    # -- asked

    def number(self, text: str) -> int:
        """The number of a key; `NO_KEY` when no living message has it."""
        return self._ids.get(text, NO_KEY)

    def knows(self, lsn: int) -> bool:
        """Whether the key of a living message is known."""
        return lsn in self._late or self._known.knows(lsn)

    def of(self, lsn: int) -> int:
        """The number of the key of a message that is known."""
        late = self._late.get(lsn)
        return self._known.of(lsn) if late is None else late

    def each(self, chunk: Chunk) -> list[int]:
        """The same of several, ascending."""
        if self._late or len(chunk) < 16:
            return [self.of(lsn) for lsn in chunk]
        numbers: list[int] = self._known.each(chunk).tolist()
        return numbers

    def among(self, chunk: Chunk) -> Iterable[int]:
        """Those of the living messages of a chunk whose keys are known; some that are gone may be among them."""
        if isinstance(chunk, range):
            return self.known(chunk.start, chunk.stop)
        known = self._known.among(chunk) if self._known.count and len(chunk) else range(0)
        if not self._late:
            return known
        return [*known, *[lsn for lsn in chunk if lsn in self._late]]

    def known(self, first: int, stop: int) -> Iterable[int]:
        """Those with LSNs in [first, stop) whose keys are known; some that are gone may be among them."""
        known = self._known.between(first, stop)
        return [*known, *(lsn for lsn in self._late if first <= lsn < stop)] if self._late else known

    # -- out

    def drop(self, lsn: int, number: int) -> None:
        """A message that had this key is gone."""
        if self._late:
            self._late.pop(lsn, None)
        if number == NO_KEY:
            return
        self.living[number] -= 1
        if not self.living[number]:
            self._end(number)

    def keep(self, stay: Chunk) -> None:
        """All others of the messages whose keys are known are gone; ascending."""
        counts = np.bincount(np.asarray(self.each(stay), dtype=np.int64), minlength=1)
        counts[NO_KEY] = 0
        self.living = array("q", counts.tolist())
        self._ids = {self.texts[number]: number for number in np.flatnonzero(counts).tolist()}
        self.texts = [text if count else "" for text, count in zip(self.texts, self.living, strict=False)]
        self._free = np.flatnonzero(counts == 0).tolist()[1:]
        if self._late:
            self._late = {lsn: self._late[lsn] for lsn in stay if lsn in self._late}

    def _end(self, number: int) -> None:
        del self._ids[self.texts[number]]
        self.texts[number] = ""
        self._free.append(number)

    @property
    def forgetting(self) -> bool:
        """Whether `forget_some` has more to do."""
        return self._known.forgetting

    def forget_if_many(self, count: Callable[[], int], living: Callable[[], Iterable[Chunk]]) -> None:
        """As `Ranks` do it."""
        self._known.forget_if_many(count, living)

    def forget_some(self) -> None:
        """One step of what `forget_if_many` began."""
        self._known.forget_some()

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self._known.page(move)


def ascending_chunk(lsns: Sequence[int]) -> Chunk:
    """LSNs in any order as one chunk."""
    return as_chunk(array("q", sorted(lsns)))
