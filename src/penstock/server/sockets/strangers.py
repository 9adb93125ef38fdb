"""Strangers of a door: connections that have not logged in.  How many there may be, and how long each may stay.

    enter -> stranger --known()--> counted no more; the door's own rules hold
                |  ^
                |  '--again()----- it has to say once more who it is (HTTP: the next request)
                |-----gone()-----> the socket is closed
                '-----time, or somebody else needs the place--> a line in the log, and `close` is called

Everybody has `time_s`.  Clients speak first in all our protocols, and at once, so of more than `per_address` from one
address those that have not said a word have a third of it.  Where all `sockets` are taken these have `SILENT_S`, and
others `SHORT_S`, those of a crowded address first.  So a thousand clients that connect at once are all served, each in
milliseconds, and a thousand that say nothing soon make room.  Who is `held` waits for us, not we for it.

Knows no protocol and no socket.  For the loop's thread.

Lines in the log about strangers, and about clients, are bounded, because these decide how many there would be: the same
word about the same host once in `TOLD_S`, `MOST` words in all in that time, and then how many more there were.
"""

from __future__ import annotations

import ipaddress
import logging
from collections import Counter
from collections.abc import Callable
from functools import partial
from math import inf

from penstock.records.dataclass import dataclass

logger = logging.getLogger("penstock.server.doors")

TOLD_S = 10.0
MOST = 20
"""Lines in `TOLD_S`."""


Later = Callable[[float, Callable[[], None]], object]


class Complaints:
    def __init__(self, later: Later, more: str = "were sent away in {:g} s, for the same or other reasons") -> None:
        """later: runs something after so many seconds.  more: how a line ends that tells how many had none."""
        self.counts = Counter[str]()  # by door, also of what was not written
        self._later = later
        self._ends = more.format(TOLD_S)
        self._told = set[tuple[str, ...]]()  # since the present span began
        self._more = Counter[str]()  # by door, not written in the present span
        self._open = False

    def tell(self, door: str, host: str, why: str) -> None:
        """`why` goes on after "was sent away: "; it must not hold text that a stranger chose without a bound."""
        self.say(door, (host, why), f"{host} was sent away: {why}")

    def say(self, door: str, key: tuple[str, ...], line: str) -> None:
        """A line about whom a door met, unless one with the same key was written a moment ago."""
        self.counts[door] += 1
        if not self._open:
            self._open = True
            self._later(TOLD_S, self._over)
        if (door, *key) in self._told or len(self._told) >= MOST:
            self._more[door] += 1
            return
        self._told.add((door, *key))
        logger.warning("%s: %s", door, line)

    def _over(self) -> None:
        """The span has ended: what was not written is told as a number."""
        self._open = False
        self._told.clear()
        more, self._more = self._more, Counter[str]()
        for door, count in more.items():
            logger.warning("%s: %d more %s", door, count, self._ends)


SHORT_S = 1.0
SILENT_S = 0.25

CROWDED = 3
"""By how much shorter the time of the silent is where many come from their address."""

GIVE_WAY = 4
"""Where places are short one in so many gives way at each look."""

LOOK_S = 0.25
LOOK_SOON_S = 0.05
"""Between two looks at strangers, while there are some; and while somebody waits for their places."""

HEARD_MOST = 1 << 20
"""Bytes of a stranger that are read at all.  A door refuses far fewer, but who still writes should hear why."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The bounds for a connection before its login."""

    time_s: float = 10.0
    sockets: int = 512  # of one door
    per_address: int = 64


class Stranger:
    __slots__ = (
        "_guard", "_heard", "address", "close", "counted", "doing", "held", "host", "idle", "port", "received", "since",
    )  # fmt: skip

    derive = None
    """Who makes a digest of its password: nobody but this process."""

    def __init__(self, guard: Guard, host: str, port: int, close: Callable[[], None]) -> None:
        self._guard = guard
        self._heard = 0  # bytes, since its time began
        self.counted = False  # it is one now; its guard says so
        self.host = host
        self.port = port
        self.address = address_of(host)
        self.since = 0.0
        self.close = close  # ends the connection; whoever serves it takes this over
        self.held = False  # it has done its part, and waits for us
        self.idle = False  # it owes nothing, and to be sent away is no reason for a complaint
        self.doing = ""  # what it does, for a complaint
        self.received: Callable[[], int] = self._said  # bytes that came of it; whoever knows better takes this over

    def tell(self, why: str) -> None:
        """A line in the log: it was sent away."""
        self._guard.tell(self.host, why)

    @property
    def silent(self) -> bool:
        """Whether nothing has come from it yet."""
        return not self.received()

    def _said(self) -> int:
        return self._heard

    def heard(self, size: int) -> None:
        """Count bytes that came before its login."""
        self._heard += size
        if self._heard > HEARD_MOST and self.counted:
            self._guard.send_away(self, "bytes", f"it sent more than {HEARD_MOST >> 20} MiB without a login")

    def beyond(self, what: str) -> None:
        """Count that its door ends it for exceeding one of the bounds."""
        if self.counted:
            self._guard.closed[what] += 1

    def known(self) -> None:
        self._guard.drop(self)

    def again(self, *, idle: bool = False) -> None:
        """Its time begins anew, whether it was known or not."""
        self.held, self.idle, self._heard = False, idle, 0
        self._guard.drop(self)
        self._guard.put(self)

    def gone(self) -> None:
        """Its socket is closed; any number of times."""
        self._guard.drop(self)


class Guard:
    """The connections of one door that have not logged in."""

    def __init__(self, door: str, terms: Terms, complaints: Complaints, now: Callable[[], float], later: Later) -> None:
        """now: seconds that never go back.  later: runs something after so many of them."""
        self.door = door
        self.terms = terms
        self._complaints = complaints
        self.closed = Counter[str]()  # by what they went beyond: time, bytes, per_address, sockets
        self._now = now
        self._later = later
        self._strangers = dict[Stranger, None]()  # the oldest first
        self._by_address = Counter[str]()
        self._waiting = list[Callable[[], None]]()
        self._pressed = False
        self.spare: Callable[[], None] = lambda: None
        """Ends some connections that nobody would miss, where descriptors are short: of those who have logged in."""
        self._due = inf  # when to look next

    def __len__(self) -> int:
        return len(self._strangers)

    def __contains__(self, stranger: Stranger) -> bool:
        """Whether this is one of them."""
        return stranger in self._strangers

    @property
    def room(self) -> bool:
        """Whether one more may come."""
        return len(self._strangers) < self.terms.sockets

    def tell(self, host: str, why: str) -> None:
        """A line in the log: somebody was sent away."""
        self._complaints.tell(self.door, host, why)

    def enter(self, host: str, port: int, close: Callable[[], None]) -> Stranger:
        """Somebody came.  `close` ends his connection; whoever asks `room` first keeps to the terms."""
        stranger = Stranger(self, host, port, close)
        self.put(stranger)
        return stranger

    def when_room(self, go_on: Callable[[], None]) -> None:
        """Run `go_on` once there is room, for somebody who has to wait: the silent have less patience meanwhile."""
        self._waiting.append(go_on)
        self._look_soon()

    def press(self) -> None:
        """Somebody needs what a stranger holds, a descriptor say: the silent have less patience for one look."""
        self._pressed = True
        self._look_soon()

    def _of_crowded_first(self) -> list[Stranger]:
        """All of them, those of an address with many first, the oldest of each first."""
        return sorted(self._strangers, key=lambda one: self._by_address[one.address] <= self.terms.per_address)

    def send_away(self, stranger: Stranger, what: str, why: str) -> None:
        """End its connection.  what: of the terms, for the count."""
        self.closed[what] += 1
        if not stranger.idle:
            stranger.tell(f"{why}: {stranger.doing}" if stranger.doing else why)
        self.drop(stranger)
        stranger.close()

    # -- for `Stranger`

    def put(self, stranger: Stranger) -> None:
        """Count it among the strangers."""
        stranger.since = self._now()
        self._strangers[stranger] = None
        stranger.counted = True
        self._by_address[stranger.address] += 1
        self._look_soon()

    def drop(self, stranger: Stranger) -> None:
        """Count it among the strangers no longer."""
        if stranger not in self._strangers:
            return
        del self._strangers[stranger]
        stranger.counted = False
        self._by_address[stranger.address] -= 1
        if not self._by_address[stranger.address]:
            del self._by_address[stranger.address]
        if self._waiting and self.room:
            waiting, self._waiting = self._waiting, []
            for go_on in waiting:
                go_on()

    # -- time

    def _look_soon(self) -> None:
        """Schedule a look; sooner when somebody waits."""
        wanted = self._now() + (LOOK_SOON_S if self._waiting or self._pressed else LOOK_S)
        if self._due > wanted:
            self._due = wanted
            self._later(wanted - self._now(), partial(self._look, wanted))

    def _look(self, due: float) -> None:
        """Send away whose time is over, and see who waits for a place."""
        if due != self._due:
            return  # a sooner one came before this
        self._due = inf
        crowded = self._pressed or bool(self._waiting)
        if self._pressed:
            self._pressed = False
            self.spare()
        give_way, now = -(-len(self) // GIVE_WAY) if crowded else 0, self._now()
        for one in self._of_crowded_first() if crowded else list(self._strangers):
            if not one.held and one in self._strangers and (why := self._over(one, now - one.since, give_way > 0)):
                give_way -= why[0] == "sockets"
                self.send_away(one, *why)
        if self._strangers or self._waiting:
            self._look_soon()

    def _over(self, one: Stranger, age: float, crowded: bool) -> tuple[str, str] | None:
        """Why a stranger's time is over after so many seconds, if so: the reason's name, and a sentence."""
        terms = self.terms
        most = SILENT_S if one.silent else SHORT_S
        if age >= terms.time_s:
            return "time", f"it had not logged in after {terms.time_s:g} s"
        if crowded and age >= most:
            return "sockets", f"it had not logged in after {most:g} s, and others wait for its place"
        if one.silent and age >= terms.time_s / CROWDED and self._by_address[one.address] > terms.per_address:
            return "per_address", f"more than {terms.per_address} connections of its address had not logged in"
        return None


class Guards:
    """The guards of a server's doors, by name."""

    def __init__(self, terms: Terms, complaints: Complaints, now: Callable[[], float], later: Later) -> None:
        self.terms = terms
        self.complaints = complaints
        self._now = now
        self._later = later
        self.by_door = dict[str, Guard]()

    def of(self, door: str) -> Guard:
        """The guard of a door."""
        guard = self.by_door.get(door)
        if guard is None:
            guard = self.by_door[door] = Guard(door, self.terms, self.complaints, self._now, self._later)
        return guard

    def press(self) -> None:
        """Descriptors are short: silent strangers of all doors have less patience."""
        for guard in self.by_door.values():
            guard.press()


def address_of(host: str) -> str:
    """The key by which addresses are counted: IPv4 as it is (also written as IPv6), of IPv6 the network of 64 bits.

    Whoever has one address of such a network has all of them (RFC 6177).  What is no address counts by its text.
    """
    if ":" not in host:
        return host
    try:
        address = ipaddress.IPv6Address(host.partition("%")[0])
    except ValueError:
        return host
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    return str(ipaddress.IPv6Address(int(address) >> 64 << 64)) + "/64"
