"""FastStream's test broker: handlers are called where a message is published, and no server is asked."""

# FastStream is in an environment of its own, beside which this is not read by type checkers
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, cast
from unittest.mock import AsyncMock

import anyio
import pyarrow as pa
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound
from faststream.response.publish_type import PublishType

from penstock.client import aio
from penstock.client.batches import Batch
from penstock.client.messages import Following, Message, Receipt, Rows, TableReceipt
from penstock.expr import TopicPattern, evaluate
from penstock.faststream.broker import PenstockBroker
from penstock.faststream.messages import ROW, Producer, PublishCommand, unanswered
from penstock.faststream.subscribing import BatchSubscriber, PenstockSubscriber
from penstock.records.properties import Properties, encode
from penstock.wire.flight.codec import properties_of
from penstock.wire.flight.commands import DELIVERY, PUBLISH
from penstock.wire.flight.received import check_sent


class Holding:
    """Who holds what a handler is given: nobody waits to have it settled, and what comes with an ack is published."""

    client, tag, term, closed = None, "tested", 0, False

    def __init__(self, topic: str) -> None:
        self.source = topic
        self.following: list[Following] = []

    def settle(self, *_: object) -> bool:
        return True

    settle_rows = settle

    def ack_with(self, message: Message, following: Sequence[Following]) -> None:
        self.following += following
        message.outcome = "ack"


class FakeProducer(Producer):
    """Calls the handlers."""

    def __init__(self, broker: PenstockBroker, brokers: Sequence[PenstockBroker]) -> None:
        real = broker.config.producer
        super().__init__(real._parser, real._decoder)
        self.codec = broker.config.broker_codec or real.codec
        self.serializer = broker.config.fd_config._serializer
        self._brokers = brokers

    async def _delivered(self, cmd: PublishCommand, *bodies: Any) -> pa.RecordBatch:
        """These messages, as they would come."""
        rows = [await self.row(cmd, body) for body in bodies]
        sent = {name: pa.array([row.get(name) for row in rows], PUBLISH.field(name).type) for name in ROW}
        check_sent(pa.RecordBatch.from_pydict(sent), "publish")  # as the client and the server do
        properties_of(sent, len(rows), "publish")
        same = {"lsn": 1, "topic": cmd.destination, "attempt": 1, "bookmark": "0|1|", "redelivered": False}
        columns = [pa.array([{**row, **same}.get(field.name) for row in rows], field.type) for field in DELIVERY]
        return pa.RecordBatch.from_arrays(columns, schema=DELIVERY)

    def _batch(self, batch: pa.RecordBatch, topic: str) -> aio.Batch:
        """The same, held: what is settled is settled once, as elsewhere."""
        holding = Holding(topic)

        async def run(work: Callable[[], Any]) -> Any:
            done = work()
            following, holding.following = holding.following, []
            for where, body, *given in following:
                options = dict[str, Any](*given)
                known = {name: options.pop(name, None) for name in ("headers", "correlation_id", "reply_to")}
                kind = PublishType.PUBLISH
                await self.publish(
                    PublishCommand(body, destination=where, options=options, _publish_type=kind, **known)
                )
            return done

        return aio.Batch(Batch(Rows(batch), 0, cast("Any", holding)), run)

    def _handlers(self, topic: str) -> list[PenstockSubscriber]:
        """Whose queue has this name, or whose pattern matches it."""
        handlers = (one for broker in self._brokers for one in broker.subscribers)
        return [one for one in handlers if TopicPattern(one.queue).matches(topic)]

    async def _handle(self, handler: PenstockSubscriber, cmd: PublishCommand, *bodies: Any) -> Any:
        """What the handler makes of those that its filter lets in; None where that is none of them."""
        batch = await self._delivered(cmd, *bodies)
        if (text := handler.config.filter) is not None:
            some = self._batch(batch, cmd.destination)
            heads = [encode(_properties(one)) for one in some]
            let_in = evaluate(text, [one.body for one in some], properties=heads, topics=cmd.destination)
            batch = batch.filter(pa.array([value is True for value in let_in], pa.bool_()))
        if not batch.num_rows:
            return None
        some = self._batch(batch, cmd.destination)
        return await handler.process_message(some if isinstance(handler, BatchSubscriber) else some[0])

    async def publish(self, cmd: PublishCommand) -> Receipt:
        found = self._handlers(cmd.destination)
        for handler in found:
            await self._handle(handler, cmd, cmd.body)
        return Receipt("stored" if found else "unroutable", 1)

    async def publish_batch(self, cmd: PublishCommand) -> TableReceipt:
        bodies = cmd.batch_bodies
        for handler in self._handlers(cmd.destination):
            if isinstance(handler, BatchSubscriber):
                await self._handle(handler, cmd, *bodies)
            else:
                for body in bodies:
                    await self._handle(handler, cmd, body)
        return TableReceipt(len(bodies), len(bodies))

    async def request(self, cmd: PublishCommand) -> Any:
        for handler in self._handlers(cmd.destination):
            result = None
            with anyio.move_on_after(cmd.timeout):
                result = await self._handle(handler, cmd, cmd.body)
            if result is None:
                raise TimeoutError(unanswered(cmd))  # or its filter did not let the question in
            answer = PublishCommand(
                result.body, destination=cmd.reply_to, headers=result.headers, correlation_id=cmd.correlation_id,
                _publish_type=cmd.publish_type,
            )  # fmt: skip
            return self._batch(await self._delivered(answer, result.body), cmd.reply_to)[0]
        raise SubscriberNotFound


def _properties(message: aio.Message) -> Properties:
    """What a filter may ask for beside the body."""
    return Properties(
        content_type=message.content_type, headers=dict(message.headers), correlation_id=message.correlation_id,
        reply_to=message.reply_to, message_id=message.message_id, priority=message.priority,
    )  # fmt: skip


class TestPenstockBroker(TestBroker[PenstockBroker, Any], broker=PenstockBroker):  # type: ignore[call-arg]
    """`async with TestPenstockBroker(broker):`."""

    __test__ = False

    def create_publisher_fake_subscriber(self, broker: PenstockBroker, publisher: Any) -> tuple[Any, bool]:
        for handler in (one for some in self.brokers for one in some.subscribers):
            if handler.queue == publisher.topic:
                return handler, True
        return broker.subscriber(publisher.topic, batch=publisher.config.batch, persistent=False), False

    @contextmanager
    def _patch_producer(self, broker: PenstockBroker) -> Generator[None, None, None]:
        with change_producer(broker.config.broker_config, FakeProducer(broker, self.brokers)):
            yield

    async def _fake_connect(self, broker: PenstockBroker, *args: Any, **kwargs: Any) -> Any:
        return AsyncMock()
