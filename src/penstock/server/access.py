"""Whether somebody may do something: what an operation asks (`records.rights`) against who asks, for every door.

What exists is not told by a refusal.  Rights are judged by names, before anything is looked up; a vhost that is not
there is refused like one that is not the user's, but to who sees all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING

from penstock.errors import AccessRefused, NotFound
from penstock.records.dataclass import dataclass
from penstock.records.rights import DRIVER, REPORTER, Level, Need, Right

if TYPE_CHECKING:
    from penstock.server.entitlements import Rights

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

    def has(self, vhost: str, everywhere: Level | None) -> bool:
        """Whether a vhost is his to use or, with that level, to see."""
        return (everywhere is not None and everywhere.holds(self.tags)) or self.enters(vhost)


NOBODY = Who("")
"""Who has not logged in, and who acts for the server itself: what he asks for was judged before, or needs no right."""


def judge(who: Who, right: Right, names: Mapping[str, object], vhosts: Container[str], what: str) -> None:
    """AccessRefused unless he may; NotFound for a vhost that is not there, if he may know.

    names: what the request names, by the words that `right` uses; without a vhost the default one is meant.
    what: is asked for, in a person's words.
    """
    if not right.level.holds(who.tags):
        also = ", or for whom pipelines act as" if DRIVER in right.level.tags else ""
        raise AccessRefused(
            f"{what}: for users with the tag '{right.level.name}'{also}, which '{who.user}' does not have"
        )
    if right.vhost:
        named = names.get("vhost")
        vhost = named if isinstance(named, str) else DEFAULT_VHOST
        open_vhost(who, vhost, right.everywhere, vhosts)
        if who.rights is not None:
            ask(who.rights, right.needs, vhost, names, what)


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
