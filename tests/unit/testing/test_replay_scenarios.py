"""Bookmark subscriptions as a user of the in-process broker sees them."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from penstock.errors import ExpressionError, InvalidArgument, NotFound, PreconditionFailed, QueueFull
from penstock.records import properties as header_codec
from penstock.records.entries import Publishes
from penstock.testing import Broker
from penstock.testing.instance import Instance
from penstock.testing.process import Config
from penstock.testing.subscriber import TopicSubscription

CONFIG: Config = {
    "queue": [
        {"name": "to-ship", "underlying_topic": "orders", "filter": "/paid = 'yes'", "lease_period": "30s"},
        {"name": "jobs"},
    ],
    "topic": [{"name": "news"}, {"name": "orders"}],  # also what no queue takes
}


def follow(broker: Broker, topic: str, **wanted: object) -> TopicSubscription:
    subscription = broker.subscribe(topic, **wanted)  # type: ignore[arg-type]
    assert isinstance(subscription, TopicSubscription)
    return subscription


def bodies(subscription: TopicSubscription) -> list[bytes]:
    return [message.body for message in subscription.take()]


def numbers(broker: Broker, count: int, topic: str = "jobs") -> list[str]:
    return [broker.publish(topic, b"%d" % number) for number in range(count)]


def test_it_starts_after_the_bookmark_in_log_order_and_goes_on_live() -> None:
    with Broker(CONFIG) as broker:
        marks = numbers(broker, 5)
        replay = follow(broker, "jobs", bookmark=marks[1])
        messages = replay.take()
        assert [message.body for message in messages] == [b"2", b"3", b"4"]
        assert [message.bookmark for message in messages] == marks[2:]
        assert replay.is_complete, "it is level with the log"
        broker.publish("jobs", b"5")
        assert bodies(replay) == [b"5"]
        replay.close()
        broker.publish("jobs", b"6")
        assert bodies(replay) == []


def test_a_queue_with_a_bookmark_is_its_topic_without_lease_ack_or_backlog() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("orders", b'{"n": 1, "paid": "yes"}')
        broker.publish("orders", b'{"n": 2, "paid": "no"}')
        worker = broker.subscribe("to-ship")
        [leased] = worker.take()
        replay = follow(broker, "to-ship", bookmark="EPOCH", max_backlog=1)
        messages = replay.take()
        assert [message.json()["n"] for message in messages] == [1, 2], "the queue's own filter is the queue's"
        assert messages[0].lease_until is None
        assert messages[0].ack() is False, "there is nothing to settle"
        assert broker.stats("to-ship")["leased"] == 1
        assert leased.ack()
        assert bodies(follow(broker, "to-ship", bookmark="EPOCH")) == [message.body for message in messages]


def test_live_subscriptions_to_topics_and_patterns_start_now() -> None:
    with Broker(CONFIG) as broker:
        broker.publish("news", b"old")
        one, many = follow(broker, "news"), follow(broker, "^(news|orders)$")
        broker.publish("news", b"new")
        broker.publish("orders", b'{"paid": "no"}')
        broker.publish("jobs", b"0")
        assert bodies(one) == [b"new"]
        assert [message.topic for message in many.take()] == ["news", "orders"]


def test_a_topic_that_nobody_keeps_is_refused() -> None:
    with Broker(CONFIG) as broker:
        for bookmark in (None, "EPOCH"):
            with pytest.raises(NotFound, match="no queue and no declared topic keeps the messages of topic 'nothing'"):
                broker.subscribe("nothing", bookmark=bookmark)


def test_content_filters_hold_before_and_after_the_cut_over() -> None:
    with Broker(CONFIG) as broker:
        for number in range(6):
            broker.publish("jobs", b'{"n": %d}' % number)
        replay = follow(broker, "jobs", bookmark="EPOCH", filter="/n % 2 = 1")
        for number in range(6, 10):
            broker.publish("jobs", b'{"n": %d}' % number)
        assert [message.json()["n"] for message in replay.take()] == [1, 3, 5, 7, 9]
        with pytest.raises(ExpressionError):
            broker.subscribe("jobs", bookmark="EPOCH", filter="/n >")


@pytest.mark.parametrize(
    ("brackets", "expected"), [("[]", "1234"), ("[)", "123"), ("(]", "234"), ("()", "23")], ids=["[]", "[)", "(]", "()"]
)
def test_a_range_ends_with_a_notice(brackets: str, expected: str) -> None:
    with Broker(CONFIG) as broker:
        marks = numbers(broker, 6)
        replay = follow(broker, "jobs", bookmark=f"{brackets[0]}{marks[1]}:{marks[4]}{brackets[1]}")
        assert b"".join(bodies(replay)).decode() == expected
        assert replay.is_complete
        assert not replay.is_open
        broker.publish("jobs", b"late")
        assert bodies(replay) == []


def test_a_list_is_its_oldest_bookmark() -> None:
    with Broker(CONFIG) as broker:
        marks = numbers(broker, 6)
        assert bodies(follow(broker, "jobs", bookmark=",".join([marks[4], marks[2], marks[3]]))) == [b"3", b"4", b"5"]
        ends = f"[{marks[3]},{marks[1]}:{marks[5]},{marks[4]}]"
        assert bodies(follow(broker, "jobs", bookmark=ends)) == [b"1", b"2", b"3", b"4"]


def stamp(seconds: float, form: str = "%Y%m%dT%H%M%SZ") -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(form)


def test_times_lead_to_the_closest_message_also_ahead() -> None:
    with Broker(CONFIG) as broker:
        start = broker.now()
        for number in range(4):
            broker.publish("jobs", b"%d" % number)
            broker.advance(10)
        assert bodies(follow(broker, "jobs", bookmark=stamp(start + 15))) == [b"2", b"3"]
        assert bodies(follow(broker, "jobs", bookmark=stamp(start + 20, "%Y-%m-%dT%H:%M:%S"))) == [b"2", b"3"]
        assert len(bodies(follow(broker, "jobs", bookmark=stamp(start - 3600)))) == 4, "before the log is its beginning"
        ahead = follow(broker, "jobs", bookmark=stamp(start + 60))
        until = follow(broker, "jobs", bookmark=f"[{stamp(start + 30)}:{stamp(start + 60)})")
        broker.publish("jobs", b"at 40")
        broker.advance(25)
        broker.publish("jobs", b"at 65")
        broker.advance(1)
        assert bodies(ahead) == [b"at 65"]
        assert bodies(until) == [b"3", b"at 40"]
        assert until.is_complete
        assert not until.is_open


def test_a_range_whose_end_is_ahead_ends_also_when_nothing_comes() -> None:
    with Broker(CONFIG) as broker:
        numbers(broker, 1)
        until = follow(broker, "jobs", bookmark=f"[EPOCH:{stamp(broker.now() + 5)})")
        assert bodies(until) == [b"0"]
        assert until.is_open
        broker.advance(6)
        assert not until.is_open
        assert until.is_complete


def test_a_bookmark_of_another_log_is_refused() -> None:
    with Broker(CONFIG) as broker, pytest.raises(InvalidArgument, match="comes from another log"):
        broker.subscribe("jobs", bookmark="4711|3|")


def test_a_bookmark_that_is_not_found_is_now_unless_said_otherwise() -> None:
    with Broker(CONFIG) as broker:
        marks = numbers(broker, 2)
        unknown = f"{marks[0].split('|')[0]}|999999|"
        now = follow(broker, "jobs", bookmark=unknown)
        assert bodies(now) == []
        assert "was not found" in now.notice
        assert "from now" in now.notice
        assert bodies(follow(broker, "jobs", bookmark=unknown, bookmark_not_found="epoch")) == [b"0", b"1"]
        with pytest.raises(NotFound, match="was not found"):
            broker.subscribe("jobs", bookmark=unknown, bookmark_not_found="fail")
        broker.publish("jobs", b"2")
        assert bodies(now) == [b"2"]


def test_most_recent_is_the_last_message_that_the_client_took() -> None:
    with Broker(CONFIG) as broker:
        numbers(broker, 3)
        first = follow(broker, "jobs", bookmark="EPOCH", name="reader")
        assert len(first.take()) == 3
        first.close()
        broker.publish("jobs", b"3")
        assert bodies(follow(broker, "jobs", bookmark="MOST_RECENT", name="reader")) == [b"3"]
        with pytest.raises(NotFound, match="has taken nothing"):
            broker.subscribe("jobs", bookmark="MOST_RECENT", name="another")


def test_pause_and_resume() -> None:
    with Broker(CONFIG) as broker:
        numbers(broker, 2)
        replay = follow(broker, "jobs", bookmark="EPOCH")
        assert len(replay.take()) == 2
        replay.pause()
        broker.publish("jobs", b"2")
        broker.publish("jobs", b"3")
        assert bodies(replay) == []
        replay.resume()
        assert bodies(replay) == [b"2", b"3"]
        broker.publish("jobs", b"4")
        assert bodies(replay) == [b"4"]


def test_rates() -> None:
    with Broker(CONFIG) as broker:
        for number in range(10):
            broker.publish("jobs", b"%d" % number)
            broker.advance(60 if number == 4 else 1)
        slow = follow(broker, "jobs", bookmark="EPOCH", rate="2")
        doubled = follow(broker, "jobs", bookmark="EPOCH", rate="2X", rate_max_gap="3s")
        assert len(slow.take()) == len(doubled.take()) == 1
        broker.advance(2.0)
        assert len(slow.take()) == 4
        assert len(doubled.take()) == 4
        broker.advance(2.9)
        assert len(doubled.take()) == 0
        broker.advance(0.2)
        assert bodies(doubled) == [b"5"], "a minute's pause is cut to three seconds"
        bytes_a_second = follow(broker, "jobs", bookmark="EPOCH", rate="5B")
        broker.advance(1.0)
        assert len(bytes_a_second.take()) == 6
        with pytest.raises(InvalidArgument, match="rate"):
            broker.subscribe("jobs", bookmark="EPOCH", rate="fast")


def test_nothing_is_shown_that_a_crash_can_take_back() -> None:
    """What a replay has shown before a crash is there after it, and its bookmark leads on."""
    for seed in range(20):
        with Broker(CONFIG, seed=seed) as broker:
            numbers(broker, 3)
            replay = follow(broker, "jobs", bookmark="EPOCH")
            seen = replay.take()
            broker.publish("jobs", b"3")
            seen += replay.take()
            broker.crash()
            broker.restart()
            again = follow(broker, "jobs", bookmark="EPOCH").take()
            assert [one.bookmark for one in again] == [one.bookmark for one in seen]
            on = follow(broker, "jobs", bookmark=seen[1].bookmark)
            broker.publish("jobs", b"4")
            assert bodies(on) == [b"2", b"3", b"4"]


def test_replace_changes_what_comes_from_there_on() -> None:
    with Broker(CONFIG) as broker:
        marks = [broker.publish("jobs", b'{"n": %d}' % number) for number in range(4)]
        replay = follow(broker, "jobs", bookmark=f"[{marks[0]}:{marks[3]}]", rate="1")
        assert len(replay.take()) == 1
        replay.replace(filter="/n = 3")
        broker.advance(5)
        assert [message.json()["n"] for message in replay.take()] == [3]
        assert replay.is_complete
        with pytest.raises(InvalidArgument, match="closed"):
            replay.replace(filter="")
        live = follow(broker, "news", filter="/n > 1")
        live.replace(topic="orders", filter="")
        broker.publish("news", b'{"n": 2}')
        broker.publish("orders", b"any")
        assert bodies(live) == [b"any"]
        with pytest.raises(NotFound):
            live.replace(topic="nothing")
        broker.publish("orders", b"still")
        assert bodies(live) == [b"still"]


def test_a_replay_ends_with_its_client() -> None:
    with Broker(CONFIG) as broker:
        follow(broker, "jobs", bookmark="NOW", name="reader")
        assert broker.disconnect("reader") == 1
        assert broker.disconnect("reader") == 0


# --- publishers ---------------------------------------------------------------------------------------------------


def test_a_publishers_duplicates_are_confirmed_and_not_stored_also_after_a_restart() -> None:
    with Broker(CONFIG) as broker:
        assert broker.publish("jobs", b"1", publisher="p", sequence=1)
        assert broker.publish("jobs", b"5", publisher="p", sequence=5), "gaps are fine"
        assert broker.publish("jobs", b"5 again", publisher="p", sequence=5) == ""
        assert broker.publish("jobs", b"3", publisher="p", sequence=3) == "", "a lower number is a duplicate"
        assert broker.publish("jobs", b"1", publisher="q", sequence=1), "each name counts for itself"
        broker.crash()
        broker.restart()
        assert broker.publish("jobs", b"5 again", publisher="p", sequence=5) == ""
        assert broker.last_sequence("p") == 5
        assert broker.last_sequence("nobody") == 0
        assert broker.stats("jobs")["ready"] == 3


def test_headers_name_publisher_and_sequence() -> None:
    with Broker(CONFIG) as broker:
        header = {"x-publisher": "p", "x-sequence": 7, "colour": "red"}
        assert broker.publish("jobs", b"7", headers=header)
        assert broker.publish("jobs", b"7", headers=header) == ""
        [message] = broker.subscribe("jobs").take()
        assert message.headers == {"colour": "red"}, "who publishes it anew says so anew"
        assert broker.last_sequence("p") == 7
        for wrong in ({"x-publisher": "p"}, {"x-sequence": 3}, {"x-publisher": "p", "x-sequence": "3"}):
            with pytest.raises(PreconditionFailed, match="invalid header 'x-"):
                broker.publish("jobs", b"8", headers=wrong)


def test_a_message_and_its_number_are_lost_together() -> None:
    """After a crash a publisher sends again what is above its last sequence: nothing twice, nothing lost."""
    header = header_codec.encode(header_codec.Properties(delivery_mode=header_codec.PERSISTENT))
    for seed in range(40):
        with Broker(CONFIG, seed=seed) as broker:
            number = 0
            for _ in range(3):
                for size in (1, 5, 2):
                    rows = [b"%d" % (number + row + 1) for row in range(size)]

                    def publish(instance: Instance, rows: list[bytes] = rows, first: int = number + 1) -> None:
                        batch = Publishes(instance.core.topic("/", "", "jobs"), header, rows)
                        instance.core.publish(instance.engine.now(), batch, publisher="p", sequence=first)

                    broker.command(publish)  # decided, and perhaps not on the disk
                    number += size
                broker.crash()
                broker.restart()
                number = broker.last_sequence("p")
            there = [message.body for message in broker.subscribe("jobs", max_backlog=None).take()]
            assert there == [b"%d" % (row + 1) for row in range(number)]


def test_publishers_expire_where_asked_for() -> None:
    config: Config = {**CONFIG, "log": {"publisher_expiration": "1h"}}  # type: ignore[dict-item]
    with Broker(config) as broker:
        broker.publish("jobs", b"1", publisher="p", sequence=7)
        broker.advance(1800)
        broker.publish("jobs", b"1", publisher="q", sequence=3)
        broker.advance(1900)
        assert (broker.last_sequence("p"), broker.last_sequence("q")) == (0, 3)
        broker.publish("jobs", b"again", publisher="p", sequence=1)
        broker.crash()
        broker.restart()
        assert (broker.last_sequence("p"), broker.last_sequence("q")) == (1, 3), "what was forgotten stays forgotten"
        broker.advance(3599)
        assert broker.last_sequence("q") == 3
        broker.advance(2)
        assert broker.last_sequence("q") == 0
        broker.restart()
        assert broker.last_sequence("p") == 0
    with Broker(CONFIG) as broker:
        broker.publish("jobs", b"1", publisher="p", sequence=7)
        broker.advance(10 * 365 * 86400)
        assert broker.last_sequence("p") == 7


def test_a_publisher_is_told_to_send_again_what_a_full_queue_refused() -> None:
    """What stands behind it is stored and has a higher number: after a lost connection it was never sent again."""
    with Broker({"queue": [{"name": "q", "max_length_bytes": "100B", "overflow": "reject-publish"}]}) as broker:
        broker.publish("q", b"a" * 90, publisher="p", sequence=1)
        with pytest.raises(QueueFull):
            broker.publish("q", b"b" * 90, publisher="p", sequence=2)
        broker.publish("q", b"c", publisher="p", sequence=3)
        assert broker.last_sequence("p") == 1
        broker.alter("q", max_length_bytes=None)
        broker.publish("q", b"b" * 90, publisher="p", sequence=2)
        broker.publish("q", b"c", publisher="p", sequence=3)
        assert broker.last_sequence("p") == 3
        assert broker.stats("q")["ready"] == 3
