"""What a link of the server asks the core: what to tell of the log, and to hear what another site tells.

All that is decided here is in the log as for any command.  What a site tells is durable there; it is told that this one
has it when `Heard.lsn` is durable here.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from itertools import groupby
from typing import Any, cast

import numpy as np
import pyarrow as pa

from penstock.core.commands.offering import OfferingCommands
from penstock.core.links.asking import Asking
from penstock.core.links.carried import Carried, Carries
from penstock.core.links.ownership import Span
from penstock.core.links.parcels import Heard, Numbers, Parcel, Piece, Told, parted, read
from penstock.core.links.sharing import first_owner, identity_of
from penstock.core.links.telling import Telling
from penstock.core.queue.order.runs import packed
from penstock.core.queue.owning import why_not_shared
from penstock.core.queue.queue import Queue
from penstock.core.queue.stopped import refuse_stopped
from penstock.core.state.encoding import load
from penstock.core.state.lsns import to_array, within
from penstock.core.topology.register import no_exchange
from penstock.errors import NotFound, PreconditionFailed
from penstock.records.chunks import LSN_LIMIT, Now
from penstock.records.compute import each_once
from penstock.records.entries import Control, Publishes, singly
from penstock.records.kinds import ENDED, Kind
from penstock.records.message_bodies import from_column


class LinkingCommands(OfferingCommands):
    """Both ends of links.

    quiet   by site: what this log has behind the first LSN and up to the second came from there, and says nothing to it
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.quiet = dict[str, tuple[int, int]]()

    # -- telling

    def via_of(self, number: int) -> tuple[str, str, tuple[str, ...]]:
        """Vhost, exchange, and keys that nobody is shown, of what the log calls by a number."""
        return self._interning.named(number)

    def carries(self, site: str, topics: Sequence[Carries], pass_through: Collection[str] = ()) -> None:
        """What the link to a site carries, whether it was met or not; no topics: there is no such link.

        Errors: ExpressionError for a filter, ValueError for a pattern.
        """
        self._carries.pop(site, None)
        if topics:
            self._carries[site] = Carried(topics, pass_through)

    def telling(self, to: str, *, upto: int = 0, offered: int | None = None) -> Telling:
        """The sender's side of a link, of which `carries` was said, to a site that was met.

        upto: how far it has this log, as it said itself.  offered: the last LSN when it was told of the queues here;
        None: it is told of those that there are now.
        """
        number = self.peers.number(to)
        if number is None:
            raise NotFound(f"no site is called '{to}', as far as this one knows")
        offered = self._out.last_lsn if offered is None else offered
        return Telling(self, self.peers.sites[number], self._carries.get(to) or Carried(()), upto, offered)

    # -- hearing

    def heard(self, site: str) -> int:
        """How far of that site's log this one has."""
        return self.link_state(site).heard

    def hear(
        self, now: Now, site: str, head: bytes, rows: pa.RecordBatch | None = None, *, judged: bool = False
    ) -> Heard:
        """What a site tells.  Nothing is done twice, however often it is told.

        judged: the rows were, as `parcels.read` has it.
        Errors: ValueError for what cannot be read; PreconditionFailed for a site that nobody has met, and for what
            became of messages of a queue on which the two do not agree.  Nothing of the parcel is done then.
        """
        parcel, faults = read(head, rows, judged=judged), list[str]()
        last, before = self._out.last_lsn, max(len(self._out.journal) - 1, 0)
        for piece in parcel.pieces:
            self._site_of(piece.path[0])
        for told in parcel.told:
            if told.claim is not None and self.peers.number(told.claim.owner) is None:
                raise PreconditionFailed(f"no site is called '{told.claim.owner}', as far as this one knows")
        if parcel.upto >= self.heard(site):
            if parcel.offers:
                faults += self.share(site, parcel.offers, more=True)
            self._refuse_differing(site, parcel.told)
            if parcel.rows is not None:
                faults += self._hear_messages(now, site, parcel, parcel.rows)
            for _, some in groupby(parcel.told, lambda one: (one.vhost, one.queue, one.claim is None)):
                self._hear_told(now, site, list(some))
            if self.twins:
                self._part_twins(now)
            if self.foretold:
                self._place(now)
            self.note_link(now, site, heard=parcel.upto)
            if not any(_says_more(one, last) for one in singly(self._out.journal[before:])):
                after, upto = self.quiet.get(site, (0, 0))
                self.quiet[site] = after if upto == last else last, self._out.last_lsn
        return Heard(parcel.upto, self._out.last_lsn, tuple(faults))

    def _refuse_differing(self, site: str, some: Iterable[Told]) -> None:
        """Passed over it would be told never again: their link is refused, and tells it when they agree."""
        for queue in [self.find_queue(*name) for name in dict.fromkeys(told[:2] for told in some)]:
            agreed = None if queue is None else self.sharing.with_site(queue.id, site)
            if agreed is not None and agreed.faults:
                raise PreconditionFailed("; ".join(agreed.faults))

    def _hear_messages(self, now: Now, site: str, parcel: Parcel, rows: pa.RecordBatch) -> Iterator[str]:
        """Store the messages of a parcel; what has no place here, a line each."""
        at = 0
        for piece in parcel.pieces:
            if self._topology.exchange(piece.vhost, piece.exchange) is None:
                yield f"{piece.rows} messages are left out: {no_exchange(piece.vhost, piece.exchange)}"
            elif self.origin not in piece.path:
                _, origin = self._site_of(piece.path[0])
                mine = rows if piece.rows == rows.num_rows else rows.slice(at, piece.rows)
                if self._lacks():
                    self._refuse(now, site, piece, mine)
                numbers = [one for one in parcel.numbers if one.origin == piece.path[0]]
                self._hear_piece(now, site, piece, mine, origin, numbers)
            at += piece.rows

    def _hear_piece(
        self, now: Now, site: str, piece: Piece, mine: pa.RecordBatch, origin: str, numbers: Sequence[Numbers]
    ) -> None:
        """Store messages of one way.  origin: the name of the site that published them."""
        for part in parted(mine, self.sharing.bounds(origin)):
            first, said = int(part.column("lsn")[0].as_py()), dict[int, list[Span]]()
            for number, spans in self._said_before(piece.path[0], part).items():
                queue = self.queue_by_id(number)
                if queue is not None and not self._shared(queue, site, origin, first, piece.at):
                    said[number] = spans
            for some in parted(part, [end for spans in said.values() for span in spans for end in span]):
                batch, there = self._batch(piece, some, now.wall)
                heard = {number for number, spans in said.items() if any(a <= there[0] < b for a, b in spans)}
                owners = self._owners(self._taking(piece, batch), site, origin, int(there[0]), piece.at, heard)
                self.carry(now, piece.path, batch, there, owners, numbers, letters=piece.letters, into=piece.into)

    def _said_before(self, origin: int, rows: pa.RecordBatch) -> dict[int, list[Span]]:
        """By queue, those of an origin of which others have said already whose they are, or that they are done."""
        out, lsns = dict[int, list[Span]](), rows.column("lsn").to_numpy()
        first, last = int(lsns[0]), int(lsns[-1])
        for one in self.early or ():
            if one.origin == origin and one.first <= last and first < one.stop:
                out.setdefault(one.queue, []).append((one.first, one.stop))
        for number, entries in self._deferred.by_queue.items():
            for entry in (entry for entry in entries if entry.origin == origin):
                known = np.frombuffer(entry.lsns, np.int64)
                low, high = np.searchsorted(known, (first, last + 1)).tolist()
                out.setdefault(number, []).extend(within(packed(known[low:high])).tolist() if low < high else ())
        return out

    def _batch(self, piece: Piece, rows: pa.RecordBatch, wall: int) -> tuple[Publishes, Sequence[int]]:
        """Rows of a parcel as a batch of messages, and their LSNs where they were published.

        wall: the time here.  None of them is newer than that, whatever the clock of its site says.
        """
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        sent = np.minimum(columns["time"].view(pa.int64()).to_numpy(), wall)
        names, places = each_once(columns["name"])
        targets = (self._router.target_of(piece.vhost, piece.exchange, key) for key in names)
        found = [self.interned(piece.vhost, *target).with_blind(piece.blind) for target in targets]
        topics = found[0] if places is None else [found[place] for place in places.tolist()]
        texts, places = each_once(columns["properties"])
        properties = texts[0] if places is None else [texts[place] for place in places.tolist()]
        bodies = from_column(columns["body"], columns["body"].nbytes)
        batch = Publishes(
            topics, properties, bodies, delta=False, sent_at=to_array(sent), priority=_numbers(columns["priority"]),
            expires_at=_numbers(columns["expires_at"]), not_before=_numbers(columns["not_before"]),
        )  # fmt: skip
        return batch, cast("Sequence[int]", columns["lsn"].to_numpy())

    def _taking(self, piece: Piece, batch: Publishes) -> Collection[Queue]:
        """The queues that may take some of a batch: of what was moved the one that it was moved to."""
        if not piece.into:
            return self._publisher.queues_of(batch)
        queue = self.find_queue(piece.vhost, piece.into)
        return () if queue is None or queue.settings.kind == "local" else (queue,)

    def _owners(
        self, queues: Collection[Queue], site: str, origin: str, first: int, at: int, heard: Container[int]
    ) -> dict[Queue, str]:
        """Of each of these queues that is shared, who may lease messages of a batch first.

        heard: those of which others have said what became of these there, and which are shared therefore.
        """
        out = dict[Queue, str]()
        for queue in queues:
            owner = first_owner(queue.settings, origin)
            if owner is None or why_not_shared(queue.settings) is not None:
                continue
            if queue.id in heard or self._shared(queue, site, origin, first, at):
                out[queue] = owner
        return out

    def _shared(self, queue: Queue, site: str, origin: str, first: int, at: int) -> bool:
        """Whether it was there where messages were published, or at the site that hands them on, when they came.

        first, at: where they stand there.
        """
        one = identity_of(queue.vhost, queue.name, queue.settings, self.peers.sites[0])
        if self.sharing.had(queue.id, one, origin, first):
            return True
        return origin != site and self.sharing.had(queue.id, one, site, at or LSN_LIMIT)

    def _hear_told(self, now: Now, site: str, some: Sequence[Told]) -> None:
        """Of one queue who owns messages of it, or which are settled."""
        vhost, name = some[0][:2]
        queue = self.find_queue(vhost, name)
        self._heard_first(queue, site, some)
        self._hand_word_on(now, queue, site, some)
        for told in some:
            if told.claim is not None and told.claim.owner == self.peers.here:
                heirs = self._heirs(site, vhost, name)
                self._give_back(now, vhost, name, self._beyond(queue, told.spans), told.claim, heirs)
        some = [self._not_returned(queue, told) for told in some]
        if queue is None:
            self._foretell(now, site, some)
            return
        if self.sharing.with_site(queue.id, site) is None:
            some = [told._replace(spans=tuple(self._owned_by(queue, site, told))) for told in some]
        some = [told for told in some if told.spans]
        stands = [self._stand(*told.spans[0]) for told in some]
        hear = self._hear_settled if not some or some[0].claim is None else self._hear_claimed
        hear(now, queue, site, some, stands)

    def _hear_claimed(
        self, now: Now, queue: Queue, site: str, some: Sequence[Told], stands: Sequence[Sequence[Span]]
    ) -> None:
        """Who owns them from now on; what came here of what was asked for is no more waited for."""
        claimed = [(told.spans if told.claim.serial else (), told.claim) for told in some if told.claim is not None]
        claims, asking = queue.claims(self.peers), self._askings.get(queue.id)
        before = [claims.of(here[0][0]).owner if here else "" for here in stands]
        counts = self.each_owned_at(now, queue, site, claimed)
        self._answered_by(now, queue, site, some)
        if asking is None:
            return
        for owner, count, (_, claim) in zip(before, counts, claimed, strict=True):
            if count and claim.owner == self.peers.here:
                asking.granted(owner, count)

    def _hear_settled(
        self, now: Now, queue: Queue, site: str, some: Sequence[Told], stands: Sequence[Sequence[Span]]
    ) -> None:
        """They are done; how long that took says when to ask again."""
        for told, here in zip(some, stands, strict=True):
            count = self.settled_at(now, queue, site, told.spans, twins=told.twins)
            if count and here and queue.foreign_count:
                came = self.stamps.of(here[0][0], now.wall)
                self._askings.setdefault(queue.id, Asking()).acked(now.wall - came)
        self._answered_by(now, queue, site, some)

    # -- how a shared queue ends

    def delete_queue(self, now: Now, queue: Queue, if_unused: bool = False, if_empty: bool = False) -> int:
        """As everywhere.  PreconditionFailed where other sites hear of each other's messages through this queue.

        Unavailable for one that a fault has stopped and others have, too: what goes with it they would not be told.
        """
        if self._ends_elsewhere(queue):
            refuse_stopped(queue)
        if queue.foreign_count and (between := self._between(queue)):
            raise PreconditionFailed(
                f"queue '{queue.name}' in vhost '{queue.vhost}' has {queue.foreign_count} messages of other sites, and "
                f"'{between[0]}' and '{between[1]}' hear of each other's through this one: what they said of them "
                "would be lost; let it run empty first, or take `pass_through` from the links"
            )
        return super().delete_queue(now, queue, if_unused, if_empty)

    def _between(self, queue: Queue) -> tuple[str, str] | None:
        """Two sites of which one is told here of what the other has in the queue; None: there are none."""
        sites = [site for site in self._carries if self._carried_to(queue, site)]
        for of in sites:
            number = self.peers.number(of)
            group = "" if number is None else self.peers.sites[number].group
            for to in sites:
                if to != of and group in self._carries[to].pass_through:
                    return of, to
        return None

    def _ending(self, now: Now, queue: Queue) -> int:
        """What is this site's goes with its queue, at all sites."""
        if self._ends_elsewhere(queue):
            queue.let_go(self._out)
        return super()._ending(now, queue)

    def _ends_elsewhere(self, queue: Queue) -> bool:
        """Whether other sites may have messages that go with this queue."""
        shared = len(self.peers.sites) > 1 and why_not_shared(queue.settings) is None
        return shared and self._carried_anywhere(queue)

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
                if not queue.awaited and queue.id in self._passes:
                    self._go_on_passing(queue)


def _says_more(entry: Publishes | Control, last: int) -> bool:
    """Whether what came of a parcel, behind this LSN, may have to be told to whoever sent it."""
    if isinstance(entry, Publishes):
        return entry.first > last and entry.sent_at is None  # made here, a dead letter
    if entry.lsn <= last:
        return False
    if entry.kind in (Kind.OWN, Kind.CLAIMED):
        said = load(entry.header)
        return said["why"] != "first" or "vhost" in said or "to" in said
    return entry.kind in ENDED


def _numbers(column: pa.Array[Any]) -> list[int] | None:
    """A column of numbers, 0 where there is none; None: no row has one."""
    if column.null_count == len(column):
        return None
    whole = column.view(pa.int64()) if pa.types.is_timestamp(column.type) else column
    numbers = cast("Any", whole.fill_null(0) if whole.null_count else whole).to_numpy()
    return cast("list[int]", numbers.tolist()) if numbers.any() else None
