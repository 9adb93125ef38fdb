"""The server as a Spark job sees it: calls that outlive a restart of the server, and streams that go on where they
broke.

Every call that is repeated here may be: the server answers a plan, a range, a sink's commit and a numbered publish the
same when it is asked twice, a stage that nobody commits is swept, and a new opening of a stream only fences the one
before.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from functools import lru_cache
from typing import Any, TypeVar

import pyarrow as pa

from penstock.client.link import Link, chunks
from penstock.client.outgoing import Upload
from penstock.client.urls import parse_urls
from penstock.errors import PenstockError, Unavailable
from penstock.records.compute import cut
from penstock.records.dataclass import dataclass
from penstock.wire.flight.tickets import command

T = TypeVar("T")

ACTION_TIMEOUT_S = 600.0
"""An action may wait for the sync of a large batch."""

MESSAGE_BYTES = 4 << 20
"""What is sent at once: the server has a message in memory whole, and Spark's batches of large rows may be anything."""

PAUSE_S = (0.05, 1.0)
"""First and longest pause between tries."""

DEFAULT_PATIENCE_S = 60.0
"""How long a call of a stream is tried again while no server answers, unless the option `patience` says otherwise."""

BATCH_PATIENCE_S = 10.0
"""The same for a batch read or write, where somebody waits for the answer."""


@dataclass(frozen=True, slots=True)
class Where:
    """Which server, as whom, and for how many seconds a call waits for it to come back."""

    url: str
    user: str | None = None
    password: str | None = None
    patience: float = DEFAULT_PATIENCE_S
    by: str = ""  # what says so, where somebody chose it or may: `, option patience`

    def __repr__(self) -> str:  # plans and errors print it
        return ",".join(map(str, parse_urls(self.url, self.user)))


class Remote:
    """One server for one process.  Thread-safe; connects when first used and again after a failure."""

    def __init__(self, where: Where) -> None:
        self.addresses = parse_urls(where.url, where.user, where.password)  # the one that answered last comes first
        self.patience, self._by = where.patience, where.by
        self._lock = threading.Lock()
        self._link: Link | None = None

    @property
    def vhost(self) -> str:
        """The vhost of the address."""
        return self.addresses[0].vhost

    def act(self, name: str, **fields: object) -> dict[str, Any]:
        """The answer of an action; fields that are None are left out."""
        return self._again(lambda: self._connected().act(name, fields))

    def schema(self, operation: str, **fields: object) -> pa.Schema:
        """The schema of a DoGet, without its rows."""
        return self._again(lambda: self._connected().schema(command(operation, **fields)))

    def rows(self, operation: str, skip: int = 0, /, **fields: object) -> Iterator[pa.RecordBatch]:
        """The batches of a DoGet whose rows are the same each time; a broken stream is taken up where it broke.

        skip: so many rows are left out at the beginning.
        """
        ticket = command(operation, **fields)
        given = skip
        tries = self._tries()
        while True:
            try:
                for batch in self._stream(ticket, given):
                    given += batch.num_rows
                    tries.reset()
                    yield batch
                return
            except Unavailable as error:
                self._drop()
                tries.pause(error)

    def gathered(self, operation: str, most: int = 1 << 62, /, **fields: object) -> list[pa.RecordBatch] | None:
        """All batches of a DoGet, of one moment: a broken stream is begun anew.  None when they have more bytes."""
        ticket = command(operation, **fields)

        def gather() -> list[pa.RecordBatch] | None:
            found, size = list[pa.RecordBatch](), 0
            for batch in self._stream(ticket, 0):
                found.append(batch)
                size += batch.nbytes
                if size > most:
                    return None
            return found

        return self._again(gather)

    def _stream(self, ticket: bytes, skip: int) -> Iterator[pa.RecordBatch]:
        return batches_behind(self._connected().get(ticket), skip)

    def put(self, operation: str, batches: Sequence[pa.RecordBatch], **fields: object) -> dict[str, Any]:
        """The last answer to an upload of batches of one schema."""
        return self._again(lambda: self._put(operation, command(operation, **fields), batches))

    def _put(self, operation: str, text: bytes, batches: Sequence[pa.RecordBatch]) -> dict[str, Any]:
        with Upload(*self._connected().put(text, batches[0].schema), answers=operation == "publish") as upload:
            for batch in batches:
                for part in cut(batch, MESSAGE_BYTES):
                    upload.send(part)
            return upload.end()

    def _connected(self) -> Link:
        with self._lock:
            if self._link is None:
                self._link = Link(self.addresses[0], ACTION_TIMEOUT_S, *self.addresses[1:])
            return self._link

    def close(self) -> None:
        """Nobody calls it any more."""
        self._drop()

    def _drop(self) -> None:
        with self._lock:
            link, self._link = self._link, None
            if link is not None and len(self.addresses) > 1:
                at = self.addresses.index(link.address)
                self.addresses = (*self.addresses[at:], *self.addresses[:at])
        if link is not None:
            try:
                link.close()
            except PenstockError:
                pass  # it was broken, which is why it goes

    def _tries(self) -> Tries:
        names = ", ".join(map(str, self.addresses))
        return Tries(self.patience, f"no server answers at {names} ({self.patience:g} s{self._by})")

    def _again(self, call: Callable[[], T]) -> T:
        tries = self._tries()
        while True:
            try:
                return call()
            except Unavailable as error:
                self._drop()
                tries.pause(error)


class Tries:
    """Pauses between tries, longer each time, until patience ends."""

    def __init__(self, patience: float, what: str = "") -> None:
        """patience: seconds.  what: said before the error of a server that is away."""
        self._patience, self._what = patience, what
        self.reset()

    def reset(self) -> None:
        """There was an answer: begin anew."""
        self._pause = PAUSE_S[0]
        self._until: float | None = None

    def pause(self, error: PenstockError) -> None:
        """Wait a little; raises the error once patience is over."""
        now = time.monotonic()
        if self._until is None:
            self._until = now + self._patience
        if now >= self._until:
            if not self._what:
                raise error
            raise Unavailable(f"{self._what}: {error}") from error
        time.sleep(random.uniform(0.5, 1.0) * self._pause)
        self._pause = min(self._pause * 2, PAUSE_S[1])


def batches_behind(reader: Any, skip: int) -> Iterator[pa.RecordBatch]:
    """The batches of a DoGet, without the first so many rows; however it is left, the stream ends with it."""
    with closing(chunks(reader)) as batches:
        yield from behind(batches, skip)


def behind(batches: Iterable[pa.RecordBatch], skip: int) -> Iterator[pa.RecordBatch]:
    """Batches without the first so many rows, and without those that have none."""
    for batch in batches:
        if skip >= batch.num_rows:
            skip -= batch.num_rows
            continue
        yield batch.slice(skip) if skip else batch
        skip = 0


@lru_cache(maxsize=16)
def remote(where: Where) -> Remote:
    """The process's one connection to a server: Spark uses its Python processes for many tasks."""
    return Remote(where)
