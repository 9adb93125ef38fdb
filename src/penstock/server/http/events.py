"""Who looks on at what happens: places in the feed, and what each is shown.  `wire.http.events` sends it."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from starlette.responses import Response

from penstock.errors import Unavailable
from penstock.records.rights import LOGIN, MANAGEMENT, MONITORING, Level
from penstock.server.base.allocator import resident_bytes
from penstock.server.base.faults import Chore
from penstock.server.follow import Asking
from penstock.server.http.routes import Ask
from penstock.server.http.routes import Row as Path
from penstock.server.notices import Feed, Happened, Missed, RingSource
from penstock.server.sums import Seen
from penstock.server.watch import Row, Sight, Watch
from penstock.wire.http.events import QUERY, TYPE, EventStream, Told, Wanted, read_wanted
from penstock.wire.http.lists import HEADERS, turn

if TYPE_CHECKING:
    from penstock.server.http.facts import Facts
    from penstock.server.people.access import Who
    from penstock.server.people.entitlements import Rights
    from penstock.server.services import Server

LOOK_S = 1.0
"""How often the server is looked at for what no record tells of, while it serves."""

COUNT_S = 2.0
"""While somebody looks on queues are counted at least so often, whatever he asked for."""

STOPS = "the server stops"

SUMMARY = "What changes, as server-sent events: stats every interval (250ms to 1h, off), of top= queues and queue="


class Events:
    """All places.  Belongs to the loop's thread."""

    def __init__(self, server: Server, facts: Facts) -> None:
        self._server = server
        self.facts = facts
        self.run = secrets.token_hex(4)  # part of every id: numbers begin anew with the process
        self.places = set[Place]()
        self._watch: Watch | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._counting: asyncio.Task[None] | None = None
        self._chore: Chore | None = None  # those looks, once the server is there
        self.closed = ""  # why nobody is let in any more

    # -- looks

    def begin(self) -> None:
        """Look once a second from now on, as soon as the server is there."""
        self._look()

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(LOOK_S, self._look)
        if self._server.serving and not self.closed:
            if self._chore is None:
                self._chore = Chore(self._server.engine.faults, self._server.engine.clock, self._look_now)
            self._chore.run()

    def _look_now(self) -> None:
        watch = self.watch_of()
        watch.look()
        if self.places and (self._counting is None or self._counting.done()):
            assert self._chore is not None
            self._counting = asyncio.ensure_future(watch.census.count(COUNT_S))
            self._chore.begun(self._counting)

    def watch_of(self) -> Watch:
        """What looks.  Raises Unavailable while the server starts."""
        self.facts.refuse_early()
        if self._watch is None:
            self._watch = Watch(self._server)
        return self._watch

    def close(self, why: str = STOPS) -> None:
        """Tell everybody that nothing more comes."""
        self.closed = why
        if self._timer is not None:
            self._timer.cancel()
        if self._counting is not None:
            self._counting.cancel()
        for place in list(self.places):
            place.wake()

    # -- places

    def rows(self) -> Sequence[Path]:
        """The path where a client looks on."""

        async def stream(ask: Ask) -> Response:
            wanted = read_wanted(ask.request)
            if ask.request.method == "HEAD":
                return Response(headers={**HEADERS, "content-type": TYPE})
            return EventStream(self.watch(ask.user, ask.who, wanted), wanted.interval)

        return (Path("GET", "/api/events", stream, SUMMARY, LOGIN, query=" ".join(QUERY), own=True),)

    def watch(self, user: str, who: Who, wanted: Wanted) -> Place:
        """A new place, of somebody who logged in as this user.  Raises Unavailable."""
        watch = self.watch_of()
        if self.closed:
            raise Unavailable(self.closed)
        share = self._server.shares.of("event_streams")
        share.take(who)
        if not self.places:
            watch.census.open()
        try:
            place = Place(self, self._server, watch, user, wanted, who.user)
        except BaseException:
            share.give(who.user)
            raise
        self.places.add(place)
        return place

    def forget(self, place: Place) -> None:
        if place in self.places:
            self.places.discard(place)
            self._server.shares.of("event_streams").give(place.share_of)
        if not self.places and self._watch is not None:
            self._watch.census.close()


class Place:
    """One client's: how far it has seen, and what it may see."""

    def __init__(self, events: Events, server: Server, watch: Watch, user: str, wanted: Wanted, share_of: str) -> None:
        """user: as he logged in: with a token he looks on no longer than it lasts.  share_of: whose share it is."""
        self.user = user
        self.share_of = share_of
        self._era = server.users.who(user).era
        self._events = events
        self._server = server
        self._watch = watch
        self._wanted = wanted
        self._feed: Feed = server.engine.notices.feed
        self._woken = asyncio.Event()
        self._seen: dict[int, bool] = {}  # by queue id: whether these rights show it
        self._rights: Rights | None = None
        self._first: list[Told] = []
        self._ring = RingSource(self._feed, self._begin(wanted.last))
        self._ring.begin(Asking(self.wake, lambda _: None))

    def _begin(self, last: str) -> int:
        """Where to read on, after the words that come first."""
        run, _, number = last.partition("-")
        feed = self._feed
        at = feed.last
        if run == self._events.run and number.isascii() and number.isdecimal():
            at = min(int(number), feed.last)
        elif last:
            at = feed.first - 1
            why = "the server has been started anew, or the id is none of its own"
            self._first.append(Told("gap", {"after": last, "reason": f"{why}: what was before is not known"}))
        hello = {"user": self.user, "server": self._server.settings.server.name, "interval": self._wanted.interval}
        self._first.insert(0, Told("hello", hello, "" if last else self._id(at)))
        return at

    def _id(self, number: int) -> str:
        return f"{self._events.run}-{number}"

    def wake(self) -> None:
        self._woken.set()

    async def wait(self, seconds: float) -> None:
        """Return when something has happened, or that time is over."""
        if seconds > 0 and not self._first:
            try:
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
            except TimeoutError:
                return
        self._woken.clear()

    def close(self) -> None:
        self._ring.close()
        self._events.forget(self)

    # -- what it may see

    @property
    def ended(self) -> str:
        if self._events.closed:
            return self._events.closed
        same = self._server.users.who(self.user).era == self._era
        return "" if same and self._may(MANAGEMENT) else f"user '{self.user}' may not look on any more"

    def _may(self, level: Level) -> bool:
        return level.holds(self._server.users.tags(self.user))

    def _sees(self, event: Happened) -> bool:
        if self._wanted.only and not event.name.startswith(self._wanted.only):
            return False
        if event.level is not None and not self._may(event.level):
            return False
        users = self._server.users
        if event.user is not None and event.user != self.user and not self._may(MONITORING):
            return False
        if event.vhost is None:
            return True
        if event.queue is not None:
            rights = users.rights(self.user)
            return rights is None or rights.sees_queue(event.vhost, event.queue)
        return users.who(self.user).has(event.vhost, MONITORING)

    def _visible(self) -> Sequence[Row] | None:
        """The rows that the user sees; None: all."""
        rights = self._server.users.rights(self.user)
        if rights is None:
            return None
        if rights is not self._rights or len(self._seen) > 2 * len(self._watch.census.rows) + 1000:
            self._rights, self._seen = rights, {}
        out: list[Row] = []
        seen = self._seen
        for number, row in self._watch.census.rows.items():
            shown = seen.get(number)
            if shown is None:
                shown = seen[number] = rights.sees_queue(row.queue.vhost, row.queue.name)
            if shown:
                out.append(row)
        return out

    # -- what it is told

    def news(self, most: int) -> Sequence[Told]:
        """What has happened since the last call."""
        told, self._first = self._first, []
        for event in self._ring.next(most) or ():
            if isinstance(event, Missed):
                reason = f"{event.lost} events are not kept any more"
                told.append(Told("gap", {"after": self._id(event.after), "reason": reason}))
            elif self._sees(event):
                shown = bool(event.by) and (event.by == self.user or self._may(MONITORING))
                data = {"time": event.time / 1e6, **({"by": event.by} if shown else {}), **event.fields}
                told.append(Told(event.name, data, self._id(event.number)))
        if self._ring.behind:
            self._woken.set()
        return told

    async def stats(self) -> Told:
        census = self._watch.census
        await census.count()
        async with turn():
            seen = census.sight(self._server.users.rights(self.user), self._visible)
            top = seen.deepest[: self._wanted.top]
            there = {row.queue.id for row in top}
            queues = [row.plain() for row in (*top, *(row for row in self._named() if row.queue.id not in there))]
            told = Told("stats", {**self._server_facts(), "totals": self._totals(seen), "queues": queues})
            await asyncio.sleep(0)
        return told

    def _named(self) -> Iterator[Row]:
        core, rights, vhost = self._server.engine.core, self._server.users.rights(self.user), self._wanted.vhost
        for name in self._wanted.queues:
            queue = core.find_queue(vhost, name)
            row = None if queue is None else self._watch.census.rows.get(queue.id)
            if row is not None and (rights is None or rights.sees_queue(vhost, name)):
                yield row

    def _totals(self, seen: Sight) -> Mapping[str, object]:
        totals = seen.totals
        connections, channels = Seen(self._server, self._server.users.who(self.user)).connections()
        return {
            "queues": seen.queues,
            "messages": totals["messages"],
            "messages_ready": totals["ready"],
            "messages_unacknowledged": totals["leased"],
            "messages_delayed": totals["delayed"],
            "consumers": totals["consumers"],
            "connections": connections,
            "channels": channels,
            **{name: totals[name] for name in ("publish_rate", "deliver_rate", "ack_rate")},
        }

    def _server_facts(self) -> dict[str, object]:
        engine, log = self._server.engine, self._server.log
        budget, segments = engine.bodies.budget, log.segments()
        return {
            "time": engine.clock.wall() / 1e6,
            "status": self._events.facts.health().get("status"),
            "alarms": [{"alarm": name, "reason": why} for name, why in self._server.alarms.now.items()],
            "memory": {"used": budget.used, "limit": budget.limit, "resident": resident_bytes()},
            "disk_free": log.disk.free(),
            "log": {
                "bytes": sum(segment.bytes for segment in segments),
                "segments": len(segments),
                "durable_lsn": log.durable,
                "last_lsn": engine.core.last_lsn,
            },
        }
