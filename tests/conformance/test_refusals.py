"""What declares and uses of quorum queues and streams are refused with: the code and the words of RabbitMQ itself.

Behind `invalid arg 'NAME' for queue ...:` our words name the value and what is allowed, as `docs/clients.md` says.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from live_server import LiveServer
from rabbitmq_server import RabbitMQ, installed

pytestmark = [
    pytest.mark.conformance,
    pytest.mark.skipif(not (installed() and "PENSTOCK_CONFORMANCE" in os.environ), reason="RabbitMQ: make conformance"),
]

Work = Callable[[BlockingChannel], object]

QUORUM, STREAM = {"x-queue-type": "quorum"}, {"x-queue-type": "stream"}

OF_QUORUM: tuple[tuple[str, object], ...] = (
    ("x-max-priority", 5), ("x-queue-mode", "lazy"), ("x-queue-version", 2), ("x-max-age", "1D"),
    ("x-delivery-limit", -1), ("x-delivery-limit", 3), ("x-max-length", -1), ("x-max-length", "a"),
    ("x-max-length-bytes", -5), ("x-overflow", "nope"), ("x-overflow", "reject-publish-dlx"),
    ("x-dead-letter-strategy", "never"), ("x-dead-letter-strategy", 5), ("x-quorum-initial-group-size", "3"),
    ("x-quorum-initial-group-size", 0), ("x-expires", 0), ("x-expires", "x"), ("x-message-ttl", -1),
    ("x-single-active-consumer", "yes"), ("x-dead-letter-routing-key", "k"), ("x-queue-leader-locator", "nowhere"),
    ("x-max-in-memory-length", "a"),
)  # fmt: skip

OF_STREAMS: tuple[tuple[str, object], ...] = (
    ("x-max-age", "1X"), ("x-max-age", 5), ("x-max-length", 5), ("x-message-ttl", 5), ("x-max-length-bytes", -1),
    ("x-stream-max-segment-size-bytes", 0), ("x-initial-cluster-size", 0), ("x-expires", 500), ("x-delivery-limit", 3),
    ("x-single-active-consumer", True), ("x-max-priority", 3), ("x-overflow", "drop-head"),
)  # fmt: skip


def declare(name: str, kind: Mapping[str, object], **said: object) -> Work:
    arguments = {**kind, **said.pop("arguments", {})}  # type: ignore[dict-item]
    return lambda channel: channel.queue_declare(name, **{"durable": True, **said}, arguments=arguments)  # type: ignore[arg-type]


def then(*steps: Work) -> Work:
    return lambda channel: [step(channel) for step in steps]


def cases() -> Iterator[tuple[str, Work]]:
    for at, (name, value) in enumerate(OF_QUORUM):
        yield f"quorum {name}={value!r}", declare(f"q{at}", QUORUM, arguments={name: value})
    for at, (name, value) in enumerate(OF_STREAMS):
        yield f"stream {name}={value!r}", declare(f"s{at}", STREAM, arguments={name: value})
    for kind in (QUORUM, STREAM):
        what = kind["x-queue-type"]
        for flag in ({"durable": False}, {"exclusive": True}, {"auto_delete": True}):
            yield f"{what} {flag}", declare(f"flagged {what} {flag}"[:60], kind, **flag)
        yield f"{what} named by the server", declare("", kind)
    for kind in ("square", 3):
        yield f"type {kind!r}", declare("typed", {"x-queue-type": kind})
    yield "another type", then(declare("twice", QUORUM), lambda channel: channel.queue_declare("twice", durable=True))
    more = {"x-delivery-limit": 5}
    yield "another argument", then(declare("again", QUORUM), declare("again", QUORUM, arguments=more))
    quorum, stream = declare("quorum", QUORUM), declare("stream", STREAM)
    yield "if unused", then(quorum, lambda channel: channel.queue_delete("quorum", if_unused=True))
    yield "if empty", then(quorum, lambda channel: channel.queue_delete("quorum", if_empty=True))
    alone = {"x-single-active-consumer": True}
    yield "get of one", then(declare("alone", QUORUM, arguments=alone), lambda channel: channel.basic_get("alone"))
    yield "global prefetch", then(quorum, prefetch(3, shared=True), consume("quorum"))
    yield "get of a stream", then(stream, lambda channel: channel.basic_get("stream"))
    yield "purge of a stream", then(stream, lambda channel: channel.queue_purge("stream"))
    yield "a stream without prefetch", then(stream, consume("stream"))
    yield "a stream without acks", then(stream, prefetch(3), consume("stream", auto_ack=True))


def prefetch(count: int, *, shared: bool = False) -> Work:
    return lambda channel: channel.basic_qos(prefetch_count=count, global_qos=shared)


def consume(queue: str, *, auto_ack: bool = False) -> Work:
    return lambda channel: channel.basic_consume(queue, lambda *_: None, auto_ack=auto_ack)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RabbitMQ, LiveServer]]:
    folder: Path = tmp_path_factory.mktemp("refusals")
    with RabbitMQ(folder / "rabbitmq") as theirs, LiveServer(folder / "ours") as ours:
        yield theirs, ours
        ours.bury()


def answer(connect: Callable[[], pika.BlockingConnection], work: Work) -> str:
    """Code and words of the refusal; empty where there is none."""
    connection = connect()
    try:
        work(connection.channel())
    except AMQPError as error:
        text = f"{getattr(error, 'reply_code', '')} {getattr(error, 'reply_text', error)}"
        return re.sub(r"(invalid arg '[^']*' for queue '[^']*' in vhost '[^']*':).*", r"\1", text)
    finally:
        if connection.is_open:
            connection.close()
    return ""


def test_each_refusal_is_that_of_rabbitmq(both: tuple[RabbitMQ, LiveServer]) -> None:
    theirs, ours = both
    found = {name: (answer(theirs.connect, work), answer(ours.connect, work)) for name, work in cases()}
    assert {name: said for name, said in found.items() if said[0] != said[1]} == {}
    assert sum(bool(said[0]) for said in found.values()) > 40
