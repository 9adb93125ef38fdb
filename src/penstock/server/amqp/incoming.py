"""Events from one AMQP peer in their order, and whether its link is read.

Events wait while messages before them are judged off the loop, or, when those before them took long, while the others
have their turn; reading pauses for that, for a running commit, and for room for bodies.  It does not know what an event
means.

Whose memory bodies take that have begun and not ended, and who may go on with his: a header announces how long a body
will be.  So much is set aside before it comes, for what has begun must be able to end: a connection for whose first
body there is no room is not read, in a line for each user, until there is.

    set aside of a user  <= half of the whole    but for the first of a user, who may have the largest message
    set aside of all     <= the whole            but for these first ones

So no user waits for another's bodies.  While others of his wait, who has begun has to go on: where no `SLOWEST` bytes
came in `STILL_US`, though he is read, his channels with such bodies are closed with 506, the largest first; so they are
while memory is short (`penstock.memory`).  Who consumes is always read, as his acks make room, and so is who has
begun already: beyond `FREE` bytes they may have what there is up to twice the whole, and are refused it only while
memory is short.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol

from penstock.errors import MemoryShort, PenstockError
from penstock.memory import PATIENCE_US, Held
from penstock.server.base.faults import Asker, Told, asker_of
from penstock.wire.amqp import events, methods

if TYPE_CHECKING:
    from penstock.server.amqp.links import Client, Link
    from penstock.server.base.runtime import Runtime
    from penstock.server.engine import Engine


UNTIMED = 4
"""Events between two looks at the clock: small ones are most, and a look costs a twentieth of one."""

PACED_READ = 16 * 1024
"""Reads shorter than this come from a publisher that sends one message a call: pacing them saves a third of the CPU."""

PACED_UNCONFIRMED = 32
"""Only publishers that pipeline at least this many are paced; one that waits for each confirm never is."""


HELD, BEGUN, LOST = 1, 2, 4
"""Why a connection is not read until it is told so: publishes of it are held, memory is wanted for its bodies; or ever,
for its link is gone."""


class Actor(Protocol):
    """Who acts on the events."""

    closing: bool
    closed: bool

    def act(self, event: events.Event) -> bool:
        """Act on one event; whether it was messages."""
        ...

    def acted(self) -> None:
        """Events were acted on outside a read: see that the answers leave."""

    def decide(self) -> None:
        """What it has brought and left to be decided with that of others is decided."""


GONE = Told("amqp")
"""Asks for what comes late, when the connection that it came of is over: there is nobody to end any more."""


class _Gone:
    """In place of one whose connection is over."""

    closing = closed = True
    asker = GONE

    def act(self, event: events.Event) -> bool:
        return False

    def acted(self) -> None: ...

    def decide(self) -> None: ...


_GONE = _Gone()


class Incoming:
    """What one connection brings."""

    __slots__ = (
        "_actor", "_breathing", "_first", "_link", "_runtime", "_turn", "_turns", "_until", "_untimed", "held",
        "paused", "reads", "received", "received_at", "stops",
    )  # fmt: skip

    def __init__(self, runtime: Runtime, link: Link, actor: Actor) -> None:
        self.paused = False  # the link is not read
        self.stops = 0  # why it is not to be until `start`
        self.received_at = runtime.clock.mono()
        self.received = self.reads = 0  # bytes; how often some came
        self._runtime = runtime
        self._link = link
        self._actor = actor
        self._turns = runtime.turns
        self._turn = -1  # number of the last turn in which something of it was acted on
        self._until = 0  # when its time in that was over
        self._untimed = 0  # events since it was looked whether it is
        self.held: deque[events.Event] | None = None  # what came while it waits
        self._breathing = False  # it waits for the others' turn
        self._first: Callable[[], object] = _nothing  # what is done then before all that waits

    @property
    def asker(self) -> Asker | None:
        return asker_of(self._actor)

    def begin(self, size: int) -> int:
        """A read of so many bytes came: now, in microseconds on the monotonic clock."""
        now = self.received_at = self._runtime.clock.mono()
        self.received += size
        self.reads += 1
        return now

    def take(self, some: Iterable[events.Event]) -> bool:
        """Act on events, or keep them; whether messages were acted on."""
        published = False
        for event in some:
            if self.held is not None or self._late():
                self.keep((event,))
            else:
                published = self._actor.act(event) or published
        return published

    def defer(self, hear: Callable[[], object]) -> bool:
        """Whether the others have their turn before what came is even looked at; then it is heard, first of all."""
        return self.held is None and self._unheard() and not self._actor.closing and self.breathe(hear)

    def _unheard(self) -> bool:
        """Whether nothing of it was heard in this turn, and there is no time left for it in that."""
        turns = self._turns
        if self._turn == turns.number:
            return False
        self._turn, self._until, self._untimed = turns.number, turns.share(), 0
        return not self._until

    def _late(self) -> bool:
        """Whether the others have their turn before one more event; then it waits for that."""
        turns = self._turns
        if self._turn != turns.number:
            return self._unheard() and not self._actor.closing and self.breathe()
        self._untimed += 1
        if self._untimed < UNTIMED:
            return False
        self._untimed = 0
        return not self._actor.closing and turns.over(self._until) and self.breathe()

    def breathe(self, first: Callable[[], object] | None = None) -> bool:
        """Have what comes next wait until the others have had their turn; whether it waits: it may be over.

        first: done before that, when it is time.
        """
        self._actor.decide()
        if self._actor.closing:
            return False
        if self.held is None:
            self._breathing, self._first = True, first or _nothing
            self.hold()
            self._turns.wait(self._breathed)
        return True

    def _breathed(self) -> None:
        if self._breathing:
            self._breathing = False
            self._turn, self._until, self._untimed = self._turns.number, self._turns.mine(), 0
            first, self._first = self._first, _nothing
            self.go_on(first, waited=True)

    # -- events that wait

    def hold(self) -> None:
        """Act on nothing more and read nothing more until `go_on`."""
        if self.held is None:
            self.held = deque()
        if not self.paused:
            self.paused = True
            self._link.pause_reading()

    def go_on(self, first: Callable[[], object], *, waited: bool = False) -> None:
        """Do this first, then what came meanwhile, in its order; then read on.  `waited`: for a turn that has time."""
        turns = self._turns
        late = not waited and (self._unheard() if self._turn != turns.number else turns.over(self._until))
        if late and self.held is not None and not self._actor.closing:  # what it waited for has come for many at once
            self._breathing, self._first = True, first
            turns.wait(self._breathed)
            return
        held, self.held = self.held, None
        if held is None or self._actor.closed or self._actor.closing:
            return
        first()
        self._act_on(held)
        if self.holding:  # the next of them has to wait, too
            self.keep(held)
        else:
            self.resume()
        self._actor.acted()

    @property
    def holding(self) -> bool:
        """Whether events wait for `go_on`."""
        return self.held is not None

    def put_back(self, some: Sequence[events.Event]) -> None:
        """Have events that were kept back elsewhere come before all that waits for `go_on`."""
        assert self.held is not None
        self.held.extendleft(reversed(some))

    def keep(self, some: Iterable[events.Event]) -> None:
        """Have these wait for `go_on`, behind what waits for it already."""
        assert self.held is not None
        self.held.extend(some)

    def act_last(self, event: events.Event) -> None:
        """Act on an event that was kept back elsewhere, after all that waits."""
        if self.held is not None:
            self.held.append(event)
        else:
            self._actor.act(event)

    def _act_on(self, waiting: deque[events.Event]) -> None:
        """Act on these until something has to wait; leaves what is behind that."""
        while waiting and self.held is None and not self._late():
            self._actor.act(waiting.popleft())

    def end(self, again: Callable[[], None]) -> bool:
        """The link is gone: whether its end has to wait; then `again` asks that again, later.

        It waits for what came before that, which counts but for what is being judged, and until all have heard whose
        links end in this round: what one gives back would be tried in vain with another that is gone.
        """
        if self._actor.closed or self._actor.closing or (self.stops & LOST and not self._breathing):
            return False
        self.stops |= LOST
        self._turns.wait(again)
        return True

    def part(self) -> None:
        """The connection is over, and is not held by what comes late."""
        self._actor = _GONE

    # -- reading

    def pace(self, size: int, unconfirmed: Callable[[], int]) -> None:
        """After a read of so many bytes: stop reading a publisher for the running commit, or until there is room.

        unconfirmed: counts the messages that wait for their confirm on this connection.
        """
        runtime = self._runtime
        if not runtime.has_room():
            self.hold_reading(runtime.on_room)
        elif size < PACED_READ and runtime.log.waiting_since and unconfirmed() > PACED_UNCONFIRMED:
            self.hold_reading(runtime.on_commit)

    def hold_reading(self, hooks: list[Callable[[], None]]) -> None:
        """Stop reading this connection until the hook that is added to `hooks` is called."""
        if not self.paused:
            self.paused = True
            self._link.pause_reading()
            hooks.append(self.resume)

    def stop(self, why: int) -> None:
        """Read nothing more until `start`."""
        self.stops |= why
        if not self.paused:
            self.paused = True
            self._link.pause_reading()

    def start(self, why: int) -> None:
        """Read again, where `stop` has ended that, and nothing else keeps it from being read."""
        if self.stops & why:
            self.stops &= ~why
            self.resume()

    def pass_over(self) -> None:
        """Nobody acts on what comes any more: read it all, whatever it waited for."""
        self.held, self._breathing, self.stops = None, False, 0
        self.resume()

    def resume(self) -> None:
        """Read again, unless events wait."""
        if not self.paused or self.held is not None or self.stops:
            return
        self.paused = False
        if not self._actor.closed:
            self.received_at = self._runtime.clock.mono()
            self._link.resume_reading()


def _nothing() -> None:
    """First of all."""


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
