"""What commands ask of a running server: the client's methods that they use, as one Protocol."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol, cast

if TYPE_CHECKING:
    import pyarrow as pa


class RemoteMessage(Protocol):
    """One delivered or peeked message."""

    @property
    def body(self) -> bytes: ...
    @property
    def topic(self) -> str: ...
    @property
    def lsn(self) -> int: ...
    @property
    def bookmark(self) -> str: ...
    @property
    def attempt(self) -> int: ...

    def ack(self) -> object: ...
    def release(self) -> object: ...
    def retry(self, *, error: str | None = None) -> object: ...


class RemoteRefusal(Protocol):
    """One row that the server refused."""

    @property
    def message(self) -> str: ...


class RemoteReceipt(Protocol):
    """What became of the rows of a table."""

    @property
    def rows(self) -> int: ...
    @property
    def stored(self) -> int: ...
    @property
    def unroutable(self) -> int: ...
    @property
    def refused_rows(self) -> int: ...
    @property
    def refused(self) -> Sequence[RemoteRefusal]: ...


class Remote(Protocol):
    """An open connection to a server."""

    def publish_table(self, topic: str, table: pa.Table, *, exchange: str = "") -> RemoteReceipt: ...
    def consume(self, queue: str, *, backlog: int = 32, filter: str | None = None) -> Iterable[RemoteMessage]: ...
    def declare(self, queue: str, **settings: object) -> object: ...
    def queues(self) -> Sequence[Mapping[str, object]]: ...
    def queue(self, name: str) -> Mapping[str, object]: ...
    def peek(self, queue: str, count: int = 10) -> Sequence[RemoteMessage]: ...


def connect(url: str) -> AbstractContextManager[Remote]:
    """A connection that closes itself.  Raises Unavailable when no server answers."""
    from penstock.client import connect as dial

    return cast("AbstractContextManager[Remote]", dial(url))
