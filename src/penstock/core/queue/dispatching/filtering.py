"""Consumers with a content filter: which waiting messages match, without asking twice.

There is one target list for each distinct filter text.  Lists that have looked at everything follow: what arrives is
evaluated for all of them at once (`FilterSet`), and a list that an arrival does not concern costs nothing.  The others
walk over what waited before them: `Scan` effects ask for the matches of a stretch of the main order, one for all lists
that stand at the same place, and come back with LSNs.  A list holds a bounded number of positions; a full one stops
where it is and walks on when half of them are gone.  First lease wins: positions that are gone are skipped when they
reach the head of a list, so a message that nobody wants blocks nobody.

What came back has its old place.  The list of the filter by which it was given out knows that it wants it, also where
all who had that filter have gone since and others have it now; the other lists look at it anew, and until they have
nobody is given by them what stands behind it.

What would hold up the loop is not evaluated as it arrives: the lists fall behind, and walk there at once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence

from penstock.core.effects import Purpose, Scan, Sink, Token
from penstock.core.queue.dispatching.consumers import Consumer, Foreseen, TargetList
from penstock.core.queue.dispatching.recalled import Gone, Piece, Recalled
from penstock.core.queue.order.main_order import Main
from penstock.core.queue.order.returned import Returned
from penstock.core.queue.order.runs import ALL, Key, Run
from penstock.expr import FilterSet, Matcher
from penstock.expr.context import LOOP_BODY, LOOP_BYTES, HandOver
from penstock.expr.readings import in_time, readings_of
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.dataclass import dataclass
from penstock.records.entries import Messages, Publishes
from penstock.records.message_bodies import listed

TARGETS_MOST = 10_000
"""Positions in one list."""
WALK_FIRST = 4_096
"""Messages of the first stretch that a list looks through; the next is twice as long, where few match."""
WALK_MOST = 1 << 20
WALK_LEAST = 256
RECHECK = 500
"""Messages that came back, asked for at once."""
CATCH_UP = 3
"""Those furthest back look at so many messages for each that somebody before them looks at: they are to meet, and then
go on as one."""

__all__ = ["Matcher", "Targets"]


@dataclass(slots=True, eq=False)
class Look:
    """A question to the world which of some messages match the filters of these lists, and what was answered so far."""

    lists: tuple[TargetList, ...]
    chunk: Chunk
    end: int = 0  # the place up to which it walks
    last: bool = False  # of those that stand furthest back
    piece: Piece | None = None  # of what came back; None: it walks through the main order
    source: Recalled | None = None  # where it is from
    joined: int = 0  # how many lists there had been
    found: Sequence[Sequence[int]] | None = None  # by those of the lists, of the parts that were answered
    part: int = 0  # messages of the first answer, if that was for a part

    @property
    def recheck(self) -> bool:
        """Whether it looks at what came back."""
        return self.piece is not None


class Targets:
    """The target lists of a queue."""

    __slots__ = (
        "_ahead", "_behind", "_by_slot", "_following", "_full", "_gone", "_queue", "_recalling", "_recheck",
        "_rechecking", "_serial", "_stopped", "asked", "awake", "foreseen", "halted", "joined", "lists", "most",
    )  # fmt: skip

    def __init__(self, queue: int) -> None:
        self._queue = queue  # id
        self._serial = 0
        self.lists: dict[str, TargetList] = {}
        self.joined = 0  # lists that there have been
        self.foreseen = Foreseen()
        self.most = TARGETS_MOST
        self.asked: dict[int, Look] = {}  # scans under way, by serial
        self.awake: dict[TargetList, None] = {}  # those that may have a match and somebody to take it
        self._following = FilterSet()
        self._by_slot: dict[int, TargetList] = {}
        self._behind: dict[TargetList, None] = {}  # those that have to walk, and have room
        self._full: dict[TargetList, None] = {}  # those that have to walk later
        self._gone = Gone()
        self._ahead = 0.0  # so many messages may be looked at by lists before those furthest back
        self._recheck = self.nothing_recalled()  # came back, and all lists, or the newer ones, have to look at it
        self._rechecking: dict[TargetList, None] = {}  # those with something of their own to look at again
        self._recalling: dict[TargetList, None] = {}  # those with something in `back`
        self._stopped: dict[TargetList, None] = {}  # those that sleep until they have looked at something
        self.halted: dict[
            int, dict[TargetList, None]
        ] = {}  # by a message of the main order at which those have to look

    def go_on_from(self, others: Targets) -> None:
        """Take the place of others: no answer to what they asked is taken for one to these."""
        self._serial, self.most = others._serial, others.most

    def nothing_recalled(self) -> Recalled:
        """What to keep in mind what came back."""
        return Recalled(self._gone)

    def place_of(self, run: Run) -> int:
        """Where a run that came back stands, as a number that sorts; 0: each message at its own LSN."""
        return run.where if run.place else 0

    # -- lists

    def join(self, consumer: Consumer, filter: Matcher, main: Main, returned: Returned) -> TargetList:
        """The list of this filter, made if it is the first consumer with it."""
        targets = self.lists.get(filter.text)
        if targets is None:
            targets = self.lists[filter.text] = self._new(filter, main)
            if returned.count:
                self._recheck.put_others(returned.in_order(), returned.count, targets.born - 1)
        targets.consumers.append(consumer)
        return targets

    def _new(self, filter: Matcher, main: Main) -> TargetList:
        """A list that has looked at nothing of the main order."""
        targets = TargetList(filter, self, WALK_FIRST)
        if main.count:
            self._fall_behind(targets, main.head() - 1)
        else:
            self._follow(targets)
        return targets

    def leave(self, consumer: Consumer) -> None:
        """A consumer has gone; its list goes with the last."""
        targets = consumer.targets
        if targets is not None:
            targets.consumers.remove(consumer)
            targets.takers.remove(consumer)
            if not targets.consumers and self.lists.pop(targets.filter.text, None) is not None:
                self._stop_following(targets)
                targets.forget()
                for group in (self._behind, self._full, self._rechecking, self._recalling, self._stopped, self.awake):
                    group.pop(targets, None)
                if not self.lists:
                    self._recheck.clear()
                    self.foreseen.clear()

    def _follow(self, targets: TargetList) -> None:
        """It has looked at everything."""
        self._behind.pop(targets, None)
        targets.new = False
        targets.arrived(ALL)
        targets.stride = WALK_FIRST
        if targets.slot < 0:
            self._hear(targets)
        self.awake[targets] = None

    def _hear(self, targets: TargetList) -> None:
        """What arrives is evaluated for it."""
        targets.slot = self._following.add(targets.filter)
        self._by_slot[targets.slot] = targets

    def _stop_following(self, targets: TargetList) -> None:
        if targets.slot >= 0:
            self._following.remove(targets.slot)
            del self._by_slot[targets.slot]
            targets.slot = -1

    def _fall_behind(self, targets: TargetList, walked: int) -> None:
        """The list has looked at everything up to `walked` and has to walk from there; a full one waits first."""
        self._stop_following(targets)
        targets.walked = walked
        self._park(targets, full=2 * len(targets.found) > self.most)

    def unpark(self, targets: TargetList) -> None:
        """A full list has room again."""
        self._park(targets, full=False)

    def _park(self, targets: TargetList, *, full: bool) -> None:
        """It has to walk; a full one does so when half of its positions are gone."""
        here, there = (self._full, self._behind) if full else (self._behind, self._full)
        targets.parked = full
        here[targets] = None
        there.pop(targets, None)

    # -- what comes and goes

    def arrive(self, chunk: Chunk, batch: Publishes | None, rows: Sequence[int] | None, main: Main) -> None:
        """Evaluate messages that are about to be appended to the main order.

        Without a batch, or where that would take long, the lists walk there instead.
        """
        if not self._by_slot:
            return
        found = None if batch is None else self._evaluate(chunk, batch, rows)
        if found is None:
            for targets in list(self._by_slot.values()):
                self._fall_behind(targets, chunk[0] - 1)
            return
        for slot, places in found.items():
            targets = self._by_slot[slot]
            taken = targets.take([chunk[place] for place in places], self.most)
            if taken < len(places):
                self._fall_behind(targets, chunk[places[taken]] - 1)

    def _evaluate(self, chunk: Chunk, batch: Publishes, rows: Sequence[int] | None) -> dict[int, list[int]] | None:
        """By slot the places in the chunk that match; None: not on the loop."""
        batch.bodies = listed(batch.bodies)  # for good: the next queue's filters ask again
        asked, shared = Messages(batch.bodies, batch.properties, batch.topics), readings_of(batch)
        readings = shared
        if rows is not None and len(rows) != len(asked.bodies):
            asked, readings = asked.some(rows), shared and shared.some(rows)
        sizes = list(map(len, asked.bodies))
        size = sum(sizes)
        if max(sizes) > LOOP_BODY or size > LOOP_BYTES or self._following.too_much(len(sizes), size):
            return None
        try:
            with in_time(shared):
                return self._following.matches(asked.bodies, asked.properties, asked.topics, chunk, readings=readings)
        except HandOver:
            return None

    def matches(self, chunk: Chunk, batch: Publishes, rows: Sequence[int]) -> list[tuple[TargetList, list[int]]] | None:
        """For each list that has a filter here the places in the chunk that match; None: not on the loop."""
        found = self._evaluate(chunk, batch, rows)
        return None if found is None else [(self._by_slot[slot], places) for slot, places in found.items()]

    def came_back(self, run: Run) -> None:
        """Messages returned to the queue, or may be had now: each list has to look again, or knows them."""
        chunk, place = run.chunk, self.place_of(run)
        if len(self.foreseen):
            chunk = self.foreseen.let_go(self, chunk, place)
            if not len(chunk):
                return
        by = self.lists.get(run.by.filter.text) if isinstance(run.by, TargetList) else None
        if by is not None:
            self.recall(by, chunk, place)
        if by is None or len(self.lists) > 1:
            self._recheck.put(chunk, place, by)

    @property
    def all_follow(self) -> bool:
        """Whether each list looks at what comes."""
        return len(self._by_slot) == len(self.lists)

    @property
    def looking(self) -> bool:
        """Whether a list is still to look for the first time at what waited before it, or any at what came back."""
        return any(targets.new for targets in self._behind) or any(look.recheck for look in self.asked.values())

    @property
    def to_look(self) -> Collection[TargetList]:
        """The lists that may have a message to look at."""
        return self.lists.values() if self._recheck else {**self._behind, **self._full, **self._rechecking}

    @property
    def stopped(self) -> bool:
        """Whether somebody may not be given what a list knows, or will know, before it has looked at another."""
        if self._recheck or self._rechecking:
            return True
        return any(targets.slot < 0 and targets.back.head() is not None for targets in self._recalling)

    def recall(self, targets: TargetList, chunk: Chunk, place: int) -> None:
        """Messages came back, and the list wants them."""
        targets.back.put(chunk, place)
        self._recalling[targets] = self.awake[targets] = None

    def ask_newer(self, joined: int, lsn: int, place: int) -> None:
        """Have lists look that came after so many had joined."""
        self._recheck.put(range(lsn, lsn + 1), place, after=joined)

    def left(self, chunk: Chunk) -> None:
        """Messages that had come back are ready no more."""
        self._gone.left(chunk)
        on = self._recheck.left(chunk)
        for targets in self._rechecking:
            on = targets.recheck.left(chunk) or on
        if on:
            self._go_on()
        self._gone.tidy()

    def recheck_of(self, targets: TargetList) -> Key | None:
        """Where the first message stands that came back and at which a list has still to look; None without one."""
        stop = self._recheck.head_for(targets.born) if self._recheck else None
        own = targets.recheck.head() if targets.recheck else None
        return own if stop is None or (own is not None and own < stop) else stop

    def rest(self, targets: TargetList, main: Main) -> None:
        """Nobody can be given anything by this list now."""
        self.awake.pop(targets, None)
        if targets.back.head() is not None and (unseen := targets.unseen(main)) is not None:
            self.halted.setdefault(unseen[1], {})[targets] = None
        if self._recheck or targets.recheck:
            self._stopped[targets] = None  # it may know more when it has looked

    def wake_halted(self, main: Main) -> None:
        """Where others took what never went out and lists had still to look at, these may know their next."""
        for lsn in [lsn for lsn in self.halted if not main.has(lsn)]:
            for targets in self.halted.pop(lsn):
                if self.lists.get(targets.filter.text) is targets:
                    self.awake[targets] = None

    def _go_on(self) -> None:
        """Lists that had to wait may know their next now."""
        self.awake.update(self._stopped)
        self._stopped.clear()

    def rewind(self, lsn: int) -> None:
        """What stands after `lsn` in the main order has to be looked at anew, by all lists."""
        for serial, look in list(self.asked.items()):
            if not look.recheck and look.chunk[-1] > lsn:
                del self.asked[serial]
                for targets in look.lists:
                    targets.busy = False
        for targets in self.lists.values():
            if targets.walked > lsn:
                while targets.found and targets.found[-1] > lsn:
                    targets.found.pop()
                self._fall_behind(targets, lsn)

    def forget(self) -> None:
        """The queue was emptied of what is ready."""
        for targets in self.lists.values():
            targets.forget()
            if targets.parked:
                self.unpark(targets)
        self._recheck.clear()
        self._rechecking.clear()
        self._recalling.clear()
        self._go_on()
        self.foreseen.clear()

    # -- looking through what waits

    def ask(self, main: Main, sink: Sink) -> None:
        """Have the world look where lists have room and something to look at."""
        if self._recheck or self._rechecking:
            self._ask_again(sink)
        if self._behind:
            self._ask_on(main, sink)

    def _ask_on(self, main: Main, sink: Sink) -> None:
        """The next stretch for those that stand furthest back, and a shorter one for one group before them.

        A stretch ends where the next ones stand, so that they go on together: fifty lists that walk alone read the log
        fifty times.  Of two that walk alike neither would ever catch up with the other, so the last go faster.
        """
        walks = {look.last for look in self.asked.values() if not look.recheck}
        while True not in walks and self._behind:
            group = self._standing(min(targets.walked for targets in self._behind))
            if any(targets.busy for targets in group):
                break
            if self._walk(group, WALK_MOST, True, main, sink):
                walks.add(True)
        while False not in walks and self._ahead >= 1 and (group := self._before_the_last()):
            if self._walk(group, int(self._ahead), False, main, sink):
                walks.add(False)

    def _before_the_last(self) -> list[TargetList]:
        """Those that go on next, but for who stands furthest back; none: nobody else has to walk."""
        last = min((targets.walked for targets in self._behind), default=ALL)
        others = [targets for targets in self._behind if targets.walked > last and not targets.busy]
        if not others:
            return []
        first = min(others, key=lambda targets: (len(targets.found) > 0, targets.asked))
        return [targets for targets in self._standing(first.walked) if not targets.busy]

    def _standing(self, walked: int) -> list[TargetList]:
        return [targets for targets in self._behind if targets.walked == walked]

    def _walk(self, group: Sequence[TargetList], most: int, last: bool, main: Main, sink: Sink) -> bool:
        """Have the stretch behind lists that stand at one place looked through; False: they moved on without.

        most    messages of it
        last    they stand furthest back
        """
        walked = group[0].walked
        others = min((targets.walked for targets in self._behind if targets.walked > walked), default=ALL)
        chunk, end = main.stretch_after(walked, min(max(targets.stride for targets in group), most), others)
        if len(chunk):
            self._scan(Look(tuple(group), chunk, end, last), sink)
            return True
        for targets in group:
            if others < ALL:
                targets.arrived(others)
            else:
                self._follow(targets)
        return False

    def _looked_at(self, look: Look, count: int) -> None:
        """So many messages of a walk were looked at."""
        ahead = self._ahead + (count / CATCH_UP if look.last else -count)
        self._ahead = min(max(ahead, 0.0), WALK_MOST)

    def _ask_again(self, sink: Sink) -> None:
        """Have the first few of what came back looked at, by those who have still to do that."""
        if any(look.recheck for look in self.asked.values()):
            return
        while self.lists and (found := self._least_looked_at()) is not None:
            source, alone = found
            piece = source.next(RECHECK)
            assert piece is not None
            chunk = as_chunk(sorted(source.living(piece)))
            lists = self._concerned(piece, chunk) if alone is None else [alone]
            if lists:
                self._scan(Look(tuple(lists), chunk, piece=piece, source=source, joined=self.joined), sink)
                return
            source.cut(piece, chunk[-1])

    def _least_looked_at(self) -> tuple[Recalled, TargetList | None] | None:
        """Where the first message stands at which somebody has to look: in this, for that list, or else for all."""
        best = self._recheck.head() if self._recheck else None
        found: tuple[Recalled, TargetList | None] | None = None if best is None else (self._recheck, None)
        for targets in list(self._rechecking):
            head = targets.recheck.head()
            if head is None:
                del self._rechecking[targets]
            elif not self._is_full(targets, head) and (best is None or head < best):
                best, found = head, (targets.recheck, targets)
        return found

    def _concerned(self, piece: Piece, chunk: Chunk) -> list[TargetList]:
        """The lists that have to look at a piece now; a full one does so later, and not at what is left of it, too."""
        out: list[TargetList] = []
        for targets in self.lists.values():
            if targets is piece.by or targets.born <= piece.after or targets in piece.aside:
                continue
            if self._is_full(targets, self._recheck.head()):
                piece.aside += (targets,)
                targets.recheck.put_of(piece, chunk)
                self._rechecking[targets] = None
            else:
                out.append(targets)
        return out

    def _is_full(self, targets: TargetList, key: Key | None) -> bool:
        """Whether a list has enough of what came back, and something that stands before this."""
        back = targets.back
        first = back.head() if back.count >= self.most else None  # what is gone before it is not counted any more
        return first is not None and back.count >= self.most and key is not None and first < key

    def _scan(self, look: Look, sink: Sink) -> None:
        self._serial += 1
        self.asked[self._serial] = look
        for targets in () if look.recheck else look.lists:
            targets.set_out(self._serial, look.end)
        filters = tuple([targets.filter for targets in look.lists])
        sink.effect(Scan(Token(self._queue, self._serial, Purpose.WALK), filters, look.chunk))

    def scanned(self, token: Token, found: Sequence[Sequence[int]], upto: int, main: Main) -> None:
        """The answer to a scan: for each filter the LSNs that it matches, ascending, of those up to `upto`."""
        look = self.asked.pop(token.serial, None)
        if look is None:
            return
        if look.piece is not None and look.source is not None:
            self._looked_again(look, look.piece, look.source, found, upto)
            return
        self._looked_at(look, bisect_right(look.chunk, upto))
        if not self._is_answered(look, found, upto):
            return
        for targets, lsns in zip(look.lists, look.found or found, strict=True):
            targets.busy = targets.new = False
            if self.lists.get(targets.filter.text) is not targets:
                continue
            targets.stride = min(max(look.part or 2 * targets.stride, WALK_LEAST), WALK_MOST)
            if 4 * len(lsns) > self.most:
                targets.stride = max(targets.stride // 8, WALK_LEAST)
            self._found(targets, lsns, upto, main)
            self.awake[targets] = None
        for others in self.halted.values():
            self.awake.update((one, None) for one in others if self.lists.get(one.filter.text) is one)
        self.halted.clear()  # each stands there anew, if it has to

    def _is_answered(self, look: Look, found: Sequence[Sequence[int]], upto: int) -> bool:
        """Whether lists can go on from where this answer to a walk ends."""
        return True

    def _found(self, targets: TargetList, lsns: Sequence[int], upto: int, main: Main) -> None:
        """A list has walked up to this message, and found these."""
        taken = targets.take(lsns, self.most)
        self._fall_behind(targets, upto if taken == len(lsns) else lsns[taken] - 1)

    def _looked_again(
        self, look: Look, piece: Piece, source: Recalled, found: Sequence[Sequence[int]], upto: int
    ) -> None:
        """The same of what came back."""
        living = set(source.living(piece))
        for targets, lsns in zip(look.lists, found, strict=True):
            mine = [lsn for lsn in lsns if lsn in living]
            if mine and self.lists.get(targets.filter.text) is targets:
                targets.back.put_of(piece, as_chunk(mine))
                self._recalling[targets] = self.awake[targets] = None
        if source is self._recheck and self.joined > look.joined:
            source.leave(piece, upto, look.joined)
        else:
            source.cut(piece, upto)
        self._go_on()
