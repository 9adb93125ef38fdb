"""A world for the caches that nobody doubts: queues as sorted lists of positions, a log that is a dict of bodies.

`World` plays the core (positions, who consumes), the disk (reads are answered when a test says so) and the engine (a
delivery takes what memory has and waits for the rest).  After each step `check` recounts everything that is counted.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from penstock.memory.arrived_batches import batch_cost
from penstock.memory.caches import Caches
from penstock.memory.loader import READ_LEAST, Loader
from penstock.memory.shelf import Shelf, TargetList
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.entries import Publishes, Rows, Topic

TOPIC = Topic("/", "", "t")
Wants = Callable[[int], bool]


@dataclass(eq=False)
class ModelQueue:
    """Ready positions, and the lists with consumers: a list is a predicate over positions."""

    id: int
    main: list[int] = field(default_factory=list[int])
    back: list[int] = field(default_factory=list[int])  # came back, ascending
    lists: dict[str, ModelLine] = field(default_factory=dict[str, "ModelLine"])

    @property
    def ready(self) -> list[int]:
        return sorted(self.main + self.back)


@dataclass(eq=False)
class ModelLine:
    """One list of a model queue; what memory asks about it."""

    of: ModelQueue
    name: str
    wants: Wants | None  # None: no filter
    consumers: int = 0
    stalled: bool = False

    @property
    def queue(self) -> int:
        return self.of.id

    @property
    def whole(self) -> ModelLine:
        return self if self.wants is None else ModelLine(self.of, "", None)

    def alive(self) -> bool:
        return self.consumers > 0

    def credit(self) -> bool:
        return self.consumers > 0 and not self.stalled

    def _mine(self, lsns: Sequence[int]) -> list[int]:
        return [lsn for lsn in lsns if self.wants is None or self.wants(lsn)]

    def upcoming(self) -> list[int]:
        return self._mine(self.of.ready)

    def head(self) -> int | None:
        return min(self.upcoming(), default=None)

    def after(self, lsn: int, count: int) -> Chunk:
        main = self.of.main
        return as_chunk(self._mine(main[bisect_right(main, lsn) :])[:count])

    def between(self, first: int, stop: int) -> Chunk:
        main = self.of.main
        return as_chunk(self._mine(main[bisect_left(main, first) : bisect_left(main, stop)]))

    def needed(self, first: int, stop: int) -> Chunk | None:
        return as_chunk([lsn for lsn in self.of.ready if first <= lsn < stop])

    def returned(self, count: int) -> Chunk:
        return as_chunk(self._mine(self.of.back)[:count])


class World:
    """Caches and loader in a world of their own."""

    def __init__(self, limit: int, queues: int = 1) -> None:
        self.caches = Caches(limit, self.takers)
        self.loader = Loader(self.caches, self.read_cold)
        self.queues = [ModelQueue(number) for number in range(1, queues + 1)]
        self.bodies = dict[int, bytes]()
        self.durable = 0
        self.next = 1
        self.batches = list[Publishes]()
        self.routes: list[tuple[int, ...]] = []
        self.cold: deque[tuple[Chunk, Callable[[Rows], None], int]] = deque()
        self.rows_read = 0
        self.got: list[tuple[str, int]] = []  # (list, position) in the order of delivery
        self.waiting: dict[ModelLine, list[int]] = {}  # granted, its bodies not there yet

    # -- the core

    def queue(self, number: int = 1) -> ModelQueue:
        return self.queues[number - 1]

    def takers(self, route: int) -> list[tuple[object, ModelLine]]:
        out = list[tuple[object, ModelLine]]()
        for number in self.routes[route]:
            queue = self.queue(number)
            line = queue.lists.get("") or ModelLine(queue, "", None)
            out.append((line if line.consumers else (queue, ""), line))
        return out

    def consumer(self, queue: int = 1, name: str = "", wants: Wants | None = None) -> ModelLine:
        """A consumer comes: the list it consumes from."""
        model = self.queue(queue)
        line = model.lists.get(name)
        if line is None:
            line = model.lists[name] = ModelLine(model, name, wants)
        line.consumers += 1
        return line

    def leave(self, line: ModelLine) -> None:
        """A consumer goes; what was granted and not sent goes back."""
        line.consumers -= 1
        if not line.consumers:
            del line.of.lists[line.name]
            for lsn in self.waiting.pop(line, []):
                insort(line.of.back, lsn)

    # -- the log

    def publish(self, sizes: Sequence[int], queues: tuple[int, ...] = (1,)) -> Publishes:
        """A batch whose rows all go to these queues."""
        first = self.next
        bodies = [b"%d:" % (first + row) + b"x" * size for row, size in enumerate(sizes)]
        self.next += len(bodies)
        if queues not in self.routes:
            self.routes.append(queues)
        batch = Publishes(
            TOPIC, b"h", bodies, first, time=first, routes=self.routes.index(queues), wanted=len(bodies) * len(queues),
            size=sum(map(len, bodies)) + len(bodies),
        )  # fmt: skip
        for row, body in enumerate(bodies):
            self.bodies[first + row] = body
        self.batches.append(batch)
        self.caches.add(batch)
        for number in queues:
            self.queue(number).main.extend(range(first, self.next))
        return batch

    def commit(self) -> None:
        """Everything published is durable."""
        self.durable = self.next - 1
        self.caches.set_durable(self.durable)

    def read_cold(self, lsns: Chunk, answer: Callable[[Rows], None], most: int = 0) -> None:
        assert len(lsns)
        assert lsns[-1] <= self.durable, "what the log does not have is in memory"
        self.cold.append((lsns, answer, most))

    def answer(self) -> None:
        """The oldest read is answered, as the log's reader does: at least one row, no more than `most`."""
        lsns, answer, most = self.cold.popleft()
        rows = Rows([], [], [], [], [], [], [])
        size = 0
        for lsn in lsns:
            body = self.bodies[lsn]
            size += len(body) + 91
            if most and size > most and rows.lsns:
                break
            rows.lsns.append(lsn)
            rows.topics.append(TOPIC)
            rows.properties.append(b"h")
            rows.bodies.append(body)
            rows.times.append(lsn // 10)
            rows.expires_at.append(0)
            rows.priority.append(0)
        self.rows_read += len(rows)
        answer(rows)

    # -- the engine

    def list_of(self, line: ModelLine) -> TargetList:
        one = self.caches.area.lists.get(line)
        return one if one is not None else self.caches.area.add(line, line)

    def dispatch(self, line: ModelLine, count: int) -> None:
        """Grant a list its next positions and send what of them is in memory; the rest waits for the loader."""
        lsns = line.upcoming()[:count]
        for lsn in lsns:
            (line.of.main if lsn in line.of.main else line.of.back).remove(lsn)
        waiting = self.waiting.setdefault(line, [])
        waiting += lsns
        if len(waiting) == len(lsns):
            self.send(line)
        if line.upcoming():
            self.loader.look_after(self.list_of(line), len(lsns))
        self.loader.step()

    def send(self, line: ModelLine) -> None:
        """Send from the front of what was granted until something is not in memory."""
        waiting = self.waiting.get(line)
        if not waiting:
            return
        ascending = 1
        while ascending < len(waiting) and waiting[ascending] > waiting[ascending - 1]:
            ascending += 1
        chunk = as_chunk(waiting[:ascending])
        for piece in self.caches.pieces(chunk, line, line.queue):
            if piece.bodies is None:
                rest = as_chunk(waiting[: ascending - (len(chunk) - len(waiting[:ascending]))])
                self.loader.want(self.list_of(line), [rest], lambda: self.send(line))
                return
            assert len(piece.bodies) == len(piece.chunk)
            for lsn, body in zip(piece.chunk, piece.bodies, strict=True):
                assert body == self.bodies[lsn]
                assert waiting.pop(0) == lsn
                self.got.append((line.name, lsn))
        self.send(line)

    def give_back(self, line: ModelLine, lsn: int) -> None:
        """A delivered message is ready again, at its place."""
        insort(line.of.back, lsn)
        self.loader.look_after(self.list_of(line), 0)

    def run(self, reads: int = 10_000) -> None:
        """Steps and answers until nothing is left to do."""
        for _ in range(reads):
            self.loader.step()
            if not self.cold:
                return
            self.answer()
        raise AssertionError("it does not come to rest")

    # -- what must always be true

    def watermark(self, line: ModelLine) -> int:
        """How many of the list's next positions, from the first on, have their bodies at once."""
        count = 0
        one = self.caches.area.lists.get(line)
        for lsn in line.upcoming():
            direct = one is not None and one.shelf.find(as_chunk([lsn]), 0)[1] is not None
            if not direct and self.caches.peek(lsn) is None:
                break
            count += 1
        return count

    def check(self) -> None:
        """Recount; AssertionError says what is off."""
        caches = self.caches
        direct = [one.shelf for one in caches.area.lists.values()]
        for account, shelves in (
            (caches.area.account, direct),
            (caches.pending.account, list(caches.pending.shelves.values())),
            (caches.heads.account, list(caches.heads.shelves.values())),
        ):
            for shelf in shelves:
                check_shelf(shelf)
            assert account.bytes == sum(shelf.bytes for shelf in shelves), account.name
        assert caches.loading.bytes >= 0
        assert not self.loader.reading or caches.loading.bytes
        assert bool(self.cold) or not caches.loading.bytes
        young = sum(batch_cost(batch) for batch in self.batches if batch.first > self.durable)
        assert caches.arrivals.young == young
        rows = [max(len(body) for body in self.bodies.values()) + 91] if self.bodies else [0]
        beyond = young + READ_LEAST + rows[0]
        assert caches.budget.used <= caches.budget.limit + beyond, caches.budget.by_name()
        for one in caches.area.lists.values():
            assert one.watermark <= sum(map(len, one.shelf))


def check_shelf(shelf: Shelf) -> None:
    """Ascending, disjoint, counted."""
    last = 0
    for slab in shelf:
        assert len(slab.chunk) == len(slab.bodies)
        assert slab.first > last
        assert sum(map(len, slab.bodies)) <= slab.cost
        last = slab.last
    assert shelf.bytes == sum(slab.cost for slab in shelf)
    assert shelf.rows == sum(slab.left for slab in shelf)


__all__ = ["ModelLine", "World", "check_shelf"]
