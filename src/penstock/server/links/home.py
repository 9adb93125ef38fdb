"""What a single link asks of the server's links as a whole."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from penstock.core.links.sharing import Site

if TYPE_CHECKING:
    from penstock.config.links import LinkSection
    from penstock.core.links.telling import Telling
    from penstock.records.event_actions import LinkEvent
    from penstock.server.engine import Engine

T = TypeVar("T")

Offers = Sequence[object]
"""What a site says of its queues."""


class Home(Protocol):
    """All belongs to the loop's thread, but `call` and `post`."""

    engine: Engine
    site: Site

    @property
    def known(self) -> Collection[Site]:
        """All sites that this one has met, and itself."""
        ...

    def call(self, work: Callable[[], T]) -> T:
        """The result of work on the loop; what it decided may not be durable yet."""
        ...

    def post(self, job: Callable[[], None]) -> bool:
        """Run it on the loop; False: the server stops."""
        ...

    def agrees(self, site: str, offers: Offers) -> None:
        """A site has said what it has.  PreconditionFailed with a line for each thing on which the two differ."""

    def warn(self, line: str) -> None:
        """Say something once."""


class Sender(Home, Protocol):
    """What a link that leads away asks beside that."""

    def knows(self, link: str, sites: Sequence[Site]) -> None:
        """The site at the end of a link has told of these.  PreconditionFailed where a name is another's."""

    def hello(self, section: LinkSection) -> bytes:
        """What is said to a site at first."""
        ...

    def telling(self, section: LinkSection, upto: int) -> Telling:
        """What tells that site of this log, from there on."""
        ...

    def changed(self, name: str, *, up: bool) -> None:
        """A link came up, or is not up any more."""

    def moved(self) -> None:
        """A link is further than before, or is waited for no longer."""

    def happened(self, link: str, event: LinkEvent) -> None:
        """Something that actions may watch."""


Link = TypeVar("Link", contravariant=True)


class Hearing(Home, Protocol[Link]):
    """What a link that comes asks beside that."""

    def joins(self, link: Link, site: Site, sites: Sequence[Site], offers: Offers) -> int:
        """A site begins to tell; how far its log is known here.  PreconditionFailed as `agrees`; Unavailable."""
        ...

    def level(self, site: str) -> None:
        """A site has told what happened before its link came up."""

    def leaves(self, link: Link) -> None: ...
