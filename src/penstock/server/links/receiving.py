"""One link from another site: a call on the Flight door, for as long as that site tells what happens there.

    Flight thread   parcels, judged by the door and here -> loop, in their order; a bounded number waits there
    loop            the core hears a parcel -> its records are durable -> ack, by the writing thread

A parcel may have to wait for room in the log, or for its turn; then what came behind it waits, too.  A site that says
what it may not say is cut off, and told why; it comes again from its last ack on.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.core.links.sharing import Site
from penstock.errors import InvalidArgument, LogBroken, PenstockError, PreconditionFailed, Unavailable
from penstock.records.schema import CARRIED
from penstock.server.base.faults import TOLD
from penstock.server.flight.downstream import Downstream
from penstock.server.flight.handover import Answer, Handover
from penstock.wire.flight.linking import LINKED, SAID, Said, Welcome, read_rows, read_said

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.server.flight.arriving import Arriving
    from penstock.server.flight.calls import Caller, Slot
    from penstock.server.links.home import Hearing
    from penstock.wire.flight.commands import Link
    from penstock.wire.flight.received import Bounds

WAITING_MOST = 4
"""Parcels that have come and were not heard yet; more are not read."""

SILENT_US = 30_000_000
"""A site says something every five seconds; after so long it is taken for gone."""

SPEAKS_US = 7_000_000
"""One that has said something within so long is there: a second stream of it is another server's."""


class Incoming:
    """One stream of one site."""

    def __init__(
        self, links: Hearing[Incoming], handover: Handover, caller: Caller, command: Link, slot: Slot, bounds: Bounds
    ) -> None:
        self.command = command
        self.site = command.site
        self.peer = caller.peer
        self.since = links.engine.clock.wall()
        self.upto = 0  # this far its log is on the disk here
        self.parcels = self.rows = self.size = self.asks = 0
        self._links = links
        self._engine = links.engine
        self._handover = handover
        self._caller = caller
        self._slot = slot
        self._bounds = bounds
        self._heard_at = self._engine.clock.mono()
        self._queue = deque[tuple[bytes, "pa.RecordBatch | None", int, Answer[None]]]()
        self._waits = False  # the first of them does
        self._level = False  # what came so far is what was before the link came up
        self._ending: PenstockError | None = None
        self._down = Downstream(
            self._engine.log,
            f"link of {command.site}",
            most=handover.queued_most,
            on_room=_nobody,
            on_gone=partial(handover.post, partial(self.end, Unavailable("the other site is gone"))),
            on_unreadable=lambda error: handover.post(partial(self.end, error)),
        )

    # -- faults

    kind = "link"

    def end_by_fault(self) -> None:
        """The other site is told, and calls again."""
        self.end(PenstockError(TOLD))

    # -- the loop's thread

    def open(self) -> None:
        """Take part.  PreconditionFailed with a line for each thing on which the two sites do not agree."""
        command, links = self.command, self._links
        if command.name != links.site.name:
            raise PreconditionFailed(f"this site is called {links.site.name!r}, and the link is to {command.name!r}")
        met = [Site(*one) for one in command.sites]
        has = links.joins(self, Site(command.site, command.origin, command.group), met, command.offers)
        site, self.upto, offers = links.site, has, links.engine.core.said_to(command.site)
        self._down.answer(Welcome(site.name, site.origin, site.group, has, offers, list(links.known)).words())

    def end(self, error: PenstockError) -> None:
        """Stop for a reason that the other site is told; twice does no harm."""
        if self._ending is None:
            self._ending = error
            self._links.leaves(self)
            while self._queue:
                self._queue.popleft()[-1].fail(error)
            self._down.finish(error)

    @property
    def host(self) -> str:
        """From where it is called."""
        return self.peer.rpartition(":")[0]

    def speaks(self) -> bool:
        """Whether it is there for sure: who was cut off is heard of no more before it calls again."""
        return self._ending is None and self._engine.clock.mono() - self._heard_at < SPEAKS_US

    def beat(self, now: int) -> None:
        """Once a second: a site whose login is none any more is cut off, one that is silent is given up."""
        if (why := self._caller.refusal()) is not None:
            self.end(why)
        elif self._ending is None and now - self._heard_at > SILENT_US:
            self._slot.abandon()
            self.end(Unavailable(f"nothing was heard from site {self.site!r} for {SILENT_US // 1_000_000} s"))

    def go_on(self) -> None:
        """Hear what waits, as far as it may be heard now."""
        self._waits = False
        engine = self._engine
        while self._queue and not self._waits and self._ending is None:
            head, rows, size, answer = self._queue[0]
            if (why := engine.refusal()) is not None:
                self.end(why)  # an alarm says so, and that site comes again
                break
            if not engine.has_room():
                self._waits = True
                engine.on_room.append(self.go_on)
                return
            if engine.turns.late(self.go_on):
                self._waits = True
                return
            try:
                heard = engine.core.hear(engine.now(), self.site, head, rows, judged=True)
            except (PenstockError, ValueError) as error:
                self._cut_off(error)
                break
            self._queue.popleft()
            self.parcels += 1
            self.rows += 0 if rows is None else rows.num_rows
            self.size += len(head) + size
            answer.give(None)
            for line in heard.faults:
                self._links.warn(f"from site {self.site!r}: {line}")
            engine.when_durable(heard.lsn, partial(self._ack, heard.upto))
        self._look_whether_level()
        engine.arm()

    def _ack(self, upto: int) -> None:
        self.upto = max(self.upto, upto)
        self._down.answer(b'{"ack":%d}' % upto)

    def _came(self, head: bytes, rows: pa.RecordBatch | None, size: int, answer: Answer[None]) -> None:
        """size: bytes of the rows."""
        if self._ending is not None:
            answer.fail(self._ending)
            return
        self._queue.append((head, rows, size, answer))
        if not self._waits:
            self.go_on()

    def _leveled(self, answer: Answer[None]) -> None:
        self._level = True
        self._look_whether_level()
        answer.give(None)

    def _look_whether_level(self) -> None:
        if self._level and not self._queue and self._ending is None:
            self._level = False
            self._links.level(self.site)

    def _asked(self, said: Said, answer: Answer[None]) -> None:
        if self._ending is not None:
            answer.fail(self._ending)
            return
        if self._engine.turns.late(partial(self._asked, said, answer)):
            return
        self.asks += 1
        core, now = self._engine.core, self._engine.now()
        try:
            if said.ask is not None:
                core.answer(now, self.site, said.ask)
            elif said.enquiry is not None:
                core.enquired(now, self.site, said.enquiry)
        except (PenstockError, ValueError) as error:
            self._cut_off(error)
        answer.give(None)
        self._engine.arm()

    def _cut_off(self, error: PenstockError | ValueError) -> None:
        """It said what it may not say."""
        told = error if isinstance(error, PenstockError) else InvalidArgument(f"link: {error}")
        self._links.warn(
            f"the link from site {self.site!r} is cut off: {told}"
        )  # which may call again at once, for ever
        self.end(told)

    # -- Flight's thread

    def serve(self, arriving: Arriving, writer: Any) -> None:
        """Run the stream from its first to its last word."""
        self._handover.call(self.open, self._caller.gone)
        self._down.beside(writer, CARRIED, "penstock-link-acks", partial(self._read, arriving), self._wind_up)

    def _wind_up(self, failure: PenstockError | None) -> None:
        """The other site sends no more, or we gave it up."""
        why = failure or Unavailable("the other site has ended the link")
        try:
            self._handover.call(partial(self.end, why), durable=False)
        except (LogBroken, Unavailable):
            self._down.finish(why)

    def _read(self, arriving: Arriving) -> None:
        waiting = deque[Answer[None]]()
        for received, words in arriving.each(LINKED):
            self._heard_at = self._engine.clock.mono()
            if self._ending is not None:
                return
            if words is None:
                raise InvalidArgument("link: rows came without the head of a parcel")
            if words.startswith(SAID):
                if received:
                    raise InvalidArgument("link: rows came beside what is no parcel")
                said = read_said(words)
                if said.ask is not None or said.enquiry is not None:
                    waiting.append(self._handover.submit(partial(self._asked, said)))
                elif said.level:
                    waiting.append(self._handover.submit(self._leveled))
            else:
                rows, size = (read_rows(received, self._bounds), received.size) if received else (None, 0)
                waiting.append(self._handover.submit(partial(self._came, words, rows, size)))
            while len(waiting) > WAITING_MOST or (waiting and waiting[0].given):
                waiting.popleft().wait(self._caller.gone)
            arriving.release()
            self._down.await_reader()


def _nobody() -> None: ...
