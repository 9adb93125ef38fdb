"""User guide, what decides what goes out next: replaced terms, priorities, barriers, and how many may be active."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.log import reader
from penstock.records.entries import Publishes
from penstock.records.properties import Properties, encode
from penstock.testing import Broker
from scenario import Worker, amqp, bodies, broker_of, publish, waiting

BARRIERS: dict[str, object] = {"barrier_expression": "/isSyncPoint IS NOT NULL"}
POINT = b'{"isSyncPoint": 1}'
HEADER = encode(Properties(delivery_mode=2))


# --- replacing ------------------------------------------------------------------------------------------------------

MIXED = [("a", "x"), ("a", "y"), ("b", "x"), ("b", "y"), ("a", "y"), ("b", "x"), ("b", "y")]


def of_kind(queue: str, kind: str) -> bytes:
    return f'{{"queue": "{queue}", "kind": "{kind}"}}'.encode()


def test_filter_topic_and_backlog_change_in_one_step() -> None:
    """In two steps the worker, which has room, would get the `y` of `a` or the `x` of `b`."""
    with broker_of({"name": "a"}, {"name": "b"}) as broker:
        for queue, kind in MIXED:
            broker.publish(queue, of_kind(queue, kind))
        worker = broker.subscribe("a", filter="/kind = 'x'", max_backlog=3)
        [held] = worker.take()
        worker.replace(filter="/kind = 'y'", topic="b", max_backlog=4)
        assert bodies(worker.take()) == [of_kind("b", "y")] * 2
        assert (worker.effective_backlog, worker.outstanding) == (4, 3)
        assert held.ack()
        assert (broker.stats("a")["ready"], broker.stats("b")["ready"]) == (2, 2)


def test_filter_topic_and_backlog_change_in_one_step_over_amqp() -> None:
    with broker_of({"name": "a"}, {"name": "b"}) as broker, amqp(broker) as channel:
        for queue, kind in MIXED:
            publish(channel, queue, of_kind(queue, kind).decode())
        worker = Worker(channel, "a", x_filter="/kind = 'x'", x_max_backlog=3)
        worker.take(1)
        worker.replace("b", x_filter="/kind = 'y'", x_max_backlog=4)
        assert [body for _, body in worker.take(2)] == [of_kind("b", "y")] * 2
        assert worker.nothing()
        assert (broker.stats("a")["ready"], broker.stats("b")["ready"]) == (2, 2)


def test_who_has_replaced_its_topic_is_a_subscriber_of_the_new_queue_and_of_the_old_no_more() -> None:
    with broker_of({"name": "a", **BARRIERS}, {"name": "b", **BARRIERS}) as broker:
        moves, stays = broker.subscribe("a", name="moves"), broker.subscribe("a", name="stays")
        moves.replace(topic="b")
        broker.publish("a", POINT)
        assert (bodies(moves.take()), bodies(stays.take())) == ([], [POINT])
        broker.publish("b", POINT)
        broker.publish("b", b"work")
        assert (bodies(moves.take()), bodies(stays.take())) == ([POINT, b"work"], [])


# --- priorities -----------------------------------------------------------------------------------------------------


def test_priorities_hold_after_a_crash_and_among_what_comes_then() -> None:
    with broker_of({"name": "q", "priority_expression": "/p * 2"}) as broker:
        for number in (3, 9, 5):
            broker.publish("q", f'{{"p": {number}}}')
        broker.crash()
        broker.restart()
        broker.publish("q", '{"p": 7}')
        got = broker.subscribe("q", max_backlog=10).take()
        assert [message.json()["p"] for message in got] == [9, 7, 5, 3]


# --- barriers -------------------------------------------------------------------------------------------------------


def test_a_barrier_goes_to_those_who_are_there_and_is_gone_without_an_ack() -> None:
    with broker_of({"name": "q", **BARRIERS}) as broker:
        broker.publish("q", b'{"n": 1}')
        worker, other = (broker.subscribe("q", name=name) for name in ("worker", "other"))
        broker.publish("q", POINT)
        [held] = worker.take()
        joined = broker.subscribe("q", name="joined before it went")
        held.ack()
        for subscription in (worker, other, joined):
            assert bodies(subscription.take()) == [POINT]
            assert subscription.outstanding == 0
        stats = broker.stats("q")
        assert (stats["ready"], stats["leased"]) == (0, 0)
        broker.disconnect("worker")
        broker.crash()
        broker.restart()
        assert broker.subscribe("q", name="late").take() == []


def test_a_backlog_that_another_queue_has_filled_holds_no_barrier_back() -> None:
    with broker_of({"name": "other"}, {"name": "sync", **BARRIERS}) as broker:
        worker = broker.subscribe("^(other|sync)$", max_backlog=1)
        broker.publish("other", b"1")
        broker.publish("other", b"2")
        assert bodies(worker.take()) == [b"1"]
        broker.publish("sync", b"waits")
        assert worker.take() == []
        assert broker.ack_filter("sync", "1 = 1", by="somebody") == 1
        broker.publish("sync", POINT)
        assert bodies(worker.take()) == [POINT]
        assert worker.outstanding == 1


def test_prices_change_for_all_workers_at_one_point_of_the_stream_and_a_shutdown_comes_after_all_work() -> None:
    """What a worker does with a message is all there is to write: nothing says who is where in the queue."""
    with broker_of({"name": "q", "barrier_expression": "/price IS NOT NULL OR /stop = 1"}) as broker:
        workers = [broker.subscribe("q", max_backlog=most, name=f"worker {most}") for most in (1, 2, 3)]
        price, running, done = dict.fromkeys(workers, 1), set(workers), dict[int, int]()
        stream: list[dict[str, int]] = [{"order": number} for number in range(20)]
        stream[7:7] = [{"price": 10}]
        stream.append({"stop": 1})
        for body in stream:
            broker.publish("q", str(body).replace("'", '"'))
        while any(inboxes := [(worker, worker.take()) for worker in sorted(running, key=workers.index)]):
            if not any(messages for _, messages in inboxes):
                break
            for worker, messages in inboxes:
                for message in messages:
                    body = message.json()
                    if "order" in body:
                        assert worker in running
                        done[body["order"]] = price[worker]
                        message.ack()
                    elif "price" in body:
                        price[worker] = body["price"]
                    else:
                        assert len(done) == 20
                        running.discard(worker)
        assert done == {number: 1 if number < 7 else 10 for number in range(20)}
        assert not running


# --- what is not active ---------------------------------------------------------------------------------------------


def body(number: int) -> bytes:
    return b'{"n": %d}' % number


def filled(broker: Broker, count: int) -> None:
    """So many messages `{"n": ...}` in batches of a hundred."""

    def work(instance: Any) -> None:
        topic = instance.core.topic("/", "", "q")
        for first in range(0, count, 100):
            some = [body(n) for n in range(first, first + 100)]
            instance.core.publish(instance.engine.now(), Publishes(topic, HEADER, some, size=sum(map(len, some))))
            instance.make_durable()

    broker.command(work)


def test_neither_a_start_nor_a_query_nor_a_filter_reads_what_is_inactive(monkeypatch: pytest.MonkeyPatch) -> None:
    read = set[bytes]()

    def decode(*of: Any) -> Any:
        batch = of_the_log(*of)
        read.update(one for one in batch.column("body").to_pylist() if one and one.startswith(b'{"n": '))
        return batch

    of_the_log = reader.decode
    with broker_of({"name": "q", "target_queue_depth": 1000}) as broker:
        filled(broker, 5000)
        monkeypatch.setattr(reader, "decode", decode)
        broker.restart()
        broker.advance(1)
        read -= {body(n) for n in range(4900, 5000)}  # of the last batch of the log, whose time a start goes on from
        assert [record.body for record in broker.sow("q")] == [body(n) for n in range(1000)]
        worker = broker.subscribe("q", filter="/n >= 900", max_backlog=2000, name="worker")
        assert bodies(worker.take()) == [body(n) for n in range(900, 1000)]
        assert read == {body(n) for n in range(1000)}
        assert broker.ack_filter("q", "/n >= 990", by="worker") == 10
        assert bodies(worker.take()) == [body(n) for n in range(1000, 1010)]
        assert body(1009) in read
        assert not read & {body(n) for n in range(1100, 5000)}  # a batch at a time, no more than has moved up


def test_what_is_inactive_has_no_state_but_its_place_in_the_log() -> None:
    size = list[int]()
    for count in (2000, 20_000):
        with broker_of({"name": "q", "target_queue_depth": 1000}) as broker:
            filled(broker, count)
            worker = broker.subscribe("q", max_backlog=None)
            assert len(worker.take()) == 1000
            assert broker.stats("q")["inactive"] == count - 1000
            size.append(len(broker.command(lambda instance: instance.core.durable_state().encode())))
            assert waiting(broker, "q") == []
    assert abs(size[1] - size[0]) < 64  # 18,000 messages more, and numbers with a digit more
