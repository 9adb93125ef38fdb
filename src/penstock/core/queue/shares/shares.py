"""What of a queue's ready messages may be offered to consumers now.

A queue with such settings has its ready messages in three places: offered (the main order and what came back, as in any
queue), in line behind others of their key (`groups`), and before both, where their keys are not known (`staging`).  All
of them count as ready.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from penstock.core.arena import Move
from penstock.core.effects import Key, Purpose, Sink, Token
from penstock.core.queue.order.runs import NEVER, Run, sift, sorted_chunk
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.shares.groups import Groups
from penstock.core.queue.shares.keys import ascending_chunk
from penstock.core.queue.shares.staging import Staging, Told
from penstock.errors import PreconditionFailed
from penstock.expr import compile_value
from penstock.records.chunks import Chunk, as_chunk
from penstock.records.settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Terms

WINDOW = 10_000
"""While so many messages are offered, no more keys are worked out."""

_serials = iter(range(1, 1 << 62))


def expressions(settings: QueueSettings) -> tuple[str, ...]:
    """What gives the keys of a queue's messages; none: it has no shares."""
    return tuple([text for text in (settings.group_key,) if text is not None])


class Shares:
    """The part of a queue that holds ready messages back from its consumers."""

    __slots__ = ("_expressions", "groups", "staging")

    def __init__(self, settings: QueueSettings) -> None:
        self._expressions = expressions(settings)
        self.groups = Groups()
        self.staging = Staging()

    @property
    def count(self) -> int:
        """Ready messages that nobody is offered."""
        return self.groups.count + self.staging.count

    def refuse(self, queue: Contents, terms: Terms) -> None:
        """Errors: PreconditionFailed when somebody may not consume on these terms."""
        if terms.get("no_ack") and not terms.get("passive"):
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' has a group_key: a consumer that never acknowledges "
                "would get all messages of a key at once; let it acknowledge"
            )

    # -- in

    def arrive(
        self, queue: Contents, chunk: Chunk, keys: Sequence[Told] | None, delayed: Chunk | None, dead: Chunk | None
    ) -> Chunk | None:
        """New messages; those of them that are not offered, but for the delayed and the dead ones.

        keys    of each message of the chunk; None: they are worked out later
        """
        here = chunk
        gone = [part for part in (delayed, dead) if part is not None]
        if gone:
            rest = sift(chunk, sorted_chunk(gone))[1]
            here = sorted_chunk(rest) if rest else range(0)
        if keys is None or self.staging:
            self.staging.main.append(here, solid=False)
            return here if len(here) else None
        told = [text[0] for text in keys]
        if dead is not None:
            out = set(dead)
            told = [text for lsn, text in zip(chunk, told, strict=True) if lsn not in out]
            living = sorted_chunk(sift(chunk, dead)[1]) if len(dead) < len(chunk) else range(0)
        else:
            living = chunk
        groups = self.groups
        numbers = groups.keys.add(living, told)
        if delayed is not None:
            late = set(delayed)
            numbers = [number for lsn, number in zip(living, numbers, strict=True) if lsn not in late]
        enter = groups.enter
        held = [lsn for lsn, number in zip(here, numbers, strict=True) if not enter(lsn, number)]
        groups.keys.forget_if_many(queue.ready + queue.leased + queue.delayed, queue.living_pieces())
        return as_chunk(array("q", held)) if held else None

    def come_back(self, queue: Contents, run: Run) -> Run | None:
        """A run is ready again, or due; what of it is offered.  The rest is ready here."""
        groups, staging = self.groups, self.staging
        offered = list[int]()
        strange = list[int]()
        others = list[int]()
        waits = bool(staging)
        for lsn in run.chunk:
            if not groups.keys.knows(lsn):
                staging.out.pop(lsn, None)
                strange.append(lsn)
                waits = True
            elif waits and run.place and not groups.stands(lsn):  # it became due, behind all that wait there
                strange.append(lsn)
            else:
                free = groups.come_back(run, lsn, groups.keys.of(lsn))
                if free == lsn:
                    offered.append(lsn)
                elif free:
                    others.append(free)
        queue.ready += len(run.chunk) - len(offered)
        if strange:
            staging.returned.push(run.part(as_chunk(array("q", strange)), False))
        if others:
            self.offer(queue, others)
        if len(offered) == len(run.chunk):
            return run
        return run.part(as_chunk(array("q", offered)), False) if offered else None

    # -- out

    def left(self, queue: Contents, runs: Sequence[Run]) -> bool:
        """These are gone for good; whether others are offered in their stead."""
        groups = self.groups
        keys = groups.keys
        freed = list[int]()
        for run in runs:
            for lsn in run.chunk:
                if not keys.knows(lsn):
                    self.staging.out.pop(lsn, None)
                    continue
                successor = groups.leave(lsn)
                if successor:
                    freed.append(successor)
        if freed:
            self.offer(queue, freed)
        return bool(freed)

    def moved(self, queue: Contents, runs: Sequence[Run]) -> None:
        """These were ready and are delayed now: those that were never delivered give way to others of their keys."""
        groups = self.groups
        freed = list[int]()
        for run in runs:
            for lsn in run.chunk:
                if not groups.keys.knows(lsn):
                    if run.tally != FRESH:
                        self.staging.out[lsn] = None
                elif run.tally == FRESH:
                    if successor := groups.give_way(lsn):
                        freed.append(successor)
                elif not groups.stands(lsn):
                    groups.hold(lsn, groups.keys.of(lsn))
        if freed:
            self.offer(queue, freed)

    def offer(self, queue: Contents, lsns: Sequence[int]) -> None:
        """Let consumers have these, which are counted as ready and wait nowhere."""
        groups = self.groups
        fresh = lsns
        if groups.apart:
            fresh = list[int]()
            for lsn in lsns:
                if lsn in groups.apart:
                    queue.offer(groups.run_of(lsn))
                else:
                    fresh.append(lsn)
        if fresh:
            queue.offer(Run(ascending_chunk(fresh), False))

    def extract(self, wanted: Chunk) -> list[Run]:
        """Take those of the wanted that are ready and not offered."""
        out = self.groups.extract(wanted)
        if self.staging.count:
            out += self.staging.extract(wanted)
        return out

    def drop_ready(self, queue: Contents) -> None:
        """All that is ready is gone, here and among what is offered; the caller has not forgotten the latter yet."""
        groups = self.groups
        for lsn, key in groups.clear_lines():
            groups.keys.drop(lsn, key)
        for chunk in [*queue.main.chunks(), *(run.chunk for run in queue.returned.runs())]:
            for lsn in chunk:
                groups.leave(lsn)
        out, self.staging = self.staging.out, Staging()
        self.staging.out = out

    # -- keys that are not known

    def ask(self, queue: Contents, sink: Sink) -> None:
        """Have the world tell the next keys, if it is not at it."""
        staging = self.staging
        while not len(staging.asked) and staging:
            chunk = staging.question(queue.offered >= WINDOW)
            if len(chunk):
                staging.asked = chunk
                staging.serial = next(_serials)
                values = tuple([compile_value(text) for text in self._expressions])
                sink.effect(Key(Token(queue.id, staging.serial, Purpose.KEY), values, chunk))
            elif not self._let_in(queue):
                return

    def keyed(self, queue: Contents, token: Token, chunk: Chunk, keys: Sequence[Told], sink: Sink) -> None:
        """The answer: the keys of the messages of the chunk, the first part of what was asked.

        Of a chunk that is empty nothing can be read: those that were asked about have no key.
        """
        staging = self.staging
        if token.serial != staging.serial or not len(staging.asked):
            return
        asked, staging.asked = staging.asked, range(0)
        if not len(chunk):
            chunk, keys = asked, [(None,) * len(self._expressions)] * len(asked)
        groups = self.groups
        waiting = {lsn for run in staging.next for lsn in run.chunk}
        for lsn, told in zip(chunk, keys, strict=True):
            if lsn in staging.out:
                del staging.out[lsn]
                groups.hold(lsn, groups.keys.add(range(lsn, lsn + 1), told[:1])[0])
            elif lsn in waiting:
                staging.answers[lsn] = told
        if not staging.out:
            self._let_in(queue)
        self.ask(queue, sink)

    def _let_in(self, queue: Contents) -> bool:
        """Let in whoever is next and told its keys; whether there were any."""
        groups = self.groups
        fresh = list[int]()
        some = False
        for run, lsn, told in self.staging.told():
            some = True
            own = run.tally == FRESH and not run.place
            known = groups.keys.knows(lsn)
            number = groups.keys.of(lsn) if known else groups.keys.add(range(lsn, lsn + 1), told[:1])[0]
            if groups.enter(lsn, number):
                if own:
                    fresh.append(lsn)
                else:
                    queue.offer(run.part(range(lsn, lsn + 1), True))
            elif not own:
                groups.apart[lsn] = run.part(range(lsn, lsn + 1), True)
        if fresh:
            queue.offer(Run(ascending_chunk(fresh), False))
        return some

    # -- time

    @property
    def due(self) -> int:
        """When to `tick` next, on the monotonic clock; 0 is at once."""
        return 0 if self.groups.keys.forgetting else NEVER

    def tick(self, queue: Contents) -> None:
        """Do what is due."""
        if self.groups.keys.forgetting:
            self.groups.keys.forget_some()

    def page(self, move: Move) -> None:
        """Move what may go to an arena."""
        self.groups.keys.page(move)
        self.staging.main.page(move)
        self.staging.returned.page(move)

    # -- asked

    def chunks(self) -> Iterator[Chunk]:
        """Ready messages here that were never delivered and stand at their own place; they will not change."""
        yield from self.groups.waiting()
        yield from self.staging.chunks()

    def runs(self) -> Iterator[Run]:
        """The other ready messages here."""
        yield from self.groups.apart.values()
        yield from self.staging.runs()

    def floor(self) -> int:
        """None here is older than this, or than whoever stands before it."""
        return min([self.staging.floor(), *self.groups.apart])

    def check(self, queue: Contents) -> None:
        """Recount."""
        strange = {lsn for chunk in self.staging.chunks() for lsn in chunk}
        strange.update(lsn for run in self.staging.runs() for lsn in run.chunk)
        strange.update(self.staging.out)
        strange = {lsn for lsn in strange if not self.groups.keys.knows(lsn)}
        living = [lsn for chunk in queue.living_pieces() for lsn in chunk if lsn not in strange]
        dying = {lsn for run in queue.letters.runs() for lsn in run.chunk}
        ready = [*queue.main.chunks(), *(run.chunk for run in queue.returned.runs())]
        known = [lsn for lsn in living if lsn not in dying and self.groups.keys.knows(lsn)]
        self.groups.check(known, [lsn for chunk in ready for lsn in chunk])


def stage(queue: Contents, more: Sequence[Chunk] = ()) -> None:
    """The queue, new or loaded, or with other settings: what is ready waits for its keys from now on.

    more    messages that are ready too, and counted as such
    """
    settings = queue.settings
    old = queue.shares
    fresh: list[Chunk] = [*more]
    back: list[Run] = [Run(run.chunk, False, run.tally, run.place) for run in queue.returned.runs()]
    if old is not None:
        fresh += old.chunks()
        back += [Run(run.chunk, False, run.tally, run.place) for run in old.runs()]
    fresh += queue.main.chunks()
    queue.main = queue.main.emptied()
    queue.clear_returned()
    everything = sorted_chunk([chunk for chunk in fresh if len(chunk)])
    queue.shares = shares = Shares(settings) if expressions(settings) else None
    main = queue.main if shares is None else shares.staging.main
    if len(everything):
        for start in range(0, len(everything), 8192):
            main.append(everything[start : start + 8192], solid=False)
        queue.main.seal(everything[-1])
    if shares is None:
        for run in back:
            queue.coming_back().push(run)
    else:
        for run in back:
            shares.staging.returned.push(run)
        for run in (*queue.leased_runs(), *queue.delays.retries.runs()):
            shares.staging.out.update(dict.fromkeys(run.chunk))
    queue.renew_targets()
