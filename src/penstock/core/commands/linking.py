"""What a link of the server asks the core: what to tell of the log, to hear what another site tells, and to ask for
messages that consumers here want and others own.

All that is decided here is in the log as for any command.  What a site tells is durable there; it is told that this one
has it when `Heard.lsn` is durable here.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.core.commands.links import LinkCommands
from penstock.core.links.asking import Asking, Waiting
from penstock.core.links.identity import Offer, Site, disagreements, first_owner, identity_of
from penstock.core.links.ownership import Claim, Span
from penstock.core.links.parcels import Asked, Heard, Parcel, Piece, Told, ask_of, read, read_ask
from penstock.core.links.sharing import Agreed, Sharing, dump_offer, load_offer
from penstock.core.links.telling import Carried, Carries, Telling
from penstock.core.links.wanted import Wanted
from penstock.core.queue.dispatching.consumers import Consumer
from penstock.core.queue.owning import why_not_shared
from penstock.core.queue.queue import Queue
from penstock.core.topology.register import no_exchange
from penstock.errors import NotFound, PreconditionFailed
from penstock.records.chunks import Now
from penstock.records.entries import Publishes, Topic
from penstock.records.message_bodies import from_column

ASKED_MOST = 10_000
"""Messages that a queue asks for at once, however much room its consumers have."""

FORGETS_EVERY = 1_000_000
"""Microseconds until it is looked again at what may be forgotten."""

FLOORS_KEPT = 100
"""How many moments are remembered whose records links have still to tell."""


class LinkingCommands(LinkCommands):
    """Both ends of links."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.sharing = Sharing()
        self.absent = set[str]()  # sites that no link reaches now; the server says so
        self._carries = dict[str, Carried]()  # by site: what the link to it carries
        self._askings = dict[int, Asking]()  # by queue
        self._looks_at = 0
        self._floors_then = list[tuple[int, int]]()  # last LSN, and the lowest that shared queues had then

    # -- what is shared

    def offers(self, to: str) -> list[dict[str, object]]:
        """What to say to a site of the queues here, as JSON."""
        here, carried = self.peers.sites[0], self._carries.get(to)
        out = list[dict[str, object]]()
        for queue in self.queues():
            if queue.settings.kind == "local" or queue.exclusive_to is not None:
                continue
            offer = self._offer(queue, here)
            sends = carried is not None and bool(carried.judges(queue.vhost, *offer.topic))
            out.append(dump_offer(offer._replace(sends=sends), queue.id))
        return out

    def _offer(self, queue: Queue, here: Site) -> Offer:
        settings = queue.settings
        topic = (settings.exchange, settings.underlying_topic or queue.name)
        identity = identity_of(queue.vhost, queue.name, settings, here)
        barriers = settings.barrier_expression
        return Offer(identity, topic, settings.filter, settings.initial_owner, queue.durable, barriers=barriers)

    def share(self, site: str, offers: Sequence[Mapping[str, object]]) -> list[str]:
        """Hear what a site says of its queues; why some that are one by their names cannot be, a line each.

        Errors: ValueError for what is no offer.
        """
        here, agreed, carried = self.peers.sites[0], dict[int, Agreed](), self._carries.get(site)
        for table in offers:
            theirs, since = load_offer(table)
            queue = self.find_queue(theirs.identity.vhost, theirs.identity.name)
            if queue is None:
                continue
            ours = self._offer(queue, here)
            if ours.identity != theirs.identity:
                continue
            ours = ours._replace(sends=carried is not None and bool(carried.judges(queue.vhost, *ours.topic)))
            if not ours.sends and not theirs.sends:
                continue  # they have a name in common, and nothing else
            faults = list(disagreements(ours, theirs))
            if (what := why_not_shared(queue.settings)) is not None:
                faults.append(
                    f"queue '{queue.name}' in vhost '{queue.vhost}': it has {what} here, and other sites cannot own "
                    "messages of such a queue"
                )
            agreed[queue.id] = Agreed(since, tuple(faults))
        self.sharing.say(site, agreed)
        return [line for one in agreed.values() for line in one.faults]

    def shared_as(self, queue: int, site: str) -> tuple[str, str] | None:
        """Vhost and name of a queue, by its id, that the site has, too; None: it is not shared with it."""
        found = self._by_id(queue)
        if found is None or self.sharing.with_site(queue, site) is None:
            return None
        return found.vhost, found.name

    def via_of(self, number: int) -> tuple[str, str, tuple[str, ...]]:
        """Vhost, exchange, and keys that nobody is shown, of what the log calls by a number."""
        return self._interning.named(number)

    # -- telling

    def carries(self, site: str, topics: Sequence[Carries], pass_through: Collection[str] = ()) -> None:
        """What the link to a site carries, whether it was met or not; no topics: there is no such link.

        Errors: ExpressionError for a filter, ValueError for a pattern.
        """
        self._carries.pop(site, None)
        if topics:
            self._carries[site] = Carried(topics, pass_through)

    def telling(self, to: str, *, upto: int = 0) -> Telling:
        """The sender's side of a link, of which `carries` was said, to a site that was met.

        upto: how far it has this log, as it said itself.
        """
        number = self.peers.number(to)
        if number is None:
            raise NotFound(f"no site is called '{to}', as far as this one knows")
        return Telling(self, self.peers.sites[number], self._carries.get(to) or Carried(()), upto)

    # -- hearing

    def heard(self, site: str) -> int:
        """How far of that site's log this one has."""
        return self.link_state(site).heard

    def hear(self, now: Now, site: str, head: bytes, rows: pa.RecordBatch | None = None) -> Heard:
        """What a site tells.  Nothing is done twice, however often it is told.

        Errors: ValueError for what cannot be read; PreconditionFailed for a site that nobody has met.  Nothing of the
            parcel is done then.
        """
        parcel, faults = read(head, rows), list[str]()
        for piece in parcel.pieces:
            self._site_of(piece.path[0])
        for told in parcel.told:
            if told.claim is not None and self.peers.number(told.claim.owner) is None:
                raise PreconditionFailed(f"no site is called '{told.claim.owner}', as far as this one knows")
        if parcel.upto >= self.heard(site):
            if parcel.rows is not None:
                faults = list(self._hear_messages(now, site, parcel, parcel.rows))
            for told in parcel.told:
                self._hear_told(now, site, told)
            if self.twins:
                self._part_twins(now)
            self.note_link(now, site, heard=parcel.upto)
        return Heard(parcel.upto, self._out.last_lsn, tuple(faults))

    def _hear_messages(self, now: Now, site: str, parcel: Parcel, rows: pa.RecordBatch) -> Iterator[str]:
        """Store the messages of a parcel; what has no place here, a line each."""
        at = 0
        for piece in parcel.pieces:
            if self._topology.exchange(piece.vhost, piece.exchange) is None:
                yield f"{piece.rows} messages are left out: {no_exchange(piece.vhost, piece.exchange)}"
            elif self.origin not in piece.path:
                _, origin = self._site_of(piece.path[0])
                mine = rows.slice(at, piece.rows)
                for some in self._parted(mine, site) if origin == site else [mine]:
                    batch, there = self._batch(piece, some, now.wall)
                    numbers = [one for one in parcel.numbers if one.origin == piece.path[0]]
                    owners = self._owners(batch, site, origin, int(there[0]))
                    self.carry(now, piece.path, batch, there, owners, numbers)
            at += piece.rows

    def _parted(self, rows: pa.RecordBatch, site: str) -> Iterator[pa.RecordBatch]:
        """Messages that a site published, parted where a queue begins there that both have."""
        lsns = rows.column("lsn").to_numpy()
        begins = [agreed.since for number in self.sharing.queues if (agreed := self.sharing.with_site(number, site))]
        cuts: list[int] = np.searchsorted(lsns, sorted(begins)).tolist()
        for low, high in pairwise(sorted({0, len(lsns), *cuts})):
            yield rows.slice(low, high - low)

    def _batch(self, piece: Piece, rows: pa.RecordBatch, wall: int) -> tuple[Publishes, Sequence[int]]:
        """Rows of a parcel as a batch of messages, and their LSNs where they were published.

        wall: the time here.  None of them is newer than that, whatever the clock of its site says.
        """
        sent = np.minimum(rows.column("time").cast(pa.int64()).to_numpy(), wall)
        names = cast("Any", rows.column("name").dictionary_encode())
        found = [
            self._topic(piece.vhost, *self._router.target_of(piece.vhost, piece.exchange, key)).with_blind(piece.blind)
            for key in names.dictionary.to_pylist()
        ]
        topics: Topic | list[Topic] = found[0]
        if len(found) > 1:
            topics = [found[place] for place in names.indices.to_pylist()]
        heads = cast("Any", rows.column("properties").dictionary_encode())
        texts = cast("list[bytes]", heads.dictionary.to_pylist())
        properties = texts[0] if len(texts) == 1 else [texts[place] for place in heads.indices.to_pylist()]
        bodies = from_column(rows.column("body"), rows.column("body").nbytes)
        batch = Publishes(
            topics, properties, bodies, expires_at=_times(rows, "expires_at"), not_before=_times(rows, "not_before"),
            priority=_times(rows, "priority"), delta=False, sent_at=sent.tolist(),
        )  # fmt: skip
        return batch, cast("Sequence[int]", rows.column("lsn").to_numpy())

    def _owners(self, batch: Publishes, site: str, origin: str, first: int) -> dict[Queue, str]:
        """Of each queue that may take some of a batch and is shared, who may lease it first."""
        out = dict[Queue, str]()
        for queue in self._publisher.queues_of(batch):
            agreed = self.sharing.with_site(queue.id, site)
            if agreed is None or (origin == site and first < agreed.since):
                continue
            owner = first_owner(queue.settings, origin)
            if owner is not None and why_not_shared(queue.settings) is None:
                out[queue] = owner
        return out

    def _hear_told(self, now: Now, site: str, told: Told) -> None:
        queue = self.find_queue(told.vhost, told.queue)
        if queue is None or self.sharing.with_site(queue.id, site) is None:
            return
        here = self._stand(*told.spans[0]) if told.spans else []
        if told.claim is not None:
            before = queue.claims(self.peers).of(here[0][0]).owner if here else ""
            count = self.owned_at(now, queue, site, told.spans, told.claim)
            if count and told.claim.owner == self.peers.here and queue.id in self._askings:
                self._askings[queue.id].granted(before, count)
            return
        count = self.settled_at(now, queue, site, told.spans, twins=told.twins)
        if count and here and queue.foreign_count:
            came = self.stamps.of(here[0][0], now.wall)
            self._askings.setdefault(queue.id, Asking()).acked(now.wall - came)

    # -- after a start

    def await_sites(self, now: Now, sites: Collection[str]) -> list[str]:
        """Of queues that links to these sites carry nothing is delivered until each of them is `level`.

        Those that were never met have nothing to tell.  There is no record: it ends with the process.  Returns whom
        queues wait for.
        """
        now, found = self._at(now), set[str]()
        known = [site for site in sites if self.peers.number(site) is not None]
        for queue in self.queues():
            if behind := tuple(site for site in known if self._carried_to(queue, site)):
                queue.await_sites(now, behind, self._out)
                self._touch(queue)
                found.update(behind)
        return sorted(found)

    def level(self, now: Now, site: str) -> None:
        """A site has told what happened while this one was away, or is not waited for any longer."""
        now = self._at(now)
        for queue in self.queues():
            if site in queue.awaited:
                queue.await_sites(now, tuple(one for one in queue.awaited if one != site), self._out)
                self._touch(queue)

    def _carried_to(self, queue: Queue, site: str) -> bool:
        """Whether the link to a site carries what a queue of several sites shows."""
        carried, settings = self._carries.get(site), queue.settings
        if carried is None or settings.kind == "local" or queue.exclusive_to is not None:
            return False
        return bool(carried.judges(queue.vhost, settings.exchange, settings.underlying_topic or queue.name))

    # -- asking

    def link_up(self, site: str) -> None:
        """The link to a site is there anew: what was asked before is forgotten on both sides."""
        self.absent.discard(site)
        for asking in self._askings.values():
            asking.came_up(site)

    def asks(self, now: Now) -> list[Asked]:
        """What to ask other sites for now: messages of theirs that consumers here want and have room for.

        What sites have that are away is taken from queues for which an operator allows it.  To be called now and then;
        what is remembered of links and not needed any more is forgotten here, too.
        """
        now = self._at(now)
        if now.wall >= self._looks_at:
            self._looks_at = now.wall + FORGETS_EVERY
            self._forget_numbers(now)
        if self.twins:
            self._part_twins(now)
        out = list[Asked]()
        for queue in self._short():
            if queue.id in self.proxied:
                self._take_of_absent(now, queue)
            asking = self._askings.setdefault(queue.id, Asking())
            free = _free(queue)
            waiting = self._waiting(queue, now, free)
            if free <= 0:
                free, waiting = _free(queue, filtered=True), self._wanted(queue, now)
            for asked in asking.asks(now.wall, waiting, free):
                spans = [one for first, stop in asked.spans for one in self.told_as(first, stop)]
                queue.asked(now.wall, asked.spans)
                out.append(Asked(asked.owner, ask_of(queue.vhost, queue.name, spans)))
        return out

    def _part_twins(self, now: Now) -> None:
        """Of two messages that are one let one go, as `core.links.twins` says."""
        queues = [queue for number in self.sharing.queues if (queue := self._by_id(number)) is not None]
        for twin in list(self.twins) if queues else ():
            sites = [self.peers.sites[peer].origin for peer in (twin.peer, twin.other_peer)]
            kept, spare = (twin.one, twin.other) if sites[0] < sites[1] else (twin.other, twin.one)
            over = [self._part_twin(now, queue, kept, spare) for queue in queues]
            if all(over):
                self.twins.discard(twin)

    def _part_twin(self, now: Now, queue: Queue, kept: int, spare: int) -> bool:
        """The same of one queue; whether there is nothing left to do for it."""
        there = [lsn for lsn in (kept, spare) if queue.lives(lsn)]
        if not there or min(kept, spare) < queue.id:
            return True
        goes = there[-1]
        if queue.claims(self.peers).of(goes).owner != self.peers.here or queue.lives(goes, "leased"):
            return False  # its owner lets it go, or whoever works on it is awaited
        with self.group():
            if len(there) == 1:  # the other one was worked
                queue.withdraw(now, range(goes, goes + 1), self._out, "its twin")
            else:
                queue.settled_elsewhere(now, range(goes, goes + 1), self.peers.here, self._out, [])
                self._forget_twins([goes])
        self._touch(queue)
        return True

    def _take_of_absent(self, now: Now, queue: Queue) -> None:
        """Own what consumers here have room for and belongs to sites that are away."""
        free, wanted = _free(queue), list[Span]()
        for first, stop, claim in queue.foreign_spans():
            if claim.owner in self.absent and free > 0:
                wanted.append((first, min(stop, first + free)))
                free -= stop - first
        if wanted:
            self.take_by_proxy(now, queue, wanted, self.absent)

    def _forget_numbers(self, now: Now) -> None:
        """Forget where messages of other sites stand that no shared queue has, once every link has told their end.

        Also of queues of which nobody has said since the start that they are shared.
        """
        shared = set(self.sharing.queues)
        floors = [queue.floor() for queue in self.queues() if queue.id in shared or queue.may_have_others]
        floor = min([self._out.next_lsn, *floors])
        told = min((self.link_state(site).acked for site in self._carries), default=self._out.last_lsn)
        known = [(last, below) for last, below in self._floors_then if last > told]
        due = [below for last, below in self._floors_then if last <= told]
        if len(known) < FLOORS_KEPT:
            known.append((self._out.last_lsn, floor))
        self._floors_then = known
        for site in [self.peers.name(number) for number in self.carried] if due else ():
            self.forget_carried(now, site, max(due))

    def _short(self) -> Iterator[Queue]:
        """Shared queues whose consumers here have more room than there are messages for them."""
        for number in list(self.sharing.queues):
            queue = self._by_id(number)
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
        for lsn in wanted.lsns:
            if lsn >= bound:
                return
            owner = claims.of(lsn).owner
            agreed = self.sharing.with_site(queue.id, owner)
            if agreed is None or not agreed.faults:
                yield Waiting(lsn, lsn + 1, owner, self.stamps.of(lsn, now.wall))

    def _waiting(self, queue: Queue, now: Now, credit: int) -> Iterator[Waiting]:
        if queue.ranked_by is None:
            spans: Iterable[tuple[int, int, Claim]] = queue.foreign_spans()
        else:
            claims = queue.claims(self.peers)
            spans = (one for span in queue.first_wanted_of(credit) for one in claims.spans(*span))
        bound = queue.first_barrier
        for first, stop, claim in spans:
            if first >= bound:
                return  # it would wait here
            agreed = self.sharing.with_site(queue.id, claim.owner)
            if agreed is None or not agreed.faults:
                yield Waiting(first, stop, claim.owner, self.stamps.of(first, now.wall))

    def answer(self, now: Now, asker: str, ask: bytes, *, via: str = "") -> int:
        """A site asks for messages that this one owns; how many it is given.  They go out when that is durable.

        via: who hands the ask on, where no link leads from there to here.
        Errors: ValueError for what is no ask.
        """
        vhost, name, spans = read_ask(ask)
        queue = self.find_queue(vhost, name)
        agreed = None if queue is None else self.sharing.with_site(queue.id, via or asker)
        if queue is None or agreed is None or agreed.faults:
            return 0
        here = [span for one in spans for span in self._stand(*one)]
        return sum(one.stop - one.first for one in self.grant(now, queue, here, asker))


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


def _times(rows: pa.RecordBatch, name: str) -> list[int] | None:
    """A column of numbers, 0 where there is none; None: no row has one."""
    column = rows.column(name)
    if column.null_count == len(column):
        return None
    return cast("list[int]", column.cast(pa.int64()).fill_null(0).to_pylist())
