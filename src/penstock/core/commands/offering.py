"""What a site says to others of its queues, and what those say of theirs: which are one queue, and which cannot be.

It is said when a link comes up, and again of each queue that begins, ends, or is otherwise since, before what follows.

What is published to a group-local queue needs a way to its `initial_owner`: what has none nobody ever owns.  A site
looks at its own links, and at those of its neighbours' queues whose messages pass it: which sites lie behind its
neighbours it does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence

from penstock.core.commands.finding import FindingCommands
from penstock.core.links.carried import Carried
from penstock.core.links.sharing import (
    OFFERED_MOST,
    Agreed,
    Ended,
    Offer,
    Site,
    disagreements,
    dump_ends,
    dump_offer,
    identity,
    identity_of,
    load_ends,
    load_offer,
    says_end,
)
from penstock.core.queue.owning import why_not_shared
from penstock.core.queue.queue import Queue
from penstock.records.chunks import Now


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
