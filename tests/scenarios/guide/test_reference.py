"""Configuration reference of queues: its snippets and the examples in its sentences, from the files in `amps`."""

from __future__ import annotations

from pathlib import Path

from penstock.testing import Broker, Subscription
from scenario import Worker, amqp, bodies, broker_of, get, publish, waiting

FILES = Path(__file__).resolve().parents[1] / "amps"
OPEN = b'{"status": "open", "total": 9}'


def emptied(subscription: Subscription) -> list[bytes]:
    """Everything, one acknowledgement after the other."""
    seen: list[bytes] = []
    while taken := subscription.take():
        seen += bodies(taken)
        for message in taken:
            message.ack()
    return seen


def test_priority_by_a_field_and_by_a_product() -> None:
    with Broker(FILES / "priority-elements.xml") as broker:
        for number, priority in enumerate((1, 3, 2, 3)):
            broker.publish("ByField", f'{{"priority": {priority}, "n": {number}}}')
        for price, quantity in ((2, 2), (1, 9), (3, 2)):
            broker.publish("ByProduct", f'{{"price": {price}, "quantity": {quantity}}}')
        assert [body[-2:-1] for body in emptied(broker.subscribe("ByField"))] == [b"1", b"3", b"2", b"0"]
        assert emptied(broker.subscribe("ByProduct")) == [
            b'{"price": 1, "quantity": 9}',
            b'{"price": 3, "quantity": 2}',
            b'{"price": 2, "quantity": 2}',
        ]


def test_the_priority_file_of_the_guide_over_amqp() -> None:
    with Broker(FILES / "priority.xml") as broker, amqp(broker) as channel:
        for price, quantity in ((1, 10), (100, 2), (5, 40)):
            channel.basic_publish("", "Orders", f'{{"price": {price}, "qty": {quantity}}}'.encode())
        got = [get(channel, "OrderPriority") for _ in range(3)]
        assert got == [b'{"price": 100, "qty": 2}', b'{"price": 5, "qty": 40}', b'{"price": 1, "qty": 10}']


def test_any_value_makes_a_sync_point() -> None:
    with Broker(FILES / "barrier.xml") as broker:
        workers = [broker.subscribe("Synchronized", name=f"worker {n}") for n in range(3)]
        for text in ('{"n": 1}', '{"isSyncPoint": false}', '{"isSyncPoint": null, "n": 2}'):
            broker.publish("Synchronized", text)
        [holder] = [worker for worker in workers if worker.outstanding]
        [message] = holder.take()
        message.ack()
        inboxes = [bodies(worker.take()) for worker in workers]
        assert [inbox[0] for inbox in inboxes] == [b'{"isSyncPoint": false}'] * 3
        assert [body for inbox in inboxes for body in inbox[1:]] == [b'{"isSyncPoint": null, "n": 2}']  # none: NULL


def test_what_is_a_barrier_is_said_as_it_enters() -> None:
    with broker_of({"name": "q", "barrier_expression": "/isSyncPoint IS NOT NULL"}) as broker:
        holder = broker.subscribe("q", name="holder")
        broker.publish("q", b'{"n": 1}')
        broker.publish("q", b'{"isSyncPoint": 1}')
        broker.alter("q", barrier_expression="/other IS NOT NULL")
        [message] = holder.take()
        assert broker.subscribe("q", name="other").take() == []
        message.ack()
        assert bodies(holder.take()) == [b'{"isSyncPoint": 1}']
        assert waiting(broker, "q") == []


def test_one_way_to_configure_a_queue() -> None:
    with Broker(FILES / "one-queue.xml") as broker:
        for topic, body in (
            ("orders.new", OPEN),
            ("orders.changed", OPEN),
            ("orders.other", OPEN),
            ("orders.new", b'{"status": "void", "total": 9}'),
            ("OrderQueue", OPEN),
        ):
            broker.publish(topic, body)
        worker = broker.subscribe("OrderQueue", max_backlog=50, name="worker")
        assert worker.effective_backlog == 20
        taken = worker.take()
        assert [(message.topic, message.body) for message in taken] == [
            ("orders.new", OPEN),
            ("orders.changed", OPEN),
            ("orders.new", OPEN),
        ]
        assert taken[0].lease_until == broker.now() + 30
        assert broker.ack("OrderQueue", [taken[0].bookmark], by="another") == 0  # strict
        assert taken[0].cancel()
        [again] = worker.take()
        assert again.cancel()  # the second cancel is the last
        broker.advance(30)
        assert [message.attempt for message in worker.take()] == [2, 2]
        broker.advance(2 * 3600)
        assert waiting(broker, "OrderQueue") == []
        assert broker.stats("OrderQueue")["ready"] == 0


def test_one_way_to_configure_a_queue_over_amqp() -> None:
    with Broker(FILES / "one-queue.xml") as broker, amqp(broker) as channel:
        publish(channel, "orders.new", *(OPEN.decode() for _ in range(25)))
        worker = Worker(channel, "OrderQueue")
        held = worker.take(20)
        assert worker.nothing()
        channel.basic_ack(held[0][0].delivery_tag)
        worker.take(1)


def test_a_group_local_queue() -> None:
    with Broker(FILES / "group-local-queue.xml") as broker, amqp(broker) as channel:
        publish(channel, "GroupQueue", "job")
        assert get(channel, "GroupQueue") == b"job"
        assert get(channel, "GroupQueue") is None


def test_a_full_queue_goes_on_when_a_message_expires_or_is_acknowledged() -> None:
    """MaxBacklog: nothing goes out until a message leaves, one way or the other."""
    with broker_of({"name": "q", "max_backlog": 1, "lease_period": "10s", "expiration": "15s"}) as broker:
        broker.publish("q", b"1")
        worker = broker.subscribe("q", max_backlog=5)
        assert bodies(worker.take()) == [b"1"]
        broker.advance(10)
        assert bodies(worker.take()) == [b"1"]
        broker.publish("q", b"2")
        assert worker.take() == []
        broker.advance(10)  # the lease ends beyond the expiration of 1
        [second] = worker.take()
        broker.publish("q", b"3")
        second.ack()
        assert bodies([second, *worker.take()]) == [b"2", b"3"]
