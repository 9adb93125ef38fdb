"""The publishers of the AMQP door: what those with a message or two in a read bring, and the confirms of all.

What many bring in one round of the loop is one batch, and one settlement a queue.  Nothing of one connection changes
places.  What lies here is decided at the end of the round, or before anything else that an AMQP connection asks: acks
first, then messages, then the acks of connections that acknowledge behind what they have published, as who answers
requests does.  What the batch may not be decided with (see `Core.at_once`) goes on its own, as if it had come so.
Deliveries that are given back one by one lie here alone: what neighbours of one consumer say is one command.
Confirms are gathered, too: one a channel and commit.
"""

from __future__ import annotations

from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Protocol

from penstock.core.effects import Verb
from penstock.core.publishing.published import Published
from penstock.core.queue.queue import queue_of
from penstock.errors import Refused
from penstock.records.entries import Publishes, Topic
from penstock.records.one_or_each import one_or_each
from penstock.server.amqp.holding import DiskAlarm, Holding
from penstock.server.amqp.incoming import Begun, Incoming
from penstock.server.base.faults import Asker, asker_of
from penstock.wire.amqp.events import Event, MethodReceived, PublishRun, Target
from penstock.wire.amqp.methods import BasicNack, BasicReject

if TYPE_CHECKING:
    from collections.abc import Sequence

    from penstock.core.queue.dispatching.consumers import Consumer, Serving
    from penstock.records.chunks import Chunk
    from penstock.server.amqp.channel import Channel
    from penstock.server.counters import Counters
    from penstock.server.engine import Engine


FEW = 16
"""Messages of one read that are gathered; more are worth a batch of their own."""

ROWS_MOST = 1024
BYTES_MOST = 256 << 10
"""Gathered rows and bytes beyond which they are decided within the round: others' turn must not be long."""

RETURNED_MOST = 64
"""The same of deliveries that are given back one by one, of which each takes as long as 20 publishes."""


def gives_back(event: Event) -> bool:
    """Whether a client gives back one delivery: that may lie here with others."""
    if not isinstance(event, MethodReceived):
        return False
    method = event.method
    if isinstance(method, BasicNack):
        return method.requeue and not method.multiple
    return isinstance(method, BasicReject) and method.requeue


class Session(Protocol):
    """What brings messages and acks of one connection."""

    gathered: int
    """The number of the last batch that has messages of it."""

    acked: int
    """The number of the last batch behind whose messages it acknowledges."""

    @property
    def asker(self) -> Asker:
        """Who is ended for what fails."""
        ...

    def take_alone(self, channel: Channel, run: PublishRun) -> None:
        """Decide a message on its own."""

    def tell(self, channel: Channel, run: PublishRun, published: Published) -> None:
        """Tell its publisher what became of messages."""


class Gathering:
    """What the connections of a door have brought, and nobody has decided."""

    def __init__(self, publishers: Publishers) -> None:
        self.version = -1  # of the topology under which the topics of this round were found
        self.mono = 0  # when the round's first came
        self.begun = False  # something lies here; else whoever brings something has to `begin`
        self.most = -1  # bytes that a message may have, with its header, to be one of a batch; below 0: none may be
        self._most = 0  # bytes that may be one batch
        self._publishers = publishers
        self._engine = publishers.engine
        self._core = publishers.engine.core
        self._topology = self._core.topology
        self._round = 1  # number of the batch that is gathered; an intake whose `gathered` is another has nothing in it
        self._rows: list[tuple[Session, Channel, Target]] = []
        self._topics: list[Topic] = []
        self._properties: list[bytes] = []
        self._bodies: list[bytes] = []
        self._modes: set[int] = set()  # delivery modes
        self._size = 0
        self._acks: list[tuple[Consumer, Chunk]] = []  # before the batch
        self._acks_behind: list[tuple[Consumer, Chunk]] = []  # of connections that have messages in it
        self._returned: list[tuple[Consumer, Chunk]] = []  # nothing else lies here then
        self._engine.before_turn.append(self.decide)

    def begin(self) -> None:
        """The first brings something, and learns what is the same for a whole round."""
        if self._returned:
            self.decide()
        self.begun = True
        self.mono = self._engine.clock.mono()
        if self.version != self._topology.version:
            self.version = self._topology.version
            self._most = min(BYTES_MOST, self._core.at_once)  # follows from what queues and topics were declared as
        self.most = self._most if self._most > 0 and self._together() and self._engine.has_room() else -1

    def publish(
        self, intake: Session, channel: Channel, target: Target, topic: Topic, header: bytes, body: bytes, mode: int
    ) -> None:
        """A message that may be one of the batch, and whose header asks for nothing but this delivery mode."""
        size = len(header) + len(body)
        if self._size + size > self._most or len(self._rows) >= ROWS_MOST or intake.acked == self._round:
            self.decide()
            self.begun = True
        self._rows.append((intake, channel, target))
        self._topics.append(topic)
        self._properties.append(header)
        self._bodies.append(body)
        self._modes.add(mode)
        self._size += size
        intake.gathered = self._round

    def acknowledge(self, intake: Session, settled: Sequence[tuple[Consumer, Chunk]]) -> None:
        """Deliveries of a connection are done."""
        if not self.begun:
            self.begin()
        if intake.gathered == self._round:
            intake.acked = self._round
            self._acks_behind += settled
        else:
            self._acks += settled

    def give_back(self, settled: Sequence[tuple[Consumer, Chunk]]) -> None:
        """A connection gives deliveries back; all that came before is decided, but for such."""
        self._returned += settled
        if len(self._returned) >= RETURNED_MOST:
            self.decide()

    def decide(self) -> None:
        """All that lies here is decided."""
        if self._returned:
            returned, self._returned = self._returned, []
            self._give_back(returned)
        if not self._rows:
            self.begun = False
            if not self._acks:
                return
        if self._acks:
            acks, self._acks = self._acks, []
            self._settle(acks)
        if self._rows:
            now = self._engine.now()  # one for all, which is one value of the log's column
            rows, topics, properties, bodies = self._rows, self._topics, self._properties, self._bodies
            modes, size, behind = self._modes, self._size, self._acks_behind
            self._rows, self._topics, self._properties, self._bodies, self._modes = [], [], [], [], set()
            self._acks_behind = []
            self.begun = False
            self._size = 0
            self._round += 1
            mode = modes.pop() if len(modes) == 1 else -1
            published: Published | None = None
            if self._together():
                alone = len(rows) == 1
                topic = topics[0] if alone else one_or_each(topics)
                header = properties[0] if alone else one_or_each(properties)
                batch = Publishes(topic, header, bodies, size=size, plain=mode)
                try:
                    published = self._core.publish(now, batch)
                except Exception as error:  # noqa: BLE001 - whose message it is shows when each is decided alone
                    self._engine.faults.check_whole(error)
                else:
                    self._tell(rows, batch, published)
            if published is None:
                for (intake, channel, target), header, body in zip(rows, properties, bodies, strict=True):
                    run = PublishRun(channel.number, target, header, [body], plain=mode, told=1)
                    self._engine.faults.run(partial(intake.take_alone, channel, run), intake.asker)
            if behind:
                self._settle(behind)

    def decide_before(self, incoming: Incoming, event: Event) -> bool:
        """Decide what came before an event; whether that has it wait, since messages of its connection are judged."""
        if not (self._returned and gives_back(event)):
            self.decide()
        if incoming.holding:
            incoming.take([event])
        return incoming.holding

    def _together(self) -> bool:
        """Whether nothing holds publishes up, and the topics mean what they meant when they were found.

        While messages are traced each is published for itself, with who sends it.
        """
        engine, core = self._engine, self._core
        if core.traced or self._publishers.held or self._topology.version != self.version:
            return False
        return engine.broken is None and not core.draining and not engine.log.room.full

    # -- acks

    def _settle(self, acks: Sequence[tuple[Consumer, Chunk]]) -> None:
        by_queue: dict[Serving, list[tuple[Consumer, tuple[Chunk]]]] = {}
        for consumer, chunk in acks:
            queue = consumer.queue
            if queue in by_queue:
                by_queue[queue].append((consumer, (chunk,)))
            else:
                by_queue[queue] = [(consumer, (chunk,))]
        engine = self._engine
        try:
            self._core.settle_round(engine.now(), by_queue)
        except Exception as error:  # noqa: BLE001 - as with messages
            engine.faults.check_whole(error)
            for consumer, chunk in acks:
                settle = partial(self._core.settle, engine.now(), queue_of(consumer), [chunk], Verb.ACK, by=consumer)
                engine.faults.run(settle, asker_of(consumer.holder))

    def _give_back(self, returned: Sequence[tuple[Consumer, Chunk]]) -> None:
        engine = self._engine
        for consumer, some in groupby(returned, key=itemgetter(0)):
            cancel = partial(self._core.cancel_each, engine.now(), consumer, [chunk for _, chunk in some])
            engine.faults.run(cancel, asker_of(consumer.holder))

    # -- publishes

    def _tell(
        self, rows: Sequence[tuple[Session, Channel, Target]], batch: Publishes, published: Published
    ) -> None:  # fmt: skip
        """Rows of several channels are published, each of which is told of its own."""
        engine, counters = self._engine, self._publishers.counters
        counters.routed += published.stored
        apart: dict[int, Published] = {}
        if published.unroutable or published.refused:
            apart |= {row: Published(0, published.last, unroutable=(0,)) for row in published.unroutable}
            apart |= {row: Published(0, published.last, refused=((0, why),)) for row, why in published.refused}
        confirms: list[tuple[Channel, int]] = []
        for row, (intake, channel, target) in enumerate(rows):
            if apart and row in apart:
                run = PublishRun(channel.number, target, batch.properties_of(row), [bytes(batch.bodies[row])])
                engine.faults.run(partial(intake.tell, channel, run, apart[row]), intake.asker)
                continue
            channel.counts.published += 1
            if channel.confirming:
                channel.counts.published_confirm += 1
                channel.published += 1
                channel.unconfirmed += 1
                confirms.append((channel, channel.published))
        counters.sizes.add([one for row, one in enumerate(batch.bodies) if row not in apart] if apart else batch.bodies)
        if confirms:
            engine.when_persisted(published.last, partial(self._publishers.confirm_each, confirms))


class Publishers:
    """Those of all connections of the door."""

    def __init__(self, engine: Engine, counters: Counters, message_most: int) -> None:
        """message_most: bytes of the largest message that there may be."""
        self.engine, self.counters = engine, counters
        self.holding = Holding(engine)
        self.held = self.holding.held
        self.alarm = DiskAlarm(engine, self.holding)
        self.begun = Begun(engine, message_most)
        self.gathering = Gathering(self)
        self._confirms: dict[Channel, int] = {}

    def refusal(self) -> Refused | None:
        """Why no message can be taken at present, if so."""
        why = self.engine.refusal(new=True)
        return why if why is None or isinstance(why, Refused) else Refused(str(why))

    def confirm(self, channel: Channel, sequence: int) -> None:
        """Everything of a channel up to a number is durable: told once a channel and commit."""
        told = self._confirms
        if not told:
            self.engine.on_flush.insert(0, self.flush_confirms)
        if told.get(channel, 0) < sequence:
            told[channel] = sequence

    def confirm_each(self, confirms: Sequence[tuple[Channel, int]]) -> None:
        """The same of one message more each, where the channel is still open."""
        told = self._confirms
        if not told:
            self.engine.on_flush.insert(0, self.flush_confirms)
        for channel, sequence in confirms:
            if channel.open:
                channel.unconfirmed -= 1
                channel.counts.confirmed += 1
                if told.get(channel, 0) < sequence:
                    told[channel] = sequence

    def flush_confirms(self) -> None:
        """Send the confirms that were gathered in this turn."""
        confirms, self._confirms = self._confirms, {}
        for channel, sequence in confirms.items():
            if channel.open:
                try:
                    channel.session.outgoing.confirm_up_to(channel.number, sequence)
                except Exception as error:  # noqa: BLE001 - the border of each
                    self.engine.faults.contain(error, channel.asker)
