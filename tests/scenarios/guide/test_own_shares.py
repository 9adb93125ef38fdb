"""User guide, what each has of its own: a queue its policies, a subscription its backlog, a new queue its beginning."""

from __future__ import annotations

import random
from pathlib import Path

import penstock
from penstock.testing import Broker
from scenario import Worker, amqp, bodies, broker_of, publish, waiting

AMPS = Path(__file__).resolve().parents[1] / "amps"


def over_work(name: str, **settings: object) -> dict[str, object]:
    return {"name": name, "underlying_topic": "Work", **settings}


def test_queues_on_one_topic_each_deal_by_their_own_fairness() -> None:
    models = {"fast": [[b"0", b"1"], []], "round-robin": [[b"0"], [b"1"]]}
    with broker_of(*(over_work(model, fairness_model=model) for model in models)) as broker:
        workers = {model: [broker.subscribe(model, max_backlog=2) for _ in range(2)] for model in models}
        for n in range(2):
            broker.publish("Work", f"{n}")
        assert {model: [bodies(worker.take()) for worker in pair] for model, pair in workers.items()} == models


def test_no_queue_has_a_copy_of_a_message() -> None:
    body = random.Random(1).randbytes(100_000)
    with broker_of(*(over_work(f"q{n}") for n in range(3))) as broker:
        before = broker.disk.used()
        broker.publish("Work", body)
        broker.advance(1)
        assert [waiting(broker, f"q{n}") for n in range(3)] == [[body]] * 3
        assert len(body) <= broker.disk.used() - before < len(body) + 4096


def test_each_subscription_has_a_backlog_of_its_own() -> None:
    with broker_of({"name": "q", "fairness_model": "fast"}) as broker:
        first, second = (broker.subscribe("q", max_backlog=2, name="worker") for _ in range(2))  # of one client
        for n in range(5):
            broker.publish("q", f"{n}")
        assert bodies(first.take()) == [b"0", b"1"]
        held = second.take()
        assert (bodies(held), waiting(broker, "q")) == ([b"2", b"3"], [b"4"])
        held[0].ack()
        assert (bodies(first.take()), bodies(second.take())) == ([], [b"4"])
        assert (first.outstanding, second.outstanding) == (2, 2)


def test_a_prefetch_is_a_backlog_over_amqp_and_without_one_there_is_no_limit() -> None:
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        few = Worker(channel, "q", prefetch=3)
        publish(channel, "q", *map(str, range(40)))
        assert [body for _, body in few.take(3)] == [b"0", b"1", b"2"]
        assert few.nothing()
        assert len(Worker(channel, "q").take(37)) == 37


def test_a_consumer_of_the_sdk_has_a_backlog_of_32() -> None:
    with broker_of({"name": "q"}) as broker, penstock.connect(broker.flight_url) as client:
        for n in range(40):
            broker.publish("q", f"{n}")
        with client.consume("q") as consumer:
            assert consumer.effective_backlog == 32
            assert next(iter(consumer)).body == b"0"
            assert broker.stats("q")["leased"] == 32


def test_proportional_between_equals_it_is_the_first_that_subscribed_each_time() -> None:
    with broker_of({"name": "q", "fairness_model": "proportional"}) as broker:
        workers = [broker.subscribe("q", max_backlog=4, name=name) for name in ("first", "second", "third")]
        for n in range(3):
            broker.publish("q", f"{n}")
            [message] = workers[0].take()
            assert message.ack()  # all are idle again
        for n in range(3):
            broker.publish("q", f"{n}")
        assert [bodies(worker.take()) for worker in workers] == [[b"0"], [b"1"], [b"2"]]


def test_a_new_queue_of_an_amps_file_begins_with_the_log_and_one_of_ours_now() -> None:
    topic = {"topic": [{"name": "Work"}]}
    ours = {**topic, "queue": [over_work("WorkToDo")]}
    for config, expected in ((AMPS / "getting-started.xml", [b"old", b"new"]), (ours, [b"new"])):
        with Broker(topic) as broker:
            broker.publish("Work", b"old")
            broker.restart(config)
            broker.publish("Work", b"new")
            assert waiting(broker, "WorkToDo") == expected
