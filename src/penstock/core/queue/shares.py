"""What of a queue's ready messages may be offered to consumers now.

A queue with such settings has its ready messages in three places: offered (the main order and what came back, as in any
queue), in line behind others of their key (`groups`), and before both, where their keys are not known (`staging`).  All
of them count as ready.

Newcomers stand in line, with their tenant, or where their keys are worked out.  After a start, or with another
expression, all that is ready waits for its keys (`stage`).
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from itertools import compress
from typing import TYPE_CHECKING

from penstock.core.arena import Move
from penstock.core.effects import Key as KeyEffect
from penstock.core.effects import Purpose, Sink, Token
from penstock.core.queue.groups import Groups
from penstock.core.queue.order.ranks import Ranks
from penstock.core.queue.order.runs import NEVER, Run, packed, sorted_chunk, without
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.staging import Staging, Told, ascending_chunk
from penstock.core.queue.tenants import Tenants
from penstock.core.queue.yielding import Yielding
from penstock.core.state.lsns import flat
from penstock.errors import PreconditionFailed
from penstock.expr import compile_value
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.queue_settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.dispatching.roster import Terms
    from penstock.core.queue.whole import Whole


WINDOW = 10_000
"""While so many messages are offered, no more keys are worked out, unless nobody who has room takes any of these."""

_serials = iter(range(1, 1 << 62))


def expressions(settings: QueueSettings) -> tuple[str, ...]:
    """What gives the keys of a queue's messages; none: it has no shares."""
    found = (settings.reading("group_key"), settings.reading("fairness_key"))
    return tuple([text for text in found if text is not None])


class Shares:
    """The part of a queue that holds ready messages back from its consumers."""

    __slots__ = ("expressions", "groups", "keys", "mono", "ranks", "staging", "tenants", "yielding")

    def __init__(self, settings: QueueSettings, ranks: Ranks | None) -> None:
        """ranks: priorities, where the queue has such."""
        self.expressions = expressions(settings)
        self.ranks = ranks
        self.groups = Groups() if settings.group_key is not None else None
        self.tenants = Tenants(settings, ranks) if settings.fairness_key is not None else None
        self.staging = Staging()
        self.yielding = Yielding()
        self.mono = 0  # the instant of the present command
        keys = self.groups.keys if self.groups is not None else None
        if keys is None:
            assert self.tenants is not None
            keys = self.tenants.keys
        self.keys = keys  # whose key is known here is known

    def follow(self, before: Shares | None) -> None:
        """Other expressions come in the place of these: tenants that are the same have spent what they have."""
        if before is None or before.tenants is None or self.tenants is None:
            return
        if before.expressions[-1] == self.expressions[-1]:
            self.tenants.follow(before.tenants, before.mono)

    @property
    def count(self) -> int:
        """Ready messages that are in neither main order nor what came back."""
        count = self.staging.count
        if self.groups is not None:
            count += self.groups.count
        return count if self.tenants is None else count + self.tenants.count

    @property
    def unordered(self) -> bool:
        """Whether something waits for its keys that may go before all that is offered: nobody is given anything."""
        return self.ranks is not None and self.staging.count > 0

    def asks(self, queue: Whole, sink: Sink) -> bool:
        """Whether the world is about to tell keys that something ready waits for."""
        self.ask(queue, sink)
        return len(self.staging.asked) > 0

    def refuse(self, queue: Whole, terms: Terms) -> None:
        """Errors: PreconditionFailed when somebody may not consume on these terms."""
        if self.tenants is not None and terms.get("filter") is not None:
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' has a fairness_key: whose turn it is is decided before "
                "anybody's filter is asked; give the queue a filter, or the consumer a queue of its own"
            )
        if queue.settings.max_leased[1] and terms.get("no_ack"):
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' has a max_leased for each key: a consumer that never "
                "acknowledges holds no lease; let it acknowledge"
            )
        if self.groups is not None and terms.get("no_ack") and not terms.get("passive"):
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' has a group_key: a consumer that never acknowledges "
                "would get all messages of a key at once; let it acknowledge"
            )

    # -- in

    def arrive(
        self,
        queue: Whole,
        chunk: Chunk,
        keys: Sequence[Told] | None,
        delayed: Chunk | None,
        dead: Chunk | None,
        room: int,
    ) -> Chunk | None:
        """New messages; those of them that are not offered beside the main order, but for the delayed and the dead.

        keys    of each message of the chunk; None: they are worked out later
        room    how many would be taken at once
        """
        if self.tenants is not None:
            self.tenants.prune()
        here = _without(chunk, delayed, dead)
        if len(here):
            self.yielding.entered(Run(here, False), self.ranks)
        if keys is None or self.staging or queue.ranking is not None:
            self.staging.main.append(here, solid=False)
            return here if len(here) else None
        self.keys.forget_if_many(queue.total, queue.living_pieces)
        if self.tenants is not None and self.groups is not None:
            self.tenants.keys.forget_if_many(queue.total, queue.living_pieces)
        numbers, tenants = self._note_newcomers(chunk, keys, delayed, dead)
        return self._stand(here, numbers, tenants, room)

    def _note_newcomers(
        self, chunk: Chunk, keys: Sequence[Told], delayed: Chunk | None, dead: Chunk | None
    ) -> tuple[list[int], list[int]]:
        """As `note`, of all but the dead; the numbers of those alone that are not delayed either."""
        if dead is not None:
            out = set(dead)
            keys = [told for lsn, told in zip(chunk, keys, strict=True) if lsn not in out]
        living = _without(chunk, dead)
        numbers, tenants = self.note(living, keys)
        if delayed is None:
            return numbers, tenants
        late = set(delayed)
        here = [lsn not in late for lsn in living]
        return list(compress(numbers, here)), list(compress(tenants, here))

    def _stand(self, here: Chunk, numbers: Sequence[int], tenants: Sequence[int], room: int) -> Chunk | None:
        """Newcomers stand in their lines, and with their tenants; as `arrive`."""
        groups = self.groups
        free = None if groups is None else [groups.enter(lsn, key) for lsn, key in zip(here, numbers, strict=True)]
        if self.tenants is None:
            held = [] if free is None else [lsn for lsn, offered in zip(here, free, strict=True) if not offered]
            return as_chunk(array("q", held)) if held else None
        if free is None:
            self.tenants.arrive(here, tenants, room, self.mono)
        else:
            self.tenants.arrive(list(compress(here, free)), list(compress(tenants, free)), room, self.mono)
        return here if len(here) else None

    def note(self, chunk: Chunk, keys: Sequence[Told]) -> tuple[list[int], list[int]]:
        """The keys of messages that live from now on; their numbers as groups and as tenants, where there are such."""
        groups, tenants = self.groups, self.tenants
        of_group = [] if groups is None else groups.keys.add(chunk, [told[0] for told in keys])
        of_tenant = [] if tenants is None else tenants.keys.add(chunk, [told[-1] for told in keys])
        return of_group, of_tenant

    def come_back(self, queue: Whole, run: Run) -> Run | None:
        """A run is ready again, or due; what of it is offered beside the main order.  The rest is ready here."""
        self.yielding.came_back(run, self.ranks)
        offered, strange, others = self._sorted_back(queue, run)
        part = run if len(offered) == len(run.chunk) else run.part(as_chunk(array("q", offered)), False)
        if self.tenants is not None and offered:
            self.tenants.put(part)
            offered = []
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(run.chunk) - (queue.sizes.total(part.chunk) if offered else 0)
        if strange:
            self.staging.returned.push(run.part(as_chunk(array("q", strange)), False))
        if others:
            self.offer(queue, others)
        return part if offered else None

    def _sorted_back(self, queue: Whole, run: Run) -> tuple[list[int], list[int], list[int]]:
        """Of a run those that are offered, those that wait for their keys, and others that are offered instead."""
        groups, staging = self.groups, self.staging
        offered, strange, others = list[int](), list[int](), list[int]()
        waits = bool(staging)
        for lsn in run.chunk:
            if not self.keys.knows(lsn):
                staging.out.pop(lsn, None)
                strange.append(lsn)
                waits = True
            elif waits and run.place and (groups is None or not groups.stands(lsn)):
                strange.append(lsn)  # it became due, behind all that wait there
            elif groups is None:
                offered.append(lsn)
            else:
                free = groups.come_back(run, lsn, groups.keys.of(lsn))
                if free == lsn:
                    offered.append(lsn)
                elif free:
                    others.append(free)
                elif self._overtakes(queue, run, lsn):
                    offered.append(lsn)
        return offered, strange, others

    # -- out

    def left(self, queue: Whole, runs: Sequence[Run]) -> bool:
        """These are gone for good; whether others are offered in their stead."""
        groups, tenants = self.groups, self.tenants
        freed = list[int]()
        for run in runs:
            for lsn in run.chunk:
                if not self.keys.knows(lsn):
                    self.staging.out.pop(lsn, None)
                    continue
                if groups is not None and (successor := groups.leave(lsn)):
                    freed.append(successor)
                if tenants is not None:
                    tenants.leave(lsn, self.mono)
        if freed:
            self.offer(queue, freed)
        return bool(freed)

    def freed(self, runs: Sequence[Run]) -> None:
        """These are leased no longer, whatever becomes of them."""
        out, tenants = self.staging.out, self.tenants
        if out:
            for run in runs:
                for lsn in run.chunk:
                    if lsn in out:
                        out[lsn] = False
        if tenants is not None:
            for run in runs:
                tenants.freed([lsn for lsn in run.chunk if self.keys.knows(lsn)])

    def moved(self, queue: Whole, runs: Sequence[Run]) -> None:
        """These were ready and are delayed now.

        Those that were never delivered give way to others of their keys; the key of the others is in use, as of any
        that is in back-off.
        """
        groups = self.groups
        freed = list[int]()
        for run in runs:
            for lsn in run.chunk:
                if not self.keys.knows(lsn):
                    if run.tally != FRESH:
                        self.staging.out[lsn] = False
                elif groups is None:
                    continue
                elif run.tally == FRESH:
                    if successor := groups.step_aside(lsn):
                        freed.append(successor)
                elif not groups.stands(lsn):
                    key = groups.keys.of(lsn)
                    front = self._take_offered(queue, groups.front(key))
                    if front:
                        groups.hold_before(lsn, front[0])
                    else:
                        groups.hold(lsn, key)
        if freed:
            self.offer(queue, freed)

    def offer(self, queue: Whole, lsns: Sequence[int]) -> None:
        """Let consumers have these, which are counted as ready and wait nowhere."""
        groups = self.groups
        fresh = lsns
        if groups is not None and groups.apart:
            fresh = list[int]()
            for lsn in lsns:
                if lsn in groups.apart:
                    queue.offer(groups.run_of(lsn))
                else:
                    fresh.append(lsn)
        if fresh:
            queue.offer(Run(ascending_chunk(fresh), False))

    def drop_ready(self, queue: Whole) -> None:
        """All that is ready is gone, here and among what is offered."""
        others = packed(flat(queue.chunks("leased", "delayed", "foreign")))
        stay = sorted_chunk([as_chunk(array("q", self.keys.among(others)))])
        if self.groups is not None:
            self.groups.keep(stay)
        if self.tenants is not None:
            self.tenants.keep(stay, self.mono)
        self.yielding.forget()
        out, self.staging = self.staging.out, Staging()
        self.staging.out = out

    # -- keys that are not known

    def ask(self, queue: Whole, sink: Sink, idle: bool = False) -> None:
        """Have the world tell the next keys, if it is not at it.  A command asks so before it dispatches, and behind.

        idle: somebody has room, and takes nothing of what is offered.
        """
        staging = self.staging
        if self.tenants is not None:
            self.tenants.prune()
        if queue.ranking is not None:
            return  # their places are not known yet
        while not len(staging.asked) and staging:
            chunk = staging.question(queue.offered >= WINDOW and self.ranks is None and not idle)
            if len(chunk):
                staging.asked = chunk
                staging.serial = next(_serials)
                values = tuple([compile_value(text) for text in self.expressions])
                sink.effect(KeyEffect(Token(queue.id, staging.serial, Purpose.KEY), values, chunk))
            elif not self._let_in(queue):
                return

    def keyed(self, queue: Whole, token: Token, chunk: Chunk, keys: Sequence[Told], sink: Sink) -> None:
        """The answer: the keys of the messages of the chunk, the first part of what was asked.

        Of a chunk that is empty nothing can be read: those that were asked about have no key.
        """
        staging = self.staging
        if token.serial != staging.serial or not len(staging.asked):
            return
        asked, staging.asked = staging.asked, range(0)
        if not len(chunk):
            chunk, keys = asked, [(None,) * len(self.expressions)] * len(asked)
        waiting = {lsn for run in staging.next for lsn in run.chunk}
        for lsn, told in zip(chunk, keys, strict=True):
            if lsn in staging.out:
                leased = staging.out.pop(lsn)
                numbers, _ = self.note(range(lsn, lsn + 1), [told])
                if self.groups is not None:
                    self.groups.hold(lsn, numbers[0])
                if self.tenants is not None and leased:
                    self.tenants.hold(lsn)
            elif lsn in waiting:
                staging.answers[lsn] = told
        if not staging.out and queue.ranking is None:
            self._let_in(queue)
        self.ask(queue, sink)

    def _let_in(self, queue: Whole) -> bool:
        """Let in whoever is next and told its keys; whether there were any."""
        groups = self.groups
        fresh = list[int]()
        some = False
        for run, lsn, told in self.staging.told():
            some = True
            own = run.tally == FRESH and not run.place
            if not self.keys.knows(lsn):
                self.note(range(lsn, lsn + 1), [told])
            if groups is not None and not self._enters(queue, run, lsn, own):
                continue
            if own:
                fresh.append(lsn)
            else:
                queue.offer(run.part(range(lsn, lsn + 1), True))
        if fresh:
            queue.offer(Run(ascending_chunk(fresh), False))
        return some

    def _enters(self, queue: Whole, run: Run, lsn: int, own: bool) -> bool:
        """A message takes its place, before newer ones that were let in already; whether it may be offered.

        own: it was never delivered, and its place is its LSN.  After a start that is nearly all, in order.
        """
        groups = self.groups
        assert groups is not None
        if own and groups.follows(lsn):
            return groups.enter(lsn, self.keys.of(lsn))
        return groups.come_back(run, lsn, self.keys.of(lsn)) > 0 or self._overtakes(queue, run, lsn)

    def _overtakes(self, queue: Whole, run: Run, lsn: int) -> bool:
        """Whether this message of the run, in the line of its group, changes places with the one before the line.

        Nowhere but in a ring; and only with one that is ready, not with one that is leased or in back-off.
        """
        if queue.settings.ring_size < 0:
            return False
        groups = self.groups
        assert groups is not None
        if not groups.leads(lsn):
            return False
        first = groups.front(groups.keys.of(lsn))
        found = self._take_offered(queue, first)
        if not found:
            return False
        if groups.change_places(run, lsn, found[0]):
            return True
        queue.offer(found[0])
        return False

    def _take_offered(self, queue: Whole, lsn: int) -> list[Run]:
        """Take a message from where consumers would find it; it may be nowhere there."""
        one = range(lsn, lsn + 1)
        found = queue.main.extract(one) or queue.returned.extract(one)
        if not found and self.tenants is not None:
            found = self.tenants.extract(one)
        if found:
            queue.targets.left(one)
        return found

    def serve_by(self, ranks: Ranks | None) -> None:
        """The queue has other priorities, or none any more; all that is ready waits for its keys."""
        self.ranks = ranks
        self.yielding.forget()
        if self.tenants is not None:
            self.tenants.ranks = ranks

    # -- time

    @property
    def due(self) -> int:
        """When to `tick` next, on the monotonic clock; 0 is at once."""
        tenants = self.tenants
        if self.keys.forgetting or (tenants is not None and tenants.keys.forgetting):
            return 0
        return NEVER if tenants is None else tenants.due

    def tick(self, mono: int) -> None:
        """Forget keys, and let tenants send that may again."""
        if self.keys.forgetting:
            self.keys.forget_some()
        if self.tenants is not None:
            if self.tenants.keys.forgetting:
                self.tenants.keys.forget_some()
            self.tenants.tick(mono)

    def page(self, move: Move) -> None:
        """Move what may go to an arena: what is known of messages, wherever they stand."""
        self.keys.page(move)

    # -- asked

    def check(self, queue: Whole) -> None:
        """Recount; AssertionError names what is off."""
        staging, tenants = self.staging, self.tenants
        unknown = {*_each(staging.chunks(), staging.runs()), *staging.out}
        strange = {lsn for lsn in unknown if not self.keys.knows(lsn)}
        ready = [*_each(queue.main.chunks(), queue.returned.runs())]
        if tenants is not None:
            assert not ready, f"{ready} stand beside their tenants"
            ready = [*_each(tenants.chunks(), tenants.runs())]
            tenants.check([lsn for lsn in _each((), queue.leased_runs()) if self.keys.knows(lsn)])
        if self.groups is not None:
            out = strange.union(_each((), queue.letters.runs()))
            living = (lsn for chunk in queue.living_pieces() for lsn in chunk)
            known = [lsn for lsn in living if lsn not in out and self.keys.knows(lsn)]
            self.groups.check(known, ready)


def _without(chunk: Chunk, *gone: Chunk | None) -> Chunk:
    """A chunk without those that went elsewhere."""
    out = [part for part in gone if part is not None]
    return without(chunk, sorted_chunk(out)) if out else chunk


def _each(chunks: Iterable[Chunk], runs: Iterable[Run]) -> Iterator[int]:
    """All messages of these chunks and runs."""
    for chunk in (*chunks, *(run.chunk for run in runs)):
        yield from chunk
