"""Subscribers: consumers of `penstock.aio` whose messages, or batches of them, FastStream hands to its handlers."""

# FastStream is in an environment of its own, beside which this is not read by type checkers
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import anyio
from faststream._internal.configs import SubscriberSpecificationConfig, SubscriberUsecaseConfig
from faststream._internal.constants import EMPTY
from faststream._internal.endpoint.subscriber import SubscriberSpecification, SubscriberUsecase
from faststream._internal.endpoint.subscriber.call_item import CallsCollection
from faststream._internal.endpoint.subscriber.mixins import ConcurrentMixin, TasksMixin
from faststream._internal.endpoint.utils import process_msg
from faststream.exceptions import SetupError
from faststream.middlewares import AckPolicy
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, SubscriberSpec

from penstock.client import aio
from penstock.client.arguments import QueueOptions
from penstock.errors import AccessRefused, InvalidArgument, NotFound, PenstockError, PreconditionFailed
from penstock.faststream.messages import Parser, PenstockMessage, ReplyPublisher
from penstock.records.dataclass import dataclass

PATTERN = frozenset("^$*+?()[]{}|\\")
"""A name with one of these is a pattern of queues."""


@dataclass(frozen=True, slots=True)
class PenstockQueue:
    """A queue with its settings, for where it is not there yet."""

    name: str
    settings: QueueOptions | None = None
    declare: bool = True  # make it when the broker starts, unless it is there

    def __post_init__(self) -> None:
        """InvalidArgument for a name that is none, and for settings that are none."""
        name, settings = cast("object", self.name), cast("object", self.settings)
        if not isinstance(name, str):
            raise InvalidArgument(f"PenstockQueue: name is {name!r}, not text: that is of type {type(name).__name__}")
        if not name:
            raise InvalidArgument("PenstockQueue: name is empty, and must be a text of one character at least")
        if not isinstance(settings, Mapping | None):
            told = f"settings is {settings!r}, not names with their values or None"
            raise InvalidArgument(f"PenstockQueue {name!r}: {told}")

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for all queues that match."""
        return bool(PATTERN & set(self.name))


def queue_of(given: PenstockQueue | str) -> PenstockQueue:
    """A queue by its name alone is made without settings."""
    return given if isinstance(given, PenstockQueue) else PenstockQueue(given)


@dataclasses.dataclass(kw_only=True)  # as what it extends
class SubscriberConfig(SubscriberUsecaseConfig):
    """What was said of a subscriber."""

    queue: PenstockQueue
    backlog: int
    filter: str | None = None
    priority: int = 0

    @property
    def ack_policy(self) -> AckPolicy:
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        outer = self._outer_config.ack_policy
        return AckPolicy.REJECT_ON_ERROR if outer is EMPTY else outer


class SubscriberDescription(SubscriberSpecification[Any, Any]):
    """A subscriber in AsyncAPI."""

    def __init__(self, outer: Any, config: SubscriberSpecificationConfig, calls: Any, queue: PenstockQueue) -> None:
        super().__init__(outer, config, calls)
        self.queue = queue

    @property
    def address(self) -> str:
        return f"{self._outer_config.prefix}{self.queue.name}"

    @property
    def channel_labels(self) -> list[str]:
        return [self.address]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        message = Message(title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads()))
        operation = Operation(message=message, bindings=None)
        return {
            self.name: SubscriberSpec(
                address=self.address, description=self.description, operation=operation, bindings=None
            )
        }


class PenstockSubscriber(TasksMixin, SubscriberUsecase[aio.Message]):
    """Takes messages one by one."""

    def __init__(self, config: SubscriberConfig, specification: Any, calls: Any) -> None:
        parser = Parser()
        config.parser, config.decoder = parser.parse_message, parser.decode_message
        super().__init__(config, specification, calls)
        self.config = config
        self._consumer: aio.Consumer | None = None
        self._working = set[asyncio.Task[Any] | None]()
        """Tasks in which a handler runs."""

    @property
    def queue(self) -> str:
        """Its name, or a pattern."""
        return f"{self._outer_config.prefix}{self.config.queue.name}"

    async def start(self) -> None:
        await super().start()
        self._post_start()
        self._consumer = await self._opened()
        if self.calls:
            self.add_task(self._take_all, restart_on_failure=False)

    async def _opened(self) -> aio.Consumer:
        """Make the queue where that is wanted, and consume from it."""
        client: aio.Client = self._outer_config.producer.client
        queue, config = self.config.queue, self.config
        if queue.declare and not queue.is_pattern:
            await self._declared(client)
        consumer = client.consume(
            self.queue, backlog=config.backlog, filter=config.filter, priority=config.priority, reconnect=None
        )
        try:
            await consumer.effective_backlog()  # what the server says no to is said at the start
        except PenstockError:
            await consumer.close()
            raise
        return consumer

    async def _declared(self, client: aio.Client) -> None:
        """Make the queue where it is not there; one that has other settings stays as it is, which is told."""
        settings = self.config.queue.settings or {}
        try:
            await client.queue(self.queue)
        except NotFound:
            await client.declare(self.queue, **settings)
            return
        if settings:
            try:
                await client.declare(self.queue, **settings)  # the same change nothing
            except PreconditionFailed as error:
                self._log(log_level=30, message=str(error))
            except AccessRefused:
                pass  # who may not declare it cannot ask, either

    async def _take_all(self) -> None:
        assert self._consumer is not None
        try:
            while self.running and (some := await self._next(self._consumer)) is not None:
                await self.consume_one(some)
        except PenstockError as error:
            self._log(log_level=40, message=f"{self.queue}: {error}", exc_info=error)

    async def _next(self, consumer: aio.Consumer) -> Any:
        return await consumer.take()

    async def consume_one(self, msg: Any) -> None:
        """Hand over what came."""
        await self.consume(msg)

    async def consume(self, msg: Any) -> Any:
        """Hand over what came.  However the handler ends, the subscriber goes on, as long as nobody stops it."""
        task = asyncio.current_task()
        self._working.add(task)
        try:
            return await super().consume(msg)
        except asyncio.CancelledError:
            if task is None or task.cancelling():  # it is this task that is to end
                raise
            await self._cancelled(msg)  # what the handler waited for
        except BaseExceptionGroup:
            pass  # is in the log, and the policy has said what becomes of the message
        finally:
            self._working.discard(task)

    async def _cancelled(self, msg: Any) -> None:
        """FastStream settles nothing then, since it takes itself for stopped: the message comes again."""
        if self.config.ack_policy not in (AckPolicy.MANUAL, AckPolicy.ACK_FIRST):
            with suppress(PreconditionFailed):  # the handler has settled it
                await msg.retry(error="the handler was cancelled")

    async def stop(self) -> None:
        consumer, self._consumer = self._consumer, None
        if asyncio.current_task() in self._working:  # a handler stops its own subscriber: it is not cancelled,
            self.tasks.clear()  # for the tasks end with what they take from
        await super().stop()
        if consumer is not None:
            with suppress(PenstockError):
                await consumer.close()

    def _make_response_publisher(self, message: Any) -> Sequence[Any]:
        return (ReplyPublisher(self._outer_config.producer, message.reply_to),)

    def get_log_context(self, message: Any) -> dict[str, str]:
        return {"queue": self.queue, "message_id": getattr(message, "message_id", "")}

    async def get_one(self, *, timeout: float = 5.0) -> PenstockMessage | None:  # noqa: ASYNC109 - as of others
        """The next message, where there is no handler; settle it."""
        if self.calls:
            raise SetupError("get_one is for subscribers without handlers")
        if self._consumer is None:
            raise SetupError("start the subscriber first")
        message = await self._consumer.take(timeout)
        return None if message is None else await self._processed(message)

    async def _processed(self, message: aio.Message) -> Any:
        parser, decoder = self._get_parser_and_decoder()
        context = self._outer_config.context
        middlewares = (one(message, context=context) for one in self._broker_middlewares)
        return await process_msg(msg=message, middlewares=middlewares, parser=parser, decoder=decoder)

    async def __aiter__(self) -> AsyncIterator[PenstockMessage]:
        while self._consumer is not None and (message := await self._consumer.take()) is not None:
            yield await self._processed(message)


class BatchSubscriber(PenstockSubscriber):
    """Takes what came together."""

    def __init__(self, config: SubscriberConfig, specification: Any, calls: Any) -> None:
        super().__init__(config, specification, calls)
        parser = Parser()
        self._parser, self._decoder = parser.parse_batch, parser.decode_batch

    async def _next(self, consumer: aio.Consumer) -> Any:
        return await consumer.take_batch()


class ConcurrentSubscriber(ConcurrentMixin, PenstockSubscriber):
    """Works on several messages at once."""

    async def start(self) -> None:
        await super().start()
        self.start_consume_task()

    async def consume_one(self, msg: Any) -> None:
        with suppress(anyio.ClosedResourceError):  # it stops, and gives back what nobody has begun
            await self._put_msg(msg)

    async def stop(self) -> None:
        self.running = False
        self.send_stream.close()  # the task that reads it ends, however this is called
        await super().stop()


def subscriber_of(
    config: SubscriberConfig, said: SubscriberSpecificationConfig, *, batch: bool, max_workers: int
) -> PenstockSubscriber:
    """A subscriber of the kind that was asked for.  SetupError for what does not go together."""
    if batch and max_workers > 1:
        raise SetupError("a batch subscriber has one worker: what comes together is worked on together")
    if max_workers < 1:
        raise SetupError(f"max_workers is {max_workers}; at least one is needed")
    calls: Any = CallsCollection()
    specification = SubscriberDescription(config._outer_config, said, calls, config.queue)
    if batch:
        return BatchSubscriber(config, specification, calls)
    if max_workers > 1:
        return ConcurrentSubscriber(config, specification, calls, max_workers=max_workers)  # type: ignore[call-arg]
    return PenstockSubscriber(config, specification, calls)
