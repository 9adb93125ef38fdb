"""Publishers: where a handler's result goes, or what is called by hand."""

# FastStream is in an environment of its own, beside which this is not read by type checkers
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportUnknownArgumentType=false, reportUnknownParameterType=false, reportUntypedBaseClass=false
# pyright: reportUnknownLambdaType=false, reportPrivateUsage=false, reportIncompatibleMethodOverride=false
# pyright: reportUntypedFunctionDecorator=false, reportMissingTypeArgument=false

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from faststream._internal.configs import PublisherSpecificationConfig, PublisherUsecaseConfig
from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream.response.publish_type import PublishType
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec

from penstock.client.messages import Receipt, TableReceipt
from penstock.faststream.messages import PenstockMessage, PublishCommand, many


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
        await publish(real, producer=self._outer_config.producer, _extra_middlewares=_extra_middlewares)

    async def request(self, message: Any = None, **options: Any) -> PenstockMessage:
        """Publish, and wait for the answer."""
        command = self._command(PublishType.REQUEST, (message,), options)
        answer: PenstockMessage = await self._basic_request(command, producer=self._outer_config.producer)
        return answer


def publisher_of(
    topic: str, *, batch: bool, reply_to: str, headers: dict[str, Any] | None, options: dict[str, Any], config: Any,
    title: str | None, description: str | None, schema: Any, include_in_schema: bool,
) -> PenstockPublisher:  # fmt: skip
    """A publisher as it was asked for."""
    said = PublisherSpecificationConfig(
        schema_=schema, title_=title, description_=description, include_in_schema=include_in_schema
    )
    usecase = PublisherConfig(
        topic=topic, batch=batch, reply_to=reply_to, headers=headers or {}, options=options, _outer_config=config
    )
    return PenstockPublisher(usecase, PublisherDescription(config, said, topic))
