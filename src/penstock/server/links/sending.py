"""One link to another site: a thread reads what is durable in the log, tells it, and hears how far it was heard.

    thread   log -> batches --loop--> parcels -> written            a second one reads acks, and hands them to the loop
    loop     what a batch says to the other site is the core's to decide; asks go out between two parcels

Where all else is told, a short commit is read and told on the loop as it becomes durable: the thread only writes it.

The log is the queue: what waits for a slow or absent site is not in memory.  How far the other site is it says itself
when the link comes up, and all behind that goes out again; what it had already it knows.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Literal

import pyarrow as pa

from penstock.core.links.parcels import SPANS_MOST, Parcel
from penstock.core.links.sharing import Site
from penstock.core.links.telling import Telling, spans_in
from penstock.errors import PenstockError, PreconditionFailed, Unavailable
from penstock.history.history import joined
from penstock.log.record_batches import joined as as_one
from penstock.server.base.faults import REST_LEAST_US, REST_MOST_US, TOLD, reports
from penstock.server.flight.handover import Bell
from penstock.server.links.calling import SILENT, Connection, Flight, Flying, Reading, closed, ours
from penstock.wire.flight.linking import BEAT, LEVEL, Welcome

if TYPE_CHECKING:
    from penstock.config.links import LinkSection, Target
    from penstock.core.links.lasting import LinkState
    from penstock.server.links.home import Sender

logger = logging.getLogger("penstock.links")

BEAT_S = 5.0
AGAIN_S = (0.1, 5.0)
"""Pauses before the next try: at first, and at most."""

ROWS_MOST, BYTES_MOST = 10_000, 8 << 20
"""What the log gives is told in batches of about so much, or as large as they lie there."""

AT_ONCE_LSNS, AT_ONCE_BYTES, AT_ONCE_PARCELS = 2_000, 256 << 10, 8
"""What is no longer than this is told on the loop, unless so many parcels wait to be written."""

SAID_MOST, STEADY_US = 20, 30_000_000
"""Different reasons that are in the server's log while a link is not up: each try may end for another one.  It may come
up, and end for the same one, as where that site's disk is full: the log has it anew when it was up for so long.
"""

NOTED_AFTER = 1 << 20
"""So many LSNs that say nothing to another site are remembered as told to it all the same."""

State = Literal["starting", "up", "down", "refused", "paused"]


class Outgoing:
    """One link.  The loop's thread asks and changes it; `run` and `_read` are threads of its own."""

    def __init__(self, links: Sender, section: LinkSection, before: LinkState) -> None:
        """before: what is remembered of it."""
        self.section = section
        self.name = section.name
        self.state: State = "paused" if before.paused else "starting"
        self.why: str | None = None  # it is not up
        self.since = links.engine.clock.wall()  # it is in this state
        self.address: str | None = None  # where it is connected
        self.downgraded = False
        self.told = 0  # this far the log was read for it
        self.parcels = self.rows = self.size = self.asks = 0  # that were sent since the start
        self._links = links
        self._flying = Flying()
        self._acked = self._noted = before.acked
        self._noted_parcels = 0
        self._owed_since = 0  # microseconds, monotonic: when the oldest parcel that is under way was sent
        self._asks = deque[bytes]()
        self._out = deque[Parcel]()  # told, in their order, and not written
        self._telling: Telling | None = None  # since it came up
        self._midway = False  # of a batch it has more to say, before anything else is told
        self._bell = Bell()
        self._said = set[str | None]()  # why it is not up, since it was up
        self._over = False
        self._leveled = False  # since it came up
        self.paused = before.paused  # whether an operator has it wait
        self._connection: Connection | None = None
        self._reading: Reading | None = None  # of the last connection that came up
        self._session = 1
        self._tries = 0
        self._at_once = False  # the next one does not wait
        self._faults = 0  # that nobody expected, since it was level
        self._thread = threading.Thread(target=self._run, name=f"penstock-link-{self.name}", daemon=True)

    # -- the loop's thread

    def start(self) -> None:
        """Begin to call the other site."""
        self._thread.start()

    def stop(self) -> None:
        """End; the thread may take a moment."""
        self._over = True
        self._cut()

    def join(self, seconds: float) -> None:
        """Wait for its thread, which ends once it was stopped: seconds at most."""
        if self._thread.is_alive():
            self._thread.join(seconds)

    def durable(self, lsn: int) -> None:
        """More of the log is on the disk, up to there.

        What only came from that site is not even read.
        """
        if not self._owed_since:
            self._owed_since = self._links.engine.clock.mono()  # from now on it is owed
        after, upto = self._links.engine.core.quiet.get(self.name, (0, 0))
        if not self.up or not self._leveled:
            self._bell.ring()
        elif after <= self.told and lsn <= upto:
            self._read_upto(lsn, self._session)
        elif not self._tell_at_once(lsn) or self._out:
            self._bell.ring()

    def _tell_at_once(self, lsn: int) -> bool:
        """Tell all up to there now, if that is short; whether it was."""
        log, start = self._links.engine.log, self.told + 1
        if self._telling is None or self._midway:
            return False
        if self._flying.full or len(self._out) > AT_ONCE_PARCELS:
            return False
        if lsn - start >= AT_ONCE_LSNS or log.weight(start, lsn + 1) > AT_ONCE_BYTES:
            return False
        try:
            batches = list(log.batches(start, lsn + 1))
        except (PenstockError, OSError, pa.ArrowException):
            return False  # the thread meets it, too, and the link says so
        if sum(map(spans_in, batches)) > SPANS_MOST:
            return False  # a turn takes no more
        try:
            if batches:
                parcels = self._telling.parcels(as_one(batches))
                while self._tell(parcels, int(batches[-1].column("lsn")[-1].as_py()), self._session):
                    pass
        except Exception as error:  # noqa: BLE001 - the border of one link
            self._links.engine.faults.contain(error, self)
            return True
        self._read_upto(lsn, self._session)
        return True

    def ask(self, words: bytes) -> None:
        """Ask the other site for messages that are its own, or what became of some."""
        self.asks += 1
        self._asks.append(words)
        self._bell.ring()

    @property
    def up(self) -> bool:
        """Whether the other site hears."""
        return self.state == "up"

    @property
    def done(self) -> int:
        """The other site has everything on its disk that this log says to it up to here."""
        oldest = self._flying.oldest
        return max(self.told if oldest is None else oldest.before, self._acked)

    @property
    def owes_for(self) -> int:
        """Microseconds since the oldest thing was due that the other site does not have."""
        engine = self._links.engine
        if self.done >= engine.log.durable or not self._owed_since:
            return 0
        oldest = self._flying.oldest if self.up else None
        since = self._owed_since if oldest is None else max(oldest.at, self._owed_since)
        return max(0, engine.clock.mono() - since)

    @property
    def waited_for(self) -> bool:
        """Whether confirms wait for this site."""
        return self.section.sync and not self.downgraded and not self.paused

    def judge_silence(self) -> None:
        """Once a second: a site that says nothing is given up, also while the thread writes what nobody reads."""
        if self._reading is not None and self._reading.silent:
            self.renew(SILENT)

    def judge_delay(self) -> None:
        """Once a second: confirms wait for a site as long as the settings say, and again when it has come after."""
        most = self.section.downgrade_after
        if most is not None and not self.downgrade(most):
            self.upgrade(self.section.upgrade)

    def downgrade(self, age: int) -> bool:
        """Confirms wait for it no longer, if it owes something older than this; whether that is so now."""
        owed = self.owes_for
        if not self.section.sync or self.downgraded or owed <= age:
            return False
        self.downgraded = True
        logger.warning("link %r is downgraded: confirms do not wait for it, for it owes %.1f s", self.name, owed / 1e6)
        self._links.moved()
        self._links.happened(self.name, "downgrade")
        return True

    def upgrade(self, age: int) -> None:
        """Confirms wait for it again, if it is up and owes nothing older than this."""
        if self.downgraded and self.up and self.owes_for <= age:
            self.downgraded = False
            logger.warning("link %r is upgraded: confirms wait for it again", self.name)
            self._links.happened(self.name, "upgrade")

    def pause(self, *, paused: bool) -> None:
        """Tell nothing more, or go on."""
        self.paused = paused
        if paused:
            self._is("paused")
            self._cut()
            self._links.moved()
        elif self.state == "paused":
            self._is("starting")
        self._tries, self._at_once = 0, not paused
        self._bell.ring()

    def note(self) -> None:
        """Once a second: remember how far the other site is, if it was told something since.

        That alone is a record in the log, which would else be told of again and again.
        """
        if self._said and self.up and self._links.engine.clock.wall() - self.since > STEADY_US:
            self._said.clear()
            logger.info("link %r is up: %s", self.name, self.address)
        done = self._links.engine.core.acked[self.name] = self.done
        if done > self._noted and (self.parcels > self._noted_parcels or done - self._noted > NOTED_AFTER):
            self._noted, self._noted_parcels = done, self.parcels
            self._links.engine.core.note_link(self._links.engine.now(), self.name, acked=done)

    def renew(self, why: str) -> None:
        """Begin anew: what both sides agreed on is different now."""
        if self.up:
            self._is("down", why)
            self._at_once = True
            self._cut()

    kind = "link"

    def end_by_fault(self) -> None:
        """It begins anew, after a while."""
        self._faults += 1
        self.renew(TOLD)

    def nudge(self) -> None:
        """That site is there: call it at once."""
        if not self.up and not self.paused:
            self._at_once = True
            self._bell.ring()

    def _cut(self) -> None:
        connection, self._connection = self._connection, None
        self._session += 1
        if connection is not None:
            threading.Thread(target=closed, args=(connection,), name="penstock-link-close", daemon=True).start()
        self._bell.ring()

    def _is(self, state: State, why: str | None = None) -> None:
        if (state, why) == (self.state, self.why):
            return
        if state != self.state:
            self.since = self._links.engine.clock.wall()
        if state in ("down", "refused") and why not in self._said and len(self._said) < SAID_MOST:
            self._said.add(why)
            logger.warning("link %r is %s: %s", self.name, state, why)
        elif state == "up" and not self._said:
            logger.info("link %r is up: %s", self.name, self.address)
        before, self.state, self.why = self.state, state, why
        if "up" in (before, state):
            self._links.changed(self.name, up=self.up)
            self._links.happened(self.name, "up" if self.up else "down")

    def _came_up(self, welcome: Welcome, address: str, session: int) -> tuple[int, int, Telling]:
        """The other site is there; from behind which LSN on it is told, up to which it is level, and by whom."""
        links, section = self._links, self.section
        if session != self._session or self.paused:
            raise Unavailable("it was cut meanwhile")
        if welcome.site != section.name:
            raise PreconditionFailed(
                f"the site at {address} is called {welcome.site!r}, and this link is to {section.name!r}"
            )
        if section.group is not None and welcome.group != section.group:
            raise PreconditionFailed(
                f"site {welcome.site!r} is in group {welcome.group!r}, and this link is to one of {section.group!r}"
            )
        if welcome.has > (last := links.engine.core.last_lsn):
            raise PreconditionFailed(
                f"site {welcome.site!r} has this log up to LSN {welcome.has}, and it ends at {last}: an older copy was "
                "put in its place, and what comes next would be taken for what was there before"
            )
        site = Site(welcome.site, welcome.origin, welcome.group)
        links.knows(section.name, [site, *(Site(*one) for one in welcome.sites)])
        links.agrees(site.name, welcome.offers)
        self._flying.clear()
        self._out.clear()
        self._asks.clear()  # the core has forgotten them, too, and asks anew for what is wanted by now
        self._acked = self.told = welcome.has
        self._leveled = self._midway = False
        self.address = address
        self._telling = links.telling(section, welcome.has)
        self._is("up")
        return welcome.has, links.engine.core.last_lsn, self._telling

    def _tell(self, parcels: Iterator[Parcel], last: int, session: int) -> bool:
        """What a batch of the log says to the other site is to be written; as much as fits a turn, True: there is more.

        last: of the batch.
        """
        if session != self._session:
            raise Unavailable("it was cut meanwhile")
        now, spans = self._links.engine.clock.mono(), 0
        for parcel in parcels:
            size = 0 if parcel.rows is None else parcel.rows.nbytes
            self._owed_since = self._owed_since or now
            self._flying.add(Flight(parcel.upto, self.told, size, now))
            self.parcels += 1
            self.rows += 0 if parcel.rows is None else parcel.rows.num_rows
            self.size += size
            self._out.append(parcel)
            spans += sum(len(one.spans) for one in parcel.told)
            if spans >= SPANS_MOST:
                self._midway = True
                return True
        self._midway = False
        self.told = max(self.told, last)
        if self._flying.oldest is None:
            self._moved()
        return False

    def _acked_by(self, ack: int, session: int) -> None:
        """In the thread that reads."""
        self._links.post(partial(self._heard, ack, session))

    def _heard(self, ack: int, session: int) -> None:
        if session != self._session:
            return
        ack, full = min(ack, self.told), self._flying.full  # no more than that can have come
        self._flying.heard(ack)
        self._acked = max(self._acked, ack)
        self._moved()
        if full:  # the thread may wait for room
            self._bell.ring()

    def _moved(self) -> None:
        """The other site is further than before."""
        engine, oldest = self._links.engine, self._flying.oldest
        if self.done >= engine.log.durable:
            self._owed_since = 0
        else:
            self._owed_since = engine.clock.mono() if oldest is None else oldest.at
        self._links.moved()

    def _ended(self, error: PenstockError, session: int) -> None:
        if session != self._session or self._over:
            return
        self._session += 1
        if not self.paused:
            self._is("refused" if isinstance(error, PreconditionFailed) else "down", str(error))

    # -- its threads

    def _run(self) -> None:
        links = self._links
        while not self._over:
            rests, began = self._faults, time.monotonic()
            try:
                if not self._call_targets():
                    return
            except Exception as error:  # noqa: BLE001 - this thread goes on, or nobody calls that site again
                self._failed(error)
                if not links.post(partial(self._ended, PenstockError(TOLD), self._session)):
                    return
            if not self._over:
                self._tries = 1 if time.monotonic() - began > BEAT_S else self._tries + 1
                pause = 3600.0 if self.paused else min(AGAIN_S[0] * 2 ** min(self._tries, 8), AGAIN_S[1])
                self._wait(pause, lambda: self._over or self._at_once)
            if self._faults > rests:
                self._rest(min(REST_LEAST_US << min(self._faults - 1, 10), REST_MOST_US) / 1e6)

    def _call_targets(self) -> bool:
        """Talk to each until it ends, whatever ends it; False: the server stops."""
        for target in self.section.targets:
            if self._over or self.paused:
                break
            session = self._session
            try:
                session, hello = self._links.call(self._begin)
                self._talk(target, session, hello)
            except Exception as error:  # noqa: BLE001 - of Flight, or ours: the link says so
                if not isinstance(error, PenstockError | pa.ArrowException | OSError | StopIteration):
                    self._failed(error)
                if not self._links.post(partial(self._ended, ours(error, target), session)):
                    return False
            finally:
                connection, self._connection = self._connection, None
                if connection is not None:
                    closed(connection)
        return True

    def _failed(self, error: Exception) -> None:
        """Nobody expected it: the site is called again later, each time."""
        if not getattr(error, "told", False):  # else it was on the loop, which has counted it
            reports.tell(error, self.kind)
            self._faults += 1

    def _wait(self, seconds: float, over: Callable[[], bool]) -> None:
        """For the next try; what the last one left to ring does not shorten it."""
        until = time.monotonic() + seconds
        while not over() and (left := until - time.monotonic()) > 0:
            self._bell.wait(left)
        self._at_once = False

    def _rest(self, seconds: float) -> None:
        """Also when there is something to tell: the same would fail again."""
        self._wait(seconds, lambda: self._over or self.paused)

    def _begin(self) -> tuple[int, bytes]:
        """A session, and what is said to the other site at first; on the loop, which has ended the one before."""
        return self._session, self._links.hello(self.section)

    def _talk(self, target: Target, session: int, hello: bytes) -> None:
        """Be connected, until something ends it, which is raised."""
        links = self._links
        connection = Connection(self.section, target, hello)
        self._connection = connection
        reading = self._reading = Reading(connection, self._bell, self._acked_by, links.engine.clock.mono)
        reading.start()
        at, level, telling = links.call(partial(self._came_up, reading.welcome(), str(target), session))
        reading.session = session
        said = time.monotonic()
        while session == self._session:
            reading.check()
            self._write(connection)
            at, upto = max(at, self.told), links.engine.log.durable
            if at < upto and not self._flying.full:
                self._tell_between(connection, reading, telling, at + 1, upto + 1, session)
                at = upto
                links.post(partial(self._read_upto, at, session))
            elif at >= level and not self._leveled:
                connection.write(LEVEL)
                self._leveled = True
                links.post(partial(self._is_level, session))
            else:
                self._bell.wait(BEAT_S)
            if time.monotonic() - said > BEAT_S:
                connection.write(BEAT)
                said = time.monotonic()

    def _tell_between(
        self, connection: Connection, reading: Reading, telling: Telling, start: int, stop: int, session: int
    ) -> None:
        """Tell what the log has with LSNs in [start, stop).

        What is said of messages lies behind them in their group: how they came, and as what.  So no batch is cut.
        """
        for batch in joined(self._links.engine.log.batches(start, stop), ROWS_MOST, BYTES_MOST, whole=True):
            last, parcels, more = int(batch.column("lsn")[-1].as_py()), telling.parcels(batch), True
            while more:
                more = self._links.call(partial(self._tell, parcels, last, session))
                self._write(connection)
                while self._flying.full and session == self._session:
                    reading.check()
                    self._bell.wait(BEAT_S)
                if session != self._session:
                    return

    def _read_upto(self, lsn: int, session: int) -> None:
        """The log has nothing more below; on the loop."""
        if session == self._session and lsn > self.told:
            self.told = lsn
            if self._flying.oldest is None:
                self._moved()

    def _is_level(self, session: int) -> None:
        """All that there was when the link came up is told; on the loop."""
        if session == self._session:
            self._faults = 0
            self._links.happened(self.name, "level")

    def _write(self, connection: Connection) -> None:
        """Write what was told, and then what is asked."""
        while self._out:
            parcel = self._out.popleft()
            connection.write(parcel.head, parcel.rows)
        while self._asks:
            connection.write(self._asks.popleft())
