"""Messages as FastStream has them, what is published, and who publishes it: its parser, command and producer."""

# FastStream is in an environment of its own, beside which this is not read by type checkers
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.parser import DefaultCodec
from faststream._internal.producer import ProducerProto
from faststream.message import StreamMessage, decode_message
from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, Response

from penstock.client import aio
from penstock.client.arguments import encoded
from penstock.client.arrays import array_of
from penstock.client.json_bodies import JSON, refuse_not_finite
from penstock.client.messages import Receipt, TableReceipt
from penstock.client.outgoing import columns_of, one_row
from penstock.errors import PenstockError, Unavailable
from penstock.units import Duration
from penstock.wire.flight.commands import PUBLISH


class _Settled(StreamMessage[Any]):
    """Settles what it is made of, once: by itself or by its handler."""

    @property
    def _is_open(self) -> bool:
        return self.committed is None and getattr(self.raw_message, "outcome", None) is None

    async def ack(self) -> None:
        """Done: it, or all that is left of a batch, will not come again."""
        if self._is_open:
            await self.raw_message.ack()
        await super().ack()

    async def nack(self, delay: Duration | None = None) -> None:
        """Back, counted as a failure: after the queue's back-off, or after `delay`."""
        if self._is_open:
            await self.raw_message.retry(delay=delay)
        await super().nack()

    async def reject(self, reason: str | None = None) -> None:
        """Refused for good: a dead letter, where the queue has a place for them."""
        if self._is_open:
            await self.raw_message.reject(reason=reason)
        await super().reject()


class PenstockMessage(_Settled):
    """One message; `raw_message` is the one of `penstock.aio`."""

    raw_message: aio.Message

    async def extend(self, period: Duration) -> None:
        """Hold it until `period` from now at least."""
        await self.raw_message.extend(period)


class PenstockBatchMessage(_Settled):
    """What came together; `raw_message` is the batch of `penstock.aio`, and settles rows, too."""

    raw_message: aio.Batch


class Parser:
    """From our messages to FastStream's."""

    async def parse_message(self, message: aio.Message) -> PenstockMessage:
        return PenstockMessage(
            raw_message=message,
            body=message.body,
            headers=message.headers,
            reply_to=message.reply_to or "",
            content_type=message.content_type,
            message_id=message.message_id or message.bookmark,
            correlation_id=message.correlation_id,
        )

    async def decode_message(self, msg: StreamMessage[Any]) -> Any:
        return decode_message(msg)

    async def parse_batch(self, message: aio.Batch) -> PenstockBatchMessage:
        rows = list(message)
        return PenstockBatchMessage(
            raw_message=message,
            body=[one.body for one in rows],
            headers=rows[0].headers if rows else {},
            batch_headers=[one.headers for one in rows],
            correlation_id=rows[0].correlation_id if rows else None,
        )

    async def decode_batch(self, msg: StreamMessage[aio.Batch]) -> list[Any]:
        return [decode_message(await self.parse_message(one)) for one in msg.raw_message]


class PublishCommand(BatchPublishCommand):
    """One publish on its way through the middlewares."""

    def __init__(
        self,
        message: Any,
        /,
        *messages: Any,
        destination: str = "",
        timeout: float | None = 30.0,
        options: Mapping[str, Any] | None = None,
        **known: Any,
    ) -> None:
        super().__init__(message, *messages, destination=destination, **known)
        self.timeout = timeout
        self.options = {name: value for name, value in (options or {}).items() if value is not None}

    @classmethod
    def from_cmd(cls, cmd: Any, *, batch: bool = False) -> PublishCommand:
        if isinstance(cmd, PublishCommand):
            return cmd
        body, more = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body, *more, destination=cmd.destination, correlation_id=cmd.correlation_id, headers=cmd.headers,
            reply_to=cmd.reply_to, _publish_type=cmd.publish_type,
        )  # fmt: skip


class PenstockResponse(Response):
    """What a handler returns to say more than a body: its headers, and options of our publish."""

    def __init__(
        self,
        body: Any = None,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Any,
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> PublishCommand:
        return PublishCommand(
            self.body, headers=self.headers, correlation_id=self.correlation_id, options=self.options,
            _publish_type=PublishType.PUBLISH,
        )  # fmt: skip


class ReplyPublisher(FakePublisher):
    """Publishes what a handler returns to where its message asks for an answer."""

    def __init__(self, producer: Any, reply_to: str) -> None:
        super().__init__(producer=producer)
        self.reply_to = reply_to

    def patch_command(self, cmd: Any) -> PublishCommand:
        real = PublishCommand.from_cmd(super().patch_command(cmd))
        real.destination = self.reply_to
        real.options.setdefault("mandatory", False)  # who has asked may be gone
        return real


OF_ALL = ("exchange", "mandatory", "publisher", "sequence", "delta")
"""Options of a publish that are about all of its messages."""

OF_ONE = (
    "priority", "delay", "not_before", "expiration", "expires_at", "content_type", "message_id", "correlation_id",
    "reply_to",
)  # fmt: skip
"""Those that each message has."""

ROW = ("body", "headers", *OF_ONE)


class Producer(ProducerProto[PublishCommand]):
    """Publishes through one client, and waits for answers on a queue of its own."""

    def __init__(self, parser: Any, decoder: Any) -> None:
        self._parser, self._decoder = parser, decoder
        self.codec: Any = DefaultCodec()
        self.serializer: Any = None
        self._client: aio.Client | None = None
        self._replies: Replies | None = None

    def connect(self, client: aio.Client, serializer: Any, codec: Any) -> None:
        """From now on it publishes there."""
        self._client, self.serializer, self.codec = client, serializer, codec or DefaultCodec()

    async def disconnect(self) -> None:
        """Answers that are waited for do not come any more."""
        replies, self._replies, self._client = self._replies, None, None
        if replies is not None:
            await replies.close()

    @property
    def client(self) -> aio.Client:
        """Unavailable before it was started."""
        if self._client is None:
            raise Unavailable("the broker is not connected: start it, or `async with broker:`")
        return self._client

    async def publish(self, cmd: PublishCommand) -> Receipt:
        body, kind = await self._encoded(cmd.body)
        return await self.client.publish(
            cmd.destination, body, headers=cmd.headers or None, content_type=kind, correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to or None, **cmd.options,
        )  # fmt: skip

    async def _encoded(self, body: Any) -> tuple[bytes, str | None]:
        """As the codec has it.  InvalidArgument for what is no text in UTF-8, and for what it wrote that is no JSON."""
        if isinstance(body, str):
            encoded(body, "body")
        data, kind = await self.codec.encode(body, self.serializer)
        if kind == JSON:
            refuse_not_finite(body, data)
        return data, kind

    async def publish_batch(self, cmd: PublishCommand) -> TableReceipt:
        rows = [await self.row(cmd, body) for body in cmd.batch_bodies]
        columns = [array_of([row.get(name) for row in rows], PUBLISH.field(name).type) for name in ROW]
        chosen = {name: value for name, value in cmd.options.items() if name in OF_ALL}
        return await self.client.publish_table(cmd.destination, pa.table(columns, names=list(ROW)), **chosen)

    async def row(self, cmd: PublishCommand, body: Any) -> dict[str, object]:
        """What is published, by the columns of a publish.  InvalidArgument; TypeError for what is no option."""
        data, kind = await self._encoded(body)
        said: dict[str, Any] = {
            "content_type": kind,
            "reply_to": cmd.reply_to or None,
            "correlation_id": cmd.correlation_id,
        }
        options = {name: value for name, value in cmd.options.items() if name not in OF_ALL}
        row = columns_of(data, cmd.headers, **{**dict.fromkeys(OF_ONE), **said, **options})
        one_row(row)
        return row

    async def request(self, cmd: PublishCommand) -> aio.Message:
        """The answer, which is settled.  TimeoutError."""
        if self._replies is None:
            self._replies = Replies(self.client)
        try:
            async with asyncio.timeout(cmd.timeout):
                return await self._answer(cmd, self._replies)
        except TimeoutError:
            raise TimeoutError(unanswered(cmd)) from None

    async def _answer(self, cmd: PublishCommand, replies: Replies) -> aio.Message:
        cmd.reply_to = await replies.queue()
        coming = replies.expect(str(cmd.correlation_id))
        try:
            await self.publish(cmd)
            return await coming
        finally:
            replies.forget(str(cmd.correlation_id))


def unanswered(cmd: PublishCommand) -> str:
    """That nobody answered a request, in a sentence."""
    return f"no answer to the request to {cmd.destination!r} within {cmd.timeout} s"


class Replies:
    """The queue to which answers come, and who waits for each."""

    def __init__(self, client: aio.Client) -> None:
        self._client = client
        self._name = f"faststream.replies.{secrets.token_hex(8)}"
        self._waiting = dict[str, asyncio.Future[aio.Message]]()
        self._consumer: aio.Consumer | None = None
        self._task: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def queue(self) -> str:
        """Its name, when somebody listens there."""
        async with self._opening:
            if self._task is None or self._task.done():
                await self._client.declare(self._name, durable=False, auto_delete=True)
                self._consumer = self._client.consume(self._name, no_ack=True, reconnect=0)
                await self._consumer.effective_backlog()
                self._task = asyncio.create_task(self._listen(self._consumer))
        return self._name

    def expect(self, correlation: str) -> asyncio.Future[aio.Message]:
        """The answer that has this correlation."""
        return self._waiting.setdefault(correlation, asyncio.get_running_loop().create_future())

    def forget(self, correlation: str) -> None:
        """Nobody waits for it any more."""
        self._waiting.pop(correlation, None)

    async def _listen(self, consumer: aio.Consumer) -> None:
        try:
            async for message in consumer:
                coming = self._waiting.get(message.correlation_id or "")
                if coming is not None and not coming.done():
                    coming.set_result(message)
        except PenstockError as error:  # the next request opens another one
            for coming in self._waiting.values():
                if not coming.done():
                    coming.set_exception(error)

    async def close(self) -> None:
        """End the consumer of answers, for which nobody waits any more."""
        if self._consumer is not None:
            with suppress(PenstockError):
                await self._consumer.close()
        if self._task is not None:
            await asyncio.wait({self._task})


def many(message: Any) -> Sequence[Any]:
    """What a handler of a batch publisher returned, as its messages."""
    return message if isinstance(message, Sequence) and not isinstance(message, str | bytes) else (message,)
