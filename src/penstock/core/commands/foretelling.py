"""What other sites tell of messages that come later than the queue that takes them is declared, and of what goes by.

A site may hear from one that a message of another is given to a third, or done, before that other's own link brings
it: it is remembered for the queue, and where that ends meanwhile, or is not declared yet, for the next of its name.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from penstock.core.commands.transfers import TransferCommands
from penstock.core.effects import Verb
from penstock.core.links.foretold import Name, done_by, is_done, is_twin
from penstock.core.links.ownership import Claim, Span
from penstock.core.links.parcels import Told, joined
from penstock.core.queue.queue import Queue
from penstock.errors import QueueFull
from penstock.records.causes import TWIN
from penstock.records.chunks import Now, as_chunk, pack_pairs, pairs_of
from penstock.records.kinds import Kind


class ForetellingCommands(TransferCommands):
    """Claims and settles for queues that are not here."""

    def _foretell(self, now: Now, site: str, some: Iterable[Told]) -> None:
        """A site tells of messages of a queue that is not here; of those that may still come it is remembered.

        What would be this site's it has given back (`returning`).
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

    def _ending(self, now: Now, queue: Queue) -> int:
        """What sites have said of messages that are to come is for the next queue of the name."""
        self._at(now)
        if len(self.peers.sites) > 1 and queue.settings.kind != "local" and queue.exclusive_to is None:
            said = [
                (one.origin, (one.first, one.stop), one.claim)
                for one in self.early if one.queue == queue.id and one.claim.owner != self.peers.here
            ]  # fmt: skip
            for entry in self._deferred.by_queue.get(queue.id, ()):
                if entry.verb in (Verb.ACK.value, TWIN) and entry.origin != self.origin and self.peers.number(entry.by):
                    pairs = pairs_of(as_chunk(array("q", entry.lsns)), False)
                    ends = zip(pairs[::2], pairs[1::2], strict=True)
                    done = done_by(entry.by, entry.verb == TWIN)
                    said += [(entry.origin, (first, stop), done) for first, stop in ends]
            for origin, span, claim in said:
                some = self._to_come(queue, origin, *span)
                self._note_foretold(Name(queue.vhost, queue.name, origin), some, claim)
        return super()._ending(now, queue)
