"""What a site was granted and cannot take, for its queue went while the grant was under way: it goes back.

The grant stands in the owner's log before that one hears of the end of the queue, so nobody else can know what became
of it.  This site owns it by then, and hands it on by a record of its own (`CLAIMED`), which names the queue, for there
is none any more: to who told of the grant, and where that one has the queue no more to another that has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from penstock.core.commands.transfers import TransferCommands
from penstock.core.links.ownership import Claim, Claims
from penstock.core.links.parcels import joined
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now, pack_pairs
from penstock.records.kinds import Kind

RETURNED_MOST = 20_000
"""Spans of which it is remembered that they went back; of more it is forgotten, and told once more."""


class ReturningCommands(TransferCommands):
    """Claims of this site that it gives up as it hears of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._returned = dict[tuple[str, str, int], Claims]()  # by vhost, queue and origin

    def offered_by(self, site: str, vhost: str, queue: str) -> bool:
        """Whether a site has said that it has a queue of this name."""
        return (vhost, queue) in self.sharing.offered.get(site, ())

    def _heir(self, site: str, vhost: str, queue: str, *, but: str = "") -> str | None:
        """Who may have what this site cannot take: that site, or another that has the queue; None: nobody has it."""
        others = (one for one in (site, *sorted(self.sharing.offered)) if one != but)
        return next((one for one in others if self.offered_by(one, vhost, queue)), None)

    def _give_back(
        self, now: Now, vhost: str, queue: str, spans: Iterable[tuple[int, int, int]], claim: Claim, heir: str | None
    ) -> None:
        """Hand a claim of this site on: to messages that their origins call so.  Once, however often it is told."""
        if heir is None:
            return
        back, met = claim.to(heir, "yielded"), {one.origin for one in self.peers.sites.values()}
        if sum(map(len, self._returned.values())) >= RETURNED_MOST:
            self._returned.clear()
        pairs = dict[int, list[int]]()
        for origin, first, stop in joined([span for span in spans if span[0] in met]):
            known = self._returned.setdefault((vhost, queue, origin), Claims(""))
            for span in known.put(first, stop, claim):
                known.put(*span, back)
                pairs.setdefault(origin, []).extend(span)
        self._at(now)
        for origin, some in pairs.items():
            header: dict[str, object] = {
                "origin": str(origin), "site": back.owner, "serial": back.serial, "why": back.why, "vhost": vhost,
            }  # fmt: skip
            self._out.record(Kind.CLAIMED, queue, header, pack_pairs(0, some))

    def _beyond(self, queue: Queue | None, spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Those messages that can never be in a queue here: there is none, or they were here before it."""
        return list(spans) if queue is None else [one for span in spans for one in self._before(queue, *span)]

    def _before(self, queue: Queue, origin: int, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        for low, high in self._stand(origin, first, stop):
            if low < queue.id:
                yield from self.told_as(low, min(high, queue.id))
        if origin != self.origin:
            numbers = self._numbers(origin)
            at, forgotten = first, min(stop, numbers.floor)
            for low, high in numbers.standing(first, forgotten):
                if at < low:
                    yield origin, at, low
                at = high
            if at < forgotten:
                yield origin, at, forgotten

    def _ending(self, now: Now, queue: Queue) -> int:
        """Claims of this site to messages that have not come are of no use to it any more."""
        for one in [one for one in self.early if one.queue == queue.id and one.claim.owner == self.peers.here]:
            heir = self._heir(self._site_of(one.origin)[1], queue.vhost, queue.name)
            span = one.origin, one.first, one.stop
            self._give_back(now, queue.vhost, queue.name, [span], one.claim, heir)
        self.sharing.forget(queue.id)
        return super()._ending(now, queue)
