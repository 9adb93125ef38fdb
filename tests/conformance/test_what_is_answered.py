"""What a client hears that names what is not there, or gives an argument a value it cannot have: RabbitMQ's answers.

One row a method and thing; a method without a row fails.  Where nothing is said an answer is `ok`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from decimal import Decimal
from typing import Any

import pytest
from pika import frame, spec

from live_server import LiveServer
from penstock.config.queue_settings import QUEUE_KEYS
from penstock.records.field_tables import Timestamp
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD
from penstock.wire.amqp.frames import frame as our_frame
from rawlink import RawLink, header, raw_frame

pytestmark = pytest.mark.conformance

Said = str | tuple[int, str]
"""`ok`, or a code and the text that follows its name."""


@pytest.fixture
def link(server: LiveServer) -> Iterator[RawLink]:
    """Of a client who finds the queue `there`, the fanout `fan` and the headers exchange `heads`, unbound."""
    with RawLink(server.port) as link:
        link.ready()
        link.method(spec.Queue.Declare(queue="there"))
        link.expect(spec.Queue.DeclareOk)
        for name, kind in (("fan", "fanout"), ("heads", "headers")):
            link.method(spec.Exchange.Declare(exchange=name, type=kind))
            link.expect(spec.Exchange.DeclareOk)
        yield link


@pytest.fixture(scope="module")
def locked(server: LiveServer) -> Iterator[str]:
    """A queue that is exclusive to another connection, and bound to `fan` by `key`."""
    with RawLink(server.port) as link:
        link.ready()
        link.method(spec.Queue.Declare(queue="locked", exclusive=True))
        link.expect(spec.Queue.DeclareOk)
        link.method(spec.Exchange.Declare(exchange="fan", type="fanout"))
        link.expect(spec.Exchange.DeclareOk)
        link.method(spec.Queue.Bind(queue="locked", exchange="fan", routing_key="key"))
        link.expect(spec.Queue.BindOk)
        yield "locked"


def answer(link: RawLink, *methods: Any) -> Said:
    """What comes of the last of these methods, on a channel of their own."""
    link.open_channel(2)
    for method in methods:
        link.send(our_frame(METHOD, 2, method.encode())) if isinstance(method, m.Method) else link.method(method, 2)
        if isinstance(method, spec.Basic.Publish):
            link.send(raw_frame(2, 2, header(0)))
    link.method(spec.Basic.Qos(), 2)  # is answered in any case
    said: Said = "ok"
    while True:
        found = link.read()
        if not isinstance(found, frame.Method) or found.channel_number != 2:
            continue
        if isinstance(found.method, spec.Channel.Close):
            said = found.method.reply_code, found.method.reply_text.partition(" - ")[2]
            link.method(spec.Channel.CloseOk(), 2)
            return said
        if isinstance(found.method, spec.Basic.QosOk):
            link.method(spec.Channel.Close(200, "", 0, 0), 2)
            while not isinstance(link.read(), frame.Method):
                pass
            return said


NO_QUEUE = 404, "no queue 'none' in vhost '/'"
NO_EXCHANGE = 404, "no exchange 'none' in vhost '/'"
DEFAULT = 403, "operation not permitted on the default exchange"
UNNAMED = 404, "no previously declared queue"
LOCKED = 405, "cannot obtain exclusive access to locked queue 'locked' in vhost '/'."

ABSENT: Sequence[tuple[Any, Said]] = [
    (spec.Queue.Declare(queue="none", passive=True), NO_QUEUE),
    (spec.Queue.Bind(queue="none", exchange="fan"), NO_QUEUE),
    (spec.Queue.Bind(queue="there", exchange="none"), NO_EXCHANGE),
    (spec.Queue.Bind(queue="none", exchange="none"), NO_EXCHANGE),
    (spec.Queue.Bind(queue="", exchange="fan"), UNNAMED),
    (spec.Queue.Bind(queue="none", exchange=""), DEFAULT),
    (spec.Queue.Unbind(queue="none", exchange="fan"), "ok"),
    (spec.Queue.Unbind(queue="there", exchange="none"), "ok"),
    (spec.Queue.Unbind(queue="none", exchange="none"), "ok"),
    (spec.Queue.Unbind(queue="there", exchange="fan", routing_key="none"), "ok"),
    (spec.Queue.Unbind(queue="", exchange="fan"), UNNAMED),
    (spec.Queue.Unbind(queue="none", exchange=""), DEFAULT),
    (spec.Queue.Purge(queue="none"), NO_QUEUE),
    (spec.Queue.Purge(queue=""), UNNAMED),
    (spec.Queue.Delete(queue="none"), "ok"),
    (spec.Queue.Delete(queue="none", if_unused=True, if_empty=True), "ok"),
    (spec.Queue.Delete(queue=""), UNNAMED),
    (spec.Exchange.Declare(exchange="none", passive=True), NO_EXCHANGE),
    (spec.Exchange.Delete(exchange="none"), "ok"),
    (spec.Exchange.Delete(exchange="none", if_unused=True), "ok"),
    (spec.Exchange.Bind(destination="none", source="fan"), NO_EXCHANGE),
    (spec.Exchange.Bind(destination="fan", source="none"), NO_EXCHANGE),
    (spec.Exchange.Bind(destination="none", source=""), DEFAULT),
    (spec.Exchange.Bind(destination="", source="none"), DEFAULT),
    (spec.Exchange.Unbind(destination="none", source="fan"), "ok"),
    (spec.Exchange.Unbind(destination="fan", source="none"), "ok"),
    (spec.Exchange.Unbind(destination="none", source="none"), "ok"),
    (spec.Exchange.Unbind(destination="fan", source="heads", routing_key="none"), "ok"),
    (spec.Exchange.Unbind(destination="none", source=""), DEFAULT),
    (spec.Basic.Publish(exchange="none"), NO_EXCHANGE),
    (spec.Basic.Publish(exchange="", routing_key="none"), "ok"),
    (spec.Basic.Consume(queue="none"), NO_QUEUE),
    (spec.Basic.Consume(queue=""), UNNAMED),
    (spec.Basic.Cancel(consumer_tag="none"), "ok"),
    (spec.Basic.Get(queue="none"), NO_QUEUE),
    (spec.Basic.Get(queue=""), UNNAMED),
    (spec.Basic.Ack(delivery_tag=7), (406, "unknown delivery tag 7")),
    (spec.Basic.Ack(delivery_tag=7, multiple=True), (406, "unknown delivery tag 7")),
    (spec.Basic.Ack(delivery_tag=0), (406, "unknown delivery tag 0")),
    (spec.Basic.Ack(delivery_tag=0, multiple=True), "ok"),
    (spec.Basic.Nack(delivery_tag=7), (406, "unknown delivery tag 7")),
    (spec.Basic.Nack(delivery_tag=0, multiple=True), "ok"),
    (spec.Basic.Reject(delivery_tag=7), (406, "unknown delivery tag 7")),
    (spec.Basic.Recover(requeue=True), "ok"),
    (spec.Tx.Commit(), (406, "channel is not transactional")),
    (spec.Tx.Rollback(), (406, "channel is not transactional")),
]


@pytest.mark.parametrize(("method", "said"), ABSENT, ids=lambda value: str(value)[:90])
def test_what_is_not_there(link: RawLink, method: Any, said: Said) -> None:
    assert answer(link, method) == said


OF_ANOTHER: Sequence[tuple[Any, Said]] = [
    (spec.Queue.Declare(queue="locked", passive=True), LOCKED),
    (spec.Queue.Declare(queue="locked", exclusive=True), LOCKED),
    (spec.Queue.Bind(queue="locked", exchange="amq.direct"), LOCKED),
    (spec.Queue.Unbind(queue="locked", exchange="fan", routing_key="key"), LOCKED),
    (spec.Queue.Unbind(queue="locked", exchange="fan", routing_key="none"), "ok"),
    (spec.Queue.Purge(queue="locked"), LOCKED),
    (spec.Queue.Delete(queue="locked"), LOCKED),
    (spec.Basic.Consume(queue="locked"), LOCKED),
    (spec.Basic.Get(queue="locked"), LOCKED),
    (spec.Basic.Publish(exchange="", routing_key="locked"), "ok"),
]


@pytest.mark.parametrize(("method", "said"), OF_ANOTHER, ids=lambda value: str(value)[:90])
def test_what_is_another_connections_own(link: RawLink, locked: str, method: Any, said: Said) -> None:
    found = answer(link, method)
    assert found == said or (isinstance(said, tuple) and isinstance(found, tuple) and found[1].startswith(said[1]))


def test_every_method_that_names_something_has_a_row() -> None:
    """Those that name nothing, and answers to what the server says, have none."""
    named = {type(method) for method, _ in ABSENT}
    nothing = {
        spec.Basic.Qos, spec.Basic.RecoverAsync, spec.Basic.CancelOk, spec.Confirm.Select, spec.Tx.Select,
        spec.Channel.Open, spec.Channel.Close, spec.Channel.CloseOk, spec.Channel.Flow, spec.Channel.FlowOk,
        spec.Access.Request,
    }  # fmt: skip
    of_server = {spec.Basic.Return, spec.Basic.Deliver, spec.Basic.GetOk, spec.Basic.GetEmpty}
    answers = {one for one in spec.methods.values() if one.NAME.endswith("Ok")}
    connection = {one for one in spec.methods.values() if one.NAME.startswith("Connection.")}
    assert set(spec.methods.values()) - nothing - of_server - answers - connection == named


def test_the_queue_of_the_channel_stands_for_an_empty_name_and_key(link: RawLink) -> None:
    """The last declared queue, when a queue is bound without a name and key, and when that is undone."""
    declare = spec.Queue.Declare(queue="short", durable=True)
    bound = spec.Queue.Bind(queue="", exchange="amq.direct", routing_key="")
    undone = spec.Queue.Unbind(queue="", exchange="amq.direct", routing_key="")
    sent = spec.Basic.Publish(exchange="amq.direct", routing_key="short")
    assert answer(link, declare, bound, undone, sent, spec.Queue.Delete(queue="short", if_empty=True)) == "ok"
    assert answer(link, declare, bound, sent, spec.Queue.Delete(queue="short", if_empty=True)) == (
        406, "queue 'short' in vhost '/' not empty",
    )  # fmt: skip
    assert answer(link, spec.Queue.Delete(queue="short")) == "ok"


# -- values of arguments

VALUES: Sequence[Any] = [
    None, True, 1, -1, 2**40, 1.5, "x", "1", b"\xff", [], ["x"], {}, {"x": 1}, Timestamp(1), Decimal("1.5"),
]  # fmt: skip

WHOLE, TEXT, TRUTH = (int,), (str,), (bool,)
TYPES_OF_DECLARE: dict[str, tuple[type, ...]] = {
    "x-expires": WHOLE, "x-message-ttl": WHOLE, "x-max-length": WHOLE, "x-max-length-bytes": WHOLE,
    "x-max-priority": WHOLE, "x-consumer-timeout": WHOLE, "x-delivery-limit": WHOLE, "x-queue-version": WHOLE,
    "x-single-active-consumer": TRUTH, "x-dead-letter-exchange": TEXT, "x-dead-letter-routing-key": TEXT,
    "x-overflow": TEXT, "x-queue-mode": TEXT, "x-queue-type": TEXT, "x-queue-leader-locator": TEXT,
    "x-name-prefix": TEXT,
}  # fmt: skip


def wrong(types: Sequence[type]) -> list[Any]:
    """Values of none of these types; true is no whole number."""
    return [value for value in VALUES if type(value) not in types]


@pytest.mark.parametrize("argument", TYPES_OF_DECLARE)
def test_arguments_of_a_queue_have_their_type(link: RawLink, argument: str) -> None:
    for value in wrong(TYPES_OF_DECLARE[argument]):
        name = "" if argument == "x-name-prefix" else "fresh"
        if argument == "x-name-prefix" and value is None:
            continue  # the usual prefix, as there
        said = answer(link, m.QueueDeclare(queue=name, exclusive=True, arguments={argument: value}))
        assert isinstance(said, tuple), (argument, value)
        assert said[0] == 406, (argument, value, said)
        assert argument in said[1]


@pytest.mark.parametrize("argument", sorted(key.argument for key in QUEUE_KEYS.values()))
def test_no_argument_of_a_queue_is_null(link: RawLink, argument: str) -> None:
    said = answer(link, m.QueueDeclare(queue="fresh", exclusive=True, arguments={argument: None}))
    assert isinstance(said, tuple), argument
    assert said[0] == 406, said


TYPES_OF_CONSUME: dict[str, tuple[type, ...]] = {
    "x-priority": WHOLE, "x-consumer-timeout": WHOLE, "x-max-backlog": WHOLE, "x-filter": TEXT, "x-replace": TRUTH,
    "x-info": TRUTH, "x-bookmark": TEXT,
}  # fmt: skip
WITH_BOOKMARK: dict[str, tuple[type, ...]] = {
    "x-filter": TEXT, "x-rate": TEXT, "x-rate-max-gap": TEXT, "x-bookmark-not-found": TEXT, "x-select": TEXT,
    "x-fully-durable": TRUTH, "x-timestamp": TRUTH, "x-live": TRUTH, "x-info": TRUTH, "x-priority": WHOLE,
}  # fmt: skip


@pytest.mark.parametrize("argument", TYPES_OF_CONSUME)
def test_arguments_of_a_consumer_have_their_type(link: RawLink, argument: str) -> None:
    for value in wrong(TYPES_OF_CONSUME[argument]):
        said = answer(link, m.BasicConsume(queue="there", arguments={argument: value}))
        assert isinstance(said, tuple), (argument, value)
        assert said[0] == 406, (argument, value, said)
        assert argument in said[1]


@pytest.mark.parametrize("argument", WITH_BOOKMARK)
def test_arguments_beside_a_bookmark_have_their_type(link: RawLink, argument: str) -> None:
    for value in wrong(WITH_BOOKMARK[argument]):
        arguments = {"x-bookmark": "now", argument: value}
        said = answer(link, m.BasicConsume(queue="there", arguments=arguments))
        assert isinstance(said, tuple), (argument, value)
        assert said[0] == 406, (argument, value, said)
        assert argument in said[1]


@pytest.mark.parametrize("value", wrong(TEXT), ids=repr)
def test_arguments_of_exchanges_and_bindings_are_text(link: RawLink, value: Any) -> None:
    for method, argument in (
        (m.ExchangeDeclare(exchange="ae", arguments={"alternate-exchange": value}), "alternate-exchange"),
        (
            m.ExchangeDeclare(exchange="late", type="x-delayed-message", arguments={"x-delayed-type": value}),
            "x-delayed-type",
        ),
        (m.QueueBind(queue="there", exchange="heads", arguments={"x-match": value}), "x-match"),
        (m.ExchangeBind(destination="fan", source="heads", arguments={"x-match": value}), "x-match"),
    ):
        said = answer(link, method)
        assert isinstance(said, tuple), (argument, value)
        assert said[0] == 406, (argument, value, said)
        assert argument in said[1]
