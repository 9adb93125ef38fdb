"""Publishes and acks: what becomes one run, and how messages come together from frames."""

from __future__ import annotations

import pytest

from penstock.records.properties import EMPTY, Properties, encode
from penstock.wire.amqp import methods as m
from penstock.wire.amqp import publishes
from penstock.wire.amqp.events import AckRun, MethodReceived, PublishRun
from penstock.wire.amqp.frames import BODY, Limits
from unit.amqp.peer import ack, flat, frame, header, method, opened, publish

PERSISTENT = encode(Properties(delivery_mode=2))


@pytest.fixture(params=[True, False], ids=["strides", "walk"])
def strides(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publishes, "enabled", request.param)


@pytest.mark.usefixtures("strides")
def test_like_messages_are_one_run_of_single_values() -> None:
    bodies = [b"%08d" % i for i in range(100)]
    [run] = opened().receive(b"".join(publish(1, b, properties=PERSISTENT, mandatory=True) for b in bodies))
    assert isinstance(run, PublishRun)
    assert run.bodies == bodies
    assert run.properties == PERSISTENT
    assert not isinstance(run.targets, list)
    assert (run.targets.exchange, run.targets.key, run.targets.mandatory) == ("", "key", True)


@pytest.mark.usefixtures("strides")
def test_topics_sizes_and_headers_may_differ_in_a_run() -> None:
    rows = [(f"key.{i % 7}", bytes(i % 5), encode(Properties(message_id=str(i)))) for i in range(50)]
    [run] = opened().receive(b"".join(publish(1, body, key, properties=p) for key, body, p in rows))
    assert isinstance(run, PublishRun)
    assert isinstance(run.targets, list)
    assert isinstance(run.properties, list)
    assert [(t.key, b, p) for t, b, p in zip(run.targets, run.bodies, run.properties, strict=True)] == rows
    assert len(set(map(id, run.targets))) == 7


def test_targets_are_remembered_over_reads_and_bounded() -> None:
    connection = opened(limits=Limits(target_cache=3))
    [first] = connection.receive(publish(1, b"a"))
    [again] = connection.receive(publish(1, b"b"))
    assert isinstance(first, PublishRun)
    assert isinstance(again, PublishRun)
    assert first.targets is again.targets
    for i in range(10):
        connection.receive(publish(1, b"x", f"other.{i}"))
    [late] = connection.receive(publish(1, b"c"))
    assert isinstance(late, PublishRun)
    assert late.targets is not first.targets


def test_channels_and_other_methods_part_runs() -> None:
    data = (
        publish(1, b"a") + publish(2, b"b") + publish(2, b"c") + method(2, m.QueueDeclare(queue="q")) + publish(2, b"d")
    )
    connection = opened(2)
    one, two, declare, three = connection.receive(data)
    assert isinstance(one, PublishRun)
    assert isinstance(two, PublishRun)
    assert isinstance(declare, MethodReceived)
    assert isinstance(three, PublishRun)
    assert (one.channel, one.bodies) == (1, [b"a"])
    assert (two.channel, two.bodies) == (2, [b"b", b"c"])
    assert (three.channel, three.bodies) == (2, [b"d"])


def test_body_of_many_frames_with_another_channel_between() -> None:
    body = bytes(range(256)) * 1000
    frames = [frame(BODY, 1, body[at : at + 4000]) for at in range(0, len(body), 4000)]
    data = method(1, m.BasicPublish(routing_key="big")) + header(1, len(body), PERSISTENT)
    data += frames[0] + publish(2, b"small") + frame(BODY, 1, b"") + b"".join(frames[1:]) + publish(1, b"next")
    small, big = opened(2).receive(data)
    assert isinstance(small, PublishRun)
    assert isinstance(big, PublishRun)
    assert small.bodies == [b"small"]
    assert big.bodies == [body, b"next"]


def test_a_million_tiny_frames_cost_their_bytes_only() -> None:
    connection = opened()
    connection.receive(method(1, m.BasicPublish()) + header(1, 100_001))
    for _ in range(100):
        assert connection.receive(frame(BODY, 1, b"x") * 1000) == []
    assert connection.partial_size == 100_001
    [run] = connection.receive(frame(BODY, 1, b"x"))
    assert isinstance(run, PublishRun)
    assert run.bodies == [b"x" * 100_001]
    assert connection.partial_size == 0


def test_every_cut_of_a_message_is_waited_for() -> None:
    data = publish(1, b"hello", properties=PERSISTENT)
    for cut in range(1, len(data)):
        connection = opened()
        assert connection.receive(data[:cut]) == []
        [run] = connection.receive(data[cut:] + data)
        assert isinstance(run, PublishRun)
        assert run.bodies == [b"hello"] * 2


def test_weight_is_not_looked_at() -> None:
    odd = bytearray(header(1, 2, EMPTY))
    odd[10] = 1
    data = method(1, m.BasicPublish()) + bytes(odd) + frame(BODY, 1, b"ab")
    [run] = opened().receive(data)
    assert isinstance(run, PublishRun)
    assert run.bodies == [b"ab"]


@pytest.mark.usefixtures("strides")
def test_acks_in_sequence_are_one_span() -> None:
    [run] = opened().receive(b"".join(ack(1, tag) for tag in range(5, 500)))
    assert isinstance(run, AckRun)
    assert run.spans == [(5, 499)]


@pytest.mark.usefixtures("strides")
def test_acks_in_any_order() -> None:
    tags = [3, 4, 5, 9, 8, 7, 1, 2, 100]
    [run] = opened().receive(b"".join(ack(1, tag) for tag in tags))
    assert isinstance(run, AckRun)
    assert run.spans == [(3, 5), (9, 9), (8, 8), (7, 7), (1, 2), (100, 100)]


def test_multiple_acks_keep_their_meaning() -> None:
    data = ack(1, 1) + ack(1, 5, multiple=True) + ack(1, 6) + ack(1, 7) + ack(1, 0, multiple=True)
    [run] = opened().receive(data)
    assert isinstance(run, AckRun)
    assert run.spans == [(1, 1), (0, 5), (6, 7), (0, 0)]


def test_acks_cut_anywhere() -> None:
    data = b"".join(ack(1, tag, multiple=tag == 3) for tag in range(1, 6))
    for cut in range(len(data)):
        connection = opened()
        events = connection.receive(data[:cut]) + connection.receive(data[cut:])
        assert flat(events) == [["ack", 1, 1, 2], ("ack to", 1, 3), ["ack", 1, 4, 5]]
