"""Rows of the log from the followers of a cluster, so that large reads leave the leader's cores to deliveries.

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
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache
from queue import Empty, SimpleQueue
from typing import Any

import pyarrow as pa

from penstock.client.link import Link
from penstock.client.urls import Address
from penstock.errors import PenstockError, Unavailable
from penstock.spark.remote import Remote, Where, batches_behind, remote
from penstock.wire.flight.tickets import command

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


class Waiter:
    """A thread that waits for somebody else, so that who asks need not wait for longer than it likes."""

    def __init__(self) -> None:
        self._asked = SimpleQueue[Callable[[], Any] | None]()
        self._came = SimpleQueue[tuple[Any, BaseException | None]]()
        threading.Thread(target=self._run, name="penstock-follower", daemon=True).start()

    def within(self, seconds: float, work: Callable[[], Any]) -> Any:
        """What comes of it.  Unavailable after so long: nothing else is to be asked then."""
        self._asked.put(work)
        try:
            value, error = self._came.get(timeout=seconds)
        except Empty:
            raise Unavailable(f"a follower has sent nothing for {seconds:g} s") from None
        if error is not None:
            raise error
        return value

    def close(self) -> None:
        """It ends when it waits for nobody any more."""
        self._asked.put(None)

    def _run(self) -> None:
        while (work := self._asked.get()) is not None:
            try:
                self._came.put((work(), None))
            except BaseException as error:  # noqa: BLE001 - it is raised where it was asked for
                self._came.put((None, error))


class Prompt:
    """A stream that is left when nothing comes of it for `STREAM_S`."""

    def __init__(self, opened: Callable[[], Any], waiter: Waiter | None = None) -> None:
        """opened: it begins, in the waiter."""
        self._opened, self._waiter = opened, waiter or Waiter()
        self._reader: Any = None

    def read_chunk(self) -> Any:
        """The next batch.  Unavailable where nothing comes; StopIteration at the end."""
        if self._reader is None:
            self._reader = self._waiter.within(STREAM_S, self._opened)
        return self._waiter.within(STREAM_S, self._reader.read_chunk)

    def cancel(self) -> None:
        """It is not read any more."""
        if self._reader is not None:
            self._reader.cancel()
        self._waiter.close()


class Follower:
    """One member of the cluster, for one process.  Thread-safe."""

    def __init__(self, address: Address) -> None:
        self.address = address
        self._lock = threading.Lock()
        self._link: Link | None = None
        self._away_until = 0.0

    def serves(self, start: int, end: int, until: float) -> bool:
        """Whether it has all of [start, end), or has it before that time of `monotonic`."""
        while time.monotonic() >= self._away_until:
            try:
                told = self._connected().act("copied", {})
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
        link = self._connected()
        return batches_behind(Prompt(lambda: link.get(ticket)), skip)

    def _connected(self) -> Link:
        with self._lock:
            if self._link is None:
                self._link = Link(self.address, ANSWER_S)
            return self._link

    def away(self) -> None:
        """It did not serve: leave it out, and begin anew with it."""
        with self._lock:
            link, self._link = self._link, None
            self._away_until = time.monotonic() + AWAY_S
        if link is not None:
            with suppress(PenstockError):
                link.close()


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
