"""What a site knows of its links over a restart: how far they are, and which of its queues are gone."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, cast

from penstock.core.links.carried import Numbers
from penstock.core.links.sharing import HERE, Heard, Site
from penstock.records.dataclass import dataclass
from penstock.records.queue_settings import QueueSettings


@dataclass(frozen=True, slots=True)
class LinkState:
    """The two links between this site and another.

    heard    up to this LSN of its log all that it told is here
    acked    up to this LSN of this log it has what it was told
    paused   somebody stopped the link to it
    floor    what it published with a lower LSN has been here, as far as it ever comes
    """

    heard: int = 0
    acked: int = 0
    paused: bool = False
    floor: int = 0

    def dump(self) -> list[object]:
        """As JSON: an older version has one more word, before the last, which it never wrote."""
        return [self.heard, self.acked, self.paused, False, self.floor]

    def told(self, header: dict[str, object]) -> LinkState:
        """The same after a `LINK` record."""
        known = {name: value for name, value in header.items() if name in self.__slots__}
        return replace(self, **cast("dict[str, Any]", known))


def load_link(heard: int, acked: int, paused: bool, _: bool = False, floor: int = 0) -> LinkState:
    """What `LinkState.dump` has written; a place of it says nothing any more."""
    return LinkState(heard, acked, paused, floor)


class Began(dict[int, Heard]):
    """By queue: how far other sites' logs were here when it was declared; nothing of those that nothing was heard of.

    A queue of an older checkpoint, which does not say that, is known to be there from `OLDER` on.
    """

    __slots__ = ()

    def note(
        self, queue: int, peers: Mapping[int, Site], links: Mapping[int, LinkState], carried: Mapping[int, Numbers]
    ) -> None:
        """A queue is declared."""
        heard = list[tuple[int, int]]()
        for number, site in sorted(peers.items()):
            numbers = carried.get(number)
            upto = links.get(number, LinkState()).heard + 1
            if numbers is not None:
                upto = max(upto, numbers.end)
            if number != HERE and upto > 1:
                heard.append((site.origin, upto))
        if heard:
            self[queue] = tuple(heard)

    def of(self, queue: int) -> Heard | None:
        """What is known of one queue; None: nothing."""
        found = self.get(queue, ())
        return None if found == OLDER else found


OLDER: Heard = ((0, 0),)

DEPARTED_MOST = 1_000
"""Queues that are gone, the youngest of them, whose names are remembered for what links have still to tell of them."""


class Gone(NamedTuple):
    """A queue that is gone, as other sites know it: it took messages from the LSN on that is its id, up to `until`.

    kind      empty: an older checkpoint has it, which knew no more than its name, and it ended before that was written
    topic     (exchange, key) that it showed messages of
    domain    the settings' `group_local_queue_domain`
    owner     their `initial_owner`; empty: it had none, or an older checkpoint has it
    """

    vhost: str
    name: str
    kind: str
    domain: str | None
    topic: tuple[str, str]
    until: int = 0
    owner: str = ""

    def dump(self) -> list[object]:
        """As JSON: who owned its messages first stands behind the topic, where an older version passes it over."""
        topic = [*self.topic, self.owner] if self.owner else self.topic
        return [self.vhost, self.name, self.kind, self.domain, topic, self.until]


def load_gone(vhost: str, name: str, kind: str, domain: str | None, topic: Sequence[str], until: int) -> Gone:
    """The inverse of `Gone.dump`."""
    exchange, key, *owner = topic
    return Gone(vhost, name, kind, domain, (exchange, key), until, owner[0] if owner else "")


class Departed(dict[int, Gone]):
    """Queues by their ids."""

    __slots__ = ()

    def note(self, queue: int, vhost: str, name: str, settings: QueueSettings, until: int = 0) -> None:
        """A queue that other sites may have, too, is gone."""
        topic = settings.exchange, settings.underlying_topic or name
        owner = settings.initial_owner or ""
        self[queue] = Gone(vhost, name, settings.kind, settings.group_local_queue_domain, topic, until, owner)
        if len(self) > DEPARTED_MOST:
            del self[min(self)]

    def ended(self, queue: int, lsn: int) -> None:
        """Its end stands there in the log."""
        if (one := self.get(queue)) is not None:
            self[queue] = one._replace(until=lsn)

    @property
    def names(self) -> list[tuple[int, str, str]]:
        """All that checkpoints had of them before `Gone`, and that members of a cluster which are older still read."""
        return [(number, one.vhost, one.name) for number, one in sorted(self.items())]

    def named(self, names: Iterable[tuple[int, str, str]], until: int) -> None:
        """A checkpoint that knew the records up to `until` has these names."""
        for number, vhost, name in names:
            self.setdefault(number, Gone(vhost, name, "", None, ("", ""), until))

    def told(self, upto: int) -> bool:
        """Every site has been told of what ended up to there: forget it; whether there was any."""
        over = [queue for queue, one in self.items() if one.until <= upto]
        for queue in over:
            del self[queue]
        return bool(over)
