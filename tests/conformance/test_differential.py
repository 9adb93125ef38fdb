"""The same random methods on Penstock and on RabbitMQ, where it is installed: every answer is compared.

Declares, bindings, publishes with confirms, gets, acks, returns, limits, time to live, dead letters, transactions and
errors, by pika, one channel after the other.  What differs for a reason stands in `DIFFERENCES`, and so in
`docs/clients.md`; anything else fails with the seed and the last steps.
"""

from __future__ import annotations

import contextlib
import random
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import (
    AMQPChannelError,
    AMQPConnectionError,
    ChannelClosedByBroker,
    ConnectionClosedByBroker,
    NackError,
    UnroutableError,
)

from choices import EFFORT, SEED
from live_server import LiveServer
from rabbitmq_server import BESIDE, RabbitMQ

pytestmark = [pytest.mark.conformance, BESIDE]

WALKS, STEPS = 6, 150
QUEUES, EXCHANGES, KEYS = ("q0", "q1", "q2", "q3"), ("x0", "x1", "x2"), ("a", "a.b", "a.b.c", "q1", "")
EXCHANGE_TYPES = ("direct", "fanout", "topic", "headers")
SETTLE_S = 0.03  # what RabbitMQ does between its queues is not over when it answers
FIRST_S = 0.3  # a consumer is given nothing before what came back to its queue is on disk
TTL_MS = 40

CHANGING = frozenset({"settle", "publish", "recover", "leave", "transaction", "declare", "consume"})

Step = tuple[str, dict[str, Any]]
Answer = tuple[Any, ...]


class Difference(NamedTuple):
    """Where answers may differ, and why."""

    what: str
    why: str
    alike: Callable[[Answer, Answer], bool]  # theirs, ours


def closed_for(what: str) -> Callable[[Answer, Answer], bool]:
    """Both are closed with the same code, and this begins what both say up to the value."""

    def alike(theirs: Answer, ours: Answer) -> bool:
        heads = [re.split(r": |, '", str(one[-1]))[0] for one in (theirs, ours)]
        return theirs[:3] == ours[:3] and theirs[0] == "closed" and all(what in head for head in heads)

    return alike


_HINT = re.compile(r"; did you mean '[^']*'\?$")

DIFFERENCES: Sequence[Difference] = (
    Difference(
        "the words after `invalid arg 'NAME' for queue 'Q' in vhost 'V':`",
        "they name the value and what is allowed, where RabbitMQ prints a term of Erlang",
        closed_for("invalid arg"),
    ),
    Difference(
        "the words about an x-match that there is not",
        "the same: 406, and the value as text",
        lambda theirs, ours: theirs[:3] == ours[:3] and "Invalid x-match field value" in str(ours[-1]),
    ),
    Difference(
        "a tx.commit of which a queue refuses something",
        "406, and nothing of the transaction is done; RabbitMQ says `partial tx completion` and keeps the rest",
        lambda theirs, ours: theirs[:3] == ours[:3] and "partial tx completion" in str(theirs[-1]),
    ),
    Difference(
        "the words about a CC or BCC that is no list",
        "the same: 406, and what is needed instead of a term of Erlang",
        lambda theirs, ours: theirs[:3] == ours[:3] and "unacceptable_type_in_header" in str(theirs[-1]),
    ),
    Difference(
        "the words after `no queue 'Q' in vhost 'V'`",
        "where one that the user may read has nearly that name, it is named behind RabbitMQ's words",
        lambda theirs, ours: theirs[0] == "closed" and theirs == (*ours[:-1], _HINT.sub("", str(ours[-1]))),
    ),
)


LEFT_OUT: Mapping[str, str] = {
    "messages with an `expiration` that comes while they stand behind others": "they leave, and are dead letters, at "
    "that moment; RabbitMQ sees it when they come to the head of the queue, and counts them until then",
    "queues with `x-max-priority` and a limit that drops the head": "the oldest of the lowest priority gives way; "
    "RabbitMQ lets the head of the highest one go",
    "an `alternate-exchange` that is the default exchange": "leads to the queue of the key; in RabbitMQ to none",
    "headers `x-last-death-queue`, `-reason`, `-exchange`": "dead letters have them, as in RabbitMQ from 3.13 on",
    "a dead letter that one of the queues on its way refuses": "stays at its source and is tried again, and nobody has "
    "it before; in RabbitMQ the others have it, and it is lost to that one",
    "`immediate`, streams and quorum queues": "tests of their own compare their refusals with RabbitMQ's, and what "
    "their clients see with the documents",
}
"""What the walks do not do, since it is known to be other, or is compared elsewhere."""


class Side:
    """One broker, as one client sees it."""

    def __init__(self, connect: Callable[[], pika.BlockingConnection]) -> None:
        self._connect = connect
        self._connection: pika.BlockingConnection | None = None
        self._channel: BlockingChannel | None = None
        self.mode = ""  # of the channel: confirm, tx
        self.tags: list[int] = []  # delivered and not settled

    def channel(self) -> BlockingChannel:
        if self._connection is None or not self._connection.is_open:
            self._connection, self._channel = self._connect(), None
        if self._channel is None or not self._channel.is_open:
            self._channel, self.mode, self.tags = self._connection.channel(), "", []
        return self._channel

    def close(self) -> None:
        if self._connection is not None and self._connection.is_open:
            self._connection.close()

    def do(self, step: Step) -> Answer:
        name, arguments = step
        try:
            return getattr(self, name)(self.channel(), **arguments) or ("done",)
        except (ChannelClosedByBroker, ConnectionClosedByBroker) as error:
            return ("closed", type(error).__name__, error.reply_code, plain(error.reply_text))
        except (AMQPChannelError, AMQPConnectionError) as error:
            return ("failed", type(error).__name__)

    # -- steps

    def declare(self, channel: BlockingChannel, queue: str, **terms: Any) -> Answer:
        ok = channel.queue_declare(queue, **terms).method
        return ("queue", ok.queue, ok.message_count, ok.consumer_count)

    def declare_exchange(self, channel: BlockingChannel, exchange: str, **terms: Any) -> Answer | None:
        channel.exchange_declare(exchange, **terms)
        return None

    def bind(self, channel: BlockingChannel, queue: str, exchange: str, key: str, arguments: Any) -> Answer | None:
        channel.queue_bind(queue, exchange, key, arguments)
        return None

    def unbind(self, channel: BlockingChannel, queue: str, exchange: str, key: str, arguments: Any) -> Answer | None:
        channel.queue_unbind(queue, exchange, key, arguments)
        return None

    def bind_exchange(self, channel: BlockingChannel, destination: str, source: str, key: str) -> Answer | None:
        channel.exchange_bind(destination, source, key)
        return None

    def delete(self, channel: BlockingChannel, queue: str, **terms: bool) -> Answer:
        return ("deleted", channel.queue_delete(queue, **terms).method.message_count)

    def delete_exchange(self, channel: BlockingChannel, exchange: str, **terms: bool) -> Answer | None:
        channel.exchange_delete(exchange, **terms)
        return None

    def purge(self, channel: BlockingChannel, queue: str) -> Answer:
        return ("purged", channel.queue_purge(queue).method.message_count)

    def publish(
        self,
        channel: BlockingChannel,
        exchange: str,
        key: str,
        body: str,
        mandatory: bool,
        properties: Mapping[str, Any],
    ) -> Answer:
        if self.mode == "":
            channel.confirm_delivery()
            self.mode = "confirm"
        try:
            channel.basic_publish(exchange, key, body.encode(), pika.BasicProperties(**properties), mandatory)
        except UnroutableError as error:
            return ("returned", [(one.method.reply_code, one.method.reply_text) for one in error.messages])
        except NackError:
            return ("refused",)
        return ("published",)

    def get(self, channel: BlockingChannel, queue: str, auto_ack: bool) -> Answer:
        method, properties, body = channel.basic_get(queue, auto_ack)
        if method is None:
            return ("empty",)
        if not auto_ack:
            self.tags.append(method.delivery_tag)
        return (
            "message", method.delivery_tag, method.redelivered, method.exchange, method.routing_key,
            method.message_count, body, told(properties),
        )  # fmt: skip

    def settle(self, channel: BlockingChannel, verb: str, which: int, **terms: bool) -> Answer | None:
        if not self.tags:
            return None
        tag = self.tags[which % len(self.tags)]
        if verb == "ack":
            channel.basic_ack(tag, **terms)
        elif verb == "nack":
            channel.basic_nack(tag, **terms)
        else:
            channel.basic_reject(tag, terms["requeue"])
        self.tags = [one for one in self.tags if one > tag or (one != tag and not terms.get("multiple"))]
        return self._flushed(channel)

    def wrong_ack(self, channel: BlockingChannel, tag: int) -> Answer | None:
        channel.basic_ack(max(self.tags, default=0) + tag)
        return self._flushed(channel)

    def recover(self, channel: BlockingChannel) -> Answer | None:
        channel.basic_recover(requeue=True)
        self.tags = []
        return None

    def consume(self, channel: BlockingChannel, queue: str, prefetch: int) -> Answer:
        """What a consumer is given at first, then it leaves; what it holds goes back."""
        channel.basic_qos(prefetch_count=prefetch)
        got: list[Answer] = []
        tag = channel.basic_consume(
            queue,
            lambda _, method, properties, body: got.append(
                (method.redelivered, method.routing_key, body, told(properties))
            ),
        )
        until = time.monotonic() + FIRST_S
        while time.monotonic() < until:
            there = len(got)
            channel.connection.process_data_events(SETTLE_S / 3)
            if got and not there:
                until = time.monotonic() + SETTLE_S
        channel.basic_qos(prefetch_count=prefetch)  # a round trip: on a busy machine so little time is none
        channel.connection.process_data_events(0)
        channel.basic_cancel(tag)
        channel.basic_recover(requeue=True)
        channel.basic_qos(prefetch_count=0)
        self.tags = []
        return ("consumed", *got)

    def transaction(
        self, channel: BlockingChannel, keep: bool, publishes: Sequence[tuple[str, str, str]]
    ) -> Answer | None:
        """On a channel of its own."""
        other = channel.connection.channel()
        other.tx_select()
        for exchange, key, body in publishes:
            other.basic_publish(exchange, key, body.encode())
        if keep:
            other.tx_commit()
        else:
            other.tx_rollback()
        other.close()
        return None

    def leave(self, channel: BlockingChannel) -> Answer | None:
        """What is held goes back."""
        channel.close()
        return None

    def wait(self, channel: BlockingChannel) -> Answer | None:
        """Times to live are over."""
        channel.connection.sleep(3 * TTL_MS / 1000)
        return None

    def _flushed(self, channel: BlockingChannel) -> Answer | None:
        """An error that the step causes is its answer."""
        channel.basic_qos(prefetch_count=0)
        return None


def plain(text: str) -> str:
    """A reply text without what is each broker's own way to write a value."""
    return re.sub(r"\s+", " ", text)


def told(properties: pika.BasicProperties) -> Mapping[str, object]:
    """A header as it is compared: times of deaths are left out."""
    found = {name: value for name, value in vars(properties).items() if value is not None}
    headers = dict(found.pop("headers", None) or {})
    headers = {name: value for name, value in headers.items() if not name.startswith("x-last-death-")}
    for death in headers.get("x-death", ()):
        death.pop("time", None)
    return {**found, "headers": headers}


# -- choosing


def declares(chance: random.Random) -> dict[str, Any]:
    arguments: dict[str, Any] = {}
    for name, values, odds in (
        ("x-max-length", (0, 1, 2, 3, -1, "3"), 0.3),
        ("x-max-length-bytes", (0, 3, 6), 0.1),
        ("x-overflow", ("drop-head", "reject-publish", "reject-publish-dlx", "drop"), 0.25),
        ("x-dead-letter-exchange", ("", *EXCHANGES, "nowhere"), 0.35),
        ("x-dead-letter-routing-key", (*QUEUES, "a.b"), 0.2),
        ("x-message-ttl", (0, TTL_MS, -1), 0.12),
        ("x-max-priority", (3, 256), 0.12),
        ("x-single-active-consumer", (True,), 0.05),
        ("x-expires", (60_000, 0), 0.05),
        ("x-unknown", (1, "text"), 0.05),
    ):
        if chance.random() < odds:
            arguments[name] = chance.choice(values)
    if arguments.keys() & {"x-max-length", "x-max-length-bytes"} and "reject" not in arguments.get("x-overflow", ""):
        arguments.pop("x-max-priority", None)  # `LEFT_OUT`
    return {"durable": chance.random() < 0.8, "auto_delete": chance.random() < 0.1, "arguments": arguments}


def choose(chance: random.Random, number: int) -> Step:
    """The next step."""
    queue, exchange = chance.choice(QUEUES), chance.choice(("", "", *EXCHANGES, "amq.topic"))
    key = chance.choice((*KEYS, *QUEUES, *QUEUES)) if exchange else queue
    odd = chance.random()
    other, of_them = chance.choice(EXCHANGES), chance.choice
    tables = ({}, {}, {"x-match": "any", "n": 1}, {"x-match": "all", "n": 1, "t": "x"}, {"x-match": "odd"})
    whose = {"queue": queue}

    def often(odds: float) -> bool:
        return chance.random() < odds

    def declare_exchange() -> Step:
        arguments = {"alternate-exchange": of_them(EXCHANGES)} if often(0.2) else {}
        named = {"exchange": of_them((*EXCHANGES, "amq.direct", "amq.mine")), "exchange_type": of_them(EXCHANGE_TYPES)}
        return "declare_exchange", {**named, "durable": True, "internal": often(0.05), "arguments": arguments}

    def bind() -> Step:
        source, key = of_them((*EXCHANGES, "amq.topic", "")), of_them((*KEYS, "#", "a.*", "*.b"))
        return "bind", {**whose, "exchange": source, "key": key, "arguments": of_them(tables)}

    def publish() -> Step:
        to = {"exchange": exchange, "key": key, "body": f"b{number}"}
        return "publish", {**to, "mandatory": often(0.3), "properties": properties(chance)}

    def transaction() -> Step:
        some = [(exchange, key, f"t{number}")] if often(0.5) else []
        return "transaction", {"keep": often(0.7), "publishes": some}

    def passive() -> Step:
        return "declare", {"queue": of_them((queue, "amq.own", "missing")), "passive": often(0.7)}

    def bind_exchange() -> Step:
        return "bind_exchange", {"destination": of_them(EXCHANGES), "source": other, "key": of_them((*KEYS, "#"))}

    def delete_exchange() -> Step:
        return "delete_exchange", {"exchange": of_them((*EXCHANGES, "amq.fanout", "missing")), "if_unused": often(0.4)}

    steps: Sequence[tuple[float, Callable[[], Step]]] = (
        (0.08, lambda: ("declare", {**whose, **declares(chance)})),
        (0.02, passive),
        (0.05, declare_exchange),
        (0.08, bind),
        (0.03, lambda: ("unbind", {**whose, "exchange": other, "key": of_them(KEYS), "arguments": {}})),
        (0.03, bind_exchange),
        (0.02, lambda: ("delete", {**whose, "if_unused": often(0.3), "if_empty": often(0.3)})),
        (0.01, delete_exchange),
        (0.02, lambda: ("purge", whose)),
        (0.26, publish),
        (0.16, lambda: ("get", {**whose, "auto_ack": often(0.3)})),
        (0.12, lambda: ("settle", settles(chance))),
        (0.005, lambda: ("wrong_ack", {"tag": of_them((1, 100))})),
        (0.02, lambda: ("recover", {})),
        (0.03, lambda: ("consume", {**whose, "prefetch": of_them((1, 2, 5))})),
        (0.02, transaction),
        (0.015, lambda: ("leave", {})),
        (0.02, lambda: ("wait", {})),
    )
    total = sum(weight for weight, _ in steps)
    for weight, make in steps:
        odd -= weight / total
        if odd < 0:
            return make()
    return steps[-1][1]()


def properties(chance: random.Random) -> dict[str, Any]:
    out: dict[str, Any] = {}
    if chance.random() < 0.5:
        out["delivery_mode"] = chance.choice((1, 2))
    if chance.random() < 0.2:
        out["priority"] = chance.randrange(6)
    if chance.random() < 0.1:
        out["expiration"] = chance.choice(("soon", "-1", "60000"))
    if chance.random() < 0.3:
        out["headers"] = chance.choice(
            ({"n": 1}, {"n": "1", "t": "x"}, {"n": 1, "t": "x"}, {"CC": ["q2", "a.b"]}, {"BCC": ["q3"]}, {"CC": "q2"})
        )
    if chance.random() < 0.1:
        out["message_id"] = "m"
    return out


def settles(chance: random.Random) -> dict[str, Any]:
    verb = chance.choice(("ack", "ack", "nack", "reject"))
    terms: dict[str, Any] = {"verb": verb, "which": chance.randrange(8)}
    if verb in {"ack", "nack"}:
        terms["multiple"] = chance.random() < 0.3
    if verb in {"nack", "reject"}:
        terms["requeue"] = chance.random() < 0.5
    return terms


# -- comparing


def clean(side: Side) -> None:
    """Nothing of the walk before is left."""
    for queue in (*QUEUES, "missing"):
        side.do(("delete", {"queue": queue, "if_unused": False, "if_empty": False}))
    for exchange in (*EXCHANGES, "missing"):
        side.do(("delete_exchange", {"exchange": exchange, "if_unused": False}))


def same(theirs: Answer, ours: Answer) -> bool:
    return theirs == ours or any(one.alike(theirs, ours) for one in DIFFERENCES)


def walk(theirs: Side, ours: Side, seed: int, steps: int) -> None:
    chance = random.Random(seed)
    past: list[str] = []
    ends = False
    for number in range(steps):
        step = choose(chance, number)
        answers = [side.do(step) for side in (theirs, ours)]
        ends |= "x-message-ttl" in str(step[1])
        if step[0] in CHANGING:  # what has an end comes to it before anybody looks
            time.sleep(3 * TTL_MS / 1000 if ends else SETTLE_S)
        past.append(f"{number}: {step[0]} {step[1]}\n    RabbitMQ: {answers[0]}\n    Penstock: {answers[1]}")
        if not same(answers[0], answers[1]):
            raise AssertionError(f"seed {seed}:\n" + "\n".join(past[-25:]))


@pytest.mark.parametrize("number", range(WALKS * EFFORT))
def test_every_answer_is_what_rabbitmq_says(server: LiveServer, rabbitmq: RabbitMQ, number: int) -> None:
    theirs, ours = Side(rabbitmq.connect), Side(server.connect)
    with contextlib.closing(theirs), contextlib.closing(ours):
        clean(theirs)
        clean(ours)
        walk(theirs, ours, SEED * 1000 + number, STEPS)
