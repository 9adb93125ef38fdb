"""Flight's door of a member that follows: the log as far as it is committed, and nothing else.

    copied              how far the copy goes, and from where on it has every row
    log, replay         a range that lies within; the same rows as the leader gives

Whatever else is asked is refused with NotLeading, so that a client of several servers goes on to the next one.  Rows
are given only to who may read all of the topics: who may read a part of them is judged by the leader, who knows what
their bodies are.  Other refusals are Unavailable, too, for the leader may have what this copy has not.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false

from __future__ import annotations

from collections.abc import Callable, Container, Iterator
from typing import TYPE_CHECKING, NoReturn

import orjson
import pyarrow as pa

from penstock.errors import NotLeading, Unavailable
from penstock.history.copied import Copied, Copy
from penstock.history.history import Batches, History
from penstock.log.disk import OsDisk
from penstock.records.rights import LOGIN
from penstock.server.flight.calls import Caller, Calls, Guarded, Intake
from penstock.server.flight.gatekeeper import COMMANDS
from penstock.server.flight.log_actions import partly
from penstock.wire.fields import Fields, read_json
from penstock.wire.flight.bookmarks import parse_span
from penstock.wire.flight.commands import LogRange, Replay
from penstock.wire.flight.tickets import parse_get

if TYPE_CHECKING:
    from penstock.history.view import View
    from penstock.server.cluster.leading import Cluster
    from penstock.server.flight.call_streams import Answers, Sent
    from penstock.server.flight.entrance import Info
    from penstock.server.flight.handover import Piece
    from penstock.server.people.access import Shares
    from penstock.server.services import Server

STREAMS = 16
"""Open at once: each has a thread, and a batch of the log in memory."""

COPIED = "copied"


class CopyDoor:
    """Calls of a follower's clients, in the threads of the entrance."""

    def __init__(
        self,
        disk: OsDisk,
        copy: Callable[[], Copy | None],
        refusal: Callable[[], NotLeading],
        vhosts: Container[str],
        shares: Shares,
    ) -> None:
        """copy: what the member says; None: it does not follow anybody now.  refusal: who leads."""
        self._copied = Copied(disk)
        self._copy, self._refusal, self._vhosts = copy, refusal, vhosts
        self._calls = Calls(Intake(0), STREAMS, shares=shares)
        self._over = False

    def close(self) -> None:
        """This server is to lead: who reads goes on there."""
        self._over = True
        self._calls.abandon()

    # -- what a follower does

    def act(self, caller: Caller, name: str, body: bytes) -> bytes:
        """`copied` alone."""
        if name != COPIED:
            self._refuse()
        values = read_json(body, name) if body else {}
        caller.judge(LOGIN, values, self._vhosts, name)
        Fields(name, values).finish()
        with self._calls.working(caller.who):
            copy = self._there()
            view = self._copied.view(copy.upto, copy)  # that it can be read
            first = self._copied.begins(copy)
            return orjson.dumps({"origin": view.origin, "first": first, "upto": copy.upto})

    def get(self, caller: Caller, ticket: bytes) -> tuple[pa.Schema, Iterator[Piece]]:
        """A range of the log, or a replay of one."""
        wanted = parse_get(ticket)
        if not isinstance(wanted, LogRange | Replay):
            self._refuse()
        self._admit(caller, wanted)
        self._calls.beat()  # who wants a place looks whether somebody stands still in one
        slot = self._calls.stream(caller)
        try:
            schema, rows = self._read(caller, wanted)
            return schema, Guarded(self._going_on(rows), slot, caller)
        except BaseException:
            slot.close()
            raise

    def _admit(self, caller: Caller, wanted: LogRange | Replay) -> None:
        vhost = getattr(wanted, "vhost", None)
        caller.judge(COMMANDS[type(wanted)], {"vhost": vhost}, self._vhosts, type(wanted).__name__.lower())
        if isinstance(wanted, LogRange):
            return
        if wanted.follow or wanted.rate is not None or wanted.stream is not None or wanted.select:
            self._refuse()
        rights = caller.rights
        if rights is not None and partly(rights, wanted):
            raise NotLeading(f"{self._refusal()}; user '{caller.user}' may read a part of it")

    def _read(self, caller: Caller, wanted: LogRange | Replay) -> tuple[pa.Schema, Batches]:
        if isinstance(wanted, LogRange):
            view = self._view(wanted.from_lsn, wanted.to_lsn)
            return History(view, caller.gone).records(wanted)
        span = parse_span(wanted.bookmark)
        if span.end is None or (span.start.kind, span.end.kind) != ("lsn", "lsn"):
            self._refuse()
        start = span.start.lsn + (not span.with_start)
        end = span.end.lsn + span.with_end
        view = self._view(start, end)
        history = History(view, caller.gone)
        history.resolve(span, None)  # that the bookmark is of this log
        return history.replay_between(wanted, start, end)

    def _view(self, start: int, end: int) -> View:
        """What the copy has of [start, end).  Unavailable where that is not all."""
        copy = self._there()
        if end > copy.upto + 1:
            raise NotLeading(f"{self._refusal()}; this copy of the log goes up to LSN {copy.upto} so far")
        if copy.ends_before(end - 1):
            raise NotLeading(f"{self._refusal()}; this copy is of a log that went on without LSN {end - 1}")
        view = self._copied.view(start, copy)
        if start < self._copied.begins(copy):
            raise NotLeading(f"{self._refusal()}; this copy of the log does not have every row from LSN {start} on")
        return view

    def _there(self) -> Copy:
        copy = None if self._over else self._copy()
        if copy is None:
            self._refuse()
        return copy

    def _going_on(self, rows: Batches) -> Batches:
        for batch in rows:
            if self._over:
                raise Unavailable("this server begins to lead: try again in a moment")
            yield batch

    def _refuse(self) -> NoReturn:
        raise self._refusal()

    # -- what it does not

    def put(self, caller: Caller, command: bytes, sent: Sent, writer: Answers) -> None:
        self._refuse()

    def exchange(self, caller: Caller, command: bytes, sent: Sent, writer: Answers) -> None:
        self._refuse()

    def known(self, caller: Caller) -> list[tuple[str, str]]:
        """The one action."""
        return [(COPIED, "how far this follower's copy of the log may be read")]

    def listing(self, caller: Caller, criteria: bytes) -> list[Info]:
        self._refuse()

    def info(self, caller: Caller, command: bytes, path: list[str]) -> Info:
        self._refuse()


def copy_door(server: Server, cluster: Cluster) -> CopyDoor:
    """Of a server that follows."""
    disk = OsDisk(server.settings.server.data)
    return CopyDoor(disk, cluster.copy, cluster.refusal, server.accounts.vhosts, server.shares)
