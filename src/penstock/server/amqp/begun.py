"""Bodies that AMQP clients have begun and not ended: whose memory they take, and who may go on with his.

A header announces how long a body will be.  So much is set aside before it comes, for what has begun must be able to
end: a connection for whose first body there is no room is not read, in a line for each user, until there is.

    set aside of a user  <= half of the whole    but for the first of a user, who may have the largest message
    set aside of all     <= the whole            but for these first ones

So no user waits for another's bodies.  While others of his wait, who has begun has to go on: where no `SLOWEST` bytes
came in `STILL_US`, though he is read, his channels with such bodies are closed with 506, the largest first; so they are
while memory is short (`penstock.memory.relief`).  Who consumes is always read, as his acks make room, and so is who has
begun already: beyond `FREE` bytes they may have what there is up to twice the whole, and are refused it only while
memory is short.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.errors import MemoryShort
from penstock.memory.relief import PATIENCE_US, Held
from penstock.server.amqp.incoming import BEGUN
from penstock.wire.amqp import methods

if TYPE_CHECKING:
    from penstock.errors import PenstockError
    from penstock.server.amqp.incoming import Incoming
    from penstock.server.amqp.port import Client
    from penstock.server.engine import Engine

STILL_US = PATIENCE_US
SLOWEST = 256 << 10
"""How much has to come in that time while others wait for the memory: 25 KiB a second."""

FREE = 1 << 20
"""What who is always read may have in any case."""


class Beginner(Protocol):
    """A connection on which bodies begin."""

    user: str
    peer: str
    incoming: Incoming
    machine: Client

    @property
    def begun(self) -> int:
        """Bytes of bodies that were announced and are not complete."""
        ...

    @property
    def consumes(self) -> bool:
        """Whether it takes messages, so that acks come on it."""
        ...

    def fail_channel(self, number: int, error: PenstockError, method: type[methods.Method]) -> None:
        """Close a channel for this, which a method has brought about."""
        ...


class Given:
    """What one connection has begun."""

    __slots__ = ("over", "received", "room", "since", "size", "user", "waits")

    def __init__(self, user: str, since: int, received: int) -> None:
        self.user = user
        self.size = 0  # bytes announced and not complete
        self.room = 0  # bytes set aside for them
        self.since = since  # when it last went on
        self.received = received  # bytes that had come by then
        self.waits = False
        self.over = False  # it had its time


class Begun:
    """The bodies begun on all connections.  For the loop's thread."""

    def __init__(self, engine: Engine, message_most: int) -> None:
        """message_most: bytes of the largest message that there may be."""
        self.most = engine.bodies.budget.limit // 4
        self._first = max(self.most, message_most)
        self._engine = engine
        self._account = engine.bodies.partial
        self._given: dict[Beginner, Given] = {}
        self._lines: dict[str, dict[Beginner, Given]] = {}  # by user, those who wait, in their order
        self._of_user = Counter[str]()  # bytes set aside
        self._whole = 0
        engine.on_broken.append(self._broken)
        engine.relief.register("partial", self._held)

    def count(self, connection: Beginner, size: int) -> None:
        """So many bytes of bodies are begun on it now; as many as before: one has ended, and another has begun."""
        given = self._given.get(connection)
        if not size:
            if given is not None:
                self._forget(connection, given)
            return
        if given is None:
            now, received = self._engine.clock.mono(), connection.incoming.received
            given = self._given[connection] = Given(connection.user, now, received)
        ended, given.size = size == given.size and not given.waits, size
        if given.over:
            self._fail(connection, given, "what was begun on it is not complete, and others wait for the memory")
        elif size < given.room:
            self._set_aside(given, size)
            self._let_in()
        elif ended and self._lines.get(given.user):  # others have their turn before its next one
            self._set_aside(given, 0)
            self._hold(connection, given)
            self._let_in()
        elif size > given.room:
            self._want(connection, given)

    def _want(self, connection: Beginner, given: Given) -> None:
        """It wants more than it has."""
        if given.waits:
            return
        if not self._lines.get(given.user) and self._fits(given):
            self._set_aside(given, given.size)
        elif given.size <= self._first and not (given.room or connection.consumes):
            self._hold(connection, given)
        elif given.size <= FREE or (
            not self._engine.bodies.tight and self._whole + given.size - given.room <= 2 * self.most
        ):
            self._set_aside(given, given.size)
        else:
            self._fail(connection, given, "it has more begun than its share, and there is no more")

    def beat(self) -> None:
        """Once a second: who keeps memory from others of his user has to go on."""
        tight, now = self._engine.bodies.tight, self._engine.clock.mono()
        for connection, given in list(self._given.items()):
            if (size := connection.begun) != given.size:
                self.count(connection, size)
            incoming = connection.incoming
            if incoming.paused or incoming.received - given.received >= SLOWEST or given.waits:
                given.since, given.received = now, incoming.received
            elif given.over and not tight and given.user not in self._lines:
                given.over = False
            elif given.over or (given.user in self._lines and given.room and now - given.since > STILL_US):
                given.over = True
                self._fail(connection, given, "what was begun on it does not come, and others wait for the memory")

    def _held(self) -> Iterator[Held]:
        """Those who could go on, each with what is set aside for him."""
        for connection, given in list(self._given.items()):
            if given.room and not (given.waits or connection.incoming.paused):
                name, cut = f"what was begun on {connection.peer}", partial(self._cut, connection, given)
                yield Held(connection, given.user, name, given.room, connection.incoming.received, cut, SLOWEST)

    def _cut(self, connection: Beginner, given: Given, error: MemoryShort) -> None:
        given.over = True
        self._fail(connection, given, error)

    # -- room

    def _fits(self, given: Given) -> bool:
        if self._engine.broken is not None:
            return True  # what comes is refused, and whoever waited would wait for ever
        of_user = self._of_user[given.user] - given.room + given.size
        if of_user == given.size:
            return given.size <= self._first
        return of_user <= self.most // 2 and self._whole - given.room + given.size <= self.most

    def _set_aside(self, given: Given, size: int) -> None:
        more = size - given.room
        given.room = size
        self._whole += more
        self._of_user[given.user] += more
        self._account.add(more)

    def _hold(self, connection: Beginner, given: Given) -> None:
        given.waits = True
        self._lines.setdefault(given.user, {})[connection] = given
        connection.incoming.stop(BEGUN)

    def _read(self, connection: Beginner, given: Given) -> None:
        """It waits no more."""
        if given.waits:
            given.waits = False
            line = self._lines[given.user]
            del line[connection]
            if not line:
                del self._lines[given.user]
            connection.incoming.start(BEGUN)

    def _let_in(self) -> None:
        """Let those go on for whom there is room now, each user's in their order."""
        for line in list(self._lines.values()):
            while line:
                connection, given = next(iter(line.items()))
                if not self._fits(given):
                    break
                self._set_aside(given, given.size)
                given.since, given.received = self._engine.clock.mono(), connection.incoming.received
                self._read(connection, given)

    def _forget(self, connection: Beginner, given: Given) -> None:
        del self._given[connection]
        self._set_aside(given, 0)
        if not self._of_user[given.user]:
            del self._of_user[given.user]
        self._read(connection, given)
        self._let_in()

    def _fail(self, connection: Beginner, given: Given, why: str | MemoryShort) -> None:
        """Close the channels with the largest bodies: all that can be if it had its time, else until the rest fits."""
        error = MemoryShort(f"there is no memory for it: {why}") if isinstance(why, str) else why
        size = connection.begun
        least = 0 if given.over else given.room
        while size > least:
            connection.fail_channel(connection.machine.largest_partial(), error, methods.BasicPublish)
            before, size = size, connection.begun
            if size >= before:  # its door tells what is left, or the channel is owed answers first
                break
        given.size = size
        if not size and connection in self._given:
            self._forget(connection, given)
        elif size < given.room:
            self._set_aside(given, size)
            self._let_in()

    def _broken(self, _: str) -> None:
        self._let_in()
