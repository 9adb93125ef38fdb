"""Who asks whom for messages that consumers here want and others own, what an ask is answered, and what is forgotten.

An ask goes to the owner, or where no link leads to that one from site to site, each of which looks who owns the
messages as far as it knows.

Claims to messages of a queue that is not here are remembered while they may still come, and given back where they are
ours.  A site may hear from one that a message of another is given to a third, or done, before that other's own link
brings it: that is remembered for the queue, and where it ends meanwhile, or is not declared yet, for the next one.

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
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from penstock.core.commands.forgetting import FORGETS_EVERY, ForgettingCommands
from penstock.core.effects import Verb
from penstock.core.links.asking import Asking, Waiting, Wanted
from penstock.core.links.carried import Twin
from penstock.core.links.ownership import NOBODY, Claim, Name, Place, Span, done_by, is_done, is_twin, without
from penstock.core.links.parcels import ASKED_MOST, HANDED_ON_MOST, Ask, Asked, Piece, Told, joined, read_ask
from penstock.core.links.sharing import HERE, Identity, Lacking, identity_of
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.order.runs import packed
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import within
from penstock.errors import QueueFull
from penstock.expr import TopicPattern
from penstock.records.causes import TWIN
from penstock.records.chunks import LSN_LIMIT, Now, as_chunk, merged_spans, pack_pairs, pairs_of
from penstock.records.kinds import Kind

HANDING_ON_MOST = 100
"""Asks that wait to be handed on; more are lost, and come again."""

TWINS_MANY, TWINS_EACH = 1_000, 100
"""Of more pairs than so many that are one it is looked so many microseconds a pair later again."""


class TransferCommands(ForgettingCommands):
    """Transfers of messages, from the ask on, and claims that come or go while a queue is not here."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.absent = set[str]()  # sites that no link reaches now; the server says so
        self._askings = dict[int, Asking]()  # by queue
        self._handing_on = list[Asked]()
        self._lacking: list[Lacking] | None = None  # see `_lacks`
        self._looks_at = self._twins_at = 0

    def link_up(self, site: str) -> None:
        """The link to a site is there anew: what was asked before is forgotten on both sides."""
        self.absent.discard(site)
        for asking in self._askings.values():
            asking.came_up(site, self._carries)

    def asks(self, now: Now) -> list[Asked]:
        """What to ask other sites for now: messages of theirs that consumers here want and have room for.

        What sites have that are away is taken from queues for which an operator allows it.  To be called now and then;
        what is remembered of links and not needed any more is forgotten here, too; what nobody had a queue for is
        given to whoever has said since that it has one.
        """
        if self.foretold:
            self._place(now)
        now = self._at(now)
        if now.wall >= self._looks_at:
            self._looks_at = now.wall + FORGETS_EVERY
            self._forget_told(now)
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
        self, queue: Queue, owner: str, spans: Sequence[Span], path: tuple[str, ...], besides: Sequence[Span]
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

    def _short(self) -> Iterator[Queue]:
        """Shared queues whose consumers here have more room than there are messages for them; also of who is away."""
        for number in dict.fromkeys((*self.sharing.queues, *self.proxied)):
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
        asker = path[0] if path else asker
        if asker == self.peers.here or self.peers.number(asker) is None or not self.offered_by(site, vhost, name):
            return 0
        kept = self._give_kept(now, vhost, name, joined(told), asker) if self.returned else 0
        agreed = None if queue is None else self.sharing.with_site(queue.id, site)
        if queue is None or queue.stopped or agreed is None or agreed.faults:
            return kept
        here, besides = (
            merged_spans([span for one in joined(some) for span in self._stand(*one)]) for some in (told, others)
        )
        if path and len(path) < HANDED_ON_MOST and self.peers.here not in path:
            self._hand_on_ask(queue, here, path, besides)
        return kept + sum(one.stop - one.first for one in self.grant(now, queue, here, asker, besides))

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

    # -- claims for queues that are not here, and claims of this site that it gives up as it hears of them

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
                    if not is_done(claim):
                        self._remember(queue, origin, span, claim)
                    elif self._carried_to(queue, claim.owner):
                        self._defer(now, queue, origin, range(*span), Verb.ACK, claim.owner, twins=is_twin(claim))
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

        What was yielded to this site nobody may have any more, so each heir has it once.  The last of a round keeps it,
        and gives it to the first that asks for it: that one has it.
        """
        if not heirs:
            self._keep_unplaced(now, vhost, queue, spans, claim)
            return
        met, here = {one.origin for one in self.peers.sites.values()}, self.peers.here
        some = dict[tuple[int, str], list[Span]]()
        for origin, first, stop in joined([span for span in spans if span[0] in met]):
            left = self.returned.but(Place(vhost, queue, origin, ""), [(first, stop)], claim)
            for heir in heirs:
                place = Place(vhost, queue, origin, heir)
                new = left if claim.why != "yielded" else self.returned.but(place, left)
                if new:
                    some.setdefault((origin, heir), []).extend(new)
                    left = [one for span in left for one in without(span, new)]
            if left:
                some.setdefault((origin, here), []).extend(left)
        self._at(now)
        for (origin, heir), new in some.items():
            back = claim if heir == here else claim.to(heir, "yielded")
            self._note_handed_on(Place(vhost, queue, origin, heir), new, back)

    def _note_handed_on(self, place: Place, spans: Sequence[Span], claim: Claim) -> None:
        """Say whose messages are that have no place here."""
        header: dict[str, object] = {
            "origin": str(place.origin), "site": claim.owner, "serial": claim.serial, "why": claim.why,
            "vhost": place.vhost,
        }  # fmt: skip
        body = pack_pairs(0, [end for span in spans for end in span])
        self._out.record(Kind.CLAIMED, place.queue, header, body)
        self.returned.add(place, spans, claim)
        self.foretold.placed(Name(*place[:3]), spans)

    def _give_kept(self, now: Now, vhost: str, name: str, spans: Sequence[tuple[int, int, int]], asker: str) -> int:
        """What this site kept, since nobody could take it, goes to one that asks for it, and so has it; how many."""
        count, now = 0, self._at(now)
        for origin, *span in self._beyond(self.find_queue(vhost, name), spans):
            place = Place(vhost, name, origin, self.peers.here)
            for first, stop, claim in self.returned.of(place, *span):
                self._note_handed_on(place._replace(heir=asker), [(first, stop)], claim.to(asker, "yielded"))
                count += stop - first
        return count

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
        if queue is None:
            return list(spans)
        out, had, gone = list[tuple[int, int, int]](), self.reviewed(queue), dict[int, int]()
        for origin, first, stop in spans:
            for low, high in self._stand(origin, first, stop):
                if low < queue.id:
                    span = low, min(high, queue.id)
                    for left in [one for some in without(span, had) for one in without(some, queue.living(*some))]:
                        out += self.told_as(*left)
            if origin != self.origin:
                if origin not in gone:
                    gone[origin] = min(self._passed(queue, origin), self._took_from(queue, origin))
                here = self._numbers(origin).standing(first, passed := max(first, min(stop, gone[origin])))
                out += [(origin, *span) for span in without((first, passed), here) if first < passed]
        return out

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
