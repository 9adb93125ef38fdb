"""FastStream on Penstock: `PenstockBroker` beside its `RabbitBroker` and the others.

    from faststream import FastStream
    from penstock.faststream import PenstockBroker

    broker = PenstockBroker("penstock://localhost")
    app = FastStream(broker)

    @broker.subscriber("orders")
    @broker.publisher("bills")
    async def bill(order: Order) -> Bill: ...

Subscribers are consumers of `penstock.aio`, so they outlive a restart of the server; an ack is ours, and so is what a
nack and a reject do.
"""

# FastStream is in an environment of its own, beside which this is not read by type checkers
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportCallIssue=false

from importlib.util import find_spec
from typing import Annotated

if find_spec("faststream") is None:
    raise ImportError("penstock.faststream needs FastStream: pip install 'penstock[faststream]'")

from faststream import Context

from penstock.faststream import messages
from penstock.faststream.broker import PenstockBroker, PenstockRouter
from penstock.faststream.messages import PenstockResponse
from penstock.faststream.subscribing import PenstockQueue
from penstock.faststream.testing import TestPenstockBroker

PenstockMessage = Annotated[messages.PenstockMessage, Context("message")]
"""As an annotation of an argument: the message."""

PenstockBatchMessage = Annotated[messages.PenstockBatchMessage, Context("message")]

__all__ = [
    "PenstockBatchMessage",
    "PenstockBroker",
    "PenstockMessage",
    "PenstockQueue",
    "PenstockResponse",
    "PenstockRouter",
    "TestPenstockBroker",
]
