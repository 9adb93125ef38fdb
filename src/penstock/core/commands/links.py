"""Commands about queues that other sites share: who there is, and whose messages are.

What a site hears of another's decision is a record here, too.  A grant goes out when its record is durable; the shell
of links sees to that.
"""

from __future__ import annotations

import struct
from collections.abc import Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from penstock.core.commands.queues import QueueCommands
from penstock.core.effects import Verb
from penstock.core.links.carried import Carried, Numbered, Numbers, Twin, adjacent, time_changes
from penstock.core.links.lasting import LinkState
from penstock.core.links.ownership import Claim, EarlyClaim, Grant, Span, grants, proxied
from penstock.core.links.parcels import Numbers as NumbersThere
from penstock.core.links.parcels import joined
from penstock.core.links.sharing import HERE, Peers, Sharing, Site, first_owner, heard_of
from penstock.core.publishing.published import Published, Terms
from penstock.core.queue.order.runs import packed
from penstock.core.queue.owning import why_not_shared
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import flat, ints
from penstock.errors import PreconditionFailed
from penstock.records.chunks import Chunk, Now, merged_spans, pack_pairs
from penstock.records.compute import distinct_numbers
from penstock.records.entries import Publishes
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings
from penstock.records.schema import SITES_MOST

UNKNOWN = 0
"""Stands for the origin of a site that settings name and no link has reached yet."""

AT_ONCE = 65_536
"""LSNs of messages that are settled by one step; a span may have very many, and few messages."""


class LinkCommands(QueueCommands):
    """Sites, and the owners of messages."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.twins = set[Twin]()  # pairs of messages that are one, of which one has to go
        self.sharing = Sharing()
        self._carries = dict[str, Carried]()  # by site: what the link to it carries

    def meet(self, now: Now, site: Site) -> int:
        """The number by which records name a site from now on; this one is known by its origin, and is 0.

        Errors: PreconditionFailed for a name that another site has.
        """
        known, mine = self.peers.number(site.name), site.origin == self.origin
        if known is not None and site.origin == UNKNOWN:
            return known  # who told of it has not met it
        if known is not None and self.peers.sites[known].origin not in (site.origin, UNKNOWN):
            raise PreconditionFailed(
                f"a site with the log {site.origin} is called '{site.name}', as the one with the log "
                f"{self.peers.sites[known].origin} is: every site needs a name of its own"
            )
        if known is None and not mine:
            self._check_room(site)
        return self._meet(now, site)

    def _check_room(self, new: Site, what: str = "site") -> None:
        if sum((one.origin == UNKNOWN) == (new.origin == UNKNOWN) for one in self.peers.sites.values()) >= SITES_MOST:
            raise PreconditionFailed(f"{what} '{new.name}' would be one more than the {SITES_MOST} that may be known")

    def _check_point(self, name: str, settings: QueueSettings) -> None:
        """As everywhere.  PreconditionFailed for an initial owner who would be one more that nobody has met."""
        super()._check_point(name, settings)
        owner = settings.initial_owner
        if owner is not None and owner != self.peers.here and self.peers.number(owner) is None:
            self._check_room(Site(owner, UNKNOWN), f"initial_owner of queue '{name}': site")

    def _meet(self, now: Now, site: Site) -> int:
        """The same without a bound: who owns the messages of a queue of the log has to have a number."""
        known = self.peers.number(site.name)
        number = HERE if site.origin == self.origin else known if known is not None else self.peers.next()
        if self.peers.sites.get(number) != site:
            self._at(now)
            header = {"peer": number, "origin": str(site.origin), "group": site.group}
            self._out.record(Kind.PEER, site.name, header)
            self.peers.put(number, site)
            self._number_publishes()
            for queue in self._admin.by_id.values() if number == HERE else ():
                queue.renamed()
                self._say_owner(now, queue)
        return number

    def _number_publishes(self) -> None:
        """Once there are other sites, it is noted how publishers number what they publish here."""
        if len(self.peers.sites) > 1:
            self._publisher.publishers.numbering = self._numbered_here

    def _numbered_here(self, publisher: str, runs: Sequence[tuple[int, int, int]]) -> None:
        self._note_numbered([Numbered(publisher, HERE, *run) for run in runs])

    def _say_owner(self, now: Now, queue: Queue) -> None:
        here, claim = self.peers.here, None
        owner = first_owner(queue.settings, here) if here else None
        if owner not in (None, here) and why_not_shared(queue.settings) is None:
            claim = Claim(str(owner))
            if self.peers.number(claim.owner) is None:
                self._meet(now, Site(claim.owner, UNKNOWN))
        queue.newcomers_of(claim, self.peers)

    def carry(
        self, now: Now, path: Sequence[int], batch: Publishes, there: Sequence[int], owners: Mapping[Queue, str],
        numbers_told: Sequence[NumbersThere] = (), *, letters: bool = False, into: str = "",
    ) -> int:  # fmt: skip
        """Store messages that another site published; how many were not here.

        path     the origins that they have passed, the first is where they were published
        there    their LSNs there, ascending, row by row
        owners   of each queue that is shared, the site that may lease them first
        letters  a site wrote them as dead letters: what their headers say of deaths is believed here, too
        into     they were moved to the queue of this name, which alone takes them, if it is among the owners
        Nobody here is given what another owns, not even for a moment.  Acks that came before them are applied.
        """
        if self.origin in path or not len(there):
            return 0  # it has been here
        now = self._at(now)
        peer, site = self._site_of(path[0])
        numbers = self.carried.get(peer) or Numbers((), self._link_state(peer).floor)
        lsns = np.asarray(there, dtype=np.int64)
        new = numbers.unknown_rows(lsns)
        if not new:
            return 0
        if sum(map(len, new)) < len(lsns):
            rows = [row for some in new for row in some]
            batch, lsns = batch.select(rows), lsns[rows]
        self._out.begin()
        batch.checked = True  # where it was published first
        with _coming(owners, self._stopped, self.peers):
            published = (
                self._put(now, batch, owners) if into else self._publisher.publish(now, batch, Terms(numbered=True))
            )
        stored = published.stored_rows(len(lsns))
        if len(stored) < len(lsns):
            self._note_passed(peer, site, path, int(lsns[max(published.lost())]))
        sent = None if batch.sent_at is None else ints(batch.sent_at)
        if not isinstance(stored, range):
            lsns, sent = lsns[stored], sent if sent is None else sent[stored]
        runs = adjacent(published.positions, lsns)
        if runs:
            self.carried[peer] = numbers
            header: dict[str, object] = {"peer": peer, "path": list(path)}
            if sent is not None:
                header["times"] = time_changes(published.positions, sent)
            if into:
                header["into"] = into
            self._record_carried(site, header, runs, letters=letters)
        self._number_carried(peer, runs, numbers_told)
        for here, lsn, count in runs:
            numbers.add(lsn, here, count)
        self._claim_early(now, path[0], runs)
        early = (self.queue_by_id(number) for number in self._deferred.by_queue)
        queues = dict.fromkeys((*owners, *(queue for queue in early if queue is not None)))
        for queue in queues:
            self._settle_deferred(now, queue, path[0], runs)
        self._out.end()
        for queue in queues:
            self._touch(queue)
        return sum(count for _, _, count in runs)

    def _put(self, now: Now, batch: Publishes, owners: Mapping[Queue, str]) -> Published:
        """Store what was moved at its site to one queue in that one; nothing of it where it is not shared."""
        size = len(batch.bodies)
        if not owners:
            return Published(0, 0, unroutable=range(size))
        [queue] = owners
        first = self._publisher.put_into(now, queue, batch)
        return Published(first, first + size - 1, stored=size)

    def _record_carried(
        self, site: str, header: dict[str, object], runs: Sequence[tuple[int, int, int]], *, letters: bool
    ) -> None:
        """Write where messages of another site stand here.  letters: what they say of deaths is believed."""
        if letters:
            header["letters"] = True
            self._letters.vouch(range(here, here + count) for here, _, count in runs)
        body = struct.pack(f"<{3 * len(runs)}q", *(value for run in runs for value in run))
        self._out.record(Kind.CARRIED, site, header, body)

    def _claim_early(self, now: Now, origin: int, runs: Sequence[tuple[int, int, int]]) -> None:
        """Of messages that have come now others told before: who claimed them then owns them."""
        early = dict[int, list[tuple[list[Span], Claim]]]()  # by queue
        for here, lsn, count in runs:
            if self.foretold:
                self.foretold.came(origin, lsn, lsn + count)
            for one in self.early.came(origin, lsn, lsn + count) if self.early else ():
                early.setdefault(one.queue, []).append(([(one.first + here - lsn, one.stop + here - lsn)], one.claim))
        for number, claimed in early.items():
            if (found := self.queue_by_id(number)) is not None:
                self.own_each(now, found, claimed)

    def _note_passed(self, peer: int, site: str, path: Sequence[int], lsn: int) -> None:
        """Nothing here took messages up to that LSN there: where no link tells how far it has told, it is noted."""
        if len(path) > 1 and lsn >= self.passed.get(peer, 0):
            self.passed[peer] = lsn + 1
            self._out.record(Kind.LINK, site, {"peer": peer, "passed": lsn + 1})

    def _number_carried(self, peer: int, runs: Sequence[tuple[int, int, int]], told: Sequence[NumbersThere]) -> None:
        """Of messages that were stored now: who published them, and how they were numbered."""
        new, highest = list[Numbered](), dict[str, int]()
        for here, lsn, count in runs:
            for one in told:
                low, high = max(lsn, one.lsn), min(lsn + count, one.lsn + one.size)
                if low < high:
                    sequence = one.sequence + low - one.lsn
                    new.append(Numbered(one.publisher, peer, sequence, here + low - lsn, high - low))
                    highest[one.publisher] = max(sequence + high - low - 1, highest.get(one.publisher, 0))
        if new:
            known = self._publisher.publishers
            raised = {name: last for name, last in highest.items() if last > known.highest.get(name, 0)}
            if raised:
                known.note(raised)
            self._note_numbered(new)

    def _forget_twins(self, lsns: Sequence[int]) -> None:
        """These went because others are the same messages: that one is gone says nothing of the other."""
        body = struct.pack(f"<{5 * len(lsns)}q", *(value for lsn in lsns for value in (-1, 0, 0, lsn, 1)))
        self._out.record(Kind.NUMBERED, "", {"publishers": []}, body)
        gone = set(lsns)
        self.sequences.forget(gone)
        self.twins = {twin for twin in self.twins if twin.one not in gone and twin.other not in gone}

    def _note_numbered(self, new: Sequence[Numbered]) -> None:
        names = {one.publisher: None for one in new}
        places = {name: place for place, name in enumerate(names)}
        body = struct.pack(f"<{5 * len(new)}q", *(value for one in new for value in (places[one[0]], *one[1:])))
        self._out.record(Kind.NUMBERED, "", {"publishers": list(names)}, body)
        for one in new:
            self.twins.update(self.sequences.add(one))

    def _settle_deferred(self, now: Now, queue: Queue, origin: int, runs: Sequence[tuple[int, int, int]]) -> None:
        """Apply the acks that came before these messages of an origin."""
        if queue.id in self._deferred.by_queue:
            sites, gone = {one.name for one in self.peers.sites.values()}, list[int]()
            for here, lsn, count in runs:
                came, stand = range(lsn, lsn + count), range(here, here + count)
                self._deferred.appeared(now, queue, origin, came, stand, self._out, sites, gone)
            if gone:
                self._forget_twins(gone)

    def settled_at(
        self, now: Now, queue: Queue, site: str, spans: Iterable[tuple[int, int, int]], *, twins: bool = False
    ) -> int:
        """A site says that messages are done: their origins, and what those call [first, stop); how many were here.

        What has not come yet is remembered, as an ack before its message is.  What the site published itself has come
        before it says so, or never will.  twins: they went because others are the same messages.
        """
        now = self._at(now)
        found, known = list[Span](), (self.origin, self._origin_of(site))
        for origin, first, stop in joined(list(spans)):
            found += self._stand(origin, first, stop)
            for span in [] if origin in known else self._to_come(queue, origin, first, stop):
                self._defer(now, queue, origin, range(*span), Verb.ACK, site, twins=twins)
        here: list[Chunk] = [range(*span) for span in merged_spans(found)]
        if len(here) > 1 and sum(map(len, here)) <= AT_ONCE:
            here = [packed(distinct_numbers(flat(here)))]
        gone = list[int]() if twins else None
        self._out.begin()
        count = sum([queue.settled_elsewhere(now, one, site, self._out, gone) for one in here])
        if gone:
            self._forget_twins(gone)
        self._out.end()
        self._touch(queue)
        return count

    def each_owned_at(
        self, now: Now, queue: Queue, site: str, claimed: Iterable[tuple[Iterable[tuple[int, int, int]], Claim]]
    ) -> list[int]:
        """Hear from a site claims to messages: their origins, and what those call [a, b); for how many each holds.

        To those that have not come yet it holds when they do.  What the site published itself has come before it says
        so, or never will.
        """
        now = self._at(now)
        return self.own_each(now, queue, [(self._here(queue, site, spans, claim), claim) for spans, claim in claimed])

    def _here(self, queue: Queue, site: str, spans: Iterable[tuple[int, int, int]], claim: Claim) -> list[Span]:
        """Where those messages stand here to which a site tells of a claim; of the others it is remembered."""
        here, known = list[Span](), (self.origin, self._origin_of(site))
        for origin, first, stop in joined(list(spans)):
            here += self._stand(origin, first, stop)
            for span in [] if origin in known else self._to_come(queue, origin, first, stop):
                self._remember(queue, origin, span, claim)
        return merged_spans(here)

    def _remember(self, queue: Queue, origin: int, span: Span, claim: Claim) -> None:
        """A claim to messages that have not come.  Errors: QueueFull where that is one too many."""
        if self.early.add(EarlyClaim(queue.id, origin, *span, claim)):
            header = {"origin": str(origin), "site": claim.owner, "serial": claim.serial, "why": claim.why}
            self._out.record(Kind.CLAIMED, queue.name, header, pack_pairs(queue.id, span))

    def _to_come(self, queue: Queue, origin: int, first: int, stop: int) -> list[Span]:
        """Those of [first, stop) there, at another site, that are not here and may still come into a queue."""
        return self._numbers(origin).unknown(max(first, self._passed(queue, origin)), stop)

    def _passed(self, queue: Queue, origin: int) -> int:
        """What another site has published with a lower LSN comes into a queue no more, unless it stands here."""
        shown = queue.settings.exchange, queue.settings.underlying_topic or queue.name
        shared = self.sharing.with_site(queue.id, self._site_of(origin)[1]) is not None
        return self._gone_by(origin, queue.vhost, [shown], shared=shared)

    def _took_from(self, queue: Queue, origin: int) -> int:
        """From which LSN there on a queue was offered what another site has published, as it came or by a pass."""
        if any(start <= 1 and end >= queue.id for start, end in self.reviewed(queue)):
            return 0
        return heard_of(self.began.of(queue.id), origin)

    def _gone_by(self, origin: int, vhost: str, topics: Iterable[tuple[str, str]], *, shared: bool = False) -> int:
        """The same of topics (exchange, key).  shared: a queue over them is known to be that site's, too.

        It was here and is forgotten, or that site itself has told all of it; where no link leads there, those between
        have, and nothing here took it.
        """
        (number, name), numbers = self._site_of(origin), self._numbers(origin)
        if (carried := self._carries.get(name)) is None and not shared:
            return max(numbers.floor, self.passed.get(number, 0))
        told = shared or (carried is not None and any(carried.touches(vhost, *topic) for topic in topics))
        return max(numbers.floor, self._link_state(number).heard + 1 if told else 0)

    def _carried_to(self, queue: Queue, site: str) -> bool:
        """Whether the link to a site carries what a queue of several sites shows."""
        carried, settings = self._carries.get(site), queue.settings
        if carried is None or settings.kind == "local" or queue.exclusive_to is not None:
            return False
        return carried.touches(queue.vhost, settings.exchange, settings.underlying_topic or queue.name)

    def _carried_anywhere(self, queue: Queue) -> bool:
        return any(self._carried_to(queue, site) for site in self._carries)

    # -- what lasts of a link

    def _link_state(self, peer: int) -> LinkState:
        return self.links.get(peer, LinkState())

    def link_state(self, site: str) -> LinkState:
        """What is known of the links between a site and this one."""
        number = self.peers.number(site)
        return LinkState() if number is None else self._link_state(number)

    def note_link(self, now: Now, site: str, **told: int | bool) -> None:
        """Remember of the links between a site, which was met, and this one what `LinkState` names."""
        number = self.peers.number(site)
        if number is None:
            raise PreconditionFailed(f"no site is called '{site}', as far as this one knows")
        before = self._link_state(number)
        if (after := before.told(dict(told))) != before:
            self._at(now)
            self._out.record(Kind.LINK, site, {"peer": number, **told})
            self.links[number] = after

    def proxy(self, now: Now, queue: Queue, on: bool, by: str = "") -> None:
        """This site acts for owners of the queue's messages that are away, or does so no longer."""
        if on != (queue.id in self.proxied):
            self._at(now)
            header = {"on": on, "by": by} if by else {"on": on}
            self._out.record(Kind.PROXY, queue.name, header, pack_pairs(queue.id, ()))
            self.proxied.pop(queue.id, None)
            if on:
                self.proxied[queue.id] = by
            self._touch(queue)

    def told_as(self, first: int, stop: int) -> list[tuple[int, int, int]]:
        """Messages [first, stop) of this log as every site knows them: origin, and LSNs [a, b) there."""
        out, at = list[tuple[int, int, int]](), first
        found = [(here, a, b, n) for n, one in self.carried.items() for a, b, here in one.there(first, stop)]
        for here, low, high, number in sorted(found):
            if at < here:
                out.append((self.origin, at, here))
            out.append((self.peers.sites[number].origin, low, high))
            at = here + high - low
        if at < stop:
            out.append((self.origin, at, stop))
        return out

    def _site_of(self, origin: int) -> tuple[int, str]:
        for number, site in self.peers.sites.items():
            if site.origin == origin:
                return number, site.name
        raise PreconditionFailed(f"no site with the log {origin} has been met")

    def _origin_of(self, site: str) -> int | None:
        return None if (number := self.peers.number(site)) is None else self.peers.sites[number].origin

    def _stand(self, origin: int, first: int, stop: int) -> list[Span]:
        """Where messages stand here that their origin calls [first, stop), as far as they have come."""
        return [(first, stop)] if origin == self.origin else self._numbers(origin).here(first, stop)

    def _numbers(self, origin: int) -> Numbers:
        return self.carried.get(self._site_of(origin)[0]) or Numbers()

    def own(self, now: Now, queue: Queue, spans: Sequence[Span], claim: Claim) -> int:
        """Hear a site's claim to messages of a queue, by their LSNs here; for how many it holds.

        Errors: PreconditionFailed for a queue that cannot be shared, or a site that nobody has met.
        """
        return self.own_each(now, queue, [(spans, claim)])[0]

    def own_each(self, now: Now, queue: Queue, claimed: Sequence[tuple[Sequence[Span], Claim]]) -> list[int]:
        """The same of several claims; of what is this site's by them all that is served first is given out first."""
        now = self._at(now)
        if not any(spans for spans, _ in claimed):
            return [0] * len(claimed)
        if (what := why_not_shared(queue.settings)) is not None:
            raise PreconditionFailed(f"queue '{queue.name}' has {what}: other sites cannot own messages of it")
        for _, claim in claimed:
            if self.peers.number(claim.owner) is None:
                raise PreconditionFailed(f"no site is called '{claim.owner}', as far as this one knows")
        counts = queue.own(now, claimed, self.peers, self._out)
        self._touch(queue)
        return counts

    def grant(
        self, now: Now, queue: Queue, asked: Iterable[Span], asker: str, besides: Iterable[Span] = ()
    ) -> list[Grant]:
        """Give to another site what it asked for of what is ready here and this site's; what it was given.

        besides: what would do as well, in all as many as were asked for; what it was given of these before, and has
        not heard of, counts.
        Nobody here could take it: whoever could has been given it by the command that made it ready.
        """
        now = self._at(now)
        queue.catch_up(now, self._out)
        if queue.busy:
            return []  # filters, or the order of its messages, are being worked out
        asked = list(asked)
        if queue.inactive and asked:
            queue.reach(max(stop for _, stop in asked) - 1)
            queue.carry_on(now, self._out)
        claims = queue.claims(self.peers)
        left = sum(stop - first for first, stop in asked) - sum(claims.owned_by(asker, *span) for span in asked)
        out = grants(claims, asked, queue.ready_spans(asked), asker)
        left -= sum(one.stop - one.first for one in out)
        if left > 0:
            others = queue.ready_spans(besides, left)
            out += grants(claims, others, others, asker)
        self._hand_on(now, queue, out)
        return out

    def _hand_on(self, now: Now, queue: Queue, given: Iterable[Grant]) -> None:
        """A record for all that one claim is made to."""
        spans = dict[Claim, list[Span]]()
        for one in given:
            spans.setdefault(one.claim, []).append((one.first, one.stop))
        self.own_each(now, queue, [(sorted(some), claim) for claim, some in spans.items()])

    def take_by_proxy(self, now: Now, queue: Queue, asked: Iterable[Span], absent: Iterable[str]) -> list[Grant]:
        """Own what was asked for here and belongs to sites that are away, as an operator has allowed."""
        out = proxied(queue.claims(self.peers), asked, self.peers.here, absent)
        self._hand_on(now, queue, out)
        return out


@contextmanager
def _coming(owners: Mapping[Queue, str], stopped: Iterable[Queue], peers: Peers) -> Generator[None]:
    """What comes to these queues meanwhile is these sites'.  Those that a fault has stopped refuse none of it."""
    before = {queue: queue.newcomers_of(Claim(owner), peers) for queue, owner in owners.items()}
    open_ = dict.fromkeys((*owners, *stopped))
    for queue in open_:
        queue.open_to_all(True, peers)
    try:
        yield
    finally:
        for queue in open_:
            queue.open_to_all(False, peers)
        for queue, claim in before.items():
            queue.newcomers_of(claim, peers)
