"""What an operation asks of who wants it, as data: it stands beside the operation, and one function judges it for all
doors (`server.people.access`).

    level       a tag, or one that includes it
    vhost       the request names a vhost (`vhost`), and the user has it, or `everywhere`
    each        the answer is a list, of which the user is shown what lies in vhosts that he has, or `everywhere`
    needs       what of the permission for the vhost, and of entitlements, it takes: configure, write or read a thing

Source: RabbitMQ, access control and the tags of its management plugin.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Literal, NamedTuple, TypeAlias

from penstock.errors import known_name
from penstock.records.dataclass import dataclass

Tag: TypeAlias = Literal["administrator", "policymaker", "monitoring", "management", "impersonator"]
"""Tags of RabbitMQ, which a settings file may give."""

TAGS = ("management", "policymaker", "monitoring", "administrator")
"""Tags that mean something; a user may have others."""


def without_right(tags: Iterable[str]) -> Iterator[str]:
    """A sentence for each tag that means nothing here, which tools may use and somebody may have misspelt."""
    for tag in tags:
        if tag not in TAGS:
            known = known_name(tag, TAGS, f": those that do are {', '.join(TAGS)}")
            yield f"the tag '{tag}' gives no right{known}"


DRIVER = "driver"
"""What the user has whom pipelines act as, beside tags.  Nobody is given it."""


@dataclass(frozen=True, slots=True)
class Level:
    """A tag as it is asked for: `tags` suffice, none of them for anybody."""

    name: str
    tags: frozenset[str] = frozenset()

    def holds(self, tags: Collection[str]) -> bool:
        """Whether somebody with these tags is so far."""
        return not self.tags or not self.tags.isdisjoint(tags)


ANYBODY = Level("")
MANAGEMENT = Level("management", frozenset(TAGS))
POLICYMAKER = Level("policymaker", frozenset({"policymaker", "administrator"}))
MONITORING = Level("monitoring", frozenset({"monitoring", "administrator"}))
ADMINISTRATOR = Level("administrator", frozenset({"administrator"}))
WATCHER = Level("monitoring", frozenset({"monitoring", "administrator", DRIVER}))
REPORTER = Level("administrator", frozenset({"administrator", DRIVER}))

Kind = Literal["configure", "write", "read", "read all", "see", "any", "whole"]
"""What is done with a thing.  A part of a queue may be read by a filter: `read` takes any part, `read all` the whole;
`any` is one of configure, write and read; `whole` all three of all names of the vhost, or the administrator's tag."""

Thing = Literal["queue", "exchange", "topic", "vhost"]


class Need(NamedTuple):
    """One thing that an operation takes."""

    kind: Kind
    thing: Thing
    at: str  # where the request names it


@dataclass(frozen=True, slots=True)
class Right:
    """What an operation asks."""

    level: Level = ANYBODY
    vhost: bool = False
    everywhere: Level | None = None  # None: nobody has what he was not given
    each: bool = False
    needs: tuple[Need, ...] = ()


LOGIN = Right()
MONITORS = Right(MONITORING)
ADMINISTERS = Right(ADMINISTRATOR)
WATCHES = Right(WATCHER)
REPORTS = Right(REPORTER)
KNOWS_VALUES = Right(POLICYMAKER)

LISTS = Right(each=True, everywhere=MONITORING)
SEES = Right(vhost=True, everywhere=MONITORING)
USES = Right(vhost=True)
RULES = Right(POLICYMAKER, vhost=True, everywhere=ADMINISTRATOR)
LISTS_RULES = Right(POLICYMAKER, each=True, everywhere=ADMINISTRATOR)
TENDS = Right(vhost=True, everywhere=ADMINISTRATOR, needs=(Need("whole", "vhost", "vhost"),))


def sees(thing: Thing, at: str) -> Right:
    """Looking at one thing, by its name."""
    return Right(vhost=True, everywhere=MONITORING, needs=(Need("see", thing, at),))


def uses(*needs: tuple[Kind, Thing, str]) -> Right:
    """What takes a permission for each of these, whatever tags the user has."""
    return Right(vhost=True, needs=tuple(Need(*one) for one in needs))
