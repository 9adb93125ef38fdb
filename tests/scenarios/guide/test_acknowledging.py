"""User guide, "Acknowledging messages": lists, filters, and the table of options, for both kinds of queues."""

from __future__ import annotations

import pytest

from scenario import Worker, amqp, bodies, broker_of, publish, waiting


def test_several_bookmarks_with_commas_between_them() -> None:
    with broker_of({"name": "q"}) as broker:
        marks = [broker.publish("q", f"{n}") for n in range(5)]
        worker = broker.subscribe("q", max_backlog=3, name="worker")
        worker.take()
        assert broker.ack("q", ",".join((marks[0], marks[2], marks[4])), by="worker") == 3
        assert worker.outstanding == 2  # 1, and 3 that took a free place
        assert bodies(worker.take()) == [b"3"]
        broker.disconnect("worker")
        assert waiting(broker, "q") == [b"1", b"3"]  # the others are removed


def test_several_at_once_over_amqp() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        publish(channel, "q", *map(str, range(5)))
        held = Worker(channel, "q").take(5)
        channel.basic_ack(held[3][0].delivery_tag, multiple=True)
        channel.basic_qos(prefetch_count=0)  # a round trip: the ack has been read
        assert broker.stats("q")["leased"] == 1


def test_a_filter_acknowledges_whatever_matches_leased_or_not() -> None:
    with broker_of({"name": "q"}) as broker:
        for n in range(6):
            broker.publish("q", f'{{"n": {n}}}')
        holder = broker.subscribe("q", max_backlog=3, name="holder")
        holder.take()
        assert broker.ack_filter("q", "/n IN (1, 2, 4)", by="somebody") == 3
        assert holder.outstanding == 3  # 0, and 3 and 5 in the places that became free
        assert bodies(holder.take()) == [b'{"n": 3}', b'{"n": 5}']


def test_leasing_says_who_may() -> None:
    for leasing, affected in (("sublet", 3), ("strict", 2)):
        with broker_of({"name": "q", "leasing": leasing}) as broker:
            for n in range(3):
                broker.publish("q", f'{{"n": {n}}}')
            broker.subscribe("q", name="holder").take()
            assert broker.ack_filter("q", "/n >= 0", by="somebody") == affected
            assert broker.stats("q")["leased"] == 3 - affected


@pytest.mark.parametrize(
    ("option", "left", "reason"),
    [(None, [], None), ("cancel", [b"job"], None), ("expire", [], b"forced_expire")],
)
def test_the_options_on_an_at_least_once_queue(option: str | None, left: list[bytes], reason: bytes | None) -> None:
    action = {
        "on": {"queue": "q", "event": "expire"},
        "do": {"publish": {"topic": "why", "data": "{{AMPS_REASON}}"}},
    }
    with broker_of({"name": "q"}, {"name": "why"}, action=[action]) as broker:
        broker.publish("q", b"job")
        worker = broker.subscribe("q", name="worker")
        [message] = worker.take()
        worker.replace(max_backlog=0)  # what comes back stays in the queue
        assert broker.ack("q", [message.bookmark], by="worker", option=option) == 1
        assert waiting(broker, "q") == left
        assert waiting(broker, "why") == ([] if reason is None else [reason])


def test_the_options_over_amqp() -> None:
    """Ack, nack with requeue, nack without: none, cancel, expire."""
    expired = {"on": {"queue": "q", "event": "expire"}, "do": {"publish": {"topic": "why", "data": "{{AMPS_REASON}}"}}}
    with broker_of({"name": "q"}, {"name": "why"}, action=[expired]) as broker, amqp(broker) as channel:
        publish(channel, "q", "ack", "cancel", "expire")
        worker = Worker(channel, "q")
        (ack, _), (cancel, _), (expire, _) = worker.take(3)
        channel.basic_ack(ack.delivery_tag)
        channel.basic_nack(expire.delivery_tag, requeue=False)
        channel.basic_nack(cancel.delivery_tag, requeue=True)
        [(again, body)] = worker.take(1)
        assert (again.redelivered, body) == (True, b"cancel")
        assert broker.stats("q")["leased"] == 1
        assert waiting(broker, "why") == [b"forced_expire"]  # of the one that was expired alone


@pytest.mark.parametrize("max_cancels", [1, 2, 3])
def test_a_cancel_counts_and_the_last_one_expires(max_cancels: int) -> None:
    with broker_of({"name": "q", "max_cancels": max_cancels}) as broker:
        broker.publish("q", b"job")
        worker = broker.subscribe("q")
        for _ in range(max_cancels):
            [message] = worker.take()
            assert message.cancel()
        assert worker.take() == []
        assert waiting(broker, "q") == []


@pytest.mark.parametrize("option", [None, "cancel", "expire"])
def test_on_an_at_most_once_queue_the_options_change_nothing(option: str | None) -> None:
    with broker_of({"name": "q", "semantics": "at-most-once"}) as broker:
        broker.publish("q", b"0")
        broker.publish("q", b"1")
        worker = broker.subscribe("q", name="worker")
        [first] = worker.take()
        broker.ack("q", [first.bookmark], by="worker", option=option)
        assert bodies(worker.take()) == [b"1"]  # a place is free, and the first does not come again
        broker.disconnect("worker")
        assert waiting(broker, "q") == []
