"""What became of messages that other sites found in their logs, and of those that this one handed to others.

Whoever is asked says it in its log, to who enquires alone: what is done, whose the rest is, and that what was never in
a queue here is the asker's.  What becomes of that later is told on, for others that have found it may have no link to
who has it: in a row of sites the one in the middle is between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

from penstock.core.commands.transfers import TransferCommands
from penstock.core.links.ownership import Claim, Claims, Place, Span, done_by, is_done, without
from penstock.core.links.parcels import SPANS_MOST, Enquiry, Told, joined, read_enquiry
from penstock.core.links.sharing import HERE, heard_of, identity_of
from penstock.core.queue.queue import Queue
from penstock.records.chunks import LSN_LIMIT, Now, pack_pairs
from penstock.records.kinds import Kind

Became = Literal["living", "gone", "pending", "never", "coming"]
"""What became of messages here: they are in the queue; were, or expired before; it has still to look whether it takes
them; it was not there when they came; they have still to come."""


ANSWERED_MOST, LOOKED_AT_MOST = 1_000, 1_000_000
"""Spans of which one answer is, and messages that are looked at for it: of more who enquires asks again."""


class AnsweringCommands(TransferCommands):
    """What is said of messages that others found."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unsure = dict[int, Claims]()  # by queue: what was found and is another's, until that one has said so

    def enquired(self, now: Now, site: str, enquiry: bytes) -> None:
        """A site enquires what became of messages that it takes for this one's.  The answer is in the log.

        Errors: ValueError for what is no enquiry.
        """
        one, now = read_enquiry(enquiry), self._at(now)
        if self.peers.number(site) is None or not self.offered_by(site, one.vhost, one.queue):
            return
        if one.declared:
            if self.sharing.offered[site][one.vhost, one.queue][1] == one.declared:
                self._tell_one(one, site, one.spans[0][0], Claim(self.peers.here), [one.spans[0][1:]])
            return
        queue = self._same_queue(site, one)
        if queue is not None and not self._can_say(queue, site):
            return
        never, found = list[tuple[int, int, int]](), list[tuple[int, int]]()
        said = dict[tuple[int, Claim], list[Span]]()  # by origin
        for origin, became, low, high, here in self._became_each(queue, one):
            if became == "gone":
                said.setdefault((origin, done_by(self.peers.here)), []).append((low, high))
            elif became == "never":
                never.append((origin, low, high))
            elif became == "living":
                found.append((here, here + high - low))
        if queue is not None:
            self._say_whose(now, queue, site, one, found, said)
        self._hand_over(site, one, never[:ANSWERED_MOST], said)
        left = ANSWERED_MOST
        for (origin, claim), spans in said.items():
            if some := sorted(spans)[:left]:
                self._tell_one(one, site, origin, claim, some)
            left -= len(some)

    def _same_queue(self, site: str, one: Enquiry) -> Queue | None:
        """The queue here that is the one of a site who enquires."""
        queue = self.find_queue(one.vhost, one.queue)
        if queue is None:
            return None
        theirs, _ = self.sharing.offered[site][one.vhost, one.queue]
        same = theirs.identity == identity_of(queue.vhost, queue.name, queue.settings, self.peers.sites[HERE])
        return queue if same else None

    def _can_say(self, queue: Queue, site: str) -> bool:
        """Whether it is known now what became of messages of a queue that both have."""
        agreed = self.sharing.with_site(queue.id, site)
        return not (queue.stopped or queue.awaited) and agreed is not None and not agreed.faults

    def _say_whose(
        self, now: Now, queue: Queue, site: str, one: Enquiry, found: Sequence[Span],
        said: dict[tuple[int, Claim], list[Span]],
    ) -> None:  # fmt: skip
        """Of messages that are in the queue here, as this site knows it; what nobody knows better is the asker's."""
        claims, unsure = queue.claims(self.peers), self._unsure.get(queue.id, Claims(""))
        yielded = dict[Claim, list[Span]]()
        for low, high, claim in _all_claims(claims, found):
            if claim.owner == site and claim.why == "first":
                yielded.setdefault(claim.to(site, "yielded"), []).append((low, high))
                continue
            ours = claim.owner == self.peers.here
            if ours and claim.serial < one.serial:
                continue
            told = claim if ours or claim.why != "first" else claim.to(claim.owner, "yielded")
            sure = [(low, high)] if claim.owner == site else _sure(unsure, (low, high))
            for origin, first, stop in [some for span in sure for some in self.told_as(*span)]:
                said.setdefault((origin, told), []).append((first, stop))
        some = [(sorted(spans)[:ANSWERED_MOST], claim) for claim, spans in yielded.items()]
        self.own_each(now, queue, some)

    def _hand_over(
        self, site: str, one: Enquiry, never: Sequence[tuple[int, int, int]], said: dict[tuple[int, Claim], list[Span]]
    ) -> None:
        """What was never in a queue here is the asker's, unless another has it by now: who that is is said.

        Or unless it came to another whose queue was there before it, which took it for its own: whoever is there has
        to have said which queues it has.
        """
        others = (other for other in self._carries if other not in self.absent and self.peers.number(other) is not None)
        if any(other not in self.sharing.offered for other in others):
            return
        mine, new = Claim(self.peers.here, one.serial, one.why), dict[tuple[int, str], list[Span]]()
        for origin, first, stop in never:
            left = self.returned.but(Place(one.vhost, one.queue, origin, ""), [(first, stop)], mine)
            rest = left
            for elder, since in self._elder_queues(site, one.vhost, one.queue, origin):
                rest = taken_since(rest, since, new.setdefault((origin, elder), []))
            new.setdefault((origin, site), []).extend(rest)
            for place in (Place(one.vhost, one.queue, origin, heir) for heir in self._others()):
                for low, high, claim in self.returned.of(place, first, stop):
                    said.setdefault((origin, claim), []).extend(without((low, high), left))
        for (origin, heir), spans in new.items():
            if spans:
                self._note_handed_on(Place(one.vhost, one.queue, origin, heir), spans, mine.to(heir, "yielded"))

    def _elder_queues(self, site: str, vhost: str, name: str, origin: int) -> Iterator[tuple[str, int]]:
        """Other sites with the queue of a site, and from which LSN on messages of an origin came when it was there."""
        theirs, _ = self.sharing.offered[site][vhost, name]
        for other, known in sorted(self.sharing.offered.items()):
            offer, since = known.get((vhost, name), (theirs, LSN_LIMIT))
            if other != site and offer.identity == theirs.identity:
                own = self._origin_of(other) == origin
                takes = since if offer.back is None else min(since, offer.back)
                yield other, takes if own else heard_of(offer.heard, origin)

    def _tell_one(self, one: Enquiry, to: str, origin: int, claim: Claim, spans: Sequence[Span]) -> None:
        """Write what a link is to tell one site alone; nothing of it is news here."""
        header: dict[str, object] = {
            "origin": str(origin), "site": claim.owner, "serial": claim.serial, "why": claim.why, "in": one.vhost,
            "to": to,
        }  # fmt: skip
        self._out.record(Kind.CLAIMED, one.queue, header, pack_pairs(0, [end for span in spans for end in span]))

    # -- what became of them

    def _became_each(self, queue: Queue | None, one: Enquiry) -> Iterator[tuple[int, Became, int, int, int]]:
        """As `_became`, of all that is enquired of whose origin is known here; each with its origin."""
        met, left = {known.origin for known in self.peers.sites.values()}, LOOKED_AT_MOST
        for origin, first, end in [some for some in joined(one.spans) if some[0] in met]:
            stop = min(end, first + left)
            left -= stop - first
            if first == stop:
                return
            if queue is None:
                yield origin, "never", first, stop, 0
            else:
                yield from ((origin, *some) for some in self._became(queue, origin, first, stop))

    def _became(self, queue: Queue, origin: int, first: int, stop: int) -> Iterator[tuple[Became, int, int, int]]:
        """Of messages of an origin: LSNs [a, b) there, and where the first one stands here; 0: it stands nowhere."""
        at = first
        runs = [(first, stop, first)] if origin == self.origin else self._numbers(origin).located(first, stop)
        for low, high, here in [*runs, (stop, stop, 0)]:
            if at < low:
                for word, a, b in self._unplaced(queue, origin, at, low):
                    yield word, a, b, 0
            for word, a, b in self._placed(queue, here, here + high - low) if low < high else ():
                yield word, low + a - here, low + b - here, a
            at = high

    def _placed(self, queue: Queue, first: int, stop: int) -> Iterator[tuple[Became, int, int]]:
        """Of messages that stand here."""
        living = queue.living(first, stop)
        yield from _each("living", living)
        passing = self._passes.get(queue.id, ((), None))[1]
        had = [*self.reviewed(queue), (queue.id, LSN_LIMIT)]
        comes = [] if passing is None else [(passing.at, passing.until)]
        for span in without((first, stop), living):
            for left in (some for some in without(span, had)):
                never = without(left, comes)
                yield from _each("never", never)
                yield from _each("pending", without(left, never))
            yield from _each("gone", without(span, without(span, had)))

    def _unplaced(self, queue: Queue, origin: int, first: int, stop: int) -> Iterator[tuple[Became, int, int]]:
        """Of messages that do not stand here, or of which it is forgotten where they did."""
        coming = self._numbers(origin).unknown(max(first, self._passed(queue, origin)), stop)
        yield from _each("coming", coming)
        passing = self._passes.get(queue.id, ((), None))[1]
        since = self._took_from(queue, origin)
        for low, high in without((first, stop), coming):
            if passing is not None:
                yield "pending", low, high
                continue
            if low < since:
                yield "never", low, min(high, since)
            if high > since:
                yield "gone", max(low, since), high

    def _owned_by(self, queue: Queue, site: str, told: Told) -> Iterator[tuple[int, int, int]]:
        """What a site owned that has the queue no more: it may still say that these are done, or whom it gave them.

        And what has not come, or is of one to whom no link leads, if it may have had the queue: a link carries it
        there, and it has none of that name.
        """
        known = {one.origin for one in self.peers.sites.values()}
        had = self._carried_to(queue, site) and not self.offered_by(site, *told[:2])
        some = [one for one in told.spans if one[0] in known]
        for span in [span for one in some for span in self._stand(*one)]:
            for first, stop, claim in queue.claims(self.peers).spans(*span):
                if claim.owner == site or (had and not self._carried_to(queue, claim.owner)):
                    yield from self.told_as(first, stop)
        if had:
            yield from self._all_to_come(queue, some)

    def _all_to_come(self, queue: Queue, told: Iterable[tuple[int, int, int]]) -> Iterator[tuple[int, int, int]]:
        """What of the messages of others has not come."""
        for origin, first, stop in told:
            if origin != self.origin:
                yield from ((origin, *span) for span in self._to_come(queue, origin, first, stop))

    # -- what was handed on

    def _others(self) -> list[str]:
        """The names of all sites but this one."""
        return sorted(site.name for number, site in self.peers.sites.items() if number != HERE)

    def _handed_on(self, place: Place, left: Sequence[Span]) -> Iterator[tuple[int, int, Claim]]:
        """What of these this site has handed to others, each once.  place: of them, without a heir."""
        for heir in self._others():
            some = [one for span in left for one in self.returned.of(place._replace(heir=heir), *span)]
            yield from some
            for low, high, _ in some:
                left = [part for span in left for part in without(span, [(low, high)])]

    def _hand_word_on(self, now: Now, queue: Queue | None, site: str, some: Iterable[Told]) -> None:
        """What becomes of messages that went to others, and are in no queue here: those who found them, too, hear it.

        They may have no link to who has them.  That one says it, too, of what it had before it was given that.
        """
        for told in some:
            claim = told.claim or done_by(site, told.twins)
            if claim.owner == self.peers.here:
                if queue is not None and claim.why == "yielded":
                    self._say_gone(now, queue, site, told)
                continue
            for origin, *span in self._beyond(queue, told.spans) if self.returned and self._passes_on(site) else ():
                place = Place(told.vhost, told.queue, origin, claim.owner)
                if new := self.returned.since(place, (span[0], span[1]), claim):
                    self._at(now)
                    self._note_handed_on(place, new, claim)

    def _passes_on(self, site: str) -> bool:
        """Whether some site hears through this one what another publishes."""
        number = self.peers.number(site)
        group = "" if number is None else self.peers.sites[number].group
        return any(group in carried.pass_through for to, carried in self._carries.items() if to != site)

    def _owned_by_others(self, queue: Queue, spans: Sequence[Span], path: tuple[str, ...]) -> dict[str, list[Span]]:
        """Also of what never was in the queue here, and went to others."""
        owned = super()._owned_by_others(queue, spans, path)
        told = [one for span in spans for one in self.told_as(*span)] if self.returned else []
        for origin, *span in self._beyond(queue, told):
            for low, high, claim in self._handed_on(Place(queue.vhost, queue.name, origin, ""), [(span[0], span[1])]):
                if claim.owner not in path and not is_done(claim):
                    owned.setdefault(claim.owner, []).extend(self._stand(origin, low, high))
        return owned

    def _say_gone(self, now: Now, queue: Queue, site: str, told: Told) -> None:
        """A site gives what this one had and has no more."""
        gone, one = dict[int, list[Span]](), Enquiry(*told[:3])
        for origin, became, low, high, _ in self._became_each(queue, one):
            if became == "gone":
                gone.setdefault(origin, []).append((low, high))
        self._at(now)
        for origin, spans in gone.items():
            self._tell_one(one, site, origin, done_by(self.peers.here), sorted(spans)[:SPANS_MOST])


def _each(became: Became, spans: Iterable[Span]) -> Iterator[tuple[Became, int, int]]:
    """Spans of which the same became."""
    for low, high in spans:
        yield became, low, high


def taken_since(spans: Sequence[Span], since: int, taken: list[Span]) -> list[Span]:
    """What comes before an LSN; the rest is put where it was taken."""
    taken.extend((max(low, since), high) for low, high in spans if high > since)
    return [(low, min(high, since)) for low, high in spans if low < since]


def _all_claims(claims: Claims, spans: Iterable[Span]) -> Iterator[tuple[int, int, Claim]]:
    """Claims of others in each span, then this site's own."""
    for span in spans:
        theirs = list(claims.spans(*span))
        yield from theirs
        yield from ((*some, claims.here) for some in without(span, [one[:2] for one in theirs]))


def _sure(unsure: Claims, span: Span) -> list[Span]:
    """What of a span is not unsure."""
    return without(span, [some[:2] for some in unsure.spans(*span)])
