"""What a site says to others of its queues, what those say of theirs, and whose the messages are that a pass finds.

Queues of one name are one queue, or cannot be.  It is said when a link comes up, and again of each queue that begins,
ends, or is otherwise since, before what follows.

What is published to a group-local queue needs a way to its `initial_owner`: what has none nobody ever owns.  A site
looks at its own links, and at those of its neighbours' queues whose messages pass it: which sites lie behind its
neighbours it does not know.

What was published before a queue was there had no owner then.  Whose it is has one rule, which each site follows by
itself: it belongs where it would have, had the queue been there, to the site that published it or the `initial_owner`.
So what a pass finds of others is theirs at once, and whoever found it enquires what became of it: the owner may have
worked it long ago, have given it away, have found it as well, or have no such queue.  The answer is in the owner's log,
and goes out with it:

    it is done        it goes here, too
    whose it is       the claim, told to who enquires alone
    it is yours       the owner never had it, so it is the first's who enquires (`Returned`), and all others hear that

The `initial_owner` asks, too: who published it, if that one is there, may have given it to another that found it first.

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
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from penstock.core.commands.answering import AnsweringCommands, taken_since
from penstock.core.effects import Came, Pass, Purpose, Recover, Token
from penstock.core.links.carried import Carried
from penstock.core.links.ownership import Claim, Claims, Place, Span, is_done, is_twin, without
from penstock.core.links.parcels import ENQUIRED_MOST, Asked, Enquiry, Told, joined
from penstock.core.links.sharing import (
    OFFERED_MOST,
    Agreed,
    Ended,
    Offer,
    Site,
    disagreements,
    dump_ends,
    dump_offer,
    first_owner,
    heard_of,
    identity,
    identity_of,
    load_ends,
    load_offer,
    says_end,
)
from penstock.core.queue.order.runs import packed
from penstock.core.queue.owning import why_not_shared
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import Ints, within
from penstock.records.chunks import LSN_LIMIT, Now

AGAIN_FIRST, AGAIN_MOST = 100_000, 10_000_000
"""Microseconds until an enquiry without an answer is repeated: at first, and at most."""

WAITS_MOST = 10_000_000
"""Microseconds that a pass waits at most until other sites have said whether they have its queue."""

SOON = 20_000
"""Microseconds until the next one after an answer."""

UNSURE = Claim("?")


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


class FindingCommands(AnsweringCommands):
    """Owners of what passes find."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._turns = dict[int, _Turn]()  # by queue
        self._first = dict[int, _First]()  # by queue
        self._heard_since = set[str]()  # sites that have said which queues they have, since the start

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
        """A site has said what queues it has: what one would have looked back for, and does not any more, is unsure.

        When it says so first after a start, nobody knows what it had then, and may not say again that it is gone.
        """
        anew = set[int]()
        if site not in self._heard_since:
            self._heard_since.add(site)
            anew = {queue.id for queue in self.queues() if first_owner(queue.settings, site) == site}
        for number in {*gone, *before, *anew}:
            queue, then, now = self.queue_by_id(number), before.get(number), self.sharing.with_site(number, site)
            takes = LSN_LIMIT if now is None else now.takes
            doubtful = number in gone or number in anew or (then is not None and takes > then.takes)
            if queue is not None and doubtful:
                self._doubt_of(queue, site, takes)

    def _doubt_of(self, queue: Queue, site: str, takes: int) -> None:
        """What is a site's, of its own messages before the LSN from which on it takes them."""
        origin, claims = self._origin_of(site), queue.claims(self.peers)
        for there, end, here in () if origin is None else self._numbers(origin).located(0, takes):
            some = list(claims.spans(here, here + end - there))
            self._doubt(queue, [(first, stop) for first, stop, claim in some if claim == Claim(site)])

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
        self._were_there(min((one.here for one in ways), default=LSN_LIMIT))
        return super()._know_again(ways)

    # -- whose they are

    def _belong(self, now: Now, queue: Queue, lsns: Ints, ways: Sequence[Came]) -> None:
        """Say whose those are that a pass has found now, ascending."""
        ways, claimed = sorted(ways), dict[Claim, list[Span]]()
        if not self._may_be_elsewhere(queue):
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
        whose = [(sorted(some), Claim(one.owner) if is_done(one) else one) for one, some in sorted(claimed.items())]
        self.own_each(now, queue, whose)
        for claim, spans in claimed.items():
            if is_done(claim):
                told = [one for span in spans for one in self.told_as(*span)]
                self.settled_at(now, queue, claim.owner, told, twins=is_twin(claim))
            else:
                self._doubt(queue, spans)

    def _may_be_elsewhere(self, queue: Queue) -> bool:
        """Whether other sites may have it, too."""
        alone = len(self.peers.sites) < 2 or queue.settings.kind == "local" or queue.exclusive_to is not None
        return not alone and why_not_shared(queue.settings) is None

    def _elders(
        self, queue: Queue, origin: int, first: int, stop: int, through: int
    ) -> Iterator[tuple[int, int, Claim]]:
        """Whose found messages of an origin are taken to be; through: the origin of the site that brought them."""
        me, left = self.peers.here, [(first, stop)]
        handed_on = list(self._handed_on(Place(queue.vhost, queue.name, origin, ""), left)) if self.returned else []
        yield from handed_on
        for low, high, _ in handed_on:
            left = [part for span in left for part in without(span, [(low, high)])]
        if asked := self._who_knows(queue, origin, through):
            yield from ((*span, Claim(asked)) for span in left)
            return
        for site in self._others():
            agreed = self.sharing.with_site(queue.id, site)
            if agreed is None or agreed.faults:
                continue
            since = agreed.takes if self._origin_of(site) == origin else heard_of(agreed.heard, origin)
            had = list[Span]()
            left = taken_since(left, since, had)
            yield from ((*span, Claim(site)) for span in had)
        yield from ((*span, Claim(me)) for span in left)

    def _who_knows(self, queue: Queue, origin: int, through: int) -> str:
        """Who is asked what became of an origin's messages; empty: nobody who is there, and they may be this site's."""
        publisher = self._site_of(origin)[1]
        owner = first_owner(queue.settings, publisher) or self.peers.here
        if owner != self.peers.here:
            return self._reached(queue, owner, through)
        near = self._near(queue, publisher, through)
        return "" if near in self.absent else near

    def _near(self, queue: Queue, site: str, through: int) -> str:
        """A site, or who brought its messages, where a link leads there; empty: none does, as to what is here."""
        return next((one for one in (site, self._site_of(through)[1]) if self._carried_to(queue, one)), "")

    def _reached(self, queue: Queue, owner: str, through: int) -> str:
        """Who is asked about messages of an owner: where no link leads there, who brought them, or has the queue."""
        if near := self._near(queue, owner, through):
            return near
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


def all_goes_on(links: Mapping[str, Carried], owner: str, vhost: str, exchange: str, shown: str) -> bool:
    """Whether every message of the topics that a queue shows may come to its first owner.

    links: what each carries, by the site that it leads to.  Without one to the owner another may lead there.
    """
    ways = [links[owner]] if owner in links else links.values()
    return any(one.carries_all(vhost, exchange, shown) for one in ways)


def left_out(offer: Offer, links: Mapping[str, Carried], site: str) -> Iterator[str]:
    """Why a queue of this site cannot be shared with another one by the link to it: at most one line."""
    owner = offer.initial_owner
    concerns = site in links and owner is not None and (site == owner or not offer.leads)
    if concerns and not all_goes_on(links, str(owner), offer.identity.vhost, *offer.topic):
        yield _told(offer, "the link to it leaves" if offer.leads else "all links from here leave")


def cut_short(
    offers: Iterable[Offer], links: Mapping[str, Carried], here: str, group: str, find: Callable[[str, str], object]
) -> Iterator[str]:
    """Queues of a neighbour that has no link to their first owner, of whose messages this site would tell it some.

    group: the neighbour's.  find: a queue that is here, too, by vhost and name: of it the link to the owner says so
    """
    for offer in offers:
        vhost, owner = offer.identity.vhost, offer.initial_owner
        onward = None if owner is None or offer.leads or not offer.sends else links.get(owner)
        if onward is None or group not in onward.pass_through or find(vhost, offer.identity.name):
            continue
        if onward.touches(vhost, *offer.topic) and not onward.carries_all(vhost, *offer.topic):
            yield _told(offer, f"the link to it from '{here}' leaves")


def _told(offer: Offer, link: str) -> str:
    queue = f"queue '{offer.identity.name}' in vhost '{offer.identity.vhost}'"
    return (
        f"{queue}: its initial_owner '{offer.initial_owner}' would not hear of what {link} out, and nobody would own "
        "that: have it carry all of the topic, without a filter"
    )


class OfferingCommands(FindingCommands):
    """What sites have of what others have."""

    def offers(self, to: str, queues: Collection[int] | None = None) -> list[dict[str, object]]:
        """What to say to a site of the queues here that the link to it carries, as JSON; queues: of these ids alone."""
        here, carried = self.peers.sites[0], self._carries.get(to)
        out = list[dict[str, object]]()
        if carried is None:
            return out
        some = self.queues() if queues is None else [one for number in queues if (one := self.queue_by_id(number))]
        for queue in some:
            if queue.settings.kind == "local" or queue.exclusive_to is not None:
                continue
            if carried.touches(queue.vhost, queue.settings.exchange, queue.settings.underlying_topic or queue.name):
                out.append(dump_offer(self._offer(queue, here), queue.id))
        return out

    def said_to(self, site: str) -> list[dict[str, object]]:
        """What a link begins with: the queues here, and those that are gone of which the site may have to hear."""
        return [*self.offers(site), *self.ends(site)]

    def ends(self, to: str, queues: Collection[int] | None = None) -> list[dict[str, object]]:
        """What to say to a site of queues that are gone, as JSON; queues: of these ids alone."""
        here, carried = self.peers.sites[0], self._carries.get(to)
        return dump_ends(
            [
                (
                    identity(one.vhost, one.name, one.kind, one.domain, here),
                    Ended(number, one.until, one.owner, one.topic),
                )
                for number, one in self.departed.items()
                if carried is not None and (queues is None or number in queues)
                if one.kind and carried.touches(one.vhost, *one.topic)
            ]
        )

    def _offer(self, queue: Queue, here: Site) -> Offer:
        settings = queue.settings
        topic = (settings.exchange, settings.underlying_topic or queue.name)
        identity = identity_of(queue.vhost, queue.name, settings, here)
        barriers = settings.barrier_expression
        owner = settings.initial_owner
        return Offer(
            identity, topic, settings.filter, owner, queue.durable, barriers=barriers, back=self._looks_back(queue),
            heard=self.began.of(queue.id), leads=owner in (None, here.name, *self._carries),
        )  # fmt: skip

    def _looks_back(self, queue: Queue) -> int | None:
        """From which LSN on a queue has taken, or will take, what was published before it; of a time nobody knows."""
        passing = self._passes.get(queue.id, ((), None))[1]
        starts = [start for start, stop in self.reviewed(queue) if stop >= queue.id]
        if passing is not None and (passing.start or not passing.time):
            starts.append(passing.start)
        return min(starts, default=None)

    def share(self, site: str, offers: Sequence[Mapping[str, object]], *, more: bool = False) -> list[str]:
        """Hear what a site says of its queues; why some that are one by their names cannot be, a line each.

        more: of some that begin there; it has others, too.
        Errors: ValueError for what is no offer.
        """
        ended = [end for table in offers for end in load_ends(table)]
        told = [load_offer(table) for table in offers if not says_end(table)]
        self.sharing.hear(site, told, ended, more=more)
        self._lacking = None
        before = {number: self.sharing.with_site(number, site) for number in self.sharing.queues}
        agreed = dict[int, Agreed]()
        for offer, _ in told:
            queue = self.find_queue(offer.identity.vhost, offer.identity.name)
            if queue is not None and (found := self._agreed(queue, site)) is not None:
                agreed[queue.id] = found
        self.sharing.say(site, agreed, more=more)
        for one, end in ended:
            queue = self.find_queue(one.vhost, one.name)
            now = None if queue is None else self.sharing.with_site(queue.id, site)
            if queue is not None and now is not None and now.since == end.since:
                self.sharing.say(site, {}, more=True, gone=queue.id)
        gone = (self.find_queue(one.vhost, one.name) for one, _ in ended)
        self._doubt_again(site, before, [queue.id for queue in gone if queue is not None])
        return self.differences(site, [offer for offer, _ in told])

    def differences(self, site: str, offers: Sequence[Offer] | None = None) -> list[str]:
        """Why queues of a site that are one with those here by their names cannot be, a line each.

        offers: of what it has said of these alone.
        """
        if offers is None:
            offers = [offer for offer, _ in self.sharing.offered.get(site, {}).values()]
        queues = dict.fromkeys(self.find_queue(one.identity.vhost, one.identity.name) for one in offers)
        agreed = [self.sharing.with_site(queue.id, site) for queue in queues if queue is not None]
        number = self.peers.number(site)
        group = "" if number is None else self.peers.sites[number].group
        cut = cut_short(offers, self._carries, self.peers.here, group, self.find_queue)
        beyond = (
            [f"site '{site}' has {left} queues more than the {OFFERED_MOST} that its link may carry"]
            if (left := self.sharing.left_out[site])
            else ()
        )
        return [*(line for one in agreed if one is not None for line in one.faults), *cut, *beyond]

    def _agreed(self, queue: Queue, site: str) -> Agreed | None:
        """What a site has said of a queue beside what is said of it here; None: they are not one."""
        told = self.sharing.offered[site].get((queue.vhost, queue.name))
        if told is None:
            return None
        (theirs, since), carried = told, self._carries.get(site)
        ours = self._offer(queue, self.peers.sites[0])
        if ours.identity != theirs.identity:
            return None
        ours = ours._replace(sends=carried is not None and carried.touches(queue.vhost, *ours.topic))
        if not ours.sends and not theirs.sends:
            return None  # they have a name in common, and nothing else
        faults = list(disagreements(ours, theirs))
        if (what := why_not_shared(queue.settings)) is not None:
            faults.append(
                f"queue '{queue.name}' in vhost '{queue.vhost}': it has {what} here, and other sites cannot own "
                "messages of such a queue"
            )
        faults += left_out(ours, self._carries, site)
        return Agreed(since, tuple(faults), since if theirs.back is None else min(since, theirs.back), theirs.heard)

    def _say_owner(self, now: Now, queue: Queue) -> None:
        """What other sites have said of theirs holds from the first message on that this one takes."""
        super()._say_owner(now, queue)
        for site in self.sharing.offered:
            found = self._agreed(queue, site)
            self.sharing.say(site, {} if found is None else {queue.id: found}, more=True, gone=queue.id)
        if self.foretold:
            self._recall(now, queue)

    def shared_as(self, queue: int, site: str) -> tuple[str, str] | None:
        """Vhost and name of a queue, by its id, that the site has or may come to have; None: of it is nothing said.

        What happens between its declare there and the moment at which that is known here concerns it, too.
        """
        found = self.queue_by_id(queue)
        if found is None:
            gone, carried = self.departed.get(queue), self._carries.get(site)
            if gone is None or carried is None:
                return None
            return gone[:2] if not gone.kind or carried.touches(gone.vhost, *gone.topic) else None
        if self.sharing.with_site(queue, site) is None and not self._carried_to(found, site):
            return None
        return found.vhost, found.name
