"""What a site forgets of others' messages: where they stand, once no queue has them and each link told their end.

Whatever is older than all that queues have goes at once.  Where few messages stay before very many that are gone, for
their time has not come or nobody wants them, what lies between them goes, too: else it stayed for as long as they do.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from penstock.core.commands.links import LinkCommands
from penstock.core.links.ownership import Span
from penstock.core.links.sharing import HERE
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import Ints, flat, stretches
from penstock.records.chunks import Now
from penstock.records.compute import distinct_numbers
from penstock.records.kinds import Kind

FORGETS_EVERY = 1_000_000
"""Microseconds until it is looked again at what may be forgotten."""

MOMENTS_KEPT = 100
"""How many moments are remembered whose records links have still to tell."""

HELD_FEW = 4_096
"""Stretches of other sites' messages that stand here; of so many more than were left, and a sixteenth of them and all
messages, it is looked which lie between messages that stay."""

STAYING_MOST = 500
"""Spans of messages between which they are forgotten at once."""


class Moment(NamedTuple):
    """How it was when the log ended at `last`.

    below    the oldest message of shared queues had this LSN, or there was none
    beyond   of what had a lower one than this these had but what is `staying`; 0: that was not looked at
    """

    last: int
    below: int
    beyond: int = 0
    staying: tuple[Span, ...] = ()


class ForgettingCommands(LinkCommands):
    """Where messages of other sites stand, and which queues are gone, is forgotten."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.acked = dict[str, int]()  # by site: it has what this log says to it, up to there; the server says so, too
        self._moments = list[Moment]()
        self._held_then = 0  # stretches that were left when it was looked between messages that stay

    def _forget_told(self, now: Now) -> None:
        """What every link has told of by now."""
        last = self._out.last_lsn
        told = min((max(self.link_state(site).acked, self.acked.get(site, 0)) for site in self._carries), default=last)
        self.forget_departed(now, told)
        due = [one for one in self._moments if one.last <= told]
        self._moments = [one for one in self._moments if one.last > told]
        if len(self._moments) < MOMENTS_KEPT:
            self._moments.append(self._moment(last))
        if not due:
            return
        below, most = max(one.below for one in due), max(due, key=lambda one: one.beyond)
        for site in [self.peers.name(number) for number in self.carried]:
            self.forget_carried(now, site, below, most.beyond, most.staying)
        if most.beyond:
            self._held_then = sum(numbers.held for numbers in self.carried.values())

    def _moment(self, last: int) -> Moment:
        may = [one for one in self.queues() if one.may_have_others or self._carried_anywhere(one)]
        below = min([self._out.next_lsn, *(queue.floor() for queue in may)])
        held = sum(numbers.held for numbers in self.carried.values())
        new = held - self._held_then
        if new <= HELD_FEW or 16 * new <= max(held, sum(queue.total() for queue in may)):
            return Moment(last, below)
        self._held_then = held
        here = np.sort(np.array([one for numbers in self.carried.values() for one in numbers.stands()], dtype=np.int64))
        return Moment(last, below, *_staying(may, last + 1, here))

    def _were_there(self, lowest: int) -> None:
        """Messages from this LSN on are in queues again, or may be, that were in none before."""
        self._moments = [Moment(one.last, min(one.below, lowest)) for one in self._moments]

    def forget_carried(
        self, now: Now, site: str, below: int, beyond: int = 0, staying: Sequence[Span] = ()
    ) -> None:  # fmt: skip
        """Where messages of a site with a lower LSN than this stand here is asked no more.

        beyond: nor is it of those with a lower one than that, but for those that are staying, ascending.
        """
        number = self.peers.number(site)
        numbers = None if number is None else self.carried.get(number)
        if number is None or numbers is None:
            return
        if numbers.forget_below(below, beyond, staying):
            self._at(now)
            header: dict[str, object] = {"peer": number, "forgot": below, "floor": numbers.floor}
            if beyond > below:
                header["between"] = [beyond, *(end for span in staying for end in span)]
            self._out.record(Kind.LINK, site, header)
            self.links[number] = replace(self._link_state(number), floor=numbers.floor)

    def forget_departed(self, now: Now, upto: int) -> None:
        """Every site has been told of the queues that ended up to there.

        The record names some other site, of which it says nothing: whoever does not know the word reads nothing in it.
        """
        if self.departed.told(upto):
            self._at(now)
            peer = min(number for number in self.peers.sites if number != HERE)
            self._out.record(Kind.LINK, self.peers.name(peer), {"peer": peer, "ended": upto})


def _staying(queues: Iterable[Queue], beyond: int, held: Ints) -> tuple[int, tuple[Span, ...]]:
    """What these have, in so many spans at most, and from where on there may be others, ascending.

    held: what stands here of other sites, ascending, by the first of each stretch.  Of what lies between spans as many
    are kept apart as may be, those with most of these in them; the others count as if it stayed.
    """
    living = np.concatenate([flat([]), *(queue.all_living() for queue in queues)])
    spans = stretches(distinct_numbers(living))
    if not len(spans):
        return beyond, ()
    after = np.append(spans[1:, 0], beyond)  # where what lies behind each span ends
    between = np.searchsorted(held, after) - np.searchsorted(held, spans[:, 1])
    apart = np.argsort(-between, kind="stable")[:STAYING_MOST]
    apart.sort()
    if apart[-1] != len(spans) - 1:
        beyond = int(spans[apart[-1] + 1, 0])
    firsts = spans[np.append(0, apart[:-1] + 1), 0].tolist()
    return beyond, tuple(zip(firsts, spans[apart, 1].tolist(), strict=True))
