"""Servers as a Spark job sees them: the leader, with calls that outlive its restart and streams that go on where they
broke, and the followers of a cluster, from which large reads may come so that its cores are left to deliveries.

Every call that is repeated here may be: the server answers a plan, a range, a sink's commit and a numbered publish the
same when it is asked twice, a stage that nobody commits is swept, and a new opening of a stream only fences the one
before.

A part of a read is a range of LSNs that the leader has called durable, so every member in sync has it, with the same
rows under the same LSNs, as long as neither has left rows out: each leader compacts past segments in its own way, and
nobody copies that, so what lies below a compaction is the leader's to read.  Each part asks one follower, and parts go
over all of them in turn.  One that is behind is waited for, for `WAIT_S`, but by no stream: what it reads at the log's
end is the leader's.  One that is further behind, gone, not open for reads or not able to tell all of the range is left
out, and what is still wanted comes from the leader.
"""

from __future__ import annotations

import itertools
import os
import random
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, suppress
from functools import lru_cache
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from penstock.client.link import Link, chunks
from penstock.client.outgoing import Upload
from penstock.client.urls import Address, parse_urls
from penstock.client.waiting import begun, come
from penstock.errors import PenstockError, Unavailable
from penstock.records.compute import cut
from penstock.records.dataclass import dataclass
from penstock.wire.flight.tickets import command

T = TypeVar("T")


class Again(Protocol):
    """Says where rows that came may be left out of another answer by their number."""

    def begins(self) -> None:
        """The first answer is asked for, and another server may have to go on with it."""

    def goes_on(self, moved: bool) -> None:
        """Rows came, and the others are asked for; moved: of another server.  Raises where they may not be counted."""


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


class Line:
    """One connection of this process, made when it is first asked for and again after it was dropped.  Thread-safe."""

    def __init__(self, dial: Callable[[], Link]) -> None:
        self._dial = dial
        self._lock = threading.Lock()
        self._link: Link | None = None

    def link(self) -> Link:
        with self._lock:
            if self._link is None:
                self._link = self._dial()
            return self._link

    def drop(self) -> Link | None:
        """It did not serve: begin anew with the next call.  What was dropped, if somebody else has not done it."""
        with self._lock:
            link, self._link = self._link, None
        if link is not None:
            with suppress(PenstockError):  # it was broken, which is why it goes
                link.close()
        return link


class Remote:
    """One server for one process.  Thread-safe; connects when first used and again after a failure."""

    def __init__(self, where: Where) -> None:
        self.addresses = parse_urls(where.url, where.user, where.password)  # the one that answered last comes first
        self.patience, self._by = where.patience, where.by
        self._line = Line(lambda: Link(self.addresses[0], ACTION_TIMEOUT_S, *self.addresses[1:]))

    @property
    def vhost(self) -> str:
        """The vhost of the address."""
        return self.addresses[0].vhost

    def act(self, name: str, **fields: object) -> dict[str, Any]:
        """The answer of an action; fields that are None are left out."""
        return self._again(lambda: self._line.link().act(name, fields))

    def schema(self, operation: str, **fields: object) -> pa.Schema:
        """The schema of a DoGet, without its rows."""
        return self._again(lambda: self._line.link().schema(command(operation, **fields)))

    def rows(
        self, operation: str, skip: int = 0, again: Again | None = None, /, **fields: object
    ) -> Iterator[pa.RecordBatch]:
        """The batches of a DoGet whose rows are the same each time; a broken stream is taken up where it broke.

        skip: so many rows are left out at the beginning.
        again: told of each answer before its rows come; refuses those that are not the same any more, where some came
        and are left out by their number.
        """
        ticket = command(operation, **fields)
        given, before = skip, None
        tries = self._tries()
        while True:
            try:
                here = self._line.link().address
                if again is not None and given:
                    again.goes_on(before not in (None, here))
                elif again is not None and len(self.addresses) > 1:
                    again.begins()
                before = here
                for batch in self._stream(ticket, given):
                    given += batch.num_rows
                    tries.reset()
                    yield batch
                return
            except Unavailable as error:
                self.close()
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
        return batches_behind(self._line.link().get(ticket), skip)

    def put(self, operation: str, batches: Sequence[pa.RecordBatch], **fields: object) -> dict[str, Any]:
        """The last answer to an upload of batches of one schema."""
        return self._again(lambda: self._put(operation, command(operation, **fields), batches))

    def _put(self, operation: str, text: bytes, batches: Sequence[pa.RecordBatch]) -> dict[str, Any]:
        with Upload(*self._line.link().put(text, batches[0].schema), answers=operation == "publish") as upload:
            for batch in batches:
                for part in cut(batch, MESSAGE_BYTES):
                    upload.send(part)
            return upload.end()

    def close(self) -> None:
        """Nobody calls it any more; what does begins anew."""
        link = self._line.drop()
        if link is not None and len(self.addresses) > 1:
            at = self.addresses.index(link.address)
            self.addresses = (*self.addresses[at:], *self.addresses[:at])

    def _tries(self) -> Tries:
        names = ", ".join(map(str, self.addresses))
        return Tries(self.patience, f"no server answers at {names} ({self.patience:g} s{self._by})")

    def _again(self, call: Callable[[], T]) -> T:
        tries = self._tries()
        while True:
            try:
                return call()
            except Unavailable as error:
                self.close()
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


WAIT_S = 2.0
"""How long a part waits for a follower that does not have all of it yet."""

LOOK_S = 0.05
"""How often it asks."""

ANSWER_S = 2.0
"""How long a follower may take to say how far it is."""

STREAM_S = 30.0
"""How long nothing may come, of a stream's beginning or between batches: what stands still must not hold a task."""

AWAY_S = 5.0
"""How long one is left out that did not serve."""


def within(seconds: float, work: Callable[[], T]) -> T:
    """What comes of it.  Unavailable after so long: nothing else is to be asked then."""
    made = begun(work)
    if not come(made, seconds):
        raise Unavailable(f"a follower has sent nothing for {seconds:g} s")
    return made.result()


class Prompt:
    """A stream that is left when nothing comes of it for `STREAM_S`."""

    def __init__(self, opened: Callable[[], Any], within: Callable[[float, Callable[[], Any]], Any] = within) -> None:
        """opened: it begins, where somebody waits no longer than `STREAM_S`, too."""
        self._opened, self._within = opened, within
        self._reader: Any = None

    def read_chunk(self) -> Any:
        """The next batch.  Unavailable where nothing comes; StopIteration at the end."""
        if self._reader is None:
            self._reader = self._within(STREAM_S, self._opened)
        return self._within(STREAM_S, self._reader.read_chunk)

    def cancel(self) -> None:
        """It is not read any more."""
        if self._reader is not None:
            self._reader.cancel()


class Follower:
    """One member of the cluster, for one process.  Thread-safe."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._line = Line(lambda: Link(address, ANSWER_S))
        self._away_until = 0.0

    def serves(self, start: int, end: int, until: float) -> bool:
        """Whether it has all of [start, end), or has it before that time of `monotonic`."""
        while time.monotonic() >= self._away_until:
            try:
                told = self._line.link().act("copied", {})
            except PenstockError:
                self.away()
                return False
            if start < int(told["first"]):
                return False
            if end <= int(told["upto"]) + 1:
                return True
            if time.monotonic() >= until:
                return False
            time.sleep(LOOK_S)
        return False

    def rows(self, ticket: bytes, skip: int) -> Iterator[pa.RecordBatch]:
        """The batches of a DoGet, without the first so many rows.  Raises PenstockError where it does not go on."""
        link = self._line.link()
        return batches_behind(Prompt(lambda: link.get(ticket)), skip)

    def away(self) -> None:
        """It did not serve: leave it out, and begin anew with it."""
        self._away_until = time.monotonic() + AWAY_S
        self._line.drop()


class Followers:
    """Those of one cluster."""

    def __init__(self, where: Where) -> None:
        self._where = where
        self._all = [Follower(address) for address in remote(where).addresses]
        self._turn = itertools.count(os.getpid())  # each process begins with another one

    def rows(
        self, lsns: tuple[int, int], waits: bool, operation: str, skip: int, /, **fields: object
    ) -> Iterator[pa.RecordBatch]:
        """The rows of a DoGet about the LSNs [a, b), without the first so many.

        From a follower while one serves, else from the leader.  waits: for one that is behind
        """
        ticket, given, turn = command(operation, **fields), skip, next(self._turn)
        until = time.monotonic() + (WAIT_S if waits else 0.0)
        for at in range(len(self._all)):
            follower = self._all[(turn + at) % len(self._all)]
            if not follower.serves(*lsns, until):
                continue
            try:
                for batch in follower.rows(ticket, given):
                    given += batch.num_rows
                    yield batch
                return
            except PenstockError:
                follower.away()
        leader = remote(self._where)
        if given > skip and not has_every_row(leader, lsns[0]):
            raise Unavailable(
                f"LSNs {lsns[0]} to {lsns[1] - 1}: a follower gave a part of them and went, and the leader has "
                "compacted them since: read them again"
            )
        yield from leader.rows(operation, given, **fields)


def has_every_row(leader: Remote, start: int) -> bool:
    """Whether the leader has left out no row from this LSN on, so that rows can be counted."""
    return start >= int(leader.act("position")["whole_from"])


@lru_cache(maxsize=16)
def followers(where: Where) -> Followers:
    """This process's, of one cluster."""
    return Followers(where)
