"""Dead letters go back to their true origin: by filter, by count, each in one place, counted before."""

from __future__ import annotations

from typing import Any

import pytest

import penstock
from penstock.core.queue import places
from penstock.core.queue.queue import Queue
from penstock.core.state.lsns import Ints
from penstock.errors import InvalidArgument, NotFound
from penstock.operations import moving
from penstock.testing import Broker
from scenario import bodies, broker_of

DEAD = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}


def house(**more: object) -> Broker:
    return broker_of({"name": "a", "underlying_topic": "t", **DEAD}, {"name": "b", **DEAD}, {"name": "dead"}, **more)


def die(broker: Broker, queue: str, topic: str, *texts: str) -> None:
    subscription = broker.subscribe(queue, max_backlog=100)
    for text in texts:
        broker.publish(topic, text)
    for message in subscription.take():
        message.reject(reason="broken")
    subscription.close()


def test_each_goes_back_to_where_it_died_and_begins_anew() -> None:
    with house() as broker:
        die(broker, "a", "t", "1", "2")
        die(broker, "b", "b", "3")
        assert broker.redrive("dead", dry_run=True) == {
            "moved": 0, "matched": 3, "targets": {"a": 2, "b": 1}, "strays": {},
        }  # fmt: skip
        assert broker.stats("dead")["ready"] == 3
        assert broker.redrive("dead")["moved"] == 3
        assert broker.stats("dead")["ready"] == 0
        found = broker.subscribe("a", max_backlog=9).take()
        assert [(m.body, m.attempt, m.topic, m.redelivered) for m in found] == [
            (b"1", 1, "t", False), (b"2", 1, "t", False),
        ]  # fmt: skip
        assert not any(name.startswith("x-") for message in found for name in message.headers)
        assert bodies(broker.subscribe("b").take()) == [b"3"]


def test_only_the_queue_it_died_in_gets_it_back() -> None:
    with broker_of(
        {"name": "a", "underlying_topic": "t", **DEAD}, {"name": "c", "underlying_topic": "t"}, {"name": "dead"}
    ) as broker:
        die(broker, "a", "t", "1")
        broker.redrive("dead")
        assert (broker.stats("a")["ready"], broker.stats("c")["ready"]) == (1, 1)


def test_the_first_death_is_the_origin_whatever_came_after() -> None:
    with broker_of(
        {"name": "a", **DEAD},
        {"name": "dead", "message_ttl": "10s", "dead_letter_exchange": "", "dead_letter_routing_key": "deeper"},
        {"name": "deeper"},
    ) as broker:
        die(broker, "a", "a", "1")
        broker.advance(10)
        assert broker.stats("deeper")["ready"] == 1
        assert broker.redrive("deeper")["targets"] == {"a": 1}


def test_by_filter_and_by_count_oldest_first() -> None:
    with house() as broker:
        die(broker, "b", "b", *(f'{{"n": {n}}}' for n in range(6)))
        assert broker.redrive("dead", filter="/n >= 2", count=2)["targets"] == {"b": 2}
        assert bodies(broker.subscribe("b", max_backlog=9).take()) == [b'{"n": 2}', b'{"n": 3}']
        assert broker.stats("dead")["ready"] == 4


def test_what_has_no_origin_stays_and_is_counted() -> None:
    with house() as broker:
        broker.publish("dead", "nobody knows")
        die(broker, "b", "b", "1")
        broker.command(
            lambda instance: instance.core.delete_queue(instance.engine.now(), instance.core.queue("/", "b"))
        )
        assert broker.redrive("dead") == {
            "moved": 0, "matched": 0, "targets": {},
            "strays": {"nothing says where it came from": 1, "its queue 'b' is not there any more": 1},
        }  # fmt: skip


def test_a_letter_that_an_action_wrote_is_known_by_the_record_of_its_group() -> None:
    action = {
        "on": {"queue": "a", "event": "expire"},
        "do": {"publish": {"topic": "dead", "data": '{"was": {{AMPS_DATA}}}'}},
    }
    with Broker({"queue": [{"name": "a", "underlying_topic": "t"}, {"name": "dead"}], "action": [action]}) as broker:
        subscription = broker.subscribe("a")
        broker.publish("t", '{"id": 1}')
        subscription.take()[0].expire()
        subscription.close()
        assert broker.stats("dead")["ready"] == 1
        assert broker.redrive("dead")["targets"] == {"a": 1}


@pytest.mark.parametrize("clean", [True, False])
def test_it_is_durable(clean: bool) -> None:
    with house() as broker:
        die(broker, "b", "b", "1", "2")
        broker.redrive("dead", count=1)
        if not clean:
            broker.crash()
        broker.restart()
        assert (broker.stats("b")["ready"], broker.stats("dead")["ready"]) == (1, 1)


def test_the_stories_name_each_other() -> None:
    with house() as broker:
        subscription = broker.subscribe("b")
        first = broker.publish("b", "1")
        subscription.take()[0].reject(reason="broken")
        subscription.close()
        [died] = [event for event in broker.story(first) if event.event == "rejected"]
        [letter] = died.details["letters"]  # type: ignore[misc]
        assert died.details["reason"] == "broken"
        broker.redrive("dead")
        published, moved = broker.story(letter)
        assert (published.details["of"], published.details["from_queue"]) == (first, "b")
        [again] = moved.details["moved_to"]  # type: ignore[misc]
        assert (moved.event, moved.details["reason"]) == ("moved", "redriven")
        assert broker.story(again)[0].details["moved_from"] == letter


def test_any_message_that_waits_is_moved_to_another_queue() -> None:
    with broker_of({"name": "a"}, {"name": "b"}) as broker:
        broker.publish("a", '{"n": 1}')
        broker.publish("a", '{"n": 2}', delay=50)
        broker.publish("a", '{"n": 3}', priority=4)
        assert broker.move("a", "b", filter="/n > 1", dry_run=True)["targets"] == {"b": 2}
        assert broker.move("a", "b", filter="/n > 1")["moved"] == 2
        found = broker.subscribe("b", max_backlog=5).take()
        assert [(m.body, m.topic, m.priority) for m in found] == [(b'{"n": 2}', "a", 0), (b'{"n": 3}', "a", 4)]
        assert broker.stats("a")["ready"] == 1


def test_what_somebody_holds_is_left_to_him() -> None:
    with broker_of({"name": "a"}, {"name": "b"}) as broker:
        broker.publish("a", "held")
        broker.publish("a", "free")
        broker.subscribe("a", max_backlog=1).take()
        assert broker.move("a", "b")["moved"] == 1
        assert bodies(broker.subscribe("b").take()) == [b"free"]


def test_wrong_names_are_refused() -> None:
    with broker_of({"name": "a"}) as broker:
        with pytest.raises(NotFound):
            broker.move("a", "nowhere")
        with pytest.raises(InvalidArgument, match="to itself"):
            broker.move("a", "a")


def test_by_the_sdk_in_portions() -> None:
    with house() as broker, penstock.connect(broker.flight_url) as client:
        die(broker, "b", "b", *(f'{{"n": {n}}}' for n in range(30)))
        assert client.redrive("dead", filter="/n < 25", dry_run=True)["matched"] == 25
        seen = list[int]()
        done = client.redrive("dead", filter="/n < 25", rate=100, progress=seen.append)
        assert (done["moved"], done["targets"]) == (25, {"b": 25})
        assert seen[0] == 10
        assert client.queue("dead")["ready"] == 5
        assert client.move("dead", "b", count=2)["moved"] == 2


DEATHS: dict[str, Any] = {
    "x-death": [{"count": 1, "queue": "b", "reason": "rejected", "exchange": "", "routing-keys": ["b"]}]
}


@pytest.mark.parametrize("first", ["dead", "a"])
def test_what_a_publisher_says_of_deaths_leads_nowhere(first: str) -> None:
    """Who may write to a queue of dead letters does not choose which queue gets them."""
    with house() as broker:
        broker.publish("dead" if first == "dead" else "t", "forged", headers=DEATHS)
        die(broker, "b", "b", "1")
        if first != "dead":
            broker.move("a", "dead")
        for _ in range(2):
            assert broker.redrive("dead", dry_run=True)["targets"] == {"b": 1}
            assert broker.redrive("dead", dry_run=True)["strays"] == {"nothing says where it came from": 1}
            broker.restart()


def test_a_letter_that_was_moved_goes_back_to_where_it_died() -> None:
    with broker_of({"name": "b", **DEAD}, {"name": "dead"}, {"name": "aside"}, {"name": "far"}) as broker:
        die(broker, "b", "b", "1", "2")
        assert broker.move("dead", "aside")["moved"] == 2
        assert broker.move("aside", "far")["moved"] == 2
        broker.restart()
        assert broker.redrive("far")["targets"] == {"b": 2}
        assert bodies(broker.subscribe("b", max_backlog=2).take()) == [b"1", b"2"]


@pytest.mark.parametrize(("filter", "looks"), [(None, 1), ("/n > 6", 3)], ids=str)
def test_a_call_looks_at_so_many_at_once_and_no_further_than_it_has_to(
    monkeypatch: pytest.MonkeyPatch, filter: str | None, looks: int
) -> None:
    """Each look is a step of the loop: it is a small one however many wait, and behind the last that is wanted none."""
    seen, look = list[int](), places.after

    def watched(queue: Queue, lsn: int, most: int, *states: places.State) -> Ints:
        seen.append(most)
        return look(queue, lsn, most, *states)

    monkeypatch.setattr(moving, "LOOK", 3)
    monkeypatch.setattr(moving, "after", watched)
    with broker_of({"name": "a"}, {"name": "b"}) as broker:
        for number in range(10):
            broker.publish("a", f'{{"n": {number}}}')
        assert broker.move("a", "b", filter=filter, count=2)["moved"] == 2
        assert seen == [4] * looks
        assert broker.move("a", "b", filter=filter)["moved"] == (8 if filter is None else 1)


def test_what_died_together_has_its_header_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read, headers = moving.of_header, list[bytes]()

    def watched(properties: bytes) -> tuple[moving.Origin | None, bytes]:
        headers.append(properties)
        return read(properties)

    monkeypatch.setattr(moving, "of_header", watched)
    with house() as broker:
        die(broker, "a", "t", "1", "2", "3")
        broker.advance(5)
        die(broker, "a", "t", "4")
        assert broker.redrive("dead")["moved"] == 4
        assert len(headers) == 2
        assert bodies(broker.subscribe("a", max_backlog=9).take()) == [b"1", b"2", b"3", b"4"]
