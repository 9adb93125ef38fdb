"""Claims to messages of a queue that is not here: remembered while they may still come, given back where they are ours.

A site may hear from one that a message of another is given to a third, or done, before that other's own link brings
it: it is remembered for the queue, and where that ends meanwhile, or is not declared yet, for the next of its name.

What this site was granted and cannot take, for its queue went while the grant was under way, goes back.  The grant
stands in the owner's log before that one hears of the end of the queue, so nobody else can know what became of it.
This site owns it by then, and hands it on by a record of its own (`CLAIMED`), which names the queue, for there is none
any more: to who told of the grant, and where that one has the queue no more to another that has.  So do those that
would be this site's from the first, as `initial_owner` of a queue which it has not.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.commands.transfers import TransferCommands
from penstock.core.effects import Verb
from penstock.core.links.ownership import NOBODY, Claim, Name, Span, done_by, is_done, is_twin
from penstock.core.links.parcels import Asked, Piece, Told, joined
from penstock.core.links.sharing import HERE, Identity, Lacking, identity_of
from penstock.core.links.states import Place
from penstock.core.queue.order.runs import packed
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import within
from penstock.errors import QueueFull
from penstock.expr import TopicPattern
from penstock.records.causes import TWIN
from penstock.records.chunks import Now, as_chunk, pack_pairs, pairs_of
from penstock.records.kinds import Kind


class ReturningCommands(TransferCommands):
    """Claims and settles for queues that are not here, and claims of this site that it gives up as it hears of them."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._lacking: list[Lacking] | None = None  # see `_lacks`

    def _foretell(self, now: Now, site: str, some: Iterable[Told]) -> None:
        """A site tells of messages of a queue that is not here; of those that may still come it is remembered.

        What would be this site's it has given back (`_give_back`).
        """
        now, known = self._at(now), (self.origin, self._origin_of(site))
        met = {one.origin for one in self.peers.sites.values()}
        for told in some:
            topics = self.sharing.topics(*told[:2])
            if not topics or (told.claim is not None and told.claim.owner == self.peers.here):
                continue
            spans = dict[int, list[Span]]()
            for origin, first, stop in joined([one for one in told.spans if one[0] in met and one[0] not in known]):
                passed = self._gone_by(origin, told.vhost, topics)
                spans.setdefault(origin, []).extend(self._numbers(origin).unknown(max(first, passed), stop))
            for origin, new in spans.items():
                self._note_foretold(Name(*told[:2], origin), new, told.claim or done_by(site, told.twins))

    def _note_foretold(self, name: Name, spans: Sequence[Span], claim: Claim) -> None:
        if new := self.foretold.new(name, spans, claim):
            header: dict[str, object] = {
                "origin": str(name.origin), "site": claim.owner, "serial": claim.serial, "why": claim.why,
                "of": name.vhost,
            }  # fmt: skip
            self._out.record(Kind.CLAIMED, name.queue, header, pack_pairs(0, [end for span in new for end in span]))
            self.foretold.add(name, new, claim)

    def _recall(self, now: Now, queue: Queue) -> None:
        """A queue is declared: it has what was said of its messages before, as far as these may still come."""
        shared = queue.settings.kind != "local" and queue.exclusive_to is None
        for origin, first, stop, claim in self.foretold.take(queue.vhost, queue.name):
            try:
                for span in self._to_come(queue, origin, first, stop) if shared else ():
                    if is_done(claim):
                        spared, lsns = is_twin(claim), range(*span)
                        self._deferred.add(now, queue, origin, lsns, Verb.ACK, claim.owner, self._out, twins=spared)
                    else:
                        self._remember(queue, origin, span, claim)
            except QueueFull:
                continue  # a link that tells so much is cut off for it; whoever declares a queue is not at fault

    def _said_of(self, queue: Queue) -> Iterator[tuple[int, Span, Claim]]:
        """What other sites have said of messages that are to come: the origin, the messages there, the claim."""
        for one in self.early:
            if one.queue == queue.id and one.claim.owner != self.peers.here:
                yield one.origin, (one.first, one.stop), one.claim
        for entry in self._deferred.by_queue.get(queue.id, ()):
            if entry.verb in (Verb.ACK.value, TWIN) and entry.origin != self.origin and self.peers.number(entry.by):
                pairs = pairs_of(as_chunk(array("q", entry.lsns)), False)
                done = done_by(entry.by, entry.verb == TWIN)
                for first, stop in zip(pairs[::2], pairs[1::2], strict=True):
                    yield entry.origin, (first, stop), done

    def offered_by(self, site: str, vhost: str, queue: str) -> bool:
        """Whether a site has said that it has a queue of this name."""
        return (vhost, queue) in self.sharing.offered.get(site, ())

    def _heirs(self, site: str, vhost: str, queue: str) -> list[str]:
        """Who may have what this site cannot take: all that have the queue, who tells of it first, then by name."""
        others = (one for one in sorted(self.sharing.offered) if one != site)
        return [one for one in (site, *others) if self.offered_by(one, vhost, queue)]

    def _give_back(
        self, now: Now, vhost: str, queue: str, spans: Iterable[tuple[int, int, int]], claim: Claim, heirs: list[str]
    ) -> None:
        """Hand a claim of this site on: to messages that their origins call so.  Once, however often it is told.

        What was yielded to this site nobody may have any more, so each heir has it once: the last of a round keeps it.
        """
        if not heirs:
            self._keep_unplaced(now, vhost, queue, spans, claim)
            return
        met, some = {one.origin for one in self.peers.sites.values()}, dict[tuple[int, str], list[Span]]()
        for origin, first, stop in joined([span for span in spans if span[0] in met]):
            left = self.returned.but(Place(vhost, queue, origin, ""), [(first, stop)], claim)
            for heir in heirs:
                place = Place(vhost, queue, origin, heir)
                new = left if claim.why != "yielded" else self.returned.but(place, left)
                if new:
                    some.setdefault((origin, heir), []).extend(new)
                    left = [one for span in left for one in without(span, new)]
        self._at(now)
        for (origin, heir), new in some.items():
            back = claim.to(heir, "yielded")
            header: dict[str, object] = {
                "origin": str(origin), "site": back.owner, "serial": back.serial, "why": back.why, "vhost": vhost,
            }  # fmt: skip
            self._out.record(Kind.CLAIMED, queue, header, pack_pairs(0, [end for span in new for end in span]))
            self.returned.add(Place(vhost, queue, origin, heir), new, back)
            self.foretold.placed(Name(vhost, queue, origin), new)

    def _keep_unplaced(
        self, now: Now, vhost: str, queue: str, spans: Iterable[tuple[int, int, int]], claim: Claim
    ) -> None:
        """Nobody has the queue, as far as this site knows: they are for the first that says so."""
        self._at(now)
        met, some = {one.origin for one in self.peers.sites.values()}, dict[int, list[Span]]()
        for origin, first, stop in joined([span for span in spans if span[0] in met]):
            left = self.returned.but(Place(vhost, queue, origin, ""), [(first, stop)], claim)
            some.setdefault(origin, []).extend(left)
        for origin, left in some.items():
            self._note_foretold(Name(vhost, queue, origin), left, claim._replace(owner=NOBODY))

    def asks(self, now: Now) -> list[Asked]:
        """As without that; what nobody had a queue for is given to whoever has said since that it has one."""
        if self.foretold:
            self._place(now)
        return super().asks(now)

    def _place(self, now: Now) -> None:
        """What nobody had a queue for goes to a site that has one."""
        for name, first, stop, claim in self.foretold.unplaced():
            if heirs := self._heirs("", name.vhost, name.queue):
                span = name.origin, first, stop
                self._give_back(now, name.vhost, name.queue, [span], claim._replace(owner=self.peers.here), heirs)

    def _not_returned(self, queue: Queue | None, told: Told) -> Told:
        """But for claims to what this site has given to others, and what never comes to it."""
        if told.claim is None or not self.returned:
            return told
        new = list[tuple[int, int, int]]()
        for origin, first, stop in told.spans:
            never = [one[1:] for one in self._beyond(queue, [(origin, first, stop)])]
            left = self.returned.but(Place(*told[:2], origin, ""), never)
            new += [(origin, *span) for span in (*without((first, stop), never), *left)]
        return told._replace(spans=tuple(new))

    def _lacks(self) -> list[Lacking]:
        """Queues that other sites have, or had, and whose messages are first this one's, which has none; each once."""
        if self._lacking is None:
            mine = dict.fromkeys(self.sharing.first_owned_by(self.peers.here))
            self._lacking = [one for one in mine if not self._has(one.identity)]
        return self._lacking

    def _has(self, one: Identity) -> bool:
        queue = self.find_queue(one.vhost, one.name)
        return queue is not None and identity_of(queue.vhost, queue.name, queue.settings, self.peers.sites[HERE]) == one

    def _refuse(self, now: Now, site: str, piece: Piece, rows: pa.RecordBatch) -> None:
        """Messages that are about to come would be this site's, of queues that it has not: who tells of them has them.

        Else nobody would: they come without a queue, and a later one has what comes after it.
        """
        lsns = cast("npt.NDArray[np.int64]", rows.column("lsn").to_numpy())
        for one, topic in self._lacks():
            if (piece.vhost, piece.exchange) != (one.vhost, topic[0]):
                continue
            if not self.sharing.took(site, one, piece.at or int(lsns[0])):
                continue
            pattern = TopicPattern(topic[1])
            mine = lsns[[pattern.matches(key) for key in cast("list[str]", rows.column("name").to_pylist())]]
            origin, numbers = piece.path[0], self._numbers(piece.path[0])
            runs = cast("list[tuple[int, int]]", within(packed(mine)).tolist() if len(mine) else [])
            spans = [(origin, *span) for low, high in runs for span in numbers.unknown(low, high)]
            if spans:
                self._give_back(now, one.vhost, one.name, spans, Claim(self.peers.here), self._heirs(site, *one[:2]))

    def _say_owner(self, now: Now, queue: Queue) -> None:
        self._lacking = None
        super()._say_owner(now, queue)

    def _beyond(self, queue: Queue | None, spans: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
        """Those messages that can never be in a queue here: there is none, or they were here before it."""
        return list(spans) if queue is None else [one for span in spans for one in self._before(queue, *span)]

    def _before(self, queue: Queue, origin: int, first: int, stop: int) -> Iterator[tuple[int, int, int]]:
        for low, high in self._stand(origin, first, stop):
            if low < queue.id:
                yield from self.told_as(low, min(high, queue.id))
        if origin != self.origin:
            passed = max(first, min(stop, self._passed(queue, origin)))
            here = self._numbers(origin).standing(first, passed)
            yield from ((origin, *span) for span in without((first, passed), here) if first < passed)

    def _ending(self, now: Now, queue: Queue) -> int:
        """What sites have said of messages that are to come is for the next queue of the name.

        Claims of this site to such messages are of no use to it any more, and go back.
        """
        for one in [one for one in self.early if one.queue == queue.id and one.claim.owner == self.peers.here]:
            heirs = self._heirs(self._site_of(one.origin)[1], queue.vhost, queue.name)
            spans = [(one.origin, one.first, one.stop)]
            self._give_back(now, queue.vhost, queue.name, spans, one.claim, heirs)
        self.sharing.forget(queue.id)
        self._lacking = None
        self._at(now)
        if len(self.peers.sites) > 1 and queue.settings.kind != "local" and queue.exclusive_to is None:
            for origin, span, claim in self._said_of(queue):
                some = self._to_come(queue, origin, *span)
                self._note_foretold(Name(queue.vhost, queue.name, origin), some, claim)
        return super()._ending(now, queue)


def without(span: Span, others: Iterable[Span]) -> list[Span]:
    """What of a span is in none of the others, which are parts of it or lie outside."""
    left = [span]
    for low, high in others:
        left = [
            part for first, stop in left for part in ((first, min(stop, low)), (max(first, high), stop))
            if part[0] < part[1]
        ]  # fmt: skip
    return left
