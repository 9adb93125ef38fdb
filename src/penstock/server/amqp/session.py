"""One AMQP connection, as whoever acts for it knows it: its core, its machine, what goes out, and how it is refused.

`Connection` is one that has a peer, and turns its events into calls of these; nothing here knows what an event means.
Bytes to the peer gather during a turn, are written once at its end, and count against the budget of bodies while they
wait.  What it settles at once goes to the core in portions, each other one in a turn of its own, so that one ack for a
million messages holds nobody up; until then the consumer holds them, and their tags are spent.
"""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import field
from itertools import chain, groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from penstock.core.effects import Verb
from penstock.core.queue.queue import Queue, queue_of
from penstock.errors import PenstockError, PreconditionFailed, ProtocolError
from penstock.records.dataclass import dataclass
from penstock.server.amqp.incoming import GONE, Incoming
from penstock.server.amqp.links import SEND_FREE, SEND_MOST, Came, Client, Link, Sending
from penstock.server.amqp.tags import Owner, Settled, singly
from penstock.server.base.faults import Asker, asker_behind
from penstock.wire.amqp import events, methods

if TYPE_CHECKING:
    from penstock.core.commands.deliveries import Delivery
    from penstock.core.queue.dispatching.consumers import Consumer
    from penstock.core.queue.settling.several import Acked
    from penstock.records.chunks import Chunk, Now
    from penstock.records.entries import Topic
    from penstock.server.base.runtime import Runtime
    from penstock.server.counters import Counters, MessageCounts
    from penstock.server.engine import Engine
    from penstock.server.people.entitlements import Rights
    from penstock.server.people.logins import Logins
    from penstock.wire.amqp.deliver import DeliveryEncoder
    from penstock.wire.amqp.frames import Bytes
    from penstock.wire.amqp.machine import ServerConnection


@dataclass(slots=True, eq=False)
class Outgoing:
    """What one connection has to send."""

    _runtime: Runtime
    _machine: ServerConnection
    _link: Link
    _on_room: Callable[[], None]  # called when deliveries were written and the link takes more
    _on_end: Callable[[], None]  # with the last word
    frames: list[Bytes] = field(default_factory=list["Bytes"], init=False)
    unsent: int = field(default=0, init=False)  # bytes of deliveries in `frames`, about
    blocked: bool = field(default=False, init=False)  # the peer does not read
    sent_at: int = field(init=False)
    sent: int = field(default=0, init=False)  # bytes
    writes: int = field(default=0, init=False)  # how often some went out
    _ended: bool = field(default=False, init=False)  # the last word was said
    _dirty: bool = field(default=False, init=False)
    _over: bool = field(default=False, init=False)
    _narrow: bool = field(default=False, init=False)  # the budget is short: no more than SEND_FREE may wait
    _charged: int = field(default=0, init=False)  # bytes waiting for the peer that count against the budget

    def __post_init__(self) -> None:
        self.sent_at = self._runtime.clock.mono()

    @property
    def asker(self) -> Asker | None:
        return asker_behind(self._on_end) or GONE

    @property
    def full(self) -> bool:
        """Whether as much waits for the peer as may."""
        return (self.blocked or self.unsent > SEND_MOST) and not self._over

    def mark_dirty(self) -> None:
        """See that `frames` and the machine's bytes are written at the end of the turn."""
        if not self._dirty:
            self._dirty = True
            self._runtime.on_flush.append(self.flush)

    def speak(self) -> None:
        """The same, whatever became of it before."""
        self._dirty = False
        self.mark_dirty()

    def deliver(self, channel: int, pieces: Sequence[Bytes], size: int) -> None:
        """Encoded deliveries with about so many bytes of messages."""
        self.unsent += size
        self.frames += pieces
        self.mark_dirty()

    def deliver_one(
        self, channel: int, encoder: DeliveryEncoder, tag: int, again: bool, topic: Topic, header: bytes, body: bytes
    ) -> None:
        """Send one delivery to the client, as `deliver` does many."""
        self.unsent += len(header) + len(body)
        contents = encoder.contents
        head = contents.heads.get((again, topic)) or contents.head(again, topic)
        self.frames += encoder.one(tag, head, header, body)
        self.mark_dirty()

    def send(self, channel: int, method: methods.Method) -> None:
        """A method frame, in order with what is already in `frames`."""
        self._machine.send(channel, method)
        self.take_machine_output()

    def confirm_up_to(self, channel: int, sequence: int) -> None:
        """Everything that was published up to a number is durable."""
        self._machine.confirm(channel, sequence, multiple=True)
        if self.frames:
            self.take_machine_output()
        else:
            self.mark_dirty()

    def take_machine_output(self) -> None:
        """What the machine has to say goes behind what is in `frames` already."""
        data = self._machine.take_output()
        if data:
            self.frames.append(data)
        self.mark_dirty()

    def flush(self) -> None:
        """One write of everything this turn brought."""
        self._dirty = False
        data = self._machine.take_output()
        frames = self.frames
        if frames:
            if data:
                frames.append(data)
            data = b"".join(frames)
            frames.clear()
        if data and not (self._over or self._ended):  # behind the last word nothing is said
            self.sent_at = self._runtime.clock.mono()
            self.sent += len(data)
            self.writes += 1
            self._link.write(data)
            waiting = self._link.buffered()
            if waiting != self._charged or self._narrow or waiting > SEND_FREE:
                self.count_unsent()
        held_up = self.unsent > SEND_MOST  # somebody may have been told that it is full
        self.unsent = 0
        if held_up and not self.blocked:
            self._on_room()
        if self._machine.finished and not self._ended:
            self._ended = True
            if not self._over:
                self._on_end()

    @property
    def taken(self) -> int:
        """Bytes that the kernel has taken."""
        return self.sent - self._link.buffered()

    def count_unsent(self) -> None:
        """Charge what waits for the peer to the budget; when that is short, let less wait."""
        waiting = self._link.buffered()
        if waiting == self._charged and not self._narrow and waiting <= SEND_FREE:
            return
        caches = self._runtime.bodies
        caches.sending.add(waiting - self._charged)
        self._charged = waiting
        narrow = waiting > SEND_FREE and caches.tight
        if narrow != self._narrow:
            self._narrow = narrow
            self._link.keep_below(SEND_FREE if narrow else SEND_MOST)

    def end(self) -> None:
        """The link is gone: nothing is written any more, and nothing waits."""
        self._over = True
        self._runtime.bodies.sending.add(-self._charged)
        self._charged = 0

    def part(self) -> None:
        """The session is over, and is not held by what comes late."""
        self._on_room = self._on_end = _nothing


def _nothing() -> None:
    """There is nobody any more."""


PORTION = 16_384
"""Messages in a portion, about; a range counts as few, however long."""

GIVEN_BACK = 4
"""What is not acknowledged takes so much longer: each chunk is a step of its own."""

RANGE_WEIGHT = 64

EACH_WEIGHT = 16
"""What a message counts for that has a consumer of its own."""


TRIES = 20
"""Deliveries of a message, sendable or not, as many as RabbitMQ's quorum queues make without a setting."""


def unsendable(effect: Delivery) -> Verb:
    """How deliveries end whose header no frame of their connection carries.

    They have failed: back to the queue, for others with larger frames, or until the queue's limit.  Without such a
    limit they are dead letters after `TRIES`, where the queue has a place for these; else they stay.  So a queue that
    has told where its failures go is not held up for ever; where it has not, nothing that was confirmed is given up.
    """
    letters = effect.queue.settings.dead_letter_exchange is not None
    return Verb.EXPIRE if effect.attempt >= TRIES and letters else Verb.CANCEL


class Settling:
    """What one connection has settled and the core does not know yet."""

    __slots__ = ("_engine", "_left", "asker")

    def __init__(self, engine: Engine, asker: Asker) -> None:
        self._engine = engine
        self.asker = asker
        self._left: deque[tuple[Iterator[Settled], Verb]] | None = None  # an empty deque is large

    def part(self) -> None:
        """The session is over."""
        self.asker = GONE

    def settle(self, settled: Settled, verb: Verb) -> None:
        """Settle chunks, those of one consumer together; of very much only the first part at once."""
        if len(settled) == 1:
            self._now(settled, verb)
            return
        portions = _portions(settled, PORTION if verb is Verb.ACK else PORTION // GIVEN_BACK)
        self._now(next(portions), verb)
        if (more := next(portions, None)) is not None:
            if self._left is None:
                self._left = deque()
                self._engine.call_soon(self._step)
            self._left.append((chain((more,), portions), verb))

    def finish(self) -> None:
        """Settle all that is left."""
        left, self._left = self._left, None
        for portions, verb in left or ():
            for settled in portions:
                self._now(settled, verb)

    def _step(self) -> None:
        left = self._left
        if left is None:
            return  # finished meanwhile
        portions, verb = left[0]
        if (settled := next(portions, None)) is None:
            left.popleft()
        else:
            self._now(settled, verb)
        self._engine.arm()
        if left:
            self._engine.call_soon(self._step)
        else:
            self._left = None

    def _now(self, settled: Settled, verb: Verb) -> None:
        core, now = self._engine.core, self._engine.now()
        if len(settled) == 1 and not isinstance(consumer := settled[0][0], list):
            core.settle(now, queue_of(consumer), [settled[0][1]], verb, by=consumer)
            return
        if verb is not Verb.ACK:
            for consumer, chunks in _by_consumer(singly(settled)):
                core.settle(now, queue_of(consumer), chunks, verb, by=consumer)
            return
        alone: list[tuple[Consumer, Chunk]] = []
        for owner, chunk in settled:
            if isinstance(owner, list):
                self._several(now, alone)
                alone = []
                core.settle_each(now, queue_of(owner[0]), owner, chunk)
            else:
                alone.append((owner, chunk))
        self._several(now, alone)

    def _several(self, now: Now, settled: Sequence[tuple[Consumer, Chunk]]) -> None:
        core = self._engine.core
        for queue, some in groupby(_by_consumer(settled), key=_queue_of):
            each = list(some)
            if len(each) > 1:
                core.settle_several(now, queue, each)
            else:
                core.settle(now, queue, each[0][1], Verb.ACK, by=each[0][0])


def _by_consumer(settled: Sequence[tuple[Consumer, Chunk]]) -> Iterator[Acked]:
    for consumer, own in groupby(settled, key=itemgetter(0)):
        yield consumer, [chunk for _, chunk in own]


def _queue_of(acked: Acked) -> Queue:
    return queue_of(acked[0])


def _portions(settled: Settled, most: int) -> Iterator[Settled]:
    """At least one."""
    weight = start = 0
    for at, (owner, chunk) in enumerate(settled):
        if weight >= most and at:
            yield settled[start:at]
            weight, start = 0, at
        weight += _weight(owner, chunk)
    yield settled[start:]


def _weight(owner: Owner, chunk: Chunk) -> int:
    if isinstance(owner, list):
        return EACH_WEIGHT * len(owner)
    return RANGE_WEIGHT if isinstance(chunk, range) else len(chunk)


class House(Protocol):
    """What all sessions of a door have in common."""

    engine: Engine
    logins: Logins
    counters: Counters


class Session(ABC):
    """A connection that has a link."""

    __slots__ = (
        "__weakref__", "began_after", "came_at", "closed", "closing", "closing_at", "core", "counters", "cut", "engine",
        "incoming", "link", "local", "logins", "machine", "opened", "opened_at", "outgoing", "peer", "rights",
        "settling", "stranger", "tls", "user", "vhost",
    )  # fmt: skip

    def __init__(self, house: House, machine: Client, outgoing: Sending, came: Came) -> None:
        self.engine = engine = house.engine
        self.core = engine.core
        self.logins, self.counters = house.logins, house.counters
        self.machine = machine
        self.link, self.peer, self.local, self.tls, self.stranger = came
        self.user = ""
        self.rights: Rights | None = None  # None: nothing is limited
        self.vhost = "/"
        self.opened = False
        self.closing = False
        self.closed = False
        self.opened_at = engine.clock.mono()
        self.came_at = engine.clock.wall()  # the same for people, wherever that clock goes then
        self.closing_at = 0  # when we gave it up, or said our last word
        self.cut = ""  # why we have cut its link
        self.outgoing = outgoing
        self.incoming = Incoming(engine, came.link, self)
        self.settling = Settling(engine, self)
        self.began_after = 0  # the last LSN when the present method came

    @property
    def name(self) -> str:
        """How lists, events and traces call the connection: both of its ends."""
        return f"{self.peer} -> {self.local}"

    # -- faults

    kind = "amqp"

    @abstractmethod
    def end_by_fault(self) -> None:
        """541, and what it had goes back."""

    def cut_off(self, why: str) -> None:
        """Its link ends at once; the log tells why."""
        self.cut = why
        self.link.abort()

    # -- events

    @abstractmethod
    def act(self, event: events.Event) -> bool:
        """Act on one event; whether it was messages."""

    def acted(self) -> None:
        """Events were acted on outside a read."""
        self.outgoing.mark_dirty()
        self.engine.arm()

    @abstractmethod
    def decide(self) -> None:
        """What it has brought and left to be decided with that of others is decided."""

    @property
    @abstractmethod
    def consumes(self) -> bool:
        """Whether it takes messages, so that acks come on it."""

    @abstractmethod
    def mute(self, channel: int) -> None:
        """What a channel waits with came before it asked for confirms, or for transactions."""

    @abstractmethod
    def send_back(self, channel: int, unroutable: list[tuple[events.PublishRun, int]]) -> None:
        """Return to a channel what nobody wanted and whose publisher asked to be told; count all of it."""

    # -- what goes out

    def send(self, channel: int, method: methods.Method) -> None:
        """A method frame, in order with what waits to be written."""
        self.outgoing.send(channel, method)

    @abstractmethod
    def go_on_delivering(self) -> None:
        """The link takes deliveries again."""

    @abstractmethod
    def linger(self) -> None:
        """Our last word is said."""

    # -- settling

    def settle(self, counts: MessageCounts, settled: Settled, verb: Verb) -> None:
        """Settle chunks of the channel that has these counts, those of one consumer together; see `Settling`."""
        if not settled:
            return
        if verb is Verb.ACK:
            counts.acknowledged += sum([len(chunk) for _, chunk in settled])
        self.settling.settle(settled, verb)

    @abstractmethod
    def give_back_one(self, settled: Settled) -> None:
        """A delivery is given back, as one of several perhaps: those of a consumer go together."""

    # -- refusals

    @abstractmethod
    def fail_channel(
        self, number: int, error: PenstockError, method: type[methods.Method], *, lost: bool = False
    ) -> None:
        """Close one channel for a refusal, or the connection where the code asks for that.

        lost: of each consumer the oldest delivery counts as failed.
        """

    def unknown_tag(self, channel: int, tag: int, method: type[methods.Method]) -> None:
        """A tag that is not outstanding: the channel's mistake."""
        self.fail_channel(channel, PreconditionFailed(f"unknown delivery tag {tag}"), method)


def generated_name(prefix: str) -> str:
    """A name nobody else has."""
    return prefix + secrets.token_urlsafe(16)


def refuse_reuse(tag: str) -> ProtocolError:
    """A consumer of this tag is there already."""
    return ProtocolError(f"attempt to reuse consumer tag '{tag}'", reply_code=530)
