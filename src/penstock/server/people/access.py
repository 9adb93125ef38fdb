"""Whether somebody may do something: what an operation asks (`records.rights`) against who asks, for every door.

What exists is not told by a refusal.  Rights are judged by names, before anything is looked up; a vhost that is not
there is refused like one that is not the user's, but to who sees all of them.

What one user may take: of each countable thing there is a whole, a share of it, and a few for administrators.

    taken of a user  <= `share` of the whole      so one user never has all
    taken by all     <= the whole                 but for administrators, who may have all of it
    administrators   <= the whole and `kept`      so who has to see what is going on always gets in

Counted is what is under way or held now; whoever takes gives back.  `THINGS` has all of them: what a login can take
and is not there either costs nothing or is bounded by the session or the memory that it is part of.  Knows no door.
Any thread.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Container, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, NotFound, PenstockError, Unavailable
from penstock.records.dataclass import dataclass
from penstock.records.rights import ADMINISTRATOR, DRIVER, REPORTER, Level, Need, Right

if TYPE_CHECKING:
    from penstock.server.people.entitlements import Rights


DEFAULT_VHOST = "/"


@dataclass(frozen=True, slots=True)
class Who:
    """Somebody who has logged in."""

    user: str
    tags: tuple[str, ...] = ()  # those that mean something, and DRIVER
    rights: Rights | None = None  # None: nothing is limited in the vhosts that he may open
    enters: Callable[[str], bool] = lambda vhost: True  # whether he may open a vhost
    there: bool = True  # he was not deleted meanwhile
    token: str = ""  # by which he logged in; with a password none
    era: int = 0  # another one, where somebody of his name was deleted before

    def has(self, vhost: str, everywhere: Level | None) -> bool:
        """Whether a vhost is his to use or, with that level, to see."""
        return (everywhere is not None and everywhere.holds(self.tags)) or self.enters(vhost)


def hinted(error: PenstockError, rights: Rights | None) -> PenstockError:
    """What somebody is told: of what is not there also the name that he may have meant, if he sees that one."""
    near = error.near if isinstance(error, NotFound) else None
    name = near(_Everything() if rights is None else rights) if near is not None else None
    return error if name is None else NotFound(f"{error}; did you mean '{name}'?")


class _Everything:
    """What somebody sees for whom nothing is limited."""

    def sees_queue(self, vhost: str, name: str, /) -> bool:
        return True

    def sees_topic(self, vhost: str, exchange: str, name: str, /) -> bool:
        return True


NOBODY = Who("")
"""Who has not logged in, and who acts for the server itself: what he asks for was judged before, or needs no right."""

ACTING: ContextVar[str] = ContextVar("acting", default="")
"""The user for whom a door decides something at this moment; empty: the server does so by itself."""


def judge(who: Who, right: Right, names: Mapping[str, object], vhosts: Container[str], what: str) -> None:
    """AccessRefused unless he may; NotFound for a vhost that is not there, if he may know.

    names: what the request names, by the words that `right` uses; without a vhost the default one is meant.
    what: is asked for, in a person's words.
    """
    ask_tag(who, right, what)
    if right.vhost:
        named = names.get("vhost")
        vhost = named if isinstance(named, str) else DEFAULT_VHOST
        open_vhost(who, vhost, right.everywhere, vhosts)
        if who.rights is not None:
            ask(who.rights, right.needs, vhost, names, what)


def ask_tag(who: Who, right: Right, what: str) -> None:
    """The part of `judge` that is about tags."""
    if not right.level.holds(who.tags):
        also = ", or for whom pipelines act as" if DRIVER in right.level.tags else ""
        raise AccessRefused(
            f"{what}: for users with the tag '{right.level.name}'{also}, which '{who.user}' does not have"
        )


def owns(who: Who, owner: str, people: Callable[[str], Who]) -> bool:
    """Whether what belongs to this owner is his to go on with, or, with the level of `REPORTER`, anybody's is.

    What was nobody's, and what belonged to who is not there any more, is anybody's who knows its name.
    """
    return owner in ("", who.user) or REPORTER.holds(who.tags) or not people(owner).there


def open_vhost(who: Who, vhost: str, everywhere: Level | None, vhosts: Container[str]) -> None:
    """The part of `judge` that is about the vhost."""
    if not who.has(vhost, everywhere):
        raise AccessRefused(f"access to vhost '{vhost}' refused for user '{who.user}'")
    if vhost not in vhosts:
        raise NotFound(f"no vhost '{vhost}'")


def ask(rights: Rights, needs: tuple[Need, ...], vhost: str, names: Mapping[str, object], what: str) -> None:
    """AccessRefused unless rights allow each of these."""
    for need in needs:
        name = _text(names, need.at)
        match need.kind, need.thing:
            case "see", "topic":
                rights.see_topic(vhost, _text(names, "exchange"), name)
            case "see", _:
                rights.see_queue(vhost, name)
            case "any", thing:
                rights.find(vhost, thing, name)
            case "read", "queue":
                rights.read_queue(vhost, name)
            case "read all", _:
                rights.read_all_of_queue(vhost, name, what)
            case "whole", _:
                rights.configure(what, vhost)
            case kind, thing:
                rights.configure(what, vhost, [(kind, thing, name)])


def _text(names: Mapping[str, object], key: str) -> str:
    """What is no text is no name; whoever carries the request out says so."""
    value = names.get(key)
    return value if isinstance(value, str) else ""


LOOK_S = 0.1
"""How often who waits for a place looks whether he still wants it."""


@dataclass(frozen=True, slots=True)
class Terms:
    """The bound of one thing."""

    things: str  # in a person's words
    do: str
    whole: int
    share: float = 0.5  # of the whole, for one user
    kept: int = 8  # beyond the whole, for administrators


THINGS: Mapping[str, Terms] = {
    # connections that have logged in, at AMQP and Flight; those of HTTP are strangers between two requests.  The whole
    # is what descriptors there are, see `with_descriptors`; programs often share one user, hence three quarters
    "connections": Terms("connections", "are open", 65_536, 0.75),
    "http_requests": Terms("HTTP requests", "are in work", 256),
    "event_streams": Terms("clients", "look on", 128, 0.25),
    "flight_calls": Terms("Flight calls", "are under way", 256),
    "flight_streams": Terms("Flight streams", "are open", 64),  # each has a thread
    "flight_streams_still": Terms("Flight streams", "stand still", 256),  # threads that wait for clients
    "early_calls": Terms("Flight calls", "wait for the start to end", 64),
    "amqp_replays": Terms("AMQP consumers", "read topics from a bookmark on", 8192),
    "sql_statements": Terms("SQL statements", "run", 2, kept=1),
    "sql_waiting": Terms("SQL statements", "wait for a place", 32),
    "holds": Terms("reads", "hold the log", 10_000),
    "view_bytes": Terms("bytes of what was asked for with a projection or conflation", "are kept", 256 << 20, kept=0),
    "stages": Terms("stages", "wait for their commit", 100_000),
    "stage_bytes": Terms("bytes of stages", "wait for their commit", 4 << 30, 0.75, 0),
}


LAST, FEW = 8, 16
"""The last eighth of a thing goes to users who have a sixteenth of it or less: two, of whom each may have half of it,
would leave nothing to all others.  Of less than sixteen there is no such part."""


class Share:
    """One thing that users share, and how much of it each has."""

    def __init__(self, terms: Terms) -> None:
        self.refused = 0
        self._terms = terms
        self._by_user = Counter[str]()
        self._free = threading.Condition(threading.RLock())  # who gives may be collected in the middle of anything
        self.taken = 0
        self.bound(terms.whole)

    def bound(self, whole: int) -> None:
        """Set how many there are in all."""
        self.whole = whole
        self.of_user = max(1, int(whole * self._terms.share))
        self.last, self.few = whole // LAST, whole // FEW

    def of(self, user: str) -> int:
        """How many a user has."""
        return self._by_user[user]

    def largest(self) -> tuple[str, int] | None:
        """The user who has most, and how many; None: nobody has any."""
        with self._free:
            return max(self._by_user.items(), key=lambda item: item[1], default=None)

    def told(self) -> dict[str, object]:
        """How it stands, for people."""
        most = self.largest()
        return {
            "taken": self.taken,
            "whole": self.whole,
            "of_user": self.of_user,
            "largest": None if most is None else {"user": most[0], "taken": most[1]},
            "refused": self.refused,
        }

    def refusal(self, who: Who, size: int = 1) -> Unavailable | None:
        """Why somebody may not have so many more."""
        terms, whose, has, most, to = self._terms, "", self.taken, self.whole, ""
        mine = self._by_user[who.user]
        if ADMINISTRATOR.holds(who.tags):
            most += terms.kept
        elif mine + size > self.of_user:
            whose, has, most = f" of user {who.user!r}", mine, self.of_user
        elif mine + size > self.few > 0:
            most, to = most - self.last, f" to users who have more than {self.few}"
        if has + size <= most:
            return None
        return Unavailable(
            f"{has} {terms.things}{whose} {terms.do}, and {most} are allowed{to}: end some, or try again later"
        )

    def take(self, who: Who, size: int = 1) -> None:
        """Take so many for a user.  Raises Unavailable."""
        with self._free:
            if (why := self.refusal(who, size)) is not None:
                self.refused += 1
                raise why
            self.put(who.user, size)

    def put(self, user: str, size: int = 1) -> None:
        """Count so many for a user who has them already, without asking."""
        with self._free:
            self._set(user, size)

    def give(self, user: str, size: int = 1) -> None:
        """Give so many of a user's back: what fails before that is done has given nothing, and may be tried again."""
        with self._free:
            self._free.notify_all()  # they look when this has ended
            self._set(user, -size)

    def _set(self, user: str, more: int) -> None:
        """Both counts or none of them, also where there is no memory for one."""
        has, taken = self._by_user[user] + more, self.taken + more
        if has:
            self._by_user[user], self.taken = has, taken
        else:
            self.taken, _ = taken, self._by_user.pop(user, 0)

    @contextmanager
    def held(self, who: Who) -> Generator[None]:
        """Take one for the time of a `with` block.  Raises Unavailable."""
        self.take(who)
        try:
            yield
        finally:
            self.give(who.user)

    def wait(self, who: Who, until: float, wanted: Callable[[], bool]) -> bool:
        """Wait for one, until a time by `time.monotonic`; False: it is too late, or not wanted any more."""
        with self._free:
            while self.refusal(who) is not None:
                if time.monotonic() >= until or not wanted():
                    self.refused += 1
                    return False
                self._free.wait(LOOK_S)
            self.put(who.user)
            return True


class Charge:
    """What one thing of somebody's takes of a share, which may be another amount each time that it is looked at."""

    def __init__(self, share: Share, who: Who) -> None:
        self._share, self._who = share, who
        self.size = 0

    def to(self, size: int) -> None:
        """It takes so many now.  Raises Unavailable; then it is to end."""
        if size > self.size:
            self._share.take(self._who, size - self.size)
        else:
            self._share.give(self._who.user, self.size - size)
        self.size = size

    def close(self) -> None:
        """It takes nothing any more.  So it is, too, when nobody has it any more."""
        self.to(0)

    __del__ = close


class Shares:
    """The shares of a server, by name."""

    def __init__(self, things: Mapping[str, Terms] = THINGS) -> None:
        self.by_name = {name: Share(terms) for name, terms in things.items()}

    def of(self, name: str) -> Share:
        """The share of this name, one of those that the server began with."""
        return self.by_name[name]
