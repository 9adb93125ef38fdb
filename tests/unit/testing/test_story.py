"""The story of a message, told from the log."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pika
import pytest

from penstock.core.queue.explaining import Reason
from penstock.core.queue.queue import Queue
from penstock.core.queue.whole import State
from penstock.errors import NotFound
from penstock.operations import messages, story
from penstock.testing import Broker
from penstock.testing.instance import Instance
from penstock.testing.link import Stepped
from scenario import amqp


def words(broker: Broker, mark: str) -> list[str]:
    return [event.event for event in broker.story(mark)]


def test_a_whole_life_across_a_crash() -> None:
    config = {"queue": [{"name": "q", "lease_period": "30s"}]}
    with Broker(config) as broker:
        start = broker.now()
        other = broker.publish("q", b"another")
        mark = broker.publish("q", b"one", priority=4, expiration=600, delay=5)
        broker.ack("q", [other])
        broker.advance(5)
        broker.subscribe("q", name="worker").take()
        broker.advance(30.1)  # what the end of a lease decides is on the disk within a tenth of a second
        broker.crash()
        broker.advance(1)
        broker.restart()
        [message] = broker.subscribe("q", name="worker").take()
        message.ack()
        published, due, leased, returned, *_, restarted, again, settled = broker.story(mark)
        assert (published.event, published.time, published.bookmark) == ("published", start, mark)
        assert published.details == {
            "topic": "q",
            "queues": ["q"],
            "not_before": start + 5,
            "expires_at": start + 600,
            "priority": 4,
        }
        assert (due.event, due.time) == ("due", start + 5)
        assert (leased.event, leased.queue, leased.details["client"]) == ("leased", "q", "worker")
        assert (returned.event, returned.time, returned.details["cause"]) == ("returned", start + 35, "lease")
        assert (restarted.event, restarted.details, restarted.queue) == ("restarted", {"clean": False}, "")
        assert again.details["attempt"] in (2, 3)
        assert (settled.event, settled.details) == ("settled", {"by": "worker"})


def test_what_is_not_yet_durable_is_told_and_stays_undurable() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        mark = broker.publish("q", b"one")
        broker.subscribe("q")
        assert words(broker, mark) == ["published", "leased"]
        broker.crash()
        broker.restart()
        assert words(broker, mark) == ["published", "restarted"]


def test_queues_have_their_own_lines() -> None:
    config = {"queue": [{"name": name, "underlying_topic": "t"} for name in ("a", "b")]}
    with Broker(config) as broker:
        mark = broker.publish("t", b"one")
        broker.ack("a", [mark])
        broker.ack("b", [mark], option="expire", by="me")
        assert [(event.event, event.queue) for event in broker.story(mark)] == [
            ("published", ""),
            ("settled", "a"),
            ("rejected", "b"),
        ]
        assert broker.story(mark)[-1].details == {"reason": "forced_expire", "by": "me"}


def test_a_neighbour_within_the_pairs_of_a_record_is_not_meant() -> None:
    """A pair [a, b) means the queue's own messages in it: those of another queue in between are untouched."""
    with Broker({"queue": [{"name": "a"}, {"name": "b"}]}) as broker:
        first, between, last = broker.publish("a", "1"), broker.publish("b", "2"), broker.publish("a", "3")
        subscription = broker.subscribe("a", max_backlog=10)
        for message in subscription.take():
            message.ack()
        assert words(broker, between) == ["published"]
        assert words(broker, first) == words(broker, last) == ["published", "leased", "settled"]


def test_what_is_no_message_has_no_story() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        mark = broker.publish("q", b"one")
        origin, lsn, _ = mark.split("|")
        with pytest.raises(NotFound):
            broker.story(f"{origin}|{int(lsn) + 1000}|")
        with pytest.raises(NotFound):
            broker.story(f"{origin}|1|")  # a record, and no message


def test_of_several_that_one_step_gave_something_each_is_named_for_its_own() -> None:
    with Broker({"queue": [{"name": "q", "fairness_model": "round-robin"}]}) as broker:
        marks = [broker.publish("q", b"%d" % number, delay=5) for number in range(4)]
        names = ("one", "other")
        workers = [broker.subscribe("q", name=name, max_backlog=2) for name in names]
        broker.advance(5)  # all of them are due at once
        whose = {
            message.bookmark: name for name, worker in zip(names, workers, strict=True) for message in worker.take()
        }
        assert sorted(whose) == sorted(marks)
        assert set(whose.values()) == set(names)
        for mark in marks:
            [leased] = [event for event in broker.story(mark) if event.event == "leased"]
            assert (leased.details["client"], leased.details["attempt"]) == (whose[mark], 1)
            assert "to" not in leased.details
        broker.advance(1)  # the grants are on the disk
        broker.crash()
        broker.restart()
        again = broker.subscribe("q", name="third", max_backlog=4).take()
        assert [message.attempt for message in again] == [2] * 4


def test_of_several_whose_acks_came_together_each_is_named_for_its_own() -> None:
    with Broker({"queue": [{"name": "q", "fairness_model": "round-robin"}]}) as broker:
        names = ("one", "other")
        workers = [broker.subscribe("q", name=name, max_backlog=1) for name in names]
        marks = [broker.publish("q", b"%d" % number) for number in range(2)]
        whose = {
            message.bookmark: name for name, worker in zip(names, workers, strict=True) for message in worker.take()
        }
        assert sorted(whose) == sorted(marks)
        instance = broker.instance
        queue = instance.core.queue("/", "q")
        done = [(one, [run.chunk for run in one.leases.held()]) for one in queue.consumers]
        assert instance.core.settle_several(instance.engine.now(), queue, done) == 2
        instance.run_turns()
        for mark in marks:
            assert broker.story(mark)[-1].details == {"by": whose[mark]}


def _why(broker: Broker, mark: str, queue: str) -> tuple[str, str]:
    """The one reason why a queue does not deliver a message."""
    [found] = broker.act("explain", queue=queue, bookmark=mark)["queues"]
    [reason] = found["reasons"]
    return reason["code"], reason["text"]


def test_nothing_of_a_stream_is_told_after_the_end() -> None:
    """A stream goes with its queue; who has its name later reads another one."""
    with Broker({"queue": [{"name": name, "underlying_topic": "t"} for name in ("a", "b")]}) as broker:
        mark = broker.publish("t", b"one")
        broker.reschedule_message(mark, 60, "b")
        broker.publish("t", b"another")
        for queue in ("a", "b"):

            def reads(instance: Instance, queue: str = queue) -> None:
                now, streams = instance.engine.now(), instance.core.streams
                opened = streams.open(now, "s", instance.core.queue("/", queue), "driver")
                streams.plan(now, "s", opened.epoch, 0, 1)
                if queue == "a":
                    instance.core.delete_queue(now, instance.core.queue("/", "a"))
                else:
                    streams.release(now, "s")

            broker.command(reads)
        assert [event.event for event in broker.story(mark) if event.queue == "a"] == [
            "leased", "planned", "queue deleted",
        ]  # fmt: skip


@pytest.mark.parametrize("clean", [True, False])
def test_a_transient_message_ends_with_the_process(clean: bool) -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        origin, lsn, _ = broker.publish("q", b"stays").split("|")
        mark = f"{origin}|{int(lsn) + 1}|"
        with amqp(broker) as channel:
            channel.basic_publish("", "q", b"goes", pika.BasicProperties(delivery_mode=1))
        if not clean:
            broker.crash()
        broker.restart()
        code, text = _why(broker, mark, "q")
        assert code == "gone"
        assert "it ended with the process before the start" in text
        broker.restart()
        assert words(broker, mark) == ["published", "restarted"], "no other start has to do with it"


def test_every_word_of_a_story_is_explained() -> None:
    """Those that a record has by its kind, by how it ended, and those that are told where it is read."""
    words = set(story.ENDINGS) | set(story.WORDS.values()) - {"expired"}
    for node in ast.walk(ast.parse(Path(str(story.__file__)).read_text(encoding="utf-8"))):
        match node:
            case ast.Call(func=ast.Attribute(attr="_tell"), args=[_, said, *_]):
                words |= {one.value for one in ast.walk(said) if isinstance(one, ast.Constant) and one.value}
            case ast.FunctionDef(name="_end_of_plan"):
                returns = [one.value for one in ast.walk(node) if isinstance(one, ast.Return)]
                words |= {one.value for one in returns if isinstance(one, ast.Constant) and one.value}
            case _:
                pass
    assert {"left its batch", "restarted", "queue deleted", "paused", "expired"} <= words
    text = str(story.Event.__doc__)
    assert {word for word in words if not re.search(rf"(^ *|, ){word}( |,|$)", text, re.MULTILINE)} == set()


@pytest.mark.parametrize("act", ["cancel", "reschedule", "explain"])
def test_a_message_is_looked_for_in_some_queues_at_a_time(monkeypatch: pytest.MonkeyPatch, act: str) -> None:
    """A server may have a hundred thousand: no step of the loop goes over them all to find one message."""
    looked, post, lives, explain = [0], Stepped.post, Queue.lives, messages.explain_message

    def posted(self: Stepped, job: Callable[[], None]) -> None:
        looked.append(0)
        post(self, job)

    def living(self: Queue, lsn: int, /, *states: State) -> bool:
        looked[-1] += 1
        return lives(self, lsn, *states)

    def explained(*args: Any, **more: Any) -> list[Reason]:
        looked[-1] += 1
        return explain(*args, **more)

    with Broker({"queue": [{"name": f"q{number}"} for number in range(10)]}) as broker:
        bookmark = broker.publish("q7", b"")
        monkeypatch.setattr(messages, "PORTION", 3)
        monkeypatch.setattr(Stepped, "post", posted)
        monkeypatch.setattr(Queue, "lives", living)
        monkeypatch.setattr(messages, "explain_message", explained)
        told = broker.act(act, bookmark=bookmark, **({"wait": 1_000_000} if act == "reschedule" else {}))
        assert [one["queue"] if act == "explain" else one for one in told["queues"]] == ["q7"]
        assert sum(looked) >= 10
        assert max(looked) <= 3
