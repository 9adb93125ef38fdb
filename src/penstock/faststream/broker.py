"""The broker, its routers, and what both register; publishers among it: where a handler's result goes."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Any, cast

from fast_depends import dependency_provider
from faststream._internal.broker import BrokerUsecase
from faststream._internal.broker.registrator import Registrator
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.context.repository import ContextRepo
from faststream._internal.di import FastDependsConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.utils import ParserComposition
from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger
from faststream.exceptions import SetupError
from faststream.message import gen_cor_id
from faststream.middlewares import AckPolicy
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import BrokerSpec, Message, Operation, PublisherSpec

from penstock.client import aio
from penstock.client.arguments import arguments_checked
from penstock.client.messages import Receipt, TableReceipt
from penstock.client.urls import parse_url
from penstock.errors import PenstockError
from penstock.faststream.messages import Parser, PenstockMessage, Producer, PublishCommand, many
from penstock.faststream.subscribing import PenstockQueue, PenstockSubscriber, SubscriberConfig, queue_of, subscriber_of
from penstock.units import Duration
from penstock.wire.flight.failures import error_from

# FastStream is in an environment of its own, beside which this is not read by type checkers
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false


@dataclasses.dataclass(kw_only=True)  # as what it extends
class PublisherConfig(PublisherUsecaseConfig):
    """What was said of a publisher."""

    topic: str
    batch: bool
    reply_to: str
    headers: dict[str, Any]
    options: dict[str, Any]


class PublisherDescription(PublisherSpecification[Any, Any]):
    """A publisher in AsyncAPI."""

    def __init__(self, outer: Any, config: PublisherSpecificationConfig, topic: str) -> None:
        super().__init__(outer, config)
        self.topic = topic

    @property
    def address(self) -> str:
        return f"{self._outer_config.prefix}{self.topic}"

    @property
    def name(self) -> str:
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        operation = Operation(message=Message(title=f"{self.name}:Message", payload=payload), bindings=None)
        return {
            self.name: PublisherSpec(
                address=self.address, description=self.config.description_, operation=operation, bindings=None
            )
        }


class PenstockPublisher(PublisherUsecase):
    """Made by `PenstockBroker.publisher`."""

    def __init__(self, config: PublisherConfig, specification: PublisherDescription) -> None:
        super().__init__(config, specification)
        self.config = config

    @property
    def topic(self) -> str:
        """Where it publishes to."""
        return f"{self._outer_config.prefix}{self.config.topic}"

    def _command(self, kind: PublishType, bodies: tuple[Any, ...], given: dict[str, Any]) -> PublishCommand:
        headers = self.config.headers | (given.pop("headers", None) or {})
        correlation = given.pop("correlation_id", None) or self._outer_config.id_generator()
        return PublishCommand(
            *(bodies or (None,)), destination=self.topic, headers=headers, correlation_id=correlation,
            reply_to=given.pop("reply_to", "") or self.config.reply_to, timeout=given.pop("timeout", 30.0),
            options={**self.config.options, **given}, _publish_type=kind,
        )  # fmt: skip

    async def publish(self, message: Any = None, **options: Any) -> Receipt | TableReceipt:
        """Publish by hand; options as of `PenstockBroker.publish`."""
        producer = self._outer_config.producer
        if self.config.batch:
            command = self._command(PublishType.PUBLISH, tuple(many(message)), options)
            told: TableReceipt = await self._basic_publish_batch(command, producer=producer, _extra_middlewares=())
            return told
        command = self._command(PublishType.PUBLISH, (message,), options)
        receipt: Receipt = await self._basic_publish(command, producer=producer, _extra_middlewares=())
        return receipt

    async def _publish(self, cmd: Any, *, _extra_middlewares: Iterable[Any]) -> None:
        """What a handler returned."""
        real = PublishCommand.from_cmd(cmd, batch=self.config.batch)
        real.destination = self.topic
        real.add_headers(self.config.headers, override=False)
        real.reply_to = real.reply_to or self.config.reply_to
        real.options = {**self.config.options, **real.options}
        publish = self._basic_publish_batch if self.config.batch else self._basic_publish
        told = await publish(real, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)
        if self.config.batch and told.refused:  # nobody else looks at the receipt
            one = told.refused[0]
            said = f"{told.refused_rows:,} of {told.rows:,} messages were not stored; the first: {one.message}"
            raise error_from({"code": one.code, "message": said, "reason": one.reason})

    async def request(self, message: Any = None, **options: Any) -> PenstockMessage:
        """Publish, and wait for the answer."""
        command = self._command(PublishType.REQUEST, (message,), options)
        answer: PenstockMessage = await self._basic_request(command, producer=self._outer_config.producer)
        return answer


class LoggerStorage(DefaultLoggerStorage):
    """The logger of a broker, which has the queue on each line."""

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Nothing of it is kept."""

    def get_logger(self, *, context: Any) -> Any:
        if not (logger := self._get_logger_ref()):
            logger = get_broker_logger(
                name="penstock", default_context={"queue": ""}, message_id_ln=36,
                fmt="%(asctime)s %(levelname)-8s - %(queue)-4s | %(message_id)-36s - %(message)s",
                context=context, log_level=self.logger_log_level,
            )  # fmt: skip
            self._logger_ref.add(logger)
        return logger

    logger_log_level = logging.INFO

    def set_level(self, level: int) -> None:
        self.logger_log_level = level


@dataclasses.dataclass(kw_only=True)  # as what it extends
class PenstockConfig(BrokerConfig):
    """What the broker is made of."""

    producer: Producer


@arguments_checked
class PenstockRegistrator(Registrator[Any, Any]):
    """Subscribers and publishers of a broker or a router."""

    def subscriber(
        self,
        queue: PenstockQueue | str,
        *,
        batch: bool = False,
        backlog: int | None = None,
        filter: str | None = None,
        priority: int = 0,
        max_workers: int = 1,
        ack_policy: Any = EMPTY,
        no_reply: bool = False,
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        include_in_schema: bool = True,
    ) -> PenstockSubscriber:
        """Give the messages of a queue to the decorated function.

        queue        or a pattern of names; one that is not there is made when the broker starts
        batch        the function takes a list: what came together
        backlog      messages that are leased at once
        filter       an expression of ours, which the server runs: others get what it does not match
        max_workers  messages that are worked on at once
        ack_policy   as of FastStream; by default an exception rejects the message
        """
        if ack_policy is not EMPTY and not isinstance(ack_policy, AckPolicy):
            raise SetupError(f"subscriber: ack_policy is {ack_policy!r}, not one of FastStream's AckPolicy")
        most = backlog if backlog is not None else 1000 if batch else max(32, 2 * max_workers)
        config = SubscriberConfig(
            queue=queue_of(queue), backlog=most, filter=filter, priority=priority, no_reply=no_reply,
            _outer_config=self.config, _ack_policy=ack_policy,
        )  # fmt: skip
        said = SubscriberSpecificationConfig(
            title_=title, description_=description, include_in_schema=include_in_schema
        )
        made = subscriber_of(config, said, batch=batch, max_workers=max_workers)
        super().subscriber(made, persistent=persistent)
        added = made.add_call(
            parser_=parser or self._parser, decoder_=decoder or self._decoder, dependencies_=dependencies, codec_=codec
        )
        return cast("PenstockSubscriber", added)

    def publisher(
        self,
        topic: str,
        *,
        batch: bool = False,
        exchange: str = "",
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        mandatory: bool = False,
        priority: int | None = None,
        delay: Duration | None = None,
        expiration: Duration | None = None,
        persistent: bool = True,
        title: str | None = None,
        description: str | None = None,
        schema: Any = None,
        include_in_schema: bool = True,
    ) -> PenstockPublisher:
        """Publish what the decorated handler returns, or what is given to `publish` of this.

        batch      a list is published as its messages, together
        mandatory  whether it is an error that no queue and no declared topic takes it; as of other brokers it is none
        """
        options = {
            "exchange": exchange, "mandatory": mandatory, "priority": priority, "delay": delay, "expiration": expiration
        }  # fmt: skip
        config = PublisherConfig(
            topic=topic, batch=batch, reply_to=reply_to, headers=headers or {}, options=options,
            _outer_config=self.config,
        )  # fmt: skip
        said = PublisherSpecificationConfig(
            schema_=schema, title_=title, description_=description, include_in_schema=include_in_schema
        )
        made = PenstockPublisher(config, PublisherDescription(self.config, said, topic))
        super().publisher(made, persistent=persistent)
        return made


class PenstockRouter(PenstockRegistrator):
    """Subscribers and publishers that a broker includes, with a prefix of their names if one is given."""

    def __init__(
        self,
        prefix: str = "",
        *,
        dependencies: Sequence[Any] = (),
        middlewares: Sequence[Any] = (),
        routers: Iterable[Registrator[Any, Any]] = (),
        parser: Any = None,
        decoder: Any = None,
        include_in_schema: bool | None = None,
    ) -> None:
        super().__init__(
            config=BrokerConfig(
                prefix=prefix, broker_middlewares=middlewares, broker_dependencies=dependencies, broker_parser=parser,
                broker_decoder=decoder, include_in_schema=include_in_schema,
            ),
            routers=routers,
        )  # fmt: skip


@arguments_checked
class PenstockBroker(PenstockRegistrator, BrokerUsecase[Any, Any, Any]):
    """A broker of FastStream on a Penstock server."""

    _connection: aio.Client | None

    def __init__(
        self,
        url: str = "penstock://localhost",
        *,
        user: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        middlewares: Sequence[Any] = (),
        routers: Iterable[Registrator[Any, Any]] = (),
        dependencies: Sequence[Any] = (),
        parser: Any = None,
        decoder: Any = None,
        codec: Any = None,
        serializer: Any = EMPTY,
        apply_types: bool = True,
        ack_policy: Any = EMPTY,
        graceful_timeout: float | None = 15.0,
        logger: Any = EMPTY,
        log_level: int = logging.INFO,
        context: Any = None,
        provider: Any = None,
        specification_url: str | None = None,
        description: str | None = None,
        tags: Iterable[Any] = (),
    ) -> None:
        """url, user, password, ca, cert, key: as of `penstock.connect`; what else there is as of other brokers."""
        self._open = {"user": user, "password": password, "ca": ca, "cert": cert, "key": key}
        self.url = url
        ours = Parser()
        producer = Producer(
            ParserComposition(parser, ours.parse_message), ParserComposition(decoder, ours.decode_message)
        )
        super().__init__(
            config=PenstockConfig(
                producer=producer,
                broker_middlewares=middlewares,
                broker_parser=parser,
                broker_decoder=decoder,
                broker_codec=codec,
                logger=make_logger_state(default_storage_cls=LoggerStorage, logger=logger, log_level=log_level),
                fd_config=FastDependsConfig(
                    use_fastdepends=apply_types,
                    serializer=serializer,
                    provider=provider or dependency_provider,
                    context=context or ContextRepo(),
                ),
                broker_dependencies=dependencies,
                graceful_timeout=graceful_timeout,
                ack_policy=ack_policy,
                id_generator=gen_cor_id,
                extra_context={"broker": self},
            ),
            specification=BrokerSpec(
                description=description,
                url=[specification_url or str(parse_url(url))],
                protocol="penstock",
                protocol_version="1",
                security=None,
                tags=tags,
            ),
            routers=routers,
        )

    @property
    def client(self) -> aio.Client:
        """The client of `penstock.aio` that it is connected with, for all that FastStream has no word for."""
        return cast("aio.Client", self.config.producer.client)

    async def _connect(self) -> aio.Client:
        client = await aio.connect(self.url, **cast("Any", self._open))
        self.config.producer.connect(client, self.config.fd_config._serializer, self.config.broker_codec)
        return client

    async def start(self) -> None:
        await self.connect()
        await super().start()

    async def stop(
        self,
        exc_type: type[BaseException] | None = None,
        exc_val: BaseException | None = None,
        exc_tb: TracebackType | None = None,
    ) -> None:
        await super().stop(exc_type, exc_val, exc_tb)
        await self.config.producer.disconnect()
        client, self._connection = self._connection, None
        if client is not None:
            await client.close()

    async def ping(self, timeout: float | None = 3.0) -> bool:  # noqa: ASYNC109 - as of other brokers
        """Whether the server answers."""
        if self._connection is None:
            return False
        try:
            await self._connection.health()
        except PenstockError:
            return False
        return True

    def _command(self, kind: PublishType, bodies: tuple[Any, ...], topic: str, given: dict[str, Any]) -> PublishCommand:
        return PublishCommand(
            *bodies, destination=topic, headers=given.pop("headers", None),
            correlation_id=given.pop("correlation_id", None) or self.config.id_generator(),
            reply_to=given.pop("reply_to", ""), timeout=given.pop("timeout", 30.0), options=given, _publish_type=kind,
        )  # fmt: skip

    async def publish(
        self,
        message: Any = None,
        topic: str = "",
        *,
        exchange: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        message_id: str | None = None,
        priority: int | None = None,
        delay: Duration | None = None,
        expiration: Duration | None = None,
        mandatory: bool | None = None,
    ) -> Receipt:
        """Publish one message and wait until it is durable; options and errors as of `penstock.Client.publish`."""
        given = {
            "exchange": exchange, "headers": headers, "correlation_id": correlation_id, "reply_to": reply_to,
            "message_id": message_id, "priority": priority, "delay": delay, "expiration": expiration,
            "mandatory": mandatory,
        }  # fmt: skip
        command = self._command(PublishType.PUBLISH, (message,), topic, given)
        return cast("Receipt", await self._basic_publish(command, producer=self.config.producer))

    async def publish_batch(
        self,
        *messages: Any,
        topic: str,
        exchange: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        mandatory: bool | None = None,
    ) -> TableReceipt:
        given = {
            "exchange": exchange, "headers": headers, "correlation_id": correlation_id, "reply_to": reply_to,
            "mandatory": mandatory,
        }  # fmt: skip
        command = self._command(PublishType.PUBLISH, messages or (None,), topic, given)
        return cast("TableReceipt", await self._basic_publish_batch(command, producer=self.config.producer))

    async def request(
        self,
        message: Any = None,
        topic: str = "",
        *,
        exchange: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        timeout: float | None = 30.0,  # noqa: ASYNC109 - as of other brokers
    ) -> PenstockMessage:
        """Publish, and wait for the answer.  TimeoutError when none comes."""
        given = {"exchange": exchange, "headers": headers, "correlation_id": correlation_id, "timeout": timeout}
        command = self._command(PublishType.REQUEST, (message,), topic, given)
        return cast("PenstockMessage", await self._basic_request(command, producer=self.config.producer))
