"""Barriers and recovery points over crashes and restarts of a whole broker, and through its doors."""

from __future__ import annotations

import pytest

from penstock.errors import ExpressionError, PreconditionFailed, SettingsError
from penstock.records.kinds import Kind
from penstock.records.queue_settings import QueueSettings
from penstock.server.asking import recovering
from penstock.testing import Broker, Message

SYNC = {"name": "q", "barrier_expression": "/end = true"}
END = b'{"end": true}'


def bodies(messages: list[Message]) -> list[bytes]:
    return [message.body for message in messages]


def ready(broker: Broker, queue: str) -> object:
    return broker.stats(queue)["ready"]


def test_a_crash_before_the_removal_is_durable_repeats_a_barrier() -> None:
    with Broker({"queue": [SYNC]}) as broker:
        broker.publish("q", END)
        worker = broker.subscribe("q", max_backlog=None)
        assert bodies(worker.take()) == [END]
        broker.crash()
        broker.restart()
        [again] = broker.subscribe("q").take()
        assert (again.body, again.redelivered) == (END, True)


def test_once_the_removal_is_durable_it_is_not_repeated() -> None:
    with Broker({"queue": [SYNC]}) as broker:
        worker = broker.subscribe("q", max_backlog=None)
        mark = broker.publish("q", END)
        broker.publish("q", b"{}")  # commits what came before it
        assert bodies(worker.take()) == [END, b"{}"]
        broker.crash()
        broker.restart()
        assert bodies(broker.subscribe("q", max_backlog=None).take()) == [b"{}"]
        assert [event.event for event in broker.story(mark)] == ["published", "barrier", "settled"]


def test_of_an_at_most_once_queue_it_is_never_repeated() -> None:
    once = {**SYNC, "semantics": "at-most-once"}
    with Broker({"queue": [once]}) as broker:
        worker = broker.subscribe("q", max_backlog=None)
        broker.publish("q", END)
        assert bodies(worker.take()) == [END]
        broker.crash()
        broker.restart()
        assert broker.subscribe("q").take() == []


def test_what_waited_behind_a_barrier_waits_after_a_crash() -> None:
    with Broker({"queue": [SYNC]}) as broker:
        for body in (b"{}", END, b'{"n": 2}', END, b'{"n": 3}'):
            broker.publish("q", body)
        broker.crash()
        broker.restart()
        worker = broker.subscribe("q", max_backlog=None)
        got = list[bytes]()
        for _ in range(3):
            taken = worker.take()
            got += bodies(taken)
            for message in taken:
                message.ack()
        assert got == [b"{}", END, b'{"n": 2}', END, b'{"n": 3}']
        assert broker.stats("q")["queue_depth"] == 0


def test_a_barrier_of_one_queue_is_an_ordinary_message_of_another() -> None:
    with Broker({"queue": [SYNC, {"name": "all", "underlying_topic": "q"}]}) as broker:
        broker.publish("q", END)
        worker = broker.subscribe("all")
        [message] = worker.take()
        assert message.ack()
        assert broker.stats("q")["held"] == 1


def test_what_does_not_hold_together_is_refused() -> None:
    with pytest.raises(ExpressionError, match="its answer changes with time"):
        Broker({"queue": [{"name": "q", "barrier_expression": "/at < UNIX_TIMESTAMP()"}]})
    with pytest.raises(SettingsError, match="recovery_point"):
        Broker({"queue": [{"name": "q", "recovery_point": "yesterday"}]})
    with Broker({"queue": [SYNC]}) as broker:
        with pytest.raises(PreconditionFailed, match="of the log 1, and this is the log"):
            broker.alter("q", recovery_point="1|1|")
        broker.alter("q", barrier_without_subscribers="drop")
        broker.publish("q", END)
        assert broker.stats("q")["queue_depth"] == 0


def test_a_pass_holds_what_it_may_still_read() -> None:
    with Broker({"topic": [{"name": "t"}]}) as broker:
        broker.publish("t", b"1")
        instance = broker.instance
        assert instance is not None
        core, engine = instance.core, instance.engine
        assert engine.recoveries.floor() is None
        core.declare_queue(engine.now(), "/", "new", QueueSettings(underlying_topic="t", recovery_point="epoch"))
        assert engine.floor() == 0
        instance.run_turns()
        assert engine.recoveries.floor() is None
        assert ready(broker, "new") == 1


def test_steps_that_find_nothing_write_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovering, "STEP_US", -1)  # a step for each batch
    with Broker({"topic": [{"name": "t"}, {"name": "other"}]}) as broker:
        broker.publish("t", b"first")
        for _ in range(250):
            broker.publish("other", b"{}")
        last = broker.publish("t", b"last")
        queue = {"name": "new", "underlying_topic": "t", "recovery_point": "epoch"}
        broker.restart({"topic": [{"name": "t"}, {"name": "other"}], "queue": [queue]})
        assert ready(broker, "new") == 2
        assert [event.event for event in broker.story(last)] == ["published", "recovered"]
        broker.publish("other", b"{}")  # commits what nobody waits for
        records = broker.instance.log.batches(1, broker.instance.core.next_lsn)  # type: ignore[union-attr]
        told = [kind for batch in records for kind in batch.column("kind").to_pylist() if kind == Kind.RECOVERED]
        assert 2 <= len(told) <= 6


def test_a_queue_over_a_log_with_many_batches_takes_each_message_once() -> None:
    with Broker({"topic": [{"name": "t"}], "log": {"segment": "64KiB"}}) as broker:
        for number in range(300):
            broker.publish("t", b'{"n": %d, "pad": "%s"}' % (number, b"x" * 400))
        queue = {"name": "new", "underlying_topic": "t", "recovery_point": "epoch", "filter": "/n >= 100"}
        settings = {"topic": [{"name": "t"}], "log": {"segment": "64KiB"}, "queue": [queue]}
        broker.restart(settings)
        assert ready(broker, "new") == 200
        broker.crash()
        broker.restart(settings)
        worker = broker.subscribe("new", max_backlog=None)
        assert [message.json()["n"] for message in worker.take()] == list(range(100, 300))
