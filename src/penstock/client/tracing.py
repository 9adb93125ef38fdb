"""Where the client can be watched from: whoever wants to know what it does puts itself here, as `penstock.otel` does.

Nobody is here unless somebody asked for it, and then all that is done about it is to look: `if tracing.active is None`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import copy_context
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar

if TYPE_CHECKING:
    from penstock.client.urls import Address

T = TypeVar("T")


class Told(Protocol):
    """A message, as far as it is told of."""

    @property
    def queue(self) -> str | None: ...
    @property
    def topic(self) -> str: ...
    @property
    def bookmark(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def message_id(self) -> str | None: ...
    @property
    def headers(self) -> dict[str, str]: ...


class Publishing(Protocol):
    """One publish, while it lasts."""

    @property
    def carried(self) -> Mapping[str, str]:
        """Headers that each message takes with it."""
        ...

    def stored(self, outcome: str, bookmark: str) -> None:
        """How a publish ended: what became of it, and its first bookmark."""


class Tracing(Protocol):
    """Who watches.  Each part of a work is a context, which an exception leaves too."""

    def publish(self, address: Address, place: str, count: int | None) -> AbstractContextManager[Publishing]:
        """place: the topic, after its exchange and a slash where there is one.  count: of messages; None: not known."""
        ...

    def received(self, queue: str, headers: Sequence[Sequence[tuple[str, str]] | None]) -> None:
        """What has come together: the headers of each message."""

    def process(self, message: Told, queue: str, by: str) -> AbstractContextManager[None]:
        """The work on one message.  by: the function that does it; empty: a block."""
        ...

    def settle(self, verb: str, queue: str, of: Sequence[Mapping[str, str]]) -> AbstractContextManager[None]:
        """of: the headers of each message that is settled."""
        ...

    def failed(self, error: BaseException) -> None:
        """What is worked on now ended with an error that nobody else sees."""


active: Tracing | None = None
"""Who watches; None: nobody."""


def bound(work: Callable[[], T]) -> Callable[[], T]:
    """The same work for another thread, where it belongs to what this one is doing."""
    return work if active is None else partial(copy_context().run, work)
