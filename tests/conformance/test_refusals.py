"""What is refused, with which code and which words: every argument with a value of every kind, on us and on RabbitMQ.

Arguments of queues of each type, of exchanges, bindings and consumers, and properties of messages.  Behind `invalid arg
'NAME' for queue ...:` our words name the value and what is allowed, as `docs/clients.md` says; what else differs, and
why, is in `KNOWN`, which that page has as well.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from decimal import Decimal
from itertools import chain, count
from pathlib import Path
from typing import NamedTuple

import pika
import pytest
from pika.adapters.blocking_connection import BlockingChannel
from pika.exceptions import AMQPError

from live_server import LiveServer
from rabbitmq_server import BESIDE, RabbitMQ

pytestmark = [pytest.mark.conformance, BESIDE]

Work = Callable[[BlockingChannel], object]

NUMBERS = count()

TYPES: Mapping[str, Mapping[str, object]] = {
    "classic": {}, "quorum": {"x-queue-type": "quorum"}, "stream": {"x-queue-type": "stream"},
}  # fmt: skip

KINDS: Sequence[object] = (
    0, 1, -1, 300, 2**40, "", "x", "5", "1D", b"\xff", True, Decimal("1.5"), [1], {"a": 1}, None,
    datetime.datetime(2020, 1, 1),  # noqa: DTZ001 - the wire has no zone
)  # fmt: skip
"""One of each kind that the wire has, and more of numbers and texts."""

OF_QUEUES: Mapping[str, Sequence[object]] = {
    **dict.fromkeys(
        ("x-expires", "x-message-ttl", "x-dead-letter-exchange", "x-dead-letter-routing-key", "x-max-length",
         "x-max-length-bytes", "x-max-priority", "x-single-active-consumer", "x-delivery-limit",
         "x-stream-max-segment-size-bytes", "x-initial-cluster-size", "x-quorum-initial-group-size",
         "x-max-in-memory-length", "x-max-in-memory-bytes", "x-queue-version", "x-nobody-knows"), ()),
    "x-dead-letter-strategy": ("at-most-once", "at-least-once"),
    "x-overflow": ("drop-head", "reject-publish", "reject-publish-dlx"),
    "x-queue-mode": ("default", "lazy"),
    "x-queue-leader-locator": ("client-local", "balanced", "random", "least-leaders"),
    "x-queue-master-locator": ("client-local", "min-masters", "random"),
    "x-max-age": ("7D", "1Y", "5m", "7d", "-1h", "D7", "1.5h"),
}  # fmt: skip
"""Arguments of queues, with the values that say something, beside one of each kind."""

HANGS = re.compile(r"classic x-queue-master-locator=(?!'(client-local|min-masters|random)')")
"""RabbitMQ's channel falls over for such a locator, with 541, and after some of them its next one does not answer."""

OF_EXCHANGES: Mapping[str, Sequence[str]] = {
    "x-consistent-hash": ("hash-header", "hash-property"), "x-recent-history": ("x-recent-history-length",),
    "x-modulus-hash": ("hash-header",), "x-random": ("x-nobody-knows",), "fanout": ("alternate-exchange",),
}  # fmt: skip

OF_CONSUMERS: Mapping[str, Sequence[object]] = {
    "x-priority": (), "x-cancel-on-ha-failover": (), "x-nobody-knows": (),
    "x-stream-offset": ("first", "last", "next", "1h", "1Y"),
}  # fmt: skip

OF_MESSAGES: Mapping[str, Sequence[object]] = {
    "expiration": ("abc", "-1", "+5", " 5", "5.5", "", "999999999999", "0"),
    "user_id": ("nobody", "guest"),
    "delivery_mode": (0, 1, 2, 3, 255),
    "priority": (0, 255),
    "headers": ({"CC": "a"}, {"CC": [1]}, {"CC": ["a"]}, {"BCC": {"a": 1}}, {"x-death": "a"}),
}


class Known(NamedTuple):
    """A difference with its reason."""

    what: str
    why: str
    cases: str  # a regular expression: the names of those that it explains
    codes: str  # the same of `THEIRS>OURS`, RabbitMQ's code and ours, nothing where nothing is refused

    def explains(self, theirs: str, ours: str) -> bool:
        """Whether these two answers may be."""
        return re.search(self.codes, f"{theirs[:3]}>{ours[:3]}") is not None


KNOWN: Sequence[Known] = (
    Known("the words about the name of an exchange that is no text (`x-dead-letter-exchange`, `alternate-exchange`)",
          "the same code: 406, and the argument with its value", r"x-dead-letter-exchange=|alternate-exchange=",
          "406>406"),
    Known("`x-delivery-limit` of a classic queue", "it has one: RabbitMQ's have none, and refuse it",
          "classic x-delivery-limit=", "406>(406)?$"),
    Known("`x-queue-leader-locator` of a classic queue", "taken, and nothing is asked for",
          "classic x-queue-leader-locator=", "406>(406)?$"),
    Known("`x-delivery-limit` of a quorum queue that is no number", "406: RabbitMQ takes it",
          "quorum x-delivery-limit=", "^>406"),
    Known("an `x-max-age` that is no age", "406: RabbitMQ ends the connection with 541", "stream x-max-age=",
          "541>406"),
    Known("`x-stream-max-segment-size-bytes` above 3 GB", "taken, and nothing is asked for: there is one log",
          "stream x-stream-max-segment-size-bytes=1099511627776", "406>$"),
    Known("a type of exchange that nobody knows", "406, as in RabbitMQ from 4.3 on; before that the connection ends "
          "with 503", "exchange type ", "503>406"),
    Known("arguments of `x-consistent-hash` that are no text", "406: RabbitMQ ends the connection with 541",
          "x-consistent-hash hash-", "(541|406)>406"),
    Known("`hash-header` of an `x-modulus-hash` exchange", "has to be text; RabbitMQ does not look",
          "x-modulus-hash hash-header=", "^>406"),
    Known("`x-recent-history-length`", "100,000 at most, and the words say so", "x-recent-history-length=", ">406"),
    Known("the words about a weight", "the same code, 406; 999,999,999 is the most, and a plus sign is none of it",
          "^weight ", ">406"),
    Known("the words about an argument of a consumer", "the same code, 406: argument, value, and what is allowed",
          "consume .* x-priority=", "406>406"),
    Known("`x-cancel-on-ha-failover` that is not true or false", "taken: nothing fails over from a mirror",
          "consume classic x-cancel-on-ha-failover=", "406>$"),
    Known("an `x-stream-offset` that is none", "406: RabbitMQ ends the connection with 541, or says its words",
          "consume stream x-stream-offset=", "(541|406)>406"),
    Known("a consumer beside an exclusive one, of a quorum queue or a stream", "403, as of classic queues: RabbitMQ "
          "does not see to it", "consume (quorum|stream) beside", "^>403"),
    Known("a CC that is a list of something else than texts", "406, with what is needed; RabbitMQ takes it",
          "^publish headers=", ">406"),
    Known("a `delivery_mode` that is neither 1 nor 2", "taken as 1: RabbitMQ refuses it",
          "^publish delivery_mode=", "406>$"),
)  # fmt: skip


def declared(arguments: Mapping[str, object], name: str | None = None, **said: bool) -> Work:
    """A queue that is declared, and goes where it has no name."""
    asked = f"odd {next(NUMBERS)}" if name is None else name

    def work(channel: BlockingChannel) -> None:
        channel.queue_declare(asked, **{"durable": True, **said}, arguments=dict(arguments))
        if name is None:
            channel.queue_delete(asked)

    return work


def an_exchange(kind: str, arguments: Mapping[str, object]) -> Work:
    def work(channel: BlockingChannel) -> None:
        channel.exchange_declare("odd", kind, durable=True, arguments=dict(arguments))
        channel.exchange_delete("odd")

    return work


def then(*steps: Work) -> Work:
    return lambda channel: [step(channel) for step in steps]


def prefetch(count: int, *, shared: bool = False) -> Work:
    return lambda channel: channel.basic_qos(prefetch_count=count, global_qos=shared)


def consumer(queue: str, arguments: Mapping[str, object] | None = None, **said: bool) -> Work:
    return lambda channel: channel.basic_consume(queue, lambda *_: None, arguments=dict(arguments or {}), **said)


def published(properties: pika.BasicProperties) -> Work:
    def work(channel: BlockingChannel) -> None:
        channel.confirm_delivery()
        channel.basic_publish("", "kept classic", b"", properties)

    return work


def weighed(weight: str) -> Work:
    def work(channel: BlockingChannel) -> None:
        channel.exchange_declare("weighing", "x-consistent-hash")
        channel.queue_bind("kept classic", "weighing", weight)

    return work


def cases() -> Iterator[tuple[str, Work]]:
    """Names and what is done.  There is a queue of each type, `kept TYPE`."""
    yield from chain(of_queues(), of_exchanges(), of_consumers())
    for name, values in OF_MESSAGES.items():
        for value in values:
            yield f"publish {name}={value!r}", published(pika.BasicProperties(**{name: value}))  # type: ignore[arg-type]


def of_queues() -> Iterator[tuple[str, Work]]:
    for kind, asked in TYPES.items():
        for argument, more in OF_QUEUES.items():
            for value in (*KINDS, *more):
                name = f"{kind} {argument}={value!r}"
                if not HANGS.match(name):
                    yield name, declared({**asked, argument: value})
        for flag in ({"durable": False}, {"exclusive": True}, {"auto_delete": True}):
            yield f"{kind} {flag}", declared(asked, **flag)
        if asked:
            yield f"{kind} named by the server", declared(asked, name="")
        kept = f"kept {kind}"
        yield f"{kind} again, and otherwise", declared({**asked, "x-max-length-bytes": 5}, name=kept)
        yield f"get of {kind}", lambda channel, kept=kept: channel.basic_get(kept)
        yield f"purge of {kind}", lambda channel, kept=kept: channel.queue_purge(kept)
    for value in KINDS:
        yield f"type {value!r}", declared({"x-queue-type": value})
    yield "another type", declared({}, name="kept quorum")
    yield "if unused", lambda channel: channel.queue_delete("kept quorum", if_unused=True)
    yield "if empty", lambda channel: channel.queue_delete("kept quorum", if_empty=True)
    yield "get of one", lambda channel: channel.basic_get("alone")


def of_exchanges() -> Iterator[tuple[str, Work]]:
    for kind, arguments in OF_EXCHANGES.items():
        for argument in arguments:
            for value in (*KINDS, "message_id", "correlation_id", "timestamp", "user_id"):
                yield f"{kind} {argument}={value!r}", an_exchange(kind, {argument: value})
    both = {"hash-header": "h", "hash-property": "message_id"}
    yield "x-consistent-hash hash-header and hash-property", an_exchange("x-consistent-hash", both)
    for kind in ("direct", "fanout", "topic", "headers", "x-random", "x-modulus-hash", "x-nope", ""):
        yield f"exchange type {kind!r}", an_exchange(kind, {})
    for weight in ("1", "0", "-1", "x", "", "1.5", " 1", "01", "+1"):
        yield f"weight {weight!r}", weighed(weight)


def of_consumers() -> Iterator[tuple[str, Work]]:
    for kind in TYPES:
        queue = f"kept {kind}"
        for argument, more in OF_CONSUMERS.items():
            for value in (*KINDS, *more):
                yield f"consume {kind} {argument}={value!r}", then(prefetch(5), consumer(queue, {argument: value}))
        yield f"consume {kind} without prefetch", consumer(queue)
        yield f"consume {kind} with one for all", then(prefetch(5, shared=True), consumer(queue))
        yield f"consume {kind} without acks", then(prefetch(5), consumer(queue, auto_ack=True))
        beside = consumer(queue, exclusive=True)
        yield f"consume {kind} beside an exclusive one", then(prefetch(5), beside, consumer(queue))


class Side:
    """One broker, with the queues that are there all the time."""

    def __init__(self, connect: Callable[[], pika.BlockingConnection]) -> None:
        self._connect = connect
        self._connection = connect()
        channel = self._connection.channel()
        for kind, asked in TYPES.items():
            channel.queue_declare(f"kept {kind}", durable=True, arguments=dict(asked))
        alone = {"x-queue-type": "quorum", "x-single-active-consumer": True}
        channel.queue_declare("alone", durable=True, arguments=alone)
        channel.close()

    def answer(self, work: Work) -> str:
        """Code and words of the refusal; empty where there is none."""
        if not self._connection.is_open:
            self._connection = self._connect()
        channel = self._connection.channel()
        try:
            work(channel)
        except AMQPError as error:
            text = f"{getattr(error, 'reply_code', '')} {getattr(error, 'reply_text', error)}"
            return re.sub(r"(invalid arg '[^']*' for queue '[^']*' in vhost '[^']*':).*", r"\1", text)
        finally:
            if channel.is_open:
                channel.close()
        return ""

    def close(self) -> None:
        if self._connection.is_open:
            self._connection.close()


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    folder: Path = tmp_path_factory.mktemp("refusals")
    with RabbitMQ(folder / "rabbitmq") as theirs, LiveServer(folder / "ours") as ours:
        sides = Side(theirs.connect), Side(ours.connect)
        yield sides
        for side in sides:
            side.close()
        ours.bury()


def test_each_refusal_is_that_of_rabbitmq(
    both: tuple[Side, Side], record_property: Callable[[str, object], None]
) -> None:
    found = {name: (both[0].answer(work), both[1].answer(work)) for name, work in cases()}
    others = {name: said for name, said in found.items() if said[0] != said[1]}
    explained = {
        one.what: [name for name, said in others.items() if re.search(one.cases, name) and one.explains(*said)]
        for one in KNOWN
    }
    named = set(chain.from_iterable(explained.values()))
    strange = [f"{name}: RabbitMQ {theirs!r}, Penstock {ours!r}" for name, (theirs, ours) in others.items()
               if name not in named]  # fmt: skip
    assert not strange, "\n".join(strange)
    assert [what for what, names in explained.items() if not names] == []
    assert sum(bool(theirs) for theirs, _ in found.values()) > 400
    record_property("cases", len(found))
