"""User guide, "Replacing queue subscriptions": filter, topic, options; leases stay, backlogs are counted anew."""

from __future__ import annotations

from scenario import Worker, amqp, bodies, broker_of, publish

TEN = {"name": "ten", "max_per_subscription_backlog": 10}
FIVE = {"name": "five", "max_per_subscription_backlog": 5}


def test_from_a_queue_of_ten_to_a_queue_of_five() -> None:
    """The example: ten asked for and held, then a queue whose limit is five."""
    with broker_of(TEN, FIVE) as broker:
        for n in range(20):
            broker.publish("ten", f"ten {n}")
            broker.publish("five", f"five {n}")
        worker = broker.subscribe("ten", max_backlog=10)
        held = worker.take()
        assert (worker.effective_backlog, len(held)) == (10, 10)
        worker.replace(topic="five")
        assert (worker.effective_backlog, worker.outstanding) == (5, 10)
        for message in held[:5]:
            assert message.ack()
        assert worker.take() == []  # five outstanding: as many as it may have
        held[5].ack()
        assert bodies(worker.take()) == [b"five 0"]


def test_leases_and_counts_stay_though_the_new_filter_takes_other_messages() -> None:
    with broker_of({"name": "q", "lease_period": "1m"}) as broker:
        for n in range(6):
            broker.publish("q", f'{{"n": {n}}}')
        worker = broker.subscribe("q", filter="/n < 3", max_backlog=2)
        held = worker.take()
        assert bodies(held) == [b'{"n": 0}', b'{"n": 1}']
        worker.replace(filter="/n > 3")
        assert (worker.outstanding, worker.effective_backlog) == (2, 2)
        assert worker.take() == []
        held[0].ack()
        assert bodies(worker.take()) == [b'{"n": 4}']  # only what the new filter takes
        broker.advance(60)  # the other lease ends by itself: not for this subscription any more
        assert b'{"n": 1}' not in bodies(worker.take())
        assert b'{"n": 1}' in bodies(broker.subscribe("q", max_backlog=10).take())


def test_a_backlog_that_is_not_named_stays() -> None:
    with broker_of({"name": "q"}) as broker:
        for n in range(5):
            broker.publish("q", f"{n}")
        worker = broker.subscribe("q", max_backlog=3)
        worker.take()
        worker.replace(filter="MESSAGE_SIZE() > 0")
        assert worker.effective_backlog == 3
        worker.replace(max_backlog=4)
        assert (worker.effective_backlog, bodies(worker.take())) == (4, [b"3"])


def test_replacing_over_amqp() -> None:
    with broker_of(TEN, FIVE) as broker, amqp(broker) as channel:
        publish(channel, "ten", *(f"ten {n}" for n in range(12)))
        publish(channel, "five", *(f"five {n}" for n in range(8)))
        worker = Worker(channel, "ten", x_max_backlog=10)
        held = worker.take(10)
        worker.replace("five", x_max_backlog=10)
        assert worker.nothing()
        for method, _ in held[:5]:
            channel.basic_ack(method.delivery_tag)  # the leases are still good
        assert worker.nothing()  # five outstanding: as many as it may have
        channel.basic_ack(held[5][0].delivery_tag)
        assert [body for _, body in worker.take(1)] == [b"five 0"]
        assert broker.stats("ten")["leased"] == 4


def test_replacing_a_filter_over_amqp() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        publish(channel, "q", '{"kind": "a"}', '{"kind": "b"}', '{"kind": "a"}')
        worker = Worker(channel, "q", x_filter="/kind = 'a'", x_max_backlog=1)
        [(held, _)] = worker.take(1)
        worker.replace("q", x_filter="/kind = 'b'")
        assert worker.nothing()
        channel.basic_ack(held.delivery_tag)
        assert [body for _, body in worker.take(1)] == [b'{"kind": "b"}']
        assert broker.stats("q")["ready"] == 1
