"""Direct reply-to: who gets a reply, who does not, and what is written of it (nothing)."""

from __future__ import annotations

import pytest

from penstock.core.topology.routing import REPLY_PREFIX, REPLY_TO
from penstock.records.properties import Properties, decode, encode, with_reply_to
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD, frame
from sim.serverkit import HANDSHAKE, Client, Content, Life, message

ASKS = encode(Properties(reply_to=REPLY_TO, correlation_id="7", headers={"n": 1}, delivery_mode=2, user_id="guest"))
QUEUES = ("requests",)


def requester(life: Life, tag: str = "r") -> Client:
    client = life.client()
    client.consume(REPLY_TO, tag, no_ack=True)
    life.run()
    assert client.take(m.BasicConsumeOk).consumer_tag == tag
    return client


def asked(life: Life, client: Client, replier: Client) -> str:
    """The address that a request brings to who answers it."""
    client.publish("requests", b"?", properties=ASKS)
    replier.method(m.BasicGet(queue="requests", no_ack=True))
    life.run()
    (request,) = replier.messages()
    properties = request.properties
    assert (properties.correlation_id, properties.headers, properties.user_id) == ("7", {"n": 1}, "guest")
    assert properties.reply_to is not None
    assert properties.reply_to.startswith(REPLY_PREFIX)
    return properties.reply_to


def close_of(client: Client) -> tuple[int, str]:
    close = client.take(m.ChannelClose)
    return close.reply_code, close.reply_text.partition(" - ")[2]


def test_a_reply_goes_to_who_asked_and_into_no_log(life: Life) -> None:
    client, replier = requester(life), life.client()
    address = asked(life, client, replier)
    lsn, commits = life.core.last_lsn, life.log.commits
    for body in (b"one", b"", bytes(200_000)):
        replier.publish(address, body, mandatory=True, properties=encode(Properties(correlation_id="7")))
        life.turn()
    got = client.messages()
    assert [one.body for one in got] == [b"one", b"", bytes(200_000)]
    assert [one.tag for one in got] == [1, 2, 3]
    assert {type(one.method).__name__ for one in got} == {"BasicDeliver"}
    first = got[0].method
    assert isinstance(first, m.BasicDeliver)
    assert (first.consumer_tag, first.exchange, first.routing_key, first.redelivered) == ("r", "", address, False)
    assert got[0].properties.correlation_id == "7"
    assert (life.core.last_lsn, life.log.commits) == (lsn, commits)
    assert replier.got == []


def test_each_of_several_requests_in_one_read_says_where(life: Life) -> None:
    client, replier = requester(life), life.client()
    bodies = [b"%d" % n for n in range(5)]
    plain = encode(Properties(reply_to="elsewhere", delivery_mode=2))
    client.send(
        b"".join(message(body, "requests", properties=ASKS if n % 2 else plain) for n, body in enumerate(bodies))
    )
    replier.consume("requests", no_ack=True)
    life.run()
    replier.take(m.BasicConsumeOk)
    told = [one.properties.reply_to for one in replier.messages()]
    assert told[::2] == ["elsewhere"] * 3
    assert len(set(told[1::2])) == 1
    assert str(told[1]).startswith(REPLY_PREFIX)


def test_requests_among_many_messages_that_say_nothing_else_say_where(life: Life) -> None:
    """Headers are looked at by the hundred; those of one queue may ask where those of another do not."""
    life.declare("other")
    client = requester(life)
    plain = [encode(Properties(correlation_id=str(n), delivery_mode=2)) for n in range(100)]
    asks = [encode(Properties(correlation_id=str(n), delivery_mode=2, reply_to=REPLY_TO)) for n in range(100)]
    client.send(b"".join([message(b"m", "requests", properties=head) for head in plain]
                         + [message(b"m", "other", properties=head) for head in asks]))  # fmt: skip
    life.run()
    replier = life.client()
    replier.consume("other", no_ack=True)
    life.run()
    replier.take(m.BasicConsumeOk)
    told = {one.properties.reply_to for one in replier.messages()}
    assert len(told) == 1
    assert str(told.pop()).startswith(REPLY_PREFIX)


def test_a_confirmed_reply_is_confirmed_and_one_to_nobody_returned(life: Life) -> None:
    client, replier = requester(life), life.client(confirm=True)
    address = asked(life, client, replier)
    replier.publish(address, b"x", mandatory=True)
    life.run()
    assert [one.body for one in client.messages()] == [b"x"]
    assert replier.confirms() == [(True, 1, True)]
    client.lose()
    life.run()
    replier.publish(address, b"y", mandatory=True)
    life.run()
    returned, ack = replier.take_all()
    assert isinstance(returned, Content)
    assert isinstance(returned.method, m.BasicReturn)
    assert isinstance(ack, m.BasicAck)


@pytest.mark.parametrize("end", ["cancel", "channel", "connection"])
def test_an_address_ends_with_its_consumer_for_ever(life: Life, end: str) -> None:
    client, replier = requester(life), life.client()
    address = asked(life, client, replier)
    if end == "cancel":
        client.method(m.BasicCancel("r"))
    elif end == "channel":
        client.method(m.ChannelClose(200, "", 0, 0))
    else:
        client.lose()
    life.run()
    client.take_all()
    if end == "cancel":
        client.consume(REPLY_TO, "r", no_ack=True)
        life.run()
        client.take(m.BasicConsumeOk)
        assert asked(life, client, replier) != address
    replier.publish(address, b"late", mandatory=True)
    life.run()
    (back,) = replier.messages()
    assert isinstance(back.method, m.BasicReturn)
    assert client.got == []
    replier.method(m.QueueDeclare(queue=address, passive=True))
    life.run()
    assert close_of(replier) == (404, f"no queue '{address}' in vhost '/'")
    if end != "cancel":
        assert not life.core._router.replies


def test_nobody_else_sees_or_sends_a_reply(life: Life) -> None:
    """Not from another vhost, not by another exchange, not by a guess; no view of all topics and no queue sees one."""
    life.declare("all", **{"x-underlying-topic": ".*", "x-default-publish-target": "x"})
    client, replier = requester(life), life.client()
    address = asked(life, client, replier)
    other = Client(life, login=False)
    for part in (*HANDSHAKE[:3], frame(METHOD, 0, m.ConnectionOpen("other").encode())):
        other.send(part)
        life.turn()
    other.channel()
    before = life.ready("all")
    other.publish(address, b"forged", mandatory=True)
    replier.publish(f"{address}x", b"forged", mandatory=True)
    replier.publish(REPLY_PREFIX, b"forged", mandatory=True)
    replier.publish(address, b"forged", exchange="amq.topic", mandatory=True)
    life.run()
    assert client.got == []
    assert len(other.messages()) == 1
    assert len(replier.messages()) == 3
    replier.publish(address, b"right")
    life.run()
    assert [one.body for one in client.messages()] == [b"right"]
    assert life.ready("all") == before
    for method, code in (
        (m.QueueBind(queue=address, exchange="amq.fanout"), 403),
        (m.QueueBind(queue=REPLY_TO, exchange="amq.fanout"), 403),
        (m.BasicConsume(queue=address, no_ack=True), 404),
        (m.BasicGet(queue=address), 404),
        (m.QueuePurge(queue=address), 404),
    ):
        thief = life.client()
        thief.method(method)
        life.run()
        assert close_of(thief)[0] == code


def test_the_pseudo_queue_is_declared_and_an_address_looked_for(life: Life) -> None:
    client, replier = requester(life), life.client()
    address = asked(life, client, replier)
    for name, passive in ((REPLY_TO, True), (REPLY_TO, False), (address, True), (address, False)):
        replier.method(m.QueueDeclare(queue=name, passive=passive))
        life.run()
        assert replier.take(m.QueueDeclareOk) == m.QueueDeclareOk(name, 0, 1)
    assert {one.name for one in life.core.queues()} == {"requests"}


@pytest.mark.parametrize(
    ("methods", "code", "text"),
    [
        ([m.BasicConsume(queue=REPLY_TO)], 406, "reply consumer cannot acknowledge"),
        ([m.BasicConsume(queue=REPLY_TO, no_ack=True)] * 2, 406, "reply consumer already set"),
        ([message(b"?", "requests", properties=ASKS)], 406, "fast reply consumer does not exist"),
        (
            [m.BasicConsume(queue=REPLY_TO, no_ack=True, arguments={"x-filter": "TRUE"})],
            406, "consumer argument x-filter does not go with amq.rabbitmq.reply-to",
        ),
        ([m.BasicConsume(queue=REPLY_TO, no_ack=True), m.BasicAck(1)], 406, "unknown delivery tag 1"),
    ],
)  # fmt: skip
def test_what_closes_the_channel(life: Life, methods: list[m.Method | bytes], code: int, text: str) -> None:
    client = life.client()
    for method in methods:
        if isinstance(method, bytes):
            client.send(method)
        else:
            client.method(method)
    life.run()
    client.got = [one for one in client.got if not isinstance(one, m.BasicConsumeOk)]
    assert close_of(client) == (code, text)


def test_a_tag_in_use_closes_the_connection(life: Life) -> None:
    client = requester(life, "t")
    client.consume("requests", "t")
    life.run()
    assert client.take(m.ConnectionClose).reply_code == 530


def test_rows_before_a_request_without_a_consumer_are_published(life: Life) -> None:
    client = life.client()
    client.send(message(b"kept", "requests") + message(b"?", "requests", properties=ASKS))
    life.run()
    assert close_of(client)[0] == 406
    assert life.contents("requests") == [b"kept"]


def test_no_reply_comes_before_the_consumer_is_known(life: Life) -> None:
    """Its consume-ok waits behind a declare that waits for the disk; the request is answered before that."""
    client, replier = life.client(), life.client()
    replier.consume("requests", no_ack=True)
    life.run()
    replier.take(m.BasicConsumeOk)
    client.method(m.QueueDeclare(queue="new", durable=True))
    client.consume(REPLY_TO, "r", no_ack=True)
    client.publish("requests", b"?", properties=encode(Properties(reply_to=REPLY_TO)))
    life.turn()
    (request,) = replier.messages()
    replier.publish(str(request.properties.reply_to), b"!")
    life.turn()
    assert client.got == []
    life.run()
    client.take(m.QueueDeclareOk)
    client.take(m.BasicConsumeOk)
    assert client.bodies() == [b"!"]


def test_a_reply_within_a_transaction_goes_when_that_is_durable(life: Life) -> None:
    client, replier = requester(life), life.client()
    address = asked(life, client, replier)
    replier.method(m.TxSelect())
    replier.publish(address, b"!")
    replier.publish("requests", b"beside")
    life.run()
    replier.take(m.TxSelectOk)
    assert client.got == []
    replier.method(m.TxCommit())
    life.turn()
    assert client.got == []
    life.run()
    assert client.bodies() == [b"!"]
    replier.take(m.TxCommitOk)
    replier.publish(address, b"only")
    replier.method(m.TxCommit())
    life.run()
    assert client.bodies() == [b"only"]


def test_who_does_not_read_gets_no_more_than_may_wait_for_him(life: Life) -> None:
    client, replier = requester(life), life.client()
    address = asked(life, client, replier)
    client.waiting = 1 << 21  # the kernel takes nothing
    replier.publish(address, b"lost")
    life.run()
    client.waiting = 0
    replier.publish(address, b"got")
    life.run()
    assert client.bodies() == [b"got"]


def test_a_header_keeps_all_but_its_reply_to() -> None:
    every = Properties(
        "a/b", "gzip", {"n": 1, "t": {"x": [1, "y"]}}, 2, 3, "c", REPLY_TO, "500", "m", 5, "ty", "u", "ap", "cl"
    )
    changed = with_reply_to(encode(every), REPLY_TO, "z" * 200)
    assert changed is not None
    found = decode(changed)
    assert found.reply_to == "z" * 200
    found.reply_to = REPLY_TO
    assert encode(found) == encode(every)
    assert with_reply_to(encode(Properties(reply_to="other")), REPLY_TO, "z") is None
    assert with_reply_to(encode(Properties(app_id=REPLY_TO)), REPLY_TO, "z") is None
    assert with_reply_to(encode(Properties(reply_to=REPLY_TO)), REPLY_TO, "") == encode(Properties(reply_to=""))
