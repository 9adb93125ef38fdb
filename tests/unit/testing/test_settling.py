"""Settling by name: by anybody, by lists of bookmarks, by a filter; what is remembered of what is not there."""

from __future__ import annotations

import pytest

from penstock import InvalidArgument, NotFound
from penstock.core.queue.settling import deferred
from penstock.errors import ExpressionError, QueueFull
from penstock.testing import Broker

DAY = 86_400


def queue(**settings: object) -> dict[str, object]:
    return {"queue": [{"name": "q", **settings}]}


def numbered(broker: Broker, count: int) -> list[str]:
    return [broker.publish("q", b'{"n": %d}' % n) for n in range(count)]


def bodies(broker: Broker, name: str = "q") -> list[int]:
    """What is ready, seen by a client that gives it back."""
    subscription = broker.subscribe(name, max_backlog=None)
    seen = [message.json()["n"] for message in subscription.take()]
    subscription.close()
    return seen


# --- by bookmarks -----------------------------------------------------------------------------------------------------


def test_a_list_of_bookmarks_settles_messages_in_every_state() -> None:
    with Broker(queue()) as broker:
        marks = numbered(broker, 3)
        late = broker.publish("q", b"{}", delay=5)
        broker.subscribe("q", name="holder")  # has the first
        assert broker.ack("q", ",".join([*marks[:2], late]), by="stranger") == 3
        assert bodies(broker) == []  # the third went to the holder, whose backlog came free
        stats = broker.stats("q")
        assert (stats["ready"], stats["leased"], stats["delayed"]) == (0, 1, 0)


def test_a_bookmark_settles_once() -> None:
    with Broker(queue()) as broker:
        [mark] = numbered(broker, 1)
        assert broker.ack("q", [mark, mark]) == 1
        assert broker.ack("q", [mark]) == 0
        assert broker.stats("q")["deferred_acks"] == 0  # the queue has had it: there is nothing to wait for


def test_strict_gives_a_leased_message_to_its_holder_alone() -> None:
    with Broker(queue(leasing="strict")) as broker:
        marks = numbered(broker, 2)
        subscription = broker.subscribe("q", name="holder")
        for option in (None, "cancel", "expire"):
            assert broker.ack("q", marks[:1], by="stranger", option=option) == 0
        assert broker.ack("q", marks[1:], by="stranger") == 1  # nobody holds it
        assert broker.ack("q", marks[:1], by="holder") == 1
        [message] = subscription.take()
        assert not message.ack()


def test_the_option_cancel_gives_back_what_somebody_holds() -> None:
    with Broker(queue(max_cancels=2)) as broker:
        marks = numbered(broker, 2)
        subscription = broker.subscribe("q", name="holder")
        assert broker.ack("q", marks, by="stranger", option="cancel") == 1  # the second is held by nobody
        assert [message.attempt for message in subscription.take()] == [1, 2]
        assert broker.ack("q", marks[:1], option="cancel") == 1
        assert broker.story(marks[0])[-1].details["reason"] == "max_cancels"


def test_the_option_expire_removes_with_a_dead_letter() -> None:
    config = queue(dead_letter_exchange="", dead_letter_routing_key="dead")
    config["queue"] = [*config["queue"], {"name": "dead"}]  # type: ignore[misc]
    with Broker(config) as broker:
        marks = numbered(broker, 2)
        broker.subscribe("q", name="holder")
        assert broker.ack("q", marks, option="expire") == 2
        assert broker.stats("q")["ready"] == broker.stats("q")["leased"] == 0
        assert bodies(broker, "dead") == [0, 1]


@pytest.mark.parametrize("option", [None, "cancel", "expire"])
def test_at_most_once_options_free_a_place_and_touch_no_message(option: str | None) -> None:
    with Broker(queue(semantics="at-most-once")) as broker:
        marks = numbered(broker, 3)
        subscription = broker.subscribe("q", name="a")
        assert [message.json()["n"] for message in subscription.take()] == [0]
        assert broker.ack("q", marks[:1], by="b", option=option) == 0  # delivered to somebody else
        assert broker.ack("q", marks[:1], by="a", option=option) == 1
        assert [message.json()["n"] for message in subscription.take()] == [1]
        assert broker.ack("q", marks[2:], by="a", option=option) == (option is None)  # not delivered yet


def test_a_bookmark_that_was_not_given_out_is_refused() -> None:
    with Broker(queue()) as broker:
        [mark] = numbered(broker, 1)
        origin, lsn, _ = mark.split("|")
        with pytest.raises(InvalidArgument, match="last LSN that was given out"):
            broker.ack("q", [mark, f"{origin}|{int(lsn) + 1000}|"])
        assert broker.stats("q")["ready"] == 1  # nothing of that command was done
        assert broker.stats("q")["deferred_acks"] == 0
        with pytest.raises(NotFound):
            broker.ack("other", [mark])


def test_acks_by_name_outlive_a_crash() -> None:
    with Broker(queue()) as broker:
        marks = numbered(broker, 3)
        assert broker.ack("q", marks[:2]) == 2
        broker.crash()
        broker.restart()
        assert bodies(broker) == [2]


# --- by a filter ------------------------------------------------------------------------------------------------------


def test_a_filter_settles_what_matches_in_every_state() -> None:
    with Broker(queue()) as broker:
        numbered(broker, 6)
        broker.publish("q", b'{"n": 7}', delay=5)
        subscription = broker.subscribe("q", max_backlog=2, name="holder")  # holds 0 and 1
        assert broker.ack_filter("q", "/n IN (1, 2, 5, 7, 9)", by="stranger") == 4
        held = [message.json()["n"] for message in subscription.take()]
        assert held[:2] == [0, 1]
        broker.advance(10)
        assert broker.stats("q")["leased"] == 2
        assert sorted(held[2:] + bodies(broker)) == [3, 4]


def test_a_filter_touches_nothing_that_comes_later() -> None:
    with Broker(queue()) as broker:
        numbered(broker, 2)
        assert broker.ack_filter("q", "/n >= 0") == 2
        numbered(broker, 1)
        assert broker.stats("q")["ready"] == 1
        assert broker.ack_filter("q", "/n > 5") == 0


def test_strict_wins_over_a_filter() -> None:
    with Broker(queue(leasing="strict")) as broker:
        numbered(broker, 3)
        broker.subscribe("q", name="holder")  # holds 0
        assert broker.ack_filter("q", "/n < 2", by="stranger") == 1
        assert broker.ack_filter("q", "/n < 2", by="holder") == 1
        assert broker.stats("q")["leased"] == 1  # the third


def test_a_filter_cancels_or_expires_too() -> None:
    with Broker(queue(max_cancels=5)) as broker:
        marks = numbered(broker, 3)
        subscription = broker.subscribe("q", max_backlog=2, name="holder")
        assert broker.ack_filter("q", "/n >= 0", option="cancel") == 2
        assert [message.attempt for message in subscription.take()] == [1, 1, 2, 2]
        assert broker.ack_filter("q", "/n >= 1", option="expire") == 2
        assert broker.story(marks[2])[-1].details["reason"] == "forced_expire"


def test_a_filter_frees_the_places_of_the_client_that_asks() -> None:
    with Broker(queue(semantics="at-most-once")) as broker:
        numbered(broker, 3)
        subscription = broker.subscribe("q", name="a")
        assert broker.ack_filter("q", "/n = 0", by="b") == 0
        assert broker.ack_filter("q", "/n = 0", by="a") == 1
        assert [message.json()["n"] for message in subscription.take()] == [0, 1]


def test_a_filter_goes_through_a_deep_queue_in_stretches() -> None:
    with Broker(queue()) as broker:
        numbered(broker, 1_700)
        broker.subscribe("q", max_backlog=100)
        assert broker.ack_filter("q", "/n % 2 = 0") == 850
        broker.crash()
        broker.restart()
        assert broker.stats("q")["ready"] == 850


def test_a_filter_that_cannot_be_read_is_refused() -> None:
    with Broker(queue()) as broker, pytest.raises(ExpressionError):
        broker.ack_filter("q", "/n >")


# --- what is not there ------------------------------------------------------------------------------------------------


def test_an_ack_of_a_message_from_elsewhere_is_remembered_for_a_day() -> None:
    with Broker(queue()) as broker:
        assert broker.ack("q", ["123|4|", "123|5|"], by="x") == 0
        assert broker.ack("q", ["123|5|", "123|9|"]) == 0
        assert broker.stats("q")["deferred_acks"] == 3
        assert broker.ack("q", ["123|4|"], option="cancel") == 0  # nothing to give back
        broker.advance(DAY - 1)
        broker.crash()
        broker.restart()
        assert broker.stats("q")["deferred_acks"] == 3
        broker.advance(2)
        assert broker.stats("q")["deferred_acks"] == 0


def test_an_ack_is_remembered_as_long_as_the_queue_says() -> None:
    with Broker(queue(deferred_ack_expiration="15m")) as broker:
        broker.ack("q", ["123|4|"])
        broker.advance(899)
        broker.restart()
        assert broker.stats("q")["deferred_acks"] == 1
        broker.advance(1)
        assert broker.stats("q")["deferred_acks"] == 0
        broker.alter("q", deferred_ack_expiration=0)
        broker.ack("q", ["123|4|"])
        assert broker.stats("q")["deferred_acks"] == 0


def test_what_is_older_than_the_queue_is_remembered() -> None:
    with Broker({"topic": [{"name": "t"}], "queue": [{"name": "q"}]}) as broker:
        mark = broker.publish("t", b"one")
        broker.restart({"topic": [{"name": "t"}], "queue": [{"name": "q"}, {"name": "later", "underlying_topic": "t"}]})
        assert broker.ack("later", [mark]) == 0
        assert broker.stats("later")["deferred_acks"] == 1
        assert broker.ack("q", [mark]) == 0
        assert broker.stats("q")["deferred_acks"] == 0  # it was there when the message came, and did not want it


def test_an_ack_that_came_first_is_applied_when_the_message_appears() -> None:
    base: dict[str, object] = {"topic": [{"name": "t"}]}
    later = {"name": "later", "underlying_topic": "t", "recovery_point": "now", "deferred_ack_expiration": "5m"}
    config = {**base, "queue": [later]}
    with Broker(base) as broker:
        marks = [broker.publish("t", b'{"n": %d}' % n) for n in range(4)]
        broker.restart(config)
        assert broker.ack("later", marks[:2]) == 0
        assert broker.ack("later", marks[2:3], option="expire") == 0
        broker.crash()
        broker.restart({**base, "queue": [{**later, "recovery_point": "epoch"}]})
        broker.advance(1)
        assert bodies(broker, "later") == [3]
        assert broker.stats("later")["deferred_acks"] == 0
        assert broker.ack("later", marks[:2]) == 0
        assert broker.stats("later")["deferred_acks"] == 0  # it has had them
        broker.crash()
        broker.restart()
        assert bodies(broker, "later") == [3]


def test_a_filter_leaves_what_is_inactive_alone() -> None:
    with Broker(queue(target_queue_depth=1000)) as broker:
        numbered(broker, 1_010)
        assert broker.ack_filter("q", "/n >= 990") == 10
        assert broker.ack_filter("q", "/n >= 990") == 10  # which have become active meanwhile


def test_no_more_is_remembered_than_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deferred, "DEFERRED_MOST", 3)
    with Broker(queue()) as broker:
        broker.ack("q", ["123|4|", "123|5|"])
        with pytest.raises(QueueFull, match="remembers 2 acks"):
            broker.ack("q", ["123|6|", "123|7|"])
        assert broker.stats("q")["deferred_acks"] == 2
        broker.ack("q", ["124|6|"])
        assert broker.stats("q")["deferred_acks"] == 3


def test_remembered_acks_go_with_their_queue() -> None:
    with Broker({"queue": [{"name": "q"}, {"name": "r"}]}) as broker:
        broker.ack("q", ["123|4|"])
        broker.restart({"queue": [{"name": "r"}]})
        broker.advance(2 * DAY)
        assert broker.stats("r")["deferred_acks"] == 0
