"""What of a queue's ready messages may be offered to consumers now.

A queue with such settings has its ready messages in three places: offered (the main order and what came back, as in any
queue), in line behind others of their key (`groups`), and before both, where their keys are not known (`staging`).  All
of them count as ready.

Newcomers stand in line, with their tenant, or where their keys are worked out.  After a start, or with another
expression, all that is ready waits for its keys (`stage`).
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from itertools import compress
from typing import TYPE_CHECKING

from penstock.core.arena import Move
from penstock.core.effects import Sink
from penstock.core.queue.agenda import DISPATCH, SHARES
from penstock.core.queue.dispatching.dispatch import room_now
from penstock.core.queue.order.runs import END, NEVER, Key, Run, sift, sorted_chunk
from penstock.core.queue.priority.ranks import Ranks
from penstock.core.queue.settling.attempts import FRESH
from penstock.core.queue.shares.groups import Groups, overtakes
from penstock.core.queue.shares.keys import ascending_chunk
from penstock.core.queue.shares.staging import Staging, Told, ask, keyed
from penstock.core.queue.shares.tenants import Tenants
from penstock.core.queue.stages import Newcomers, Stage
from penstock.errors import PreconditionFailed
from penstock.records.chunks import Chunk, Now, as_chunk
from penstock.records.queue_settings import QueueSettings

if TYPE_CHECKING:
    from penstock.core.queue.contents import Contents
    from penstock.core.queue.dispatching.consumers import Terms
    from penstock.core.queue.order.runs import Run
    from penstock.core.queue.view import Queue


def expressions(settings: QueueSettings) -> tuple[str, ...]:
    """What gives the keys of a queue's messages; none: it has no shares."""
    return tuple([text for text in (settings.group_key, settings.fairness_key) if text is not None])


class Shares:
    """The part of a queue that holds ready messages back from its consumers."""

    __slots__ = ("expressions", "groups", "keys", "mono", "ranked", "staging", "tenants")

    def __init__(self, settings: QueueSettings, ranks: Ranks | None) -> None:
        """ranks: priorities, where the queue has such."""
        self.expressions = expressions(settings)
        self.ranked = ranks is not None
        self.groups = Groups() if settings.group_key is not None else None
        self.tenants = Tenants(settings, ranks) if settings.fairness_key is not None else None
        self.staging = Staging()
        self.mono = 0  # the instant of the present command
        keys = self.groups.keys if self.groups is not None else None
        if keys is None:
            assert self.tenants is not None
            keys = self.tenants.keys
        self.keys = keys  # whose key is known here is known

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
        return self.ranked and self.staging.count > 0

    def asks(self, queue: Contents, sink: Sink) -> bool:
        """Whether the world is about to tell keys that something ready waits for."""
        self.ask(queue, sink)
        return len(self.staging.asked) > 0

    def refuse(self, queue: Contents, terms: Terms) -> None:
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
        queue: Contents,
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
        here = chunk
        gone = [part for part in (delayed, dead) if part is not None]
        if gone:
            rest = sift(chunk, sorted_chunk(gone))[1]
            here = sorted_chunk(rest) if rest else range(0)
        if keys is None or self.staging or queue.ranking is not None:
            self.staging.main.append(here, solid=False)
            return here if len(here) else None
        living = chunk
        if dead is not None:
            out = set(dead)
            keys = [told for lsn, told in zip(chunk, keys, strict=True) if lsn not in out]
            living = sorted_chunk(sift(chunk, dead)[1]) if len(dead) < len(chunk) else range(0)
        numbers, tenants = self.note(living, keys)
        if delayed is not None:
            late = set(delayed)
            here_too = [lsn not in late for lsn in living]
            numbers = list(compress(numbers, here_too))
            tenants = list(compress(tenants, here_too))
        self.keys.forget_if_many(queue.ready + queue.leased + queue.delayed, queue.living_pieces())
        if self.tenants is not None and self.groups is not None:
            self.tenants.keys.forget_if_many(queue.ready + queue.leased + queue.delayed, queue.living_pieces())
        held = list[int]()
        if self.groups is not None:
            enter = self.groups.enter
            free = [enter(lsn, number) for lsn, number in zip(here, numbers, strict=True)]
            if self.tenants is not None:
                self.tenants.arrive(list(compress(here, free)), list(compress(tenants, free)), room, self.mono)
                return here if len(here) else None
            held = [lsn for lsn, offered in zip(here, free, strict=True) if not offered]
        elif self.tenants is not None:
            self.tenants.arrive(here, tenants, room, self.mono)
            return here if len(here) else None
        return as_chunk(array("q", held)) if held else None

    def note(self, chunk: Chunk, keys: Sequence[Told]) -> tuple[list[int], list[int]]:
        """The keys of messages that live from now on; their numbers as groups and as tenants, where there are such."""
        groups, tenants = self.groups, self.tenants
        of_group = [] if groups is None else groups.keys.add(chunk, [told[0] for told in keys])
        of_tenant = [] if tenants is None else tenants.keys.add(chunk, [told[-1] for told in keys])
        return of_group, of_tenant

    def come_back(self, queue: Contents, run: Run) -> Run | None:
        """A run is ready again, or due; what of it is offered beside the main order.  The rest is ready here."""
        groups, staging = self.groups, self.staging
        offered = list[int]()
        strange = list[int]()
        others = list[int]()
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
                elif overtakes(self, queue, run, lsn):
                    offered.append(lsn)
        part = run if len(offered) == len(run.chunk) else run.part(as_chunk(array("q", offered)), False)
        if self.tenants is not None and offered:
            self.tenants.put(part)
            offered = []
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(run.chunk) - (queue.sizes.total(part.chunk) if offered else 0)
        if strange:
            staging.returned.push(run.part(as_chunk(array("q", strange)), False))
        if others:
            self.offer(queue, others)
        return part if offered else None

    # -- out

    def left(self, queue: Contents, runs: Sequence[Run]) -> bool:
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

    def moved(self, queue: Contents, runs: Sequence[Run]) -> None:
        """These were ready and are delayed now: those that were never delivered give way to others of their keys."""
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
        if groups is not None and groups.apart:
            fresh = list[int]()
            for lsn in lsns:
                if lsn in groups.apart:
                    queue.offer(groups.run_of(lsn))
                else:
                    fresh.append(lsn)
        if fresh:
            queue.offer(Run(ascending_chunk(fresh), False))

    def oldest(self, queue: Contents) -> Key:
        """Where the first of all ready messages stands, wherever it waits; only when there is one."""
        first = self.staging.oldest()
        if self.groups is not None:
            held = (run.chunk for runs in (queue.leased_runs(), queue.delays.retries.runs()) for run in runs)
            first = min(first, self.groups.oldest(held))
        if self.tenants is not None:
            return min(first, self.tenants.oldest() or END)
        if queue.main.count:
            first = min(first, queue.main.key())
        return min(first, queue.returned.head()) if queue.returned.count else first

    def drop_ready(self, queue: Contents) -> None:
        """All that is ready is gone, here and among what is offered; the caller has not forgotten the latter yet."""
        groups, tenants = self.groups, self.tenants
        offered = [*queue.main.chunks(), *(run.chunk for run in queue.returned.runs())]
        if tenants is not None:
            offered += [*tenants.chunks(), *(run.chunk for run in tenants.runs())]
            tenants.clear()
        for chunk in (*self.staging.chunks(), *(run.chunk for run in self.staging.runs())):
            known = [lsn for lsn in chunk if self.keys.knows(lsn)]  # became due while others waited for their keys
            offered.append(as_chunk(array("q", known)))
        for lsn, key in [] if groups is None else list(groups.clear_lines()):
            self.keys.drop(lsn, key)
            if tenants is not None:
                tenants.leave(lsn, self.mono)
        for chunk in offered:
            for lsn in chunk:
                if groups is not None:
                    groups.leave(lsn)
                if tenants is not None:
                    tenants.leave(lsn, self.mono)
        out, self.staging = self.staging.out, Staging()
        self.staging.out = out

    # -- keys that are not known

    ask = ask
    keyed = keyed

    def serve_by(self, ranks: Ranks | None) -> None:
        """The queue has other priorities, or none any more; all that is ready waits for its keys."""
        self.ranked = ranks is not None
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
        """Do what is due."""
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

    def check(self, queue: Contents) -> None:
        """Recount."""
        strange = {lsn for chunk in self.staging.chunks() for lsn in chunk}
        strange.update(lsn for run in self.staging.runs() for lsn in run.chunk)
        strange.update(self.staging.out)
        strange = {lsn for lsn in strange if not self.keys.knows(lsn)}
        living = [lsn for chunk in queue.living_pieces() for lsn in chunk if lsn not in strange]
        dying = {lsn for run in queue.letters.runs() for lsn in run.chunk}
        ready = [*queue.main.chunks(), *(run.chunk for run in queue.returned.runs())]
        if self.tenants is not None:
            assert not ready, f"{ready} stand beside their tenants"
            ready = [*self.tenants.chunks(), *(run.chunk for run in self.tenants.runs())]
            leased = [lsn for run in queue.leased_runs() for lsn in run.chunk]
            self.tenants.check([lsn for lsn in leased if self.keys.knows(lsn)])
        if self.groups is not None:
            known = [lsn for lsn in living if lsn not in dying and self.keys.knows(lsn)]
            self.groups.check(known, [lsn for chunk in ready for lsn in chunk])


class _Shared(Stage):
    """Some are offered, some wait for others of their keys."""

    def present(self, queue: Queue) -> bool:
        return queue.shares is not None

    def admit(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        shares = queue.shares
        if shares is None:
            return
        shares.mono = now.mono
        room = 0 if shares.tenants is None else room_now(queue, now)
        new.taken = shares.arrive(queue, new.chunk, new.keys, new.delayed, new.dead, room)
        if new.taken is None:
            return
        if queue.weight >= 0:
            queue.weight += queue.sizes.total(new.taken)
        if queue.targets.lists:
            queue.targets.foreseen.look(queue.targets, new.taken, new.chunk, new.batch, new.rows)

    def readmit(self, queue: Contents, run: Run) -> list[Run]:
        offered = run if queue.shares is None else queue.shares.come_back(queue, run)
        return [] if offered is None else [offered]

    def left(self, queue: Contents, runs: Sequence[Run]) -> bool:
        return queue.shares is not None and queue.shares.left(queue, runs)

    def prepare(self, queue: Queue, sink: Sink) -> None:
        if queue.shares is not None:
            queue.shares.ask(queue, sink)

    def offered(self, queue: Queue, now: Now, new: Newcomers, sink: Sink) -> None:
        if queue.shares is not None:
            if queue.shares.tenants is not None and not queue.agenda & DISPATCH:
                queue.shares.tenants.come_again()
            queue.shares.ask(queue, sink)


SHARED = _Shared()


def stage(queue: Contents, more: Sequence[Chunk] = ()) -> None:
    """The queue, new or loaded, or with other settings: what is ready waits for its keys from now on.

    more    messages that are ready too, and counted as such
    """
    settings = queue.settings
    fresh: list[Chunk] = [*more]
    back: list[Run] = []
    for place in queue.places("ready"):
        fresh += place.fresh()
        back += [Run(run.chunk, False, run.tally, run.place) for run in place.back()]
    queue.main = queue.main.emptied()
    queue.clear_returned()
    everything = sorted_chunk([chunk for chunk in fresh if len(chunk)])
    queue.shares = shares = Shares(settings, queue.ranks) if expressions(settings) else None
    queue.plan = None
    queue.agenda |= SHARES
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
        for run in queue.leased_runs():
            shares.staging.out.update(dict.fromkeys(run.chunk, True))
        for run in queue.delays.retries.runs():
            shares.staging.out.update(dict.fromkeys(run.chunk, False))
    queue.renew_targets()
