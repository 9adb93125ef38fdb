"""User guide, "Priority queues", "Barrier messages" and "Limiting currently deliverable messages"."""

from __future__ import annotations

import pytest

import penstock
from penstock.errors import ExpressionError, SettingsError
from scenario import Worker, amqp, bodies, broker_of, get, publish, waiting

ORDER_PRIORITY = {"name": "OrderPriority", "underlying_topic": "Orders", "priority_expression": "/price * /qty"}
SYNC = {"name": "q", "barrier_expression": "/isSyncPoint IS NOT NULL"}
POINT = b'{"isSyncPoint": "end of day"}'


def line(price: float, quantity: int) -> bytes:
    return f'{{"price": {price}, "qty": {quantity}}}'.encode()


def test_orders_come_by_their_value() -> None:
    with broker_of(ORDER_PRIORITY) as broker:
        for price, quantity in ((1, 10), (100, 2), (5, 40), (3, 1)):
            broker.publish("Orders", line(price, quantity))
        worker = broker.subscribe("OrderPriority", max_backlog=10)
        assert bodies(worker.take()) == [line(100, 2), line(5, 40), line(1, 10), line(3, 1)]  # of equals the older


def test_orders_come_by_their_value_over_amqp() -> None:
    with broker_of(ORDER_PRIORITY) as broker, amqp(broker) as channel:
        for price, quantity in ((1, 10), (100, 2), (5, 40)):
            channel.basic_publish("", "Orders", line(price, quantity))
        assert [get(channel, "OrderPriority") for _ in range(3)] == [line(100, 2), line(5, 40), line(1, 10)]


def test_what_has_no_number_comes_last() -> None:
    with broker_of({"name": "q", "priority_expression": "/priority"}) as broker:
        for text in ('{"priority": "soon"}', "{}", '{"priority": 0}', '{"priority": 18446744073709551615}', "no json"):
            broker.publish("q", text)
        got = bodies(broker.subscribe("q", max_backlog=10).take())
        assert got[:2] == [b'{"priority": 18446744073709551615}', b'{"priority": 0}']
        assert got[2:] == [b'{"priority": "soon"}', b"{}", b"no json"]


def test_fractions_are_cut_and_what_is_below_zero_has_no_priority() -> None:
    with broker_of({"name": "q", "priority_expression": "/p"}) as broker:
        for text in ('{"p": -1}', '{"p": null}', '{"p": 0.9}', '{"p": 1.2}', '{"p": "3.7"}', '{"p": 1.9}', '{"p": 0}'):
            broker.publish("q", text)
        got = bodies(broker.subscribe("q", max_backlog=10).take())
        assert got[:3] == [b'{"p": "3.7"}', b'{"p": 1.2}', b'{"p": 1.9}']  # 3, then two of 1, the older first
        assert got[3:5] == [b'{"p": 0.9}', b'{"p": 0}']
        assert got[5:] == [b'{"p": -1}', b'{"p": null}']


def test_a_priority_is_any_expression_but_of_the_clock() -> None:
    choice = "IF(/region IN ('n', 's') AND INSTR(/name, 'x') > 0, ROUND(/total * 2), 0)"
    with broker_of({"name": "q", "priority_expression": choice}) as broker:
        for text in ('{"region": "w", "name": "x", "total": 9}', '{"region": "n", "name": "ax", "total": 2.5}'):
            broker.publish("q", text)
        assert b'"ax"' in broker.subscribe("q").take()[0].body
    with pytest.raises(ExpressionError, match="UNIX_TIMESTAMP cannot be used in a priority expression"):
        broker_of({"name": "q", "priority_expression": "UNIX_TIMESTAMP()"})


def test_priority_barrier_and_depth_exclude_each_other() -> None:
    pairs = [
        {"priority_expression": "/p", "barrier_expression": "/b = 1"},
        {"priority_expression": "/p", "target_queue_depth": 1000},
        {"barrier_expression": "/b = 1", "target_queue_depth": 1000},
    ]
    for pair in pairs:
        with pytest.raises(SettingsError, match="|".join(pair)):
            broker_of({"name": "q", **pair})


def test_a_barrier_waits_for_all_before_it_and_goes_to_everybody() -> None:
    with broker_of(SYNC) as broker:
        one, two = (broker.subscribe("q", max_backlog=1, name=name) for name in ("one", "two"))
        broker.publish("q", b'{"n": 1}')
        broker.publish("q", b'{"n": 2}')
        broker.publish("q", POINT)
        broker.publish("q", b'{"n": 3}')
        [first], [second] = one.take(), two.take()
        first.ack()
        assert one.take() == []  # nothing behind the barrier, and not the barrier yet
        second.ack()
        assert [bodies(one.take()), bodies(two.take())] in (
            [[POINT, b'{"n": 3}'], [POINT]],
            [[POINT], [POINT, b'{"n": 3}']],
        )
        assert waiting(broker, "q") == []  # it needs no ack


def test_a_barrier_over_amqp() -> None:
    with broker_of(SYNC) as broker, amqp(broker) as channel:
        one, two = Worker(channel, "q", prefetch=1), Worker(channel, "q", prefetch=1)
        publish(channel, "q", "1", POINT.decode(), "2")
        holder, other = (one, two) if one.inbox or not two.inbox else (two, one)
        [(method, body)] = holder.take(1)
        assert body == b"1"
        assert other.nothing()
        channel.basic_ack(method.delivery_tag)
        got = sorted(body for _, body in [*holder.take(1), *other.take(1)])
        assert got == [POINT, POINT]


def test_a_barrier_takes_no_backlog_and_needs_none() -> None:
    with broker_of(SYNC) as broker:
        watcher = broker.subscribe("q", max_backlog=0, name="watcher")
        worker = broker.subscribe("q", max_backlog=1, name="worker")
        broker.publish("q", POINT)
        broker.publish("q", b'{"n": 1}')
        assert bodies(watcher.take()) == [POINT]
        assert bodies(worker.take()) == [POINT, b'{"n": 1}']
        assert (watcher.outstanding, worker.outstanding) == (0, 1)


def test_who_filters_the_barrier_out_feels_the_pause_and_does_not_see_it() -> None:
    with broker_of(SYNC) as broker:
        numbers = broker.subscribe("q", filter="/n > 0", max_backlog=10, name="numbers")
        everything = broker.subscribe("q", max_backlog=0, name="everything")
        broker.publish("q", b'{"n": 1}')
        broker.publish("q", POINT)
        broker.publish("q", b'{"n": 2}')
        [held] = numbers.take()  # it has room for the second, which waits behind the barrier
        held.ack()
        assert bodies(numbers.take()) == [b'{"n": 2}']
        assert bodies(everything.take()) == [POINT]


def test_a_target_depth_keeps_the_rest_inactive() -> None:
    with broker_of({"name": "q", "target_queue_depth": 1000}) as broker:
        for n in range(1500):
            broker.publish("q", f'{{"n": {n}}}')
        assert len(broker.sow("q")) == 1000
        late = broker.subscribe("q", filter="/n >= 1000", name="late")
        assert late.take() == []  # nothing active matches, though later messages would
        assert broker.ack_filter("q", "/n >= 1000", by="late") == 0
        assert broker.stats("q")["inactive"] == 500
        assert broker.ack_filter("q", "/n < 100", by="late") == 100
        assert broker.stats("q")["inactive"] == 400
        assert bodies(late.take()) == [b'{"n": 1000}']


def test_an_ack_ahead_of_the_active_part_is_kept() -> None:
    with broker_of({"name": "q", "target_queue_depth": 1000}) as broker:
        marks = [broker.publish("q", f'{{"n": {n}}}') for n in range(1002)]
        assert broker.ack("q", [marks[1000]], by="early") == 1
        assert (broker.stats("q")["inactive"], broker.stats("q")["deferred_acks"]) == (1, 0)  # it has left: no state
        broker.crash()
        broker.restart()
        broker.ack_filter("q", "/n < 5")
        assert bodies(broker.subscribe("q", filter="/n >= 1000", max_backlog=5).take()) == [b'{"n": 1001}']


@pytest.mark.parametrize("door", ["client", "broker"])
def test_an_empty_expression_is_none_and_lets_go_what_waits(door: str) -> None:
    with broker_of({"name": "q", "barrier_expression": "/b = 1", "filter": "/n > 0"}) as broker:
        worker = broker.subscribe("q", max_backlog=9)
        for body in (b'{"n": 1}', b'{"n": 2, "b": 1}', b'{"n": 3}', b'{"n": 0}'):
            broker.publish("q", body)
        assert bodies(worker.take()) == [b'{"n": 1}']
        if door == "client":
            with penstock.connect(broker.flight_url) as client:
                client.alter("q", barrier_expression="", filter="")
        else:
            broker.alter("q", barrier_expression="", filter="")
        broker.publish("q", b'{"n": 0, "b": 1}')
        assert bodies(worker.take()) == [b'{"n": 2, "b": 1}', b'{"n": 3}', b'{"n": 0, "b": 1}']
