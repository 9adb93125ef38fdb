"""FastStream's test broker: handlers are called where a message is published, and no server is asked."""

# FastStream is in an environment of its own, beside which this is not read by type checkers
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import AsyncMock

import anyio
import pyarrow as pa
from faststream._internal.testing.broker import TestBroker, change_producer
from faststream.exceptions import SubscriberNotFound

from penstock.client.messages import Message, Receipt, Rows, TableReceipt
from penstock.expr import TopicPattern, evaluate
from penstock.faststream.broker import PenstockBroker
from penstock.faststream.messages import Producer, PublishCommand, unanswered
from penstock.faststream.subscribing import BatchSubscriber, PenstockSubscriber
from penstock.records.properties import Properties, encode
from penstock.wire.flight.commands import DELIVERY


class Delivered(Message[Any]):
    """A message that nobody waits to have settled."""

    __slots__ = ()

    async def ack(self, **options: Any) -> bool:  # type: ignore[override]
        return True

    async def retry(self, **options: Any) -> bool:  # type: ignore[override]
        return True

    async def reject(self, reason: str | None = None) -> bool:  # type: ignore[override]
        return True

    async def extend(self, period: Any) -> bool:  # type: ignore[override]
        return True


class DeliveredTogether(list[Delivered]):
    """A batch of such."""

    async def ack(self, rows: Any = None) -> bool:
        return True

    async def retry(self, rows: Any = None, **options: Any) -> bool:
        return True

    async def reject(self, rows: Any = None, **options: Any) -> bool:
        return True


class FakeProducer(Producer):
    """Calls the handlers."""

    def __init__(self, broker: PenstockBroker, brokers: Sequence[PenstockBroker]) -> None:
        real = broker.config.producer
        super().__init__(real._parser, real._decoder)
        self.codec = broker.config.broker_codec or real.codec
        self._broker, self._brokers = broker, brokers

    async def _delivered(self, cmd: PublishCommand, body: Any) -> Delivered:
        data, kind = await self.codec.encode(body, self._broker.config.fd_config._serializer)
        values: dict[str, Any] = {
            "lsn": 1, "topic": cmd.destination, "attempt": 1, "body": data, "content_type": kind,
            "headers": [(name, str(value)) for name, value in (cmd.headers or {}).items()],
            "correlation_id": cmd.correlation_id, "reply_to": cmd.reply_to or None, "exchange": "",
            "priority": cmd.options.get("priority"), "message_id": cmd.options.get("message_id"),
            "bookmark": "0|1|", "redelivered": False,
        }  # fmt: skip
        columns = [pa.array([values.get(field.name)], field.type) for field in DELIVERY]
        return Delivered(Rows(pa.RecordBatch.from_arrays(columns, schema=DELIVERY)), 0)

    def _handlers(self, topic: str) -> list[PenstockSubscriber]:
        """Whose queue has this name, or whose pattern matches it."""
        handlers = (one for broker in self._brokers for one in broker.subscribers)
        return [one for one in handlers if TopicPattern(one.queue).matches(topic)]

    async def _handle(self, handler: PenstockSubscriber, cmd: PublishCommand, *bodies: Any) -> Any:
        """What the handler makes of those that its filter lets in; None where that is none of them."""
        some = [await self._delivered(cmd, body) for body in bodies]
        if (text := handler.config.filter) is not None:
            heads = [encode(_properties(one)) for one in some]
            let_in = evaluate(text, [one.body for one in some], properties=heads, topics=cmd.destination)
            some = [one for one, value in zip(some, let_in, strict=True) if value is True]
        if not some:
            return None
        together = isinstance(handler, BatchSubscriber)
        return await handler.process_message(DeliveredTogether(some) if together else some[0])

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
            return await self._delivered(answer, result.body)
        raise SubscriberNotFound


def _properties(message: Delivered) -> Properties:
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
