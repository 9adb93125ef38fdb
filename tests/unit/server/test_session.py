"""AMQP sessions at their edges: who vanishes, who is too fast, who does not read, who does not speak."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from penstock.core.effects import Verb
from penstock.log.simdisk import SimDisk
from penstock.log.writer import MEMORY
from penstock.records.properties import Properties, encode
from penstock.server.amqp import door as door_module
from penstock.server.amqp import incoming, session, tags
from penstock.wire.amqp import methods as m
from penstock.wire.amqp.frames import METHOD, Limits, frame
from sim.serverkit import HANDSHAKE, PERSISTENT, Client, Content, Life, clock, message

SECOND = 1_000_000
UNKNOWN_FRAME = b"\x09\0\0\0\0\0\0\xce"  # after it nothing can be trusted: the link is dropped


def consumer(life: Life, queue: str = "q", *, prefetch: int = 0, tag: str = "c") -> Client:
    client = life.client(prefetch=prefetch)
    client.consume(queue, tag)
    life.run()
    client.take(m.BasicConsumeOk)
    return client


# -- connections that vanish


def whole_life() -> bytes:
    """From the first byte to the last: handshake, channel, a publish in three frames, consume, ack, close."""
    methods = (
        m.ChannelOpen(), m.ConfirmSelect(), m.QueueDeclare(queue="q", durable=True),
        m.QueueDeclare(queue="own", exclusive=True), m.BasicConsume(queue="q", consumer_tag="c"),
    )  # fmt: skip
    out = b"".join(HANDSHAKE) + b"".join(frame(METHOD, 1, method.encode()) for method in methods)
    out += message(b"a body of some length", "q") + message(b"second", "q")
    out += frame(METHOD, 1, m.BasicAck(1).encode()) + frame(METHOD, 1, m.ChannelClose(200, "", 0, 0).encode())
    return out + frame(METHOD, 0, m.ConnectionClose(200, "", 0, 0).encode())


def test_a_connection_may_vanish_after_any_byte(life: Life) -> None:
    data = whole_life()
    assert len(data) < 1500
    bodies = 0
    for length in range(0, len(data) + 1, 3):
        client = Client(life, login=False)
        client.send(data[: length // 2])
        life.turn()
        client.send(data[length // 2 : length])
        life.turn()
        client.lose()
        life.run()
        queue = life.core.queue("/", "q")
        assert not life.door.sessions
        assert queue.leased == queue.outstanding == 0
        assert not queue.consumers
        assert [one.name for one in life.core.queues()] == ["q"]
        queue.check()
        bodies = max(bodies, queue.ready)
        life.core.purge_queue(life.engine.now(), queue)
        life.run()
    assert bodies == 2
    assert life.counters.connections_opened == life.counters.connections_closed


def test_leases_return_to_their_places_when_a_link_breaks(life: Life) -> None:
    publisher = life.client()
    publisher.publish("q", b"1", b"2", b"3")
    life.run()
    first = consumer(life, prefetch=2)
    assert first.bodies() == [b"1", b"2"]
    first.lose()
    life.run()
    second = consumer(life)
    assert [(one.body, one.redelivered) for one in second.messages()] == [(b"1", True), (b"2", True), (b"3", False)]


def test_a_lost_connection_with_many_consumers_fails_a_message_once(life: Life) -> None:
    """What one of its consumers gives back is not granted to the next one that goes."""
    life.declare("two", **{"x-max-deliveries": 2})
    client = life.client()
    for number in (1, 2):
        if number > 1:
            client.channel(number)
        client.method(m.BasicQos(prefetch_count=1), number)
        for n in range(3):
            client.consume("two", f"c{n}", channel=number)
    life.run()
    client.take_all()
    client.publish("two", b"m")
    life.run()
    assert client.bodies() == [b"m"]
    client.lose()
    life.run()
    assert life.contents("two") == [b"m"]
    other = consumer(life, "two")
    (again,) = other.messages()
    assert again.redelivered
    assert int(again.properties.headers.get("x-delivery-count", 1) if again.properties.headers else 1) == 1


def test_closing_a_channel_with_many_consumers_counts_nothing(life: Life) -> None:
    life.declare("two", **{"x-max-deliveries": 2})
    client = life.client()
    for n in range(4):
        client.consume("two", f"c{n}")
    client.publish("two", b"m")
    life.run()
    client.method(m.ChannelClose(200, "", 0, 0))
    life.run()
    queue = life.core.queue("/", "two")
    assert queue.ready == 1
    (run,) = queue.returned.runs()
    assert (run.tally.deliveries, run.tally.failures) == (1, 0)


def test_exclusive_queues_end_with_their_connection(life: Life) -> None:
    client, other = life.client(), life.client()
    client.method(m.QueueDeclare(queue="mine", exclusive=True))
    life.run()
    other.method(m.QueueDeclare(queue="mine", passive=True))
    life.run()
    assert other.take(m.ChannelClose).reply_code == 405
    client.lose()
    life.run()
    assert [one.name for one in life.core.queues()] == ["q"]


# -- the smallest scope


@pytest.mark.parametrize(
    ("method", "code"),
    [
        (m.QueueDeclare(queue="absent", passive=True), 404),
        (m.BasicConsume(queue="absent"), 404),
        (m.BasicAck(7), 406),
        (m.BasicAck(7, True), 406),
        (m.BasicNack(7), 406),
        (m.BasicNack(0), 406),
        (m.BasicReject(0), 406),
        (m.QueueDeclare(queue="q"), 406),
        (m.QueueDeclare(queue="amq.mine"), 403),
        (m.BasicConsume(queue="q", arguments={"x-filter": "/a ="}), 406),
        (m.QueueBind(queue="q", exchange="absent"), 404),
    ],
)
def test_a_refusal_closes_one_channel(life: Life, method: m.Method, code: int) -> None:
    client = life.client()
    client.channel(2)
    client.consume("q", channel=2)
    client.method(method)
    client.publish("q", b"for the other", channel=2)
    life.run()
    got = client.take_all()
    closes = [one for one in got if isinstance(one, m.ChannelClose)]
    assert [close.reply_code for close in closes] == [code]
    assert not client.closed
    assert [one.body for one in got if isinstance(one, Content)] == [b"for the other"]
    client.method(m.ChannelCloseOk())
    client.channel(1)
    client.method(m.BasicQos(prefetch_count=1))
    life.run()
    client.take(m.BasicQosOk)


def test_a_publish_to_no_exchange_keeps_what_came_before_it(life: Life) -> None:
    client = life.client()
    client.send(message(b"1") + message(b"2", exchange="absent") + message(b"3"))
    life.run()
    assert client.take(m.ChannelClose).reply_code == 404
    assert life.contents("q") == [b"1"]
    assert not client.closed


@pytest.mark.parametrize("alike", [True, False])
def test_who_publishes_as_another_user_is_refused(life: Life, alike: bool) -> None:
    client = life.client()
    own, forged = (encode(Properties(delivery_mode=2, user_id=user)) for user in ("guest", "somebody"))
    client.send((b"" if alike else message(b"1", properties=own)) + message(b"2", properties=forged))
    life.run()
    refused = client.take(m.ChannelClose)
    assert refused.reply_code == 406
    told = "PRECONDITION_FAILED - user_id property set to 'somebody' but authenticated user was 'guest'"
    assert refused.reply_text == told
    assert life.contents("q") == ([] if alike else [b"1"])


def test_acks_before_an_unknown_tag_count(life: Life) -> None:
    client = consumer(life)
    client.publish("q", b"1", b"2")
    life.run()
    client.take_all()
    client.send(frame(METHOD, 1, m.BasicAck(1).encode()) + frame(METHOD, 1, m.BasicAck(9).encode()))
    life.run()
    assert client.take(m.ChannelClose).reply_code == 406
    assert life.contents("q") == [b"2"]


def test_a_late_ack_of_an_old_delivery_settles_no_newer_one_of_the_same_consumer() -> None:
    life = Life(SimDisk(), clock(), config={"queue": [{"name": "short", "lease_period": "10s"}]})
    client = consumer(life, "short")
    client.publish("short", b"1")
    life.run()
    life.advance(10_000_000)
    assert [one.method.delivery_tag for one in client.take_all() if isinstance(one, Content)] == [1, 2]
    client.ack(1)
    life.run()
    assert not client.got
    client.close()
    life.run()
    assert life.contents("short") == [b"1"]


def test_messages_of_a_deleted_queue_can_still_be_acked(life: Life) -> None:
    client, other = consumer(life), life.client()
    client.publish("q", b"1", b"2")
    life.run()
    client.take_all()
    other.method(m.QueueDelete(queue="q"))
    life.run()
    assert client.take(m.BasicCancel).consumer_tag == "c"
    client.ack(1)
    client.method(m.BasicNack(2, requeue=True))
    life.run()
    assert client.got == []


def test_what_one_read_gives_back_singly_goes_together_and_nothing_changes_places(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = consumer(life)
    client.publish("q", *(b"%d" % n for n in range(1, 8)))
    life.run()
    client.take_all()
    done = list[str]()

    def noted(name: str, of: Any) -> Any:
        def command(*given: Any, **more: Any) -> Any:
            done.append(name)
            return of(*given, **more)

        return command

    for name in ("cancel_each", "settle_round", "settle", "publish"):
        monkeypatch.setattr(type(life.core), name, noted(name, getattr(type(life.core), name)))
    some: list[m.Method] = [
        m.BasicNack(1, requeue=True), m.BasicReject(2, requeue=True), m.BasicAck(3), m.BasicNack(4, requeue=True),
        m.BasicReject(5, requeue=False), m.BasicNack(6, requeue=True), m.BasicNack(7, multiple=True, requeue=True),
    ]  # fmt: skip
    client.send(b"".join(frame(METHOD, 1, one.encode()) for one in some))
    life.run()
    assert done == ["cancel_each", "settle_round", "cancel_each", "settle", "cancel_each", "settle"]
    assert [one.body for one in client.take_all() if isinstance(one, Content)] == [b"1", b"2", b"4", b"6", b"7"]
    client.send(b"".join(frame(METHOD, 1, m.BasicNack(tag, requeue=True).encode()) for tag in (8, 99)))
    life.run()
    assert client.take(m.ChannelClose).reply_code == 406
    assert len(life.contents("q")) == 5


def test_a_queue_deleted_while_its_messages_are_read() -> None:
    life = Life(SimDisk(), clock(), budget=0)
    life.declare("q")
    client, other = life.client(), life.client()
    client.publish("q", b"1")
    life.run()
    for segment in life.log._catalog.segments:
        life.log._reader.forget(segment)
    client.consume("q", no_ack=True)
    life.turn()
    assert life.cold
    other.method(m.QueueDelete(queue="q"))
    life.run()
    assert client.names() == ["BasicConsumeOk", "BasicCancel"]


# -- cancel


def test_no_message_follows_cancel_ok(life: Life) -> None:
    client = consumer(life, prefetch=1)
    client.publish("q", b"1", b"2")
    life.run()
    assert client.bodies() == [b"1"]
    cancel = frame(METHOD, 1, m.BasicCancel("c").encode())
    client.send(frame(METHOD, 1, m.BasicAck(1).encode()) + cancel)  # the ack grants the second
    life.run()
    assert client.names() == ["BasicDeliver", "BasicCancelOk"]
    client.ack(2)
    life.run()
    assert life.contents("q") == []


@pytest.mark.parametrize("semantics", ["at-least-once", "at-most-once"])
def test_what_was_granted_leaves_before_cancel_ok_also_when_it_is_late_or_cold(semantics: str) -> None:
    life = Life(SimDisk(), clock(), budget=0)
    life.declare("cold", **{"x-semantics": semantics})
    publisher = life.client()
    publisher.publish("cold", b"1", b"2")
    life.run()
    for segment in life.log._catalog.segments:
        life.log._reader.forget(segment)
    client = life.client()
    client.consume("cold", no_ack=True)
    client.method(m.BasicCancel("c"))
    client.method(m.BasicQos(prefetch_count=1))
    life.turn()
    assert client.names() == ["BasicConsumeOk"]
    life.run()
    assert client.names() == ["BasicDeliver", "BasicDeliver", "BasicCancelOk", "BasicQosOk"]
    assert life.contents("cold") == []


def test_a_cancelled_consumers_leases_return_with_its_channel(life: Life) -> None:
    client = consumer(life)
    client.publish("q", b"1")
    life.run()
    client.method(m.BasicCancel("c", nowait=True))
    life.run()
    assert client.bodies() == [b"1"]
    assert life.ready("q") == 0
    client.method(m.ChannelClose(200, "", 0, 0))
    life.run()
    assert life.ready("q") == 1


def test_cancelled_consumers_are_forgotten_when_nothing_is_left(life: Life) -> None:
    client = life.client()
    for n in range(20):
        client.consume("q", f"c{n}")
        client.publish("q", b"1")
        life.run()
        (got,) = [one for one in client.take_all() if isinstance(one, Content)]
        client.method(m.BasicCancel(f"c{n}"))
        client.ack(got.tag)
        life.run()
    assert len(client.session.channels[1].cancelled_consumers) <= 1
    assert not client.session.channels[1].encoders


# -- too fast, too slow


def test_publishers_wait_for_room(life: Life) -> None:
    life.engine.bodies.budget.gather_most = 1000
    client = life.client(confirm=True)
    client.publish("q", b"x" * 600)
    life.turn()
    client.publish("q", b"y" * 600)
    life.turn()
    assert client.reading  # the bytes of a turn count when it has ended
    client.publish("q", b"z" * 600)
    assert not client.reading
    client.publish("q", b"waits")
    life.turn()
    assert life.core.queue("/", "q").ready == 3
    life.commit()
    life.run()
    assert client.reading
    assert life.contents("q")[3] == b"waits"
    assert client.confirms()[-1] == (True, 4, True)


def test_a_publisher_that_pipelines_small_writes_is_paced_for_the_running_commit(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(incoming, "PACED_UNCONFIRMED", 2)
    client = life.client(confirm=True)
    client.publish("q", b"1", b"2", b"3")
    life.turn()
    life.log.waiting_since = life.clock.mono()  # a commit runs
    client.publish("q", b"4")
    assert not client.reading
    life.log.waiting_since = 0
    life.run()
    assert client.reading
    assert client.confirms() == [(True, 4, True)]


def test_who_does_not_read_gets_nothing_more(life: Life) -> None:
    client = consumer(life)
    client.channel(2)
    client.consume("q", "d", channel=2)
    life.run()
    client.take(m.BasicConsumeOk)
    client.session.pause_writing()
    client.publish("q", b"1", b"2")
    life.run()
    assert client.got == []
    assert life.ready("q") == 2
    client.session.resume_writing()
    life.run()
    assert sorted(client.bodies()) == [b"1", b"2"]


def test_a_new_consumer_of_who_does_not_read_waits_too(life: Life) -> None:
    client = life.client()
    client.publish("q", b"1")
    life.run()
    client.session.pause_writing()
    client.consume("q")
    life.run()
    client.take(m.BasicConsumeOk)
    assert client.got == []
    assert life.ready("q") == 1
    client.session.resume_writing()
    life.run()
    assert client.bodies() == [b"1"]


def test_who_does_not_read_keeps_the_others_waiting_for_nothing(life: Life) -> None:
    slow, quick = consumer(life), consumer(life, tag="d")
    slow.session.pause_writing()
    quick.publish("q", b"1", b"2", b"3")
    life.run()
    assert quick.bodies() == [b"1", b"2", b"3"]


def came(client: Client) -> list[bytes]:
    client.life.run()
    return [one.body for one in client.take_all() if isinstance(one, Content)]


@pytest.mark.parametrize(
    ("product", "raised", "lowered", "free"),
    [("py-amqp", [b"2", b"3"], [], [b"4", b"5"]), ("pika", [], [b"2"], [])],
)
def test_a_prefetch_is_for_running_consumers_of_a_library_that_takes_it_so(
    life: Life, product: str, raised: list[bytes], lowered: list[bytes], free: list[bytes]
) -> None:
    """Celery raises it by one for each task that it holds until its time: its worker stood still without."""
    client = life.client(product=product)
    client.method(m.BasicQos(prefetch_count=1))
    client.consume("q")
    client.publish("q", b"1", b"2", b"3", b"4", b"5")
    assert came(client) == [b"1"]
    client.method(m.BasicQos(prefetch_count=3))
    assert came(client) == raised
    client.method(m.BasicQos(prefetch_count=1))
    client.ack(1)
    assert came(client) == lowered
    client.method(m.BasicQos())
    assert came(client) == free


def test_such_a_library_changes_no_bound_that_was_named_and_takes_none_from_a_stream(life: Life) -> None:
    life.declare("s", **{"x-queue-type": "stream"})
    client = life.client(product="py-amqp")
    client.method(m.BasicQos(prefetch_count=1))
    client.consume("q", "own", **{"x-max-backlog": 2})
    client.consume("s", "reader", **{"x-stream-offset": "first"})
    client.method(m.BasicQos())
    client.publish("q", b"1", b"2", b"3")
    client.publish("s", b"a", b"b")
    assert sorted(came(client)) == [b"1", b"2", b"a"]


# -- silence


def test_heartbeats_go_out_and_silent_peers_are_cut(life: Life) -> None:
    """What the log tells of it is asked in `test_clients_log`."""
    client = life.client(heartbeat=10)
    for _ in range(20):
        life.advance(SECOND)
        life.door.beat()
        life.run()
    assert not client.closed
    assert client.heartbeats in (3, 4)
    for _ in range(3):
        life.advance(SECOND)
        life.door.beat()
        life.run()
    assert client.closed


def test_what_speaks_another_protocol_is_named(life: Life) -> None:
    stranger = Mock(held=False, derive=None)
    client = Client(life, login=False, stranger=stranger)
    client.send(b"AMQP\x00\x01\x00\x00")
    life.run()
    stranger.tell.assert_called_once_with("it speaks AMQP 1.0, and this port does not")


def test_who_speaks_lives(life: Life) -> None:
    client = life.client(heartbeat=10)
    for _ in range(60):
        life.advance(SECOND)
        client.send(frame(8, 0, b""))
        life.door.beat()
        life.run()
    assert not client.closed
    assert client.heartbeats >= 8


def test_while_we_do_not_read_silence_is_not_held_against_the_peer(life: Life) -> None:
    client = life.client(heartbeat=10)
    client.session.incoming.hold_reading(life.engine.on_room)
    for _ in range(60):
        life.advance(SECOND)
        life.door.beat()
    assert not client.closed
    client.session.incoming.resume()
    life.door.beat()
    assert not client.closed


@pytest.mark.parametrize("sent", range(4))
def test_who_opens_no_vhost_is_cut_however_it_dribbles(life: Life, sent: int) -> None:
    client = Client(life, login=False)
    for part in HANDSHAKE[:sent]:
        client.send(part)
        life.turn()
    rest = HANDSHAKE[sent]
    for second in range(30):
        client.send(rest[second : second + 1] if second < len(rest) - 1 else b"")
        life.advance(SECOND)
        life.door.beat()
        assert not client.closed
    life.advance(SECOND)
    life.door.beat()
    assert client.closed


@pytest.mark.parametrize("last", [frame(METHOD, 0, m.ConnectionClose(200, "", 0, 0).encode()), UNKNOWN_FRAME])
def test_who_does_not_close_after_our_last_word_is_cut(life: Life, last: bytes) -> None:
    life.declare("two")
    client = consumer(life, prefetch=1)
    client.publish("q", b"m")
    life.run()
    assert client.bodies() == [b"m"]
    client.session.incoming.stop(incoming.HELD)  # only who reads sees the peer close
    client.session.receive(last)
    life.run()
    assert client.names() in (["ConnectionCloseOk"], ["ConnectionClose"])
    assert client.ended
    assert client.reading
    assert life.ready("q") == 1  # what it held is back already
    for _ in range(10):
        client.publish("two", b"still talking")
        life.advance(SECOND)
        life.door.beat()
        assert not client.closed
    life.advance(SECOND)
    life.door.beat()
    assert client.closed
    client.lose()
    assert not life.door.sessions
    assert life.ready("two") == 0


def test_who_does_not_answer_our_close_is_cut(life: Life) -> None:
    other = life.client()
    other.session.close_by_server("bye")
    life.run()
    assert other.take(m.ConnectionClose).reply_code == 320
    for _ in range(12):
        life.advance(SECOND)
        other.publish("q", b"still talking")
        life.door.beat()
    assert other.closed
    assert life.ready("q") == 0


# -- logins


def login(life: Life, password: bytes, capable: bool, monkeypatch: pytest.MonkeyPatch) -> tuple[Client, list[object]]:
    later = list[object]()
    loop = SimpleNamespace(call_later=lambda delay, job: later.append((delay, job)))
    monkeypatch.setattr(door_module.asyncio, "get_running_loop", lambda: loop)
    client = Client(life, login=False)
    capabilities = {"capabilities": {"authentication_failure_close": capable}}
    client.send(HANDSHAKE[0])
    start_ok = m.ConnectionStartOk(capabilities, response=b"\0guest\0" + password)  # type: ignore[arg-type]
    client.send(frame(METHOD, 0, start_ok.encode()))
    life.run()
    return client, later


@pytest.mark.parametrize("capable", [False, True])
def test_a_wrong_password_is_answered_late(life: Life, capable: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    client, later = login(life, b"wrong", capable, monkeypatch)
    assert client.names() == ["ConnectionStart"]
    ((delay, refuse),) = later  # type: ignore[misc]
    assert delay == life.door.logins.delay_s > 0
    refuse()
    life.run()
    if capable:
        assert client.take(m.ConnectionClose).reply_code == 403
    else:
        assert client.ended
        assert client.got == []


def test_a_wrong_password_and_then_silence(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    client, later = login(life, b"wrong", True, monkeypatch)
    client.lose()
    ((_, refuse),) = later  # type: ignore[misc]
    refuse()
    life.run()
    assert not life.door.sessions


def test_an_unknown_vhost_is_refused(life: Life) -> None:
    client = Client(life, login=False)
    for part in HANDSHAKE[:3]:
        client.send(part)
    client.method(m.ConnectionOpen("nowhere"), 0)
    life.run()
    assert client.names() == ["ConnectionStart", "ConnectionTune", "ConnectionClose"]


def test_vhosts_are_apart(life: Life) -> None:
    client = Client(life, login=False)
    for part in HANDSHAKE[:3]:
        client.send(part)
    client.method(m.ConnectionOpen("other"), 0)
    client.channel()
    client.method(m.QueueDeclare(queue="q", passive=True))
    life.run()
    assert client.take(m.ChannelClose).reply_code == 404


# -- get


def test_get_takes_one_and_says_how_many_are_left(life: Life) -> None:
    client = life.client()
    client.publish("q", b"1", b"2")
    client.method(m.BasicGet(queue="q"))
    client.method(m.BasicGet(queue="q", no_ack=True))
    client.method(m.BasicGet(queue="q"))
    life.run()
    got = client.take_all()
    assert [type(one).__name__ for one in got] == ["Content", "Content", "BasicGetEmpty"]
    client.method(m.BasicQos(prefetch_count=1))
    first, second = (one for one in got if isinstance(one, Content))
    assert (first.body, second.body) == (b"1", b"2")
    assert isinstance(first.method, m.BasicGetOk)
    assert first.method.message_count == 1
    client.ack(first.tag)
    life.run()
    client.take(m.BasicQosOk)
    assert life.contents("q") == []


def test_gets_of_one_read_say_each_how_many_were_left_behind_it(life: Life) -> None:
    client = life.client()
    client.publish("q", b"1", b"2", b"3")
    life.run()
    get = frame(METHOD, 1, m.BasicGet(queue="q").encode())
    client.send(get * 3)
    life.run()
    told = [one.method for one in client.take_all() if isinstance(one, Content)]
    assert [one.message_count for one in told if isinstance(one, m.BasicGetOk)] == [2, 1, 0]


def test_a_get_whose_message_was_settled_on_its_way_is_answered_all_the_same() -> None:
    life = Life(SimDisk(), clock(), budget=0)
    life.declare("q")
    client = life.client()
    client.publish("q", b"1")
    life.run()
    for segment in life.log._catalog.segments:
        life.log._reader.forget(segment)
    client.method(m.BasicGet(queue="q"))
    client.method(m.BasicQos(prefetch_count=1))
    life.turn()
    assert client.got == []
    life.core.settle(life.engine.now(), life.core.queue("/", "q"), [life.cold[0][0]], Verb.ACK)  # type: ignore[list-item]
    life.run()
    assert client.names() == ["BasicGetEmpty", "BasicQosOk"]


def test_large_bodies_come_back_in_frames() -> None:
    life = Life(SimDisk(), clock(), log=MEMORY, limits=Limits(frame_max=131_072))
    life.declare("q")
    client = consumer(life)
    body = bytes(range(256)) * 2000
    client.publish("q", body, properties=PERSISTENT)
    life.run()
    assert client.bodies() == [body]


def test_recover_gives_back_in_place(life: Life) -> None:
    client = consumer(life)
    client.publish("q", b"1", b"2", b"3")
    life.run()
    client.take_all()
    client.ack(2)
    client.method(m.BasicRecover(True))
    life.run()
    got = client.take_all()
    assert [one.body for one in got if isinstance(one, Content)] == [b"1", b"3"]


def test_settled_elsewhere_is_stale_not_wrong(life: Life) -> None:
    client = consumer(life)
    client.publish("q", b"1")
    life.run()
    client.take_all()
    queue = life.core.queue("/", "q")
    lsn = next(queue.holders()).leases.oldest()[0]
    life.core.settle(life.engine.now(), queue, [range(lsn, lsn + 1)], Verb.ACK)
    client.ack(1)
    life.run()
    assert client.got == []


def _held_in_pieces(life: Life) -> Client:
    """A client that holds three messages in three pieces."""
    client = consumer(life)
    for body in (b"1", b"2", b"3", b"4", b"5", b"6"):
        client.publish("q", body)
        life.run()
    for tag in (2, 4, 6):
        client.ack(tag)
    life.run()
    return client


def test_one_ack_for_very_much_is_settled_in_portions(life: Life, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "PORTION", 1)
    monkeypatch.setattr(tags, "SMALL", 1)
    client = _held_in_pieces(life)
    queue = life.core.queue("/", "q")
    assert queue.leased == 3
    client.ack(5, multiple=True)
    life.run()
    assert queue.leased == queue.ready == 0
    client.ack(5)
    life.run()
    assert "ChannelClose" in client.names(), "its tags are spent"


def test_what_was_acknowledged_does_not_go_back_when_the_link_breaks_at_once(
    life: Life, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PORTION", 1)
    monkeypatch.setattr(tags, "SMALL", 1)
    client = _held_in_pieces(life)
    client.ack(5, multiple=True)
    client.lose()
    life.run()
    queue = life.core.queue("/", "q")
    assert queue.leased == queue.ready == 0
