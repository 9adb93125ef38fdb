"""Messages from one AMQP connection: runs of publishes become batches of the core, and their outcomes confirms.

A run is what one read brought for one channel.  Topics are interned once for each distinct method frame and topology.
What cannot be taken now because the disk is full is nacked on a confirming channel, and held by the door's alarm on
another, since nobody would learn that it was refused.  What a queue holds up that is full waits for room in it, on any
channel, and with it all that the channel publishes behind it.

Where a message goes is found once a topic, or each time where its header has a say in it.  That may take long, and it
may be to very many queues: such messages are taken by turns (`server.base.turns`), and what is behind them waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from penstock.errors import InvalidArgument, PreconditionFailed, ProtocolError, Refused
from penstock.records.entries import Publishes, Topic
from penstock.records.properties import REPLY_TO, peeked
from penstock.server.amqp.entitled import Entitled, Judged
from penstock.server.amqp.publishers import FEW, Publishers
from penstock.server.amqp.queueless import asking
from penstock.wire.amqp import events, methods
from penstock.wire.amqp.deliver import returned
from penstock.wire.amqp.events import Target

if TYPE_CHECKING:
    from penstock.core.publishing.published import Published
    from penstock.server.amqp.channel import Channel
    from penstock.server.amqp.session import Session
    from penstock.server.base.faults import Asker
    from penstock.server.people.entitlements import Rights


USER_ID = 0x10
"""The flag of the property, in the second byte of a header."""

CLOSING = (PreconditionFailed, ProtocolError)
"""Refusals that close the channel."""

UNHEARD = (*CLOSING, InvalidArgument)
"""The same where nobody would hear of a negative confirm: a message without the key of its topic."""


PAIRS_MOST = 65_536
"""Pairs of a topic, or of a header that has a say in it, and a queue that are decided together, about."""


class Intake:
    """Takes the publishes of a session."""

    __slots__ = (
        "_judge", "_targets", "acked", "core", "gathered", "gathering", "light", "machine",
        "publishers", "session", "topology", "turns",
    )  # fmt: skip

    def __init__(self, session: Session, publishers: Publishers) -> None:
        self.session = session
        self.core = session.core
        self.publishers = publishers
        self.gathering = publishers.gathering
        self.machine = session.machine
        self.gathered = 0  # the number of the last batch that has messages of this connection
        self.acked = 0  # the number of the last one behind whose messages it acknowledges
        self.turns = session.engine.turns
        self.topology = -1  # the version under which the topics of targets were found
        self.light = -1  # the same, where none of them is dear
        self._targets: list[Target] = []
        self._judge: Entitled | None = None  # where entitlements are configured

    @property
    def asker(self) -> Asker:
        return self.session

    def take(self, channel: Channel, run: events.PublishRun, judged: Judged | None = None) -> None:
        """Publish a run, or what of it can be published.  Nothing after a close of its channel or connection.

        judged: what content filters are known to say of its rows.
        """
        topics = self._known(run) if judged is None else None
        if judged is None and (topics is None or self.light < 0 or (run.plain < 0 and _asks_for_more(run))):
            self._take_by_turns(channel, run)
        else:
            self._take(channel, run, judged, topics)

    def take_alone(self, channel: Channel, run: events.PublishRun) -> None:
        """The same at once, for what was gathered; it waits where one before it is being judged."""
        if self.session.incoming.holding:
            self.session.incoming.take([run])
            return
        self._take(channel, run, None, None, gather=False)

    def _known(self, run: events.PublishRun) -> Topic | list[Topic] | None:
        """The topics of a run, where all of them were found already."""
        if self.core.topology_version != self.topology:
            self._forget_topics()
        targets = run.targets
        if not isinstance(targets, list):
            return targets.topic
        topics = [target.topic for target in targets]
        return None if None in topics else cast("list[Topic]", topics)

    def _take_by_turns(self, channel: Channel, run: events.PublishRun) -> None:
        """Take what may be dear: as much as there is time for in this turn, and the rest in others."""
        start, size, incoming = 0, len(run.bodies), self.session.incoming
        while start < size and channel.open and not self.session.closing:
            if self.turns.used_up:
                incoming.breathe()
            else:
                stop = self._reach(run, start)
                self._take(channel, run.part(start, stop) if stop - start < size else run, None, None)
                start = stop
            if incoming.holding and start < size:
                incoming.keep((run.part(start, size) if start else run,))
                return

    def _reach(self, run: events.PublishRun, start: int) -> int:
        """Up to which row messages from `start` on are published together: as far as their ways are found in time."""
        size, pairs = len(run.bodies), 0
        targets = run.targets if isinstance(run.targets, list) else [run.targets] * size
        headers = run.properties if isinstance(run.properties, list) else [run.properties] * size
        each = list(zip(targets, headers, strict=True))[start:]
        for place, one in enumerate(dict.fromkeys(each)):
            if pairs > PAIRS_MOST or (place and self.turns.used_up):
                return start + each.index(one)
            try:
                pairs += self.core.reach(self.topic_of(one[0]), one[1])
            except Refused:
                return start + each.index(one) + 1  # whoever takes it says so
        return size

    def _take(
        self, channel: Channel, run: events.PublishRun, judged: Judged | None, topics: Topic | list[Topic] | None, *,
        gather: bool = True,
    ) -> None:  # fmt: skip
        if not channel.open or self.session.closing:
            return
        if run.plain < 0 and (wrong := self._wrong_header(channel, run)) is not None:
            self._refuse_header(channel, run, *wrong, judged)
            return
        if self.session.rights is not None and not self._entitled(self.session.rights).allows(channel, run, judged):
            return
        if topics is None:
            try:
                topics = self._topics_of(run.targets)
            except Refused as refusal:
                self._publish_known_part(channel, run, refusal)
                return
        if not (gather and self._waits(channel, run, topics, judged)):
            self._store(channel, run, topics, judged)

    def _topics_of(self, targets: Target | list[Target]) -> Topic | list[Topic]:
        """The topics of method frames.  Raises NotFound, AccessRefused."""
        if self.core.topology_version != self.topology:
            self._forget_topics()
        if isinstance(targets, list):
            return [target.topic or self._resolve(target) for target in targets]
        return targets.topic or self._resolve(targets)

    def _waits(
        self, channel: Channel, run: events.PublishRun, topics: Topic | list[Topic], judged: Judged | None
    ) -> bool:
        """Whether a run waits for those of others, or for what before it is being judged."""
        if judged is None and len(run.bodies) <= FEW and self._gather(channel, run, topics):
            return True
        return self.gathering.decide_before(self.session.incoming, run)

    def gathers(self, channel: Channel) -> bool:
        """Whether plain messages of an open channel may wait for those of others in this round."""
        return channel.tx is None and self.session.rights is None

    def _gather(self, channel: Channel, run: events.PublishRun, topics: Topic | list[Topic]) -> bool:
        """Have a run wait for those of others, if it may."""
        gathering = self.gathering
        if run.plain < 0 or run.early or not self.gathers(channel):
            return False
        if not gathering.begun:
            gathering.begin()
        some = run.properties
        header = len(some) if isinstance(some, bytes) else max(map(len, some))
        if header + max(map(len, run.bodies)) > gathering.most or gathering.version != self.light:
            return False
        for row, body in enumerate(run.bodies):
            topic = topics[row] if isinstance(topics, list) else topics
            gathering.publish(self, channel, run.target_of(row), topic, run.properties_of(row), body, run.plain)
        return True

    def forget_rights(self) -> None:
        """They have changed."""
        self._judge = None

    def _entitled(self, rights: Rights) -> Entitled:
        if self._judge is None:
            self._judge = Entitled(self.session, rights, self)
        return self._judge

    def _wrong_header(self, channel: Channel, run: events.PublishRun) -> tuple[int, Refused] | None:
        """The first row whose header is of another user, or asks for replies that nobody waits for, and why not.

        Those before it that ask for replies say where from now on.
        """
        some, user = run.properties, self.session.user
        rows = [some] if isinstance(some, bytes) else some
        for row, data in enumerate(rows):
            if data[0] & REPLY_TO:
                try:
                    changed = asking(channel, data)
                except PreconditionFailed as refusal:
                    return row, refusal
                if changed is not None:
                    rows[row] = changed
            if data[1] & USER_ID and (claimed := peeked(data)[3]) is not None and claimed != user:
                text = f"user_id property set to '{claimed}' but authenticated user was '{user}'"
                return row, PreconditionFailed(text)
        if isinstance(some, bytes):
            run.properties = rows[0]
        return None

    def _refuse_header(
        self, channel: Channel, run: events.PublishRun, row: int, why: Refused, judged: Judged | None
    ) -> None:
        """Publish the rows before it, then close the channel for it."""
        if row and isinstance(run.properties, list):  # with one header for all the first is wrong already
            self._take(channel, run.part(0, row), judged, None)
        self.session.fail_channel(run.channel, why, methods.BasicPublish)

    def topic_of(self, target: Target) -> Topic:
        """The topic of a method frame.  Raises NotFound, AccessRefused."""
        return target.topic or self._resolve(target)

    def _publish_known_part(self, channel: Channel, run: events.PublishRun, refusal: Refused) -> None:
        """Publish the rows before the first unknown exchange, then close the channel for it."""
        targets = run.targets if isinstance(run.targets, list) else [run.targets]
        good = 0
        while good < len(targets) and targets[good].topic is not None:
            good += 1
        if isinstance(run.targets, list) and good:
            self._take(channel, run.part(0, good), None, None)
        self.session.fail_channel(run.channel, refusal, methods.BasicPublish)

    def _resolve(self, target: Target) -> Topic:
        """The core's topic of a method frame seen for the first time under this topology."""
        topic = self.core.topic(self.session.vhost, target.exchange, target.key)
        target.topic = topic
        self._targets.append(target)
        if self.core.dear(topic):
            self.light = -1
        return topic

    def _forget_topics(self) -> None:
        for target in self._targets:
            target.topic = None
        self._targets.clear()
        self.light = self.topology = self.core.topology_version

    def _store(
        self, channel: Channel, run: events.PublishRun, topics: Topic | list[Topic], judged: Judged | None
    ) -> None:
        if channel.tx is not None and not run.early:
            try:
                channel.tx.publish(run, topics)
            except (Refused, ProtocolError) as error:
                self.session.fail_channel(channel.number, error, methods.BasicPublish)
            return
        refuse, holding = self.publishers.refusal(), self.publishers.holding
        if holding.held and holding.behind(self.session, channel.number, run):
            return
        if refuse is not None and self.publishers.alarm.holds(self.session, channel, run):
            return
        batch = Publishes(topics, run.properties, run.bodies, plain=run.plain, judged=judged)
        if self.core.traced:
            batch.sender = self.session.name, channel.number, self.session.user
        if refuse is None and not self.session.engine.judges.ready([batch], partial(self._again, channel, run, batch)):
            self.session.incoming.hold()
            return
        if refuse is None and self.core.blocking:
            self._let_in(channel, run, batch)
        else:
            self._publish(channel, run, batch, refuse)

    def _let_in(self, channel: Channel, run: events.PublishRun, batch: Publishes) -> None:
        """Publish what no full queue holds up, and wait with the rest."""
        low, size = 0, len(run.bodies)
        while low < size and channel.open and not self.session.closing:
            count, queue = self.core.let_in(self.session.engine.now(), batch)
            if count == len(batch):
                self._publish(channel, run.part(low, size) if low else run, batch, None)
                return
            if count:
                self._publish(channel, run.part(low, low + count), batch.select(range(count)), None)
                batch = batch.select(range(count, len(batch)))
                low += count
            if queue is not None and channel.open:
                reason = f"queue '{queue.name}' in vhost '{queue.vhost}' is full"
                line = self.publishers.holding.hold(self.session, channel.number, run.part(low, size), reason)
                if line.events and line.queue is None:
                    self.session.engine.rooms.wait(queue, len(run.bodies[low]), line)
                return

    def _publish(self, channel: Channel, run: events.PublishRun, batch: Publishes, refuse: Refused | None) -> None:
        """Publish a run; its outcome is told when it is durable."""
        self.tell(channel, run, self.core.publish(self.session.engine.now(), batch, refuse=refuse))

    def tell(self, channel: Channel, run: events.PublishRun, published: Published) -> None:
        """What became of a run: its publisher is told when it is durable."""
        count, confirming = len(run.bodies), channel.confirming and not run.early
        first = channel.published + 1
        channel.published += count if confirming else 0
        channel.counts.published += count
        counters = self.publishers.counters
        counters.sizes.add(run.bodies)
        counters.routed += published.stored
        if published.unroutable:
            self.send_back(channel, [(run, row) for row in published.unroutable])
        fatal = CLOSING if confirming else UNHEARD
        closing = next((why for _, why in published.refused if isinstance(why, fatal)), None)
        if closing is not None:
            self.session.fail_channel(channel.number, closing, methods.BasicPublish)
            return
        if confirming:
            channel.counts.published_confirm += count
            channel.unconfirmed += count
            refused = [first + row for row, _ in published.refused] if published.refused else None
            told = partial(self.confirm, channel, first, channel.published, refused)
            if self.session.engine.broken is None:
                self.session.engine.when_persisted(published.last, told)
            else:
                told()

    def _again(self, channel: Channel, run: events.PublishRun, batch: Publishes) -> None:
        """Its rows are judged now; the topology may have changed meanwhile."""
        self.session.incoming.go_on(partial(self.take, channel, run, batch.judged))

    def send_back(self, channel: Channel, unroutable: Sequence[tuple[events.PublishRun, int]]) -> None:
        """Return what nobody wanted and whose publisher asked to be told; count all of it."""
        for run, row in unroutable:
            target = run.target_of(row)
            if not target.mandatory:
                channel.counts.unroutable_dropped += 1
                continue
            channel.counts.unroutable_returned += 1
            pieces = returned(
                channel.number,
                312,
                target.exchange,
                target.key,
                run.properties_of(row),
                run.bodies[row],
                self.machine.frame_max,
            )
            channel.answers.tell(partial(self.machine.send_pieces, channel.number, pieces))
        self.session.outgoing.take_machine_output()

    def confirm(self, channel: Channel, first: int, last: int, refused: list[int] | None) -> None:
        """Tell the publisher that first..last are durable, but for those a queue refused."""
        if not channel.open:
            return
        count = last - first + 1
        channel.unconfirmed -= count
        confirmed = count - len(refused or ())
        channel.counts.confirmed += confirmed
        if refused is None:
            self.publishers.confirm(channel, last)
            return
        self.publishers.flush_confirms()
        self.publishers.counters.refused += len(refused)
        gone = set(refused)
        edge = first  # the first outcome holds up to here: one answer may speak of all before it, and of no other
        while edge < last and (edge + 1 in gone) == (first in gone):
            edge += 1
        if first in gone:
            self.machine.refuse(channel.number, edge, multiple=edge > first)
        else:
            self.machine.confirm(channel.number, edge, multiple=edge > first)
        for sequence in range(edge + 1, last + 1):
            if sequence in gone:
                self.machine.refuse(channel.number, sequence)
            else:
                self.machine.confirm(channel.number, sequence)
        self.session.outgoing.take_machine_output()


def _asks_for_more(run: events.PublishRun) -> bool:
    """Whether a header may name more keys: then it has a say in where its message goes."""
    some = run.properties
    return b"CC" in (some if isinstance(some, bytes) else b"\0".join(some))
