"""Who asks whom for messages that consumers here want and others own, what an ask is answered, and what is forgotten.

An ask goes to the owner, or where no link leads to that one from site to site, each of which looks who owns the
messages as far as it knows.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from penstock.core.commands.links import LinkCommands, merged_spans
from penstock.core.links.asking import Asking, Waiting, Wanted
from penstock.core.links.carried import Twin
from penstock.core.links.ownership import Span
from penstock.core.links.parcels import ASKED_MOST, HANDED_ON_MOST, Ask, Asked, joined, read_ask
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order.runs import packed
from penstock.core.queue.queue import Queue
from penstock.records.chunks import LSN_LIMIT, Now

HANDING_ON_MOST = 100
"""Asks that wait to be handed on; more are lost, and come again."""

TWINS_MANY, TWINS_EACH = 1_000, 100
"""Of more pairs than so many that are one it is looked so many microseconds a pair later again."""

FORGETS_EVERY = 1_000_000
"""Microseconds until it is looked again at what may be forgotten."""

FLOORS_KEPT = 100
"""How many moments are remembered whose records links have still to tell."""


class TransferCommands(LinkCommands):
    """Transfers of messages, from the ask on."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.absent = set[str]()  # sites that no link reaches now; the server says so
        self._askings = dict[int, Asking]()  # by queue
        self._handing_on = list[Asked]()
        self._looks_at = self._twins_at = 0
        self._floors_then = list[tuple[int, int]]()  # last LSN, and the lowest that shared queues had then

    def link_up(self, site: str) -> None:
        """The link to a site is there anew: what was asked before is forgotten on both sides."""
        self.absent.discard(site)
        for asking in self._askings.values():
            asking.came_up(site)

    def asks(self, now: Now) -> list[Asked]:
        """What to ask other sites for now: messages of theirs that consumers here want and have room for.

        What sites have that are away is taken from queues for which an operator allows it.  To be called now and then;
        what is remembered of links and not needed any more is forgotten here, too.
        """
        now = self._at(now)
        if now.wall >= self._looks_at:
            self._looks_at = now.wall + FORGETS_EVERY
            self._forget_numbers(now)
        if self.twins:
            self._part_twins(now)
        out, self._handing_on = self._handing_on, []
        for queue in self._short():
            if queue.id in self.proxied:
                self._take_of_absent(now, queue)
            asking = self._askings.setdefault(queue.id, Asking())
            free, filtered = _free(queue), False
            if free <= 0:
                free, filtered = _free(queue, filtered=True), True
            for asked in asking.asks(now.wall, self._asked_for(queue, now, asking, filtered=filtered), free):
                queue.asked(now.wall, asked.spans)
                others = self._asked_for(queue, now, asking, filtered=filtered, of=asked.owner)
                besides = asking.besides(asked, now.wall, others)
                out += self._asked_of(queue, asked.owner, asked.spans, (), besides)
        return out

    def _asked_for(
        self, queue: Queue, now: Now, asking: Asking, *, filtered: bool, of: str | None = None
    ) -> Iterator[Waiting]:
        """What consumers here want as it would be served, of whoever may be asked now, or of one owner."""
        return self._wanted(queue, now) if filtered else self._waiting(queue, now, asking, of)

    def _asked_of(
        self, queue: Queue, owner: str, spans: Sequence[Span], path: tuple[str, ...], besides: Sequence[Span] = ()
    ) -> Iterator[Asked]:
        """An ask for messages of an owner, to that site, or to whoever may hand it on where no link leads there.

        path: who asks, and through whose hands it came; empty: this site asks.  besides: what would do as well.
        """
        told, others = (
            tuple([one for first, stop in some for one in self.told_as(first, stop)]) for some in (spans, besides)
        )
        ask = Ask(queue.vhost, queue.name, told, (*path, self.peers.here), others)
        if owner in self._carries:
            yield Asked(owner, (ask if path else ask._replace(path=())).words, owner)
            return
        for site in self._carries:
            if site not in path and self.sharing.with_site(queue.id, site) is not None:
                yield Asked(owner, ask.words, site)

    def _part_twins(self, now: Now) -> None:
        """Of two messages that are one let one go, as `core.links.twins` says; all that may go at once."""
        queues = [queue for number in self.sharing.queues if (queue := self.queue_by_id(number)) is not None]
        if not queues or (len(self.twins) > TWINS_MANY and now.wall < self._twins_at):
            return
        awaited, gone = set[Twin](), set[int]()
        with self.group():
            for queue in queues:
                worked, spare = self._parted_twins(queue, awaited)
                if worked:
                    queue.withdraw(now, packed(np.array(sorted(worked))), self._out, "its twin")
                if spare:
                    queue.settled_elsewhere(now, packed(np.array(sorted(spare))), self.peers.here, self._out, [])
                    gone |= spare
                if worked or spare:
                    self._touch(queue)
            if gone:
                self._forget_twins(sorted(gone))
        self.twins.intersection_update(awaited)
        self._twins_at = now.wall + TWINS_EACH * len(self.twins)

    def _parted_twins(self, queue: Queue, awaited: set[Twin]) -> tuple[set[int], set[int]]:
        """What goes of one queue: messages whose other one was worked, and those whose other one is to be.

        awaited: takes those of which an owner elsewhere lets one go, or somebody has one in hand.
        """
        worked, spare, claims = set[int](), set[int](), queue.claims(self.peers)
        for twin in self.twins:
            sites = [self.peers.sites[peer].origin for peer in (twin.peer, twin.other_peer)]
            both = (twin.one, twin.other) if sites[0] < sites[1] else (twin.other, twin.one)
            there = [lsn for lsn in both if queue.lives(lsn)]
            if not there or min(both) < queue.id:
                continue
            goes = there[-1]
            if claims.of(goes).owner != self.peers.here or queue.lives(goes, "leased"):
                awaited.add(twin)
            else:
                (worked if len(there) == 1 else spare).add(goes)
        return worked, spare

    def _take_of_absent(self, now: Now, queue: Queue) -> None:
        """Own what consumers here have room for and belongs to sites that are away."""
        free, wanted = _free(queue), list[Span]()
        for first, stop, _ in queue.in_turn(LSN_LIMIT, self.absent.__contains__):
            if free <= 0:
                break
            wanted.append((first, min(stop, first + free)))
            free -= stop - first
        if wanted:
            self.take_by_proxy(now, queue, sorted(wanted), self.absent)

    def _forget_numbers(self, now: Now) -> None:
        """Forget where messages of other sites stand that no shared queue has, once every link has told their end.

        Also of queues of which nobody has said since the start that they are shared.
        """
        shared = set(self.sharing.queues)
        floors = [queue.floor() for queue in self.queues() if queue.id in shared or queue.may_have_others]
        floor = min([self._out.next_lsn, *floors])
        told = min((self.link_state(site).acked for site in self._carries), default=self._out.last_lsn)
        self.forget_departed(now, told)
        known = [(last, below) for last, below in self._floors_then if last > told]
        due = [below for last, below in self._floors_then if last <= told]
        if len(known) < FLOORS_KEPT:
            known.append((self._out.last_lsn, floor))
        self._floors_then = known
        for site in [self.peers.name(number) for number in self.carried] if due else ():
            self.forget_carried(now, site, max(due))

    def _short(self) -> Iterator[Queue]:
        """Shared queues whose consumers here have more room than there are messages for them."""
        for number in list(self.sharing.queues):
            queue = self.queue_by_id(number)
            if queue is None or not queue.foreign_count or queue.busy:
                continue
            if _free(queue) > 0 or _free(queue, filtered=True) > 0:
                yield queue

    def _wanted(self, queue: Queue, now: Now) -> Iterator[Waiting]:
        """What consumers with filters want, as far as these have looked; they look on."""
        wanted = self.wanted.setdefault(queue.id, Wanted())
        some = {one.filter.text: one.filter for one in _able(queue) if one.filter is not None and one.room > 0}
        filters = [one for _, one in sorted(some.items())]
        scan = wanted.look(queue.id, filters, queue.foreign_after, queue.waits_elsewhere)
        if scan is not None:
            self._out.effect(scan)
        claims = queue.claims(self.peers)
        bound = queue.first_barrier
        for lsn in queue.by_rank(wanted.lsns[: bisect_left(wanted.lsns, bound)]):
            owner = claims.of(lsn).owner
            agreed = self.sharing.with_site(queue.id, owner)
            if agreed is None or not agreed.faults:
                yield Waiting(lsn, lsn + 1, owner, self.stamps.of(lsn, now.wall))

    def _waiting(self, queue: Queue, now: Now, asking: Asking, of: str | None) -> Iterator[Waiting]:
        def may(owner: str) -> bool:
            agreed = self.sharing.with_site(queue.id, owner)
            return (owner == of if of else asking.may_ask(owner, now.wall)) and (agreed is None or not agreed.faults)

        patient = self.stamps.after(now.wall - asking.patience, now.wall, self._out.next_lsn)
        below = min(patient, queue.first_barrier)  # behind a barrier it would wait here
        for first, stop, claim in queue.in_turn(below, may):
            yield Waiting(first, stop, claim.owner, self.stamps.of(first, now.wall))

    def answer(self, now: Now, asker: str, ask: bytes, *, via: str = "") -> int:
        """A site asks for messages that this one owns; how many it is given.  They go out when that is durable.

        What others own, to whom no link leads from there, is asked for further on.
        via: who hands the ask on, if that is not the one who gives it.
        Errors: ValueError for what is no ask.
        """
        vhost, name, told, path, others = read_ask(ask)
        queue, site = self.find_queue(vhost, name), via or asker
        agreed = None if queue is None else self.sharing.with_site(queue.id, site)
        if queue is None or agreed is None or agreed.faults:
            return 0
        asker = path[0] if path else asker
        if asker == self.peers.here or self.peers.number(asker) is None:
            return 0
        here, besides = (
            merged_spans([span for one in joined(some) for span in self._stand(*one)]) for some in (told, others)
        )
        if path and len(path) < HANDED_ON_MOST and self.peers.here not in path:
            self._hand_on_ask(queue, here, path, besides)
        return sum(one.stop - one.first for one in self.grant(now, queue, here, asker, besides))

    def _hand_on_ask(self, queue: Queue, spans: Sequence[Span], path: tuple[str, ...], besides: Sequence[Span]) -> None:
        """Ask for those that others own, in the name of who asks."""
        others = self._owned_by_others(queue, besides, path)
        for owner, some in self._owned_by_others(queue, spans, path).items():
            if len(self._handing_on) < HANDING_ON_MOST:
                self._handing_on += self._asked_of(queue, owner, some, path, others.get(owner, ()))

    def _owned_by_others(self, queue: Queue, spans: Sequence[Span], path: tuple[str, ...]) -> dict[str, list[Span]]:
        """Those of other sites than these that an ask has passed, and this one, by site."""
        owned = dict[str, list[Span]]()
        for span in spans:
            for first, stop, claim in queue.claims(self.peers).spans(*span):
                if claim.owner not in (self.peers.here, *path):
                    owned.setdefault(claim.owner, []).append((first, stop))
        return owned


def _able(queue: Queue) -> list[Consumer]:
    """Consumers that may be given something."""
    return [one for one in queue.consumers if not (one.choked or one.passive or one.standby)]


def _free(queue: Queue, *, filtered: bool = False) -> int:
    """How many more messages consumers here would take than there are for them.

    filtered: those with a filter, who want none of what is ready.
    """
    if queue.halted:
        return 0
    room = sum([max(one.room, 0) for one in _able(queue) if (one.filter is not None) is filtered])
    return min(room, queue.room, ASKED_MOST) - (0 if filtered else queue.ready)
