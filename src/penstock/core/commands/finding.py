"""Whose messages are that a pass finds in the log: of queues that several sites have, and that were declared later.

What was published before a queue was there had no owner then.  Whose it is has one rule, which each site follows by
itself: it belongs where it would have, had the queue been there, to the site that published it or the `initial_owner`.
So what a pass finds of others is theirs at once, and whoever found it enquires what became of it: the owner may have
worked it long ago, have given it away, have found it as well, or have no such queue.  The answer is in the owner's log,
and goes out with it:

    it is done        it goes here, too
    whose it is       the claim, told to who enquires alone
    it is yours       the owner never had it, so it is the first's who enquires (`Returned`), and all others hear that

An owner that does not know yet, for its own pass has still to come there, says nothing, and is asked again.  Until
there is an answer such a message is unsure here: given to nobody, as any that is another's.  What is unsure is not
remembered over a start: all that is older than its queue, and another's, is enquired about anew.

Of its own a site asks those whose queue was there before: what came to them then they have had without asking, for
there was no queue here (`Offer.heard`); and what it gave away itself is theirs who had it.  So that it knows of those,
a pass waits until sites that are there have said that they have heard of its queue.  Two sites that take each other for
the owner of one message both give it up, and the order of claims says whose it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, Literal, NamedTuple

from penstock.core.commands.transfers import TransferCommands
from penstock.core.effects import Came, Pass, Purpose, Recover, Token
from penstock.core.links.ownership import Claim, Claims, Place, Span, done_by, without
from penstock.core.links.parcels import ENQUIRED_MOST, Asked, Enquiry, Told, joined, read_enquiry
from penstock.core.links.sharing import HERE, Agreed, first_owner, heard_of, identity_of
from penstock.core.queue.order.runs import packed
from penstock.core.queue.owning import why_not_shared
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import Ints, within
from penstock.records.chunks import LSN_LIMIT, Now, pack_pairs
from penstock.records.kinds import Kind

AGAIN_FIRST, AGAIN_MOST = 100_000, 10_000_000
"""Microseconds until an enquiry without an answer is repeated: at first, and at most."""

WAITS_MOST = 10_000_000
"""Microseconds that a pass waits at most until other sites have said whether they have its queue."""

SOON = 20_000
"""Microseconds until the next one after an answer."""

UNSURE = Claim("?")

Became = Literal["living", "gone", "pending", "never", "coming"]
"""What became of messages here: they are in the queue; were, or expired before; it has still to look whether it takes
them; it was not there when they came; they have still to come."""


class _Turn(NamedTuple):
    """When the next enquiry of a queue is due, and how long one without an answer waits."""

    at: int = 0
    wait: int = AGAIN_FIRST

    def next(self, now: Now) -> _Turn:
        """The one after it, which is made now."""
        return _Turn(now.wall + self.wait, min(2 * self.wait, AGAIN_MOST))


class _First:
    """A pass that waits until other sites have said which queues they have had before they heard of its queue."""

    __slots__ = ("sites", "turn", "until")

    def __init__(self, sites: set[str], until: int) -> None:
        self.sites, self.until = sites, until
        self.turn = _Turn()


class FindingCommands(TransferCommands):
    """Owners of what passes find."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._unsure = dict[int, Claims]()  # by queue: what was found and is another's, until that one has said so
        self._turns = dict[int, _Turn]()  # by queue
        self._first = dict[int, _First]()  # by queue

    def _go_on_passing(self, queue: Queue) -> None:
        """As everywhere; what was unsure before a start is so again."""
        if self._passes[queue.id][1] is not None:
            sites = {site for site in self._carries if site not in self.absent and self._carried_to(queue, site)}
            if sites := {site for site in sites if self.peers.number(site) is not None}:
                self._first[queue.id] = _First(sites, self._out.time + WAITS_MOST)
        super()._go_on_passing(queue)
        for first, stop, claim in queue.claims(self.peers).spans(0, queue.id):
            if claim.owner != self.peers.here:
                self._doubt(queue, [(first, stop)])

    def passes(self) -> list[Pass]:
        """As everywhere, but for those that wait for an answer."""
        return [one for one in super().passes() if one.queue not in self._first]

    def _go_on_waiting(self, now: Now) -> Iterator[Asked]:
        """Ask sites whether they have the queue of a pass that waits; who is away is not waited for."""
        for number, first in list(self._first.items()):
            queue = self.queue_by_id(number)
            first.sites -= self.absent
            if queue is None or not first.sites or now.wall >= first.until:
                del self._first[number]
                if queue is not None:
                    self._out.effect(Recover(Token(number, 0, Purpose.PASS)))
                continue
            if first.turn.at <= now.wall:
                first.turn = first.turn.next(now)
                asked = ((self.origin, number, number + 1),)
                words = Enquiry(queue.vhost, queue.name, asked, declared=number).words
                yield from (Asked(site, words, site) for site in sorted(first.sites))

    def _heard_first(self, queue: Queue | None, site: str, some: Iterable[Told]) -> None:
        """A site may have said that it has heard of a queue."""
        first = None if queue is None else self._first.get(queue.id)
        if queue is not None and first is not None:
            mine = (self.origin, queue.id, queue.id + 1)
            if any(told.claim == Claim(site) and mine in told.spans for told in some):
                first.sites.discard(site)

    def _doubt(self, queue: Queue, spans: Iterable[Span]) -> None:
        for span in spans:
            self._unsure.setdefault(queue.id, Claims("")).put(*span, UNSURE)

    def _doubt_again(self, site: str, before: Mapping[int, Agreed | None], gone: Sequence[int]) -> None:
        """A site has said what queues it has: what one would have looked back for, and does not any more, is unsure."""
        for number in {*gone, *before}:
            queue, then, now = self.queue_by_id(number), before.get(number), self.sharing.with_site(number, site)
            takes = LSN_LIMIT if now is None else now.takes
            if queue is None or (number not in gone and (then is None or takes <= then.takes)):
                continue
            origin = self._origin_of(site)
            for first, stop, claim in list(queue.claims(self.peers).spans()):
                told = self.told_as(first, stop) if claim == Claim(site) else []
                if any(one == origin and there < takes for one, there, _ in told):
                    self._doubt(queue, [(first, stop)])

    def _ending(self, now: Now, queue: Queue) -> int:
        self._unsure.pop(queue.id, None)
        self._turns.pop(queue.id, None)
        self._first.pop(queue.id, None)
        return super()._ending(now, queue)

    def link_up(self, site: str) -> None:
        """As everywhere; what it did not hear is asked at once."""
        super().link_up(site)
        self._turns.clear()

    def _know_again(self, ways: Iterable[Came]) -> list[list[int]]:
        """As everywhere; it is not forgotten again for what was so before they were found."""
        ways = list(ways)
        lowest = min((one.here for one in ways), default=LSN_LIMIT)
        self._floors_then = [(last, min(below, lowest)) for last, below in self._floors_then]
        return super()._know_again(ways)

    # -- whose they are

    def _belong(self, now: Now, queue: Queue, lsns: Ints, ways: Sequence[Came]) -> None:
        """Say whose those are that a pass has found now, ascending."""
        ways, claimed = sorted(ways), dict[Claim, list[Span]]()
        if len(self.peers.sites) < 2 or queue.settings.kind == "local" or queue.exclusive_to is not None:
            return
        if why_not_shared(queue.settings) is not None:
            return
        for first, stop in within(packed(lsns)).tolist():
            at = first
            for origin, there, end in self.told_as(first, stop):
                way = bisect_right(ways, (at, LSN_LIMIT)) - 1
                through = ways[way].through if way >= 0 and origin != self.origin else self.origin
                for low, high, claim in self._elders(queue, origin, there, end, through):
                    if claim.owner != self.peers.here:
                        claimed.setdefault(claim, []).append((at + low - there, at + high - there))
                at += end - there
        self.own_each(now, queue, [(sorted(spans), claim) for claim, spans in sorted(claimed.items())])
        for spans in claimed.values():
            self._doubt(queue, spans)

    def _elders(
        self, queue: Queue, origin: int, first: int, stop: int, through: int
    ) -> Iterator[tuple[int, int, Claim]]:
        """Whose found messages of an origin are taken to be; through: the origin of the site that brought them."""
        me, left = self.peers.here, [(first, stop)]
        handed_on = list(self._handed_on(Place(queue.vhost, queue.name, origin, ""), left)) if self.returned else []
        yield from handed_on
        for low, high, _ in handed_on:
            left = [part for span in left for part in without(span, [(low, high)])]
        owner = first_owner(queue.settings, self._site_of(origin)[1]) or me
        if owner != me:
            yield from ((*span, Claim(self._reached(queue, owner, through))) for span in left)
            return
        for site in self._others():
            agreed = self.sharing.with_site(queue.id, site)
            if agreed is None or agreed.faults:
                continue
            since = agreed.takes if self._origin_of(site) == origin else heard_of(agreed.heard, origin)
            had = list[Span]()
            left = _taken_since(left, since, had)
            yield from ((*span, Claim(site)) for span in had)
        yield from ((*span, Claim(me)) for span in left)

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

    def _reached(self, queue: Queue, owner: str, through: int) -> str:
        """Who is asked about messages of an owner: where no link leads there, who brought them, or has the queue."""
        if self._carried_to(queue, owner):
            return owner
        via = self._site_of(through)[1]
        if self._carried_to(queue, via):
            return via
        agreed = ((site, self.sharing.with_site(queue.id, site)) for site in self._carries)
        return min([self.peers.here, *(site for site, one in agreed if one is not None and not one.faults)])

    # -- who enquires

    def enquiries(self, now: Now) -> list[Asked]:
        """What to enquire of other sites now.  To be called now and then."""
        now = self._at(now)
        out = list(self._go_on_waiting(now))
        for number, unsure in list(self._unsure.items()):
            turn, queue = self._turns.get(number, _Turn()), self.queue_by_id(number)
            if queue is None or turn.at > now.wall:
                continue
            found = self._unsure_by_claim(queue, unsure)
            if not found:
                del self._unsure[number]
            self._turns[number] = turn.next(now)
            for claim, spans in found.items():
                told = joined([one for span in spans for one in self.told_as(*span)])[:ENQUIRED_MOST]
                words = Enquiry(queue.vhost, queue.name, tuple(told), claim.serial, claim.why).words
                out.append(Asked(claim.owner, words, claim.owner))
        return out

    def _unsure_by_claim(self, queue: Queue, unsure: Claims) -> dict[Claim, list[Span]]:
        """The first of them; what is this site's by now, or nobody's, is not unsure any more."""
        claims, out, over = queue.claims(self.peers), dict[Claim, list[Span]](), list[Span]()
        for first, stop, _ in islice(unsure.spans(), 4 * ENQUIRED_MOST):
            theirs = [one for one in claims.spans(first, stop) if one[2].owner != self.peers.here]
            for low, high, claim in theirs:
                out.setdefault(claim, []).append((low, high))
            if not theirs:
                over.append((first, stop))
        for span in over:
            unsure.remove(*span)
        return {claim: spans[:ENQUIRED_MOST] for claim, spans in out.items()}

    def _answered_by(self, now: Now, queue: Queue, site: str, some: Iterable[Told]) -> None:
        """A site has said what became of messages: of those that it is the one to say it of nothing is unsure more."""
        unsure = self._unsure.get(queue.id)
        if unsure is None:
            return
        for told in some:
            claim = told.claim
            if claim is None or claim.owner in (site, self.peers.here) or not self._carried_to(queue, claim.owner):
                for span in [span for one in told.spans for span in self._stand(*one)]:
                    unsure.remove(*span)
        self._turns[queue.id] = _Turn(now.wall + SOON)

    # -- who is asked

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
        self._hand_over(site, one, never, said)
        for (origin, claim), spans in said.items():
            self._tell_one(one, site, origin, claim, spans)

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
        self.own_each(now, queue, [(sorted(spans), claim) for claim, spans in yielded.items()])

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
                rest = _taken_since(rest, since, new.setdefault((origin, elder), []))
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
        self._out.record(
            Kind.CLAIMED, one.queue, header, pack_pairs(0, [end for span in sorted(spans) for end in span])
        )

    # -- what became of them

    def _became_each(self, queue: Queue | None, one: Enquiry) -> Iterator[tuple[int, Became, int, int, int]]:
        """As `_became`, of all that is enquired of whose origin is known here; each with its origin."""
        met = {known.origin for known in self.peers.sites.values()}
        for origin, first, stop in [some for some in joined(one.spans) if some[0] in met]:
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


def _each(became: Became, spans: Iterable[Span]) -> Iterator[tuple[Became, int, int]]:
    """Spans of which the same became."""
    for low, high in spans:
        yield became, low, high


def _taken_since(spans: Sequence[Span], since: int, taken: list[Span]) -> list[Span]:
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
