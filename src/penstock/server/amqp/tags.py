"""Delivery tags of one channel: which consumer's which message a tag means.

Deliveries stand in blocks of adjacent tags, ascending, so a tag is found by bisection.  Acks in order cut the first
block; an ack in the middle marks one byte.  No object a message, whatever the order of the acks.  A block belongs to
one consumer, or is what one step gave to many of them.  What a transaction settles is marked as lent until it ends: its
tags are spent, and outstanding again where it is rolled back.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from penstock.records.chunks import Chunk, as_chunk
from penstock.server.amqp.tag_index import TagIndex, places

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.consumers import Consumer

Owner: TypeAlias = "Consumer | list[Consumer]"
"""Whose some messages are: all of one consumer, or each of the one at its place, all of one queue."""

Settled = list["tuple[Owner, Chunk]"]

SMALL = 64
"""Deliveries smaller than this are joined with the one before."""
BLOCK_MOST = 2048
"""Tags in a joined block, about."""
EACH_MOST = 256
"""The same in one of many consumers."""
IDLE_MOST = 64
"""Empty blocks are let go when there are more than this, and more than others."""
UNINDEXED_MOST = 64
"""Blocks that are asked one by one for messages that are given again; of more there is an index."""
UNINDEXED_SHARE = 1024
"""Of very many deliveries, one block for so many: what the index takes in costs something for all that is in it."""
GONE, LENT = 1, 2
"""Marks of tags that are not outstanding."""
_LIVING = bytes([1]) + bytes(255)
"""Turns marks of what is not outstanding into marks of what is."""
_SETTLED = {mark: bytes([mark, GONE, LENT]) + bytes(253) for mark in (GONE, LENT)}
"""What becomes of marks when what is outstanding is settled."""
_BACK, _ENDED = (bytes([0, GONE, after]) + bytes(253) for after in (0, GONE))
"""What becomes of marks when nothing is lent any more: what was is outstanding again, or gone."""


class UnknownTag(Exception):
    """The client settled a tag that is not outstanding."""

    def __init__(self, tag: int) -> None:
        super().__init__(tag)
        self.tag = tag


class _Block:
    """Adjacent tags; `chunk[i]` is the message of tag `first + i`, and `owner` or `owner[i]` whose it is."""

    __slots__ = ("chunk", "first", "gone", "left", "lent", "owner")

    def __init__(self, first: int, owner: Owner, chunk: Chunk) -> None:
        self.first = first
        self.owner = owner
        self.chunk = chunk
        self.gone: bytearray | None = None  # the mark of each tag that was settled, else 0; None: none was
        self.left = len(chunk)
        self.lent = 0  # how many of its tags are

    @property
    def empty(self) -> bool:
        """Whether none of its tags will be settled any more."""
        return not self.left and not self.lent

    def holds(self, low: int, high: int) -> bool:
        """Whether all these places are outstanding (high exclusive, within the block)."""
        return self.gone is None or self.gone.count(0, low, high) == high - low

    def mark(self, place: int) -> int:
        """GONE, LENT, or 0: it is outstanding."""
        return 0 if self.gone is None else self.gone[place]

    def may_be_settled(self, place: int, by: Consumer) -> bool:
        """Whether it is a delivery to this consumer that is outstanding or lent."""
        if place >= len(self.chunk) or self.mark(place) == GONE:
            return False
        return (self.owner[place] if isinstance(self.owner, list) else self.owner) is by

    def after(self, tag: int) -> tuple[int, Owner, Chunk]:
        """Its part from a tag on: the first tag, whose it is, and the messages."""
        if tag <= self.first:
            return self.first, self.owner, self.chunk
        owner, place = self.owner, tag - self.first
        return tag, owner[place:] if isinstance(owner, list) else owner, self.chunk[place:]

    def take(self, low: int, high: int, mark: int = GONE) -> tuple[Owner, Chunk]:
        """Settle what is outstanding from place `low` to before `high`; its messages, and whose they are."""
        part, owner = self.chunk[low:high], self.owner
        gone = self.gone
        if isinstance(owner, list):
            owner = owner[low] if high == low + 1 else owner[low:high]
        elif gone is None and low == 0 and mark == GONE:
            self.first += high
            self.chunk = self.chunk[high:]
            self.left -= high
            return owner, part
        if gone is None:
            gone = self.gone = bytearray(len(self.chunk))
        elif gone.count(0, low, high) < high - low:
            if isinstance(owner, list):
                owner = list(compress(owner, gone[low:high].translate(_LIVING)))
            part = _living(part, gone[low:high])
        gone[low:high] = gone[low:high].translate(_SETTLED[mark])
        self.left -= len(part)
        if mark == LENT:
            self.lent += len(part)
        elif not self.left and not self.lent:
            self.chunk, self.gone = range(0), None
        return owner, part

    def end_lent(self, table: bytes, low: int = 0, high: int | None = None) -> int:
        """Nothing of it is lent any more, from place `low` to before `high`; how many are outstanding again."""
        assert self.gone is not None
        marks = self.gone[low:high]
        self.gone[low:high] = marks.translate(table)
        ended = marks.count(LENT)
        self.lent -= ended
        back = ended if table is _BACK else 0
        self.left += back
        if not self.left and not self.lent:
            self.chunk, self.gone = range(0), None
        return back


def _living(part: Chunk, gone: bytearray) -> Chunk:
    """What is outstanding of some deliveries."""
    if len(part) < SMALL:
        return as_chunk(array("q", compress(part, gone.translate(_LIVING))))
    out = array("q")
    left = np.frombuffer(gone, dtype=np.uint8) == 0
    if isinstance(part, range):
        out.frombytes((np.flatnonzero(left) + part.start).astype(np.int64).tobytes())
    else:
        out.frombytes(np.frombuffer(part, dtype=np.int64)[left].tobytes())
    return as_chunk(out)


class Tags:
    """Outstanding deliveries of a channel: `count` of them; `next` is the tag of the next delivery."""

    __slots__ = (
        "_blocks", "_firsts", "_idle", "_index", "_joined", "_lent", "_lone", "_skipped", "_start", "_tag", "count",
        "next",
    )  # fmt: skip

    def __init__(self) -> None:
        self.next = 1
        self.count = 0
        self._blocks: list[_Block] = []  # ascending; from `_start` on, empty ones among them
        self._firsts: list[int] = []  # their first tags
        self._start = 0
        self._idle = 0  # empty blocks after the start
        self._index: TagIndex | None = None  # of blocks up to some tag, since they were asked for by message
        self._joined: array[int] | None = None  # the chunk of the last block, if it was made here
        self._lent: dict[_Block, None] | None = None  # those of which something is lent
        self._skipped = False  # some tags name what nobody settles
        self._lone: tuple[Consumer, Chunk] | None = None  # all that is outstanding, one message; then no block has it
        self._tag = 0  # of that

    def give(self, consumer: Consumer, chunk: Chunk, outstanding: bool) -> int:
        """The first of `len(chunk)` new tags; they stay outstanding unless the consumer does not ack."""
        first = self.next
        n = len(chunk)
        self.next = first + n
        if outstanding:
            if n == 1 and not self.count:  # as with a prefetch of 1
                self.count, self._tag, self._lone = 1, first, (consumer, chunk)
                return first
            self._place()
            self.count += n
            if n >= SMALL or not self._blocks or not self._join(self._blocks[-1], first, consumer, chunk):
                self._blocks.append(_Block(first, consumer, chunk))
                self._firsts.append(first)
                self._joined = None
        return first

    def _place(self) -> None:
        """What is outstanding alone is a block, as it is wherever more than one may be asked for."""
        if self._lone is not None:
            (consumer, chunk), self._lone = self._lone, None
            self._blocks.append(_Block(self._tag, consumer, chunk))
            self._firsts.append(self._tag)
            self._joined = None

    def spend(self) -> int:
        """The tag of a delivery that nobody settles: it is as that of a consumer that does not ack."""
        self.next += 1
        return self.next - 1

    def give_each(self, consumers: Sequence[Consumer], chunk: Chunk) -> int:
        """The first of `len(chunk)` new tags, outstanding, each of the consumer at its place; all are of one queue."""
        self._place()
        first = self.next
        n = len(chunk)
        self.next = first + n
        self.count += n
        if not self._blocks or not self._join_each(self._blocks[-1], first, consumers, chunk):
            self._blocks.append(_Block(first, list(consumers), chunk))
            self._firsts.append(first)
            self._joined = None
        return first

    def skip(self, count: int) -> int:
        """The first of so many new tags of deliveries that there is nothing to settle of.

        Settling them has no effect and is no mistake.  From then on that holds for every tag that was given out and is
        not outstanding: which of them were settled before is not kept.
        """
        first = self.next
        self.next = first + count
        self._skipped = True
        return first

    def supersede(self, consumer: Consumer, chunk: Chunk) -> None:
        """The consumer is given these again: the tags of its earlier deliveries of them mean nothing from now on.

        Settling one of those has no effect and is no mistake, for its lease ended by itself.
        """
        if not self.count and not self._lent:
            return
        self._place()
        found = False
        for tag in self._tags_of(consumer, chunk):
            at = bisect_right(self._firsts, tag, self._start) - 1
            block = self._blocks[at] if at >= self._start else None
            if block is not None and block.may_be_settled(tag - block.first, consumer):
                found = True
                self._forget(block, tag - block.first)
                self._firsts[at] = block.first
                self._idle += block.empty
        if found:
            self._skipped = True
            self._sweep()

    def _forget(self, block: _Block, place: int) -> None:
        if block.mark(place) != LENT:
            self.count -= len(block.take(place, place + 1)[1])
            return
        block.end_lent(_ENDED, place, place + 1)
        if not block.lent and self._lent is not None:
            del self._lent[block]

    def _tags_of(self, consumer: Consumer, chunk: Chunk) -> list[int]:
        """Under which tags the consumer may hold these: by the index, and by the blocks that are newer than it."""
        index, blocks, at = self._index, self._blocks, self._start
        if index is not None:
            at = max(bisect_right(self._firsts, index.until - 1, at) - 1, at)
        if len(blocks) - at > max(UNINDEXED_MOST, self.count // UNINDEXED_SHARE):
            if index is None or len(index) > 2 * self.count:
                index, at = TagIndex(), self._start
            until = index.until
            index.extend((block.after(until) for block in blocks[at:] if not block.empty), self.next)
            self._index, at = index, len(blocks)
        out = [] if index is None else index.find(consumer, chunk)
        low, high = chunk[0], chunk[-1]
        for block in blocks[at:]:
            held, owner = block.chunk, block.owner
            if (
                not block.empty
                and held[0] <= high
                and held[-1] >= low
                and (owner is consumer or isinstance(owner, list))
            ):
                out += [block.first + place for place in places(held, chunk)]
        return out

    def _join(self, last: _Block, first: int, consumer: Consumer, chunk: Chunk) -> bool:
        return last.owner is consumer and self._joins(last, first, chunk, BLOCK_MOST)

    def _join_each(self, last: _Block, first: int, consumers: Sequence[Consumer], chunk: Chunk) -> bool:
        owners = last.owner
        if not isinstance(owners, list) or owners[0].queue is not consumers[0].queue:
            return False
        if not self._joins(last, first, chunk, EACH_MOST):
            return False
        owners += consumers
        return True

    def _joins(self, last: _Block, first: int, chunk: Chunk, most: int) -> bool:
        """Whether the last block takes more messages of the same owner; then it has."""
        held = last.chunk
        size = len(held)
        if last.gone is not None or not 0 < size < most or last.first + size != first or held[-1] >= chunk[0]:
            return False
        if isinstance(held, range) and isinstance(chunk, range) and held.stop == chunk.start:
            last.chunk = range(held.start, chunk.stop)
        else:
            if self._joined is None or self._joined is not held:
                if size >= SMALL:
                    return False
                last.chunk = self._joined = array("q", held)  # others may hold the array that it was
            self._joined.extend(chunk)
        last.left += len(chunk)
        return True

    def settle(self, low: int, high: int) -> Settled:
        """Take tags low..high (low 0: all up to high; 0, 0: all) out; raises UnknownTag and changes nothing.

        Returns chunks with their owners in tag order.
        """
        lone = self._lone
        if lone is not None:
            if low == high == self._tag:
                self.count, self._lone = 0, None
                return [lone]
            self._place()
        if self._skipped:
            if high >= self.next:
                raise UnknownTag(high)
            at = max(bisect_right(self._firsts, low, self._start) - 1, self._start)
            return self._take(at, low, high or self.next - 1)
        if low == 0:
            return self._take(self._start, 0, self._upper(high))
        at = bisect_right(self._firsts, low, self._start) - 1
        if at < self._start:
            raise UnknownTag(low)
        block = self._blocks[at]
        place = low - block.first
        end = high + 1 - block.first
        if end > len(block.chunk) or not block.holds(place, end):
            self._must_hold(at, low, high)
            return self._take(at, low, high)
        owner, chunk = block.take(place, end)
        self.count -= len(chunk)
        self._firsts[at] = block.first
        if block.empty:
            self._let_go(at)
        return [(owner, chunk)]

    def settle_one(self, tag: int) -> tuple[Consumer, Chunk] | None:
        """As `settle` of one tag that is outstanding; None, with nothing changed: it is not."""
        lone = self._lone
        if lone is not None and tag == self._tag:
            self.count, self._lone = 0, None
            return lone
        try:
            settled = self.settle(tag, tag)
        except UnknownTag:
            return None
        for owner, chunk in settled:
            return owner[0] if isinstance(owner, list) else owner, chunk
        return None

    def lend(self, low: int, high: int) -> Settled:
        """As `settle`, until `take_back` or `keep`."""
        self._place()
        if self._skipped:
            if high >= self.next:
                raise UnknownTag(high)
            at, high = max(bisect_right(self._firsts, low, self._start) - 1, self._start), high or self.next - 1
        elif low == 0:
            high, at = self._upper(high), self._start
        else:
            at = bisect_right(self._firsts, low, self._start) - 1
            if at < self._start:
                raise UnknownTag(low)
            self._must_hold(at, low, high)
        if self._lent is None:
            self._lent = {}
        return self._take(at, low, high, self._lent)

    def take_back(self) -> None:
        """What was lent is outstanding again."""
        self._end_lent(_BACK)

    def keep(self) -> None:
        """What was lent is settled for good."""
        self._end_lent(_ENDED)

    def _end_lent(self, table: bytes) -> None:
        lent, self._lent = self._lent, None
        if lent:
            self._place()
            for block in lent:
                self.count += block.end_lent(table)
                self._idle += block.empty
            self._sweep()

    def all(self) -> Settled:
        """Everything outstanding, oldest first; nothing is outstanding afterwards."""
        return self.settle(0, 0) if self.count else []

    def _upper(self, high: int) -> int:
        """The last tag of all up to `high` (0: of all), which is outstanding; raises UnknownTag."""
        if high == 0:
            return self.next - 1
        if high >= self.next:
            raise UnknownTag(high)
        at = bisect_right(self._firsts, high, self._start) - 1
        if at < self._start:
            raise UnknownTag(high)
        self._must_hold(at, high, high)
        return high

    def _must_hold(self, at: int, low: int, high: int) -> None:
        """Raise UnknownTag unless all tags from low to high are outstanding; `low` is not before block `at`."""
        tag = low
        while tag <= high:
            block = self._blocks[at] if at < len(self._blocks) else None
            if block is None or block.first > tag:
                raise UnknownTag(tag)
            end = min(high + 1 - block.first, len(block.chunk))
            if not block.holds(tag - block.first, end):
                raise UnknownTag(tag)
            if tag - block.first < end:
                tag = block.first + end
            elif block.chunk or at + 1 >= len(self._blocks):
                raise UnknownTag(tag)
            at += 1

    def _take(self, at: int, low: int, high: int, lent: dict[_Block, None] | None = None) -> Settled:
        out: Settled = []
        if low == 0 and high >= self.next - 1 and not self._lent and lent is None:  # all, which may be very much
            some = [block for block in self._blocks[self._start :] if block.left]
            self.count = 0
            self._sweep()
            return [(one.owner, one.chunk) if one.gone is None else one.take(0, len(one.chunk)) for one in some]
        while at < len(self._blocks) and (block := self._blocks[at]).first <= high:
            size = block.left
            if size and lent is None and block.gone is None and low <= block.first and block.first + size - 1 <= high:
                out.append((block.owner, block.chunk))  # all of it, as nearly always
                self.count -= size
                self._idle += 1
                block.first += size
                block.chunk, block.left = range(0), 0
                self._firsts[at] = block.first
            elif size:
                start, end = max(low - block.first, 0), min(high + 1 - block.first, len(block.chunk))
                if start < end:
                    owner, chunk = block.take(start, end, GONE if lent is None else LENT)
                    if len(chunk):
                        self.count -= len(chunk)
                        if lent is not None:
                            lent[block] = None
                        out.append((owner, chunk))
                        self._firsts[at] = block.first
                        self._idle += block.empty
            at += 1
        self._sweep()
        return out

    def _let_go(self, at: int) -> None:
        if at == self._start or self._idle >= IDLE_MOST:
            self._idle += 1
            self._sweep()
        else:
            self._idle += 1

    def _sweep(self) -> None:
        """Step over empty blocks at the front; drop those further on when they are many."""
        blocks = self._blocks
        if not self.count and not self._lent:
            self._blocks, self._firsts, self._start, self._idle, self._joined = [], [], 0, 0, None
            self._index = None
            return
        while blocks[self._start].empty:
            self._start += 1
            self._idle -= 1
        if self._start + self._idle > max(IDLE_MOST, len(blocks) // 2):
            self._blocks = [block for block in blocks[self._start :] if not block.empty]
            self._firsts = [block.first for block in self._blocks]
            self._start = self._idle = 0


def singly(settled: Settled) -> list[tuple[Consumer, Chunk]]:
    """The same with each chunk of one consumer."""
    out: list[tuple[Consumer, Chunk]] = []
    for owner, chunk in settled:
        if isinstance(owner, list):
            out += [(one, range(lsn, lsn + 1)) for one, lsn in zip(owner, chunk, strict=True)]
        else:
            out.append((owner, chunk))
    return out
