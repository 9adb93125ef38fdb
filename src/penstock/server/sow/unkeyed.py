"""A subscription to a topic without a key, as one to records: there are none, so it begins with what is published.

Whoever asks for records first gets an empty group of them.  Deltas are whole messages, and nothing goes out of focus.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from penstock.errors import InvalidArgument, NotFound, PenstockError
from penstock.server.replaying.follower import Asked
from penstock.server.replaying.page import Page
from penstock.server.replaying.topics import selection_of
from penstock.server.sow.record_events import Taker, Wish, published

if TYPE_CHECKING:
    from penstock.core.broker import Core
    from penstock.server.replaying.follower import Follower
    from penstock.server.replaying.replays import Replays

PORTION = 1000
"""Messages that are handed over together: a few milliseconds of the loop."""


class Unkeyed:
    """One subscription.  All methods belong to the loop's thread."""

    def __init__(
        self, core: Core, replays: Replays, vhost: str, exchange: str, name: str, wish: Wish, taker: Taker
    ) -> None:
        """Begins at once.

        Errors: NotFound for a topic that nobody keeps; InvalidArgument for a queue, for a page, and for conflation
        that names no key.
        """
        where = f"'{name}' in vhost '{vhost}'"
        if not exchange and (vhost, "", name) not in core.topology.topics and core.find_queue(vhost, name) is not None:
            raise InvalidArgument(f"{where} is a queue: look at it with sow, and consume its messages")
        if wish.paged:
            raise InvalidArgument(f"topic {where} has no key, so there are no pages of it")
        if wish.conflation is not None and not wish.conflation_key:
            raise InvalidArgument(f"topic {where} has no key: name a conflation_key that tells its messages apart")
        if not core.keeps(vhost, exchange, name):
            raise NotFound(f"no SOW topic {where}, and no queue and no declared topic keeps its messages")
        self.closed = False
        self._taker = taker
        self._follower: Follower | None = None
        asked = Asked(selection_of(core, vhost, exchange, name), "NOW", wish.filter, name=name)
        self._follower = replays.subscribe(asked, _Receiver(self))
        if wish.sow:
            taker.level()

    def close(self) -> None:
        """Nothing more is told.  Twice does no harm."""
        if not self.closed:
            self.closed = True
            if self._follower is not None:
                self._follower.close()

    def go_on(self) -> None:
        """The taker has room again."""
        if not self.closed and self._follower is not None:
            self._follower.step()

    # -- for the follower

    def room(self) -> int:
        """Some messages at a time."""
        return 0 if self.closed else max(0, min(PORTION, self._taker.room()))

    def take(self, page: Page) -> None:
        """Messages in the order of the log; without a key they have the number 0."""
        self._taker.take([published(page, row, 0, "") for row in range(len(page))])

    def refused(self, error: PenstockError) -> None:
        """It has ended."""
        if not self.closed:
            self.close()
            self._taker.ended(error)


class _Receiver:
    """What the follower knows of a subscription."""

    def __init__(self, watch: Unkeyed) -> None:
        self.room = watch.room
        self.take = watch.take
        self.ended = watch.refused

    def completed(self, *, last: bool) -> None:
        """It is level with the log: there is nothing to tell."""
