"""Actions on the in-process broker: what sets them off, what they do, and what they never do."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from penstock.core import acted
from penstock.errors import SettingsError
from penstock.records.entries import Control, Entry, Group, Publishes
from penstock.records.kinds import Kind
from penstock.testing import Broker
from penstock.testing.instance import Instance

Step = Mapping[str, object]


def broker_of(
    *actions: Mapping[str, object], queues: tuple[str | Mapping[str, object], ...] = ("q", "out"), **more: object
) -> Broker:
    tables = [{"name": name} if isinstance(name, str) else name for name in queues]
    return Broker({"queue": tables, "action": list(actions), **more})


def bodies(broker: Broker, queue: str = "out") -> list[bytes]:
    return [message.body for message in broker.subscribe(queue, max_backlog=None).take()]


def counted(broker: Broker, name: str = "action 1") -> tuple[int, int]:
    assert broker.instance is not None
    tally = broker.instance.engine.acts.counts.of(name)
    return tally.runs, tally.failures


TELL = {"publish": {"topic": "out", "data": "{{AMPS_TOPIC}}: {{AMPS_DATA}}"}}


def test_an_acknowledged_message_is_deleted_and_an_expired_one_is_not() -> None:
    with broker_of({"on": {"queue": "q", "event": "delete"}, "do": TELL}) as broker:
        for body in ("a", "b", "c"):
            broker.publish("q", body)
        first, second, third = broker.subscribe("q", max_backlog=3).take()
        first.ack()
        second.expire()
        third.cancel()
        broker.ack("q", third.bookmark, by="somebody")
        assert bodies(broker) == [b"q: a", b"q: c"]
        assert counted(broker) == (2, 0)


def test_what_is_removed_as_it_is_sent_is_deleted_then() -> None:
    once = {"name": "q", "semantics": "at-most-once"}
    with broker_of({"on": {"queue": "q", "event": "delete"}, "do": TELL}, queues=(once, "out")) as broker:
        broker.publish("q", "a")
        [message] = broker.subscribe("q").take()
        told = broker.subscribe("out", max_backlog=None)
        assert [one.body for one in told.take()] == [b"q: a"]
        message.ack()
        assert told.take() == [], "it was gone before"


def test_a_publish_sets_off_an_action_for_its_topics_and_its_filter() -> None:
    action = {"on": {"topic": "^order", "event": "publish", "filter": "/n > 1"}, "do": TELL}
    with broker_of(action, queues=("orders", "orders.eu", "other", "out")) as broker:
        for topic, body in (
            ("orders", '{"n": 1}'),
            ("orders", '{"n": 2}'),
            ("orders.eu", '{"n": 3}'),
            ("other", '{"n": 4}'),
        ):
            broker.publish(topic, body)
        assert bodies(broker) == [b'orders: {"n": 2}', b'orders.eu: {"n": 3}']


def test_the_name_of_a_queue_stands_for_the_topics_it_shows_and_nothing_is_leased() -> None:
    view = {"name": "view", "underlying_topic": "orders"}
    publish = {"on": {"topic": "view", "event": "publish"}, "do": TELL}
    deliver = {
        "on": {"topic": "view", "event": "deliver"},
        "do": {"publish": {"topic": "out", "data": "to {{AMPS_CLIENT_NAME}}"}},
    }
    with broker_of(publish, deliver, queues=(view, "out")) as broker:
        broker.publish("orders", "a")
        assert broker.stats("view")["leased"] == 0
        assert broker.stats("view")["ready"] == 1
        broker.subscribe("view", name="ann")
        assert bodies(broker) == [b"orders: a", b"to ann"]


def test_an_unstored_message_sets_nothing_off() -> None:
    with broker_of({"on": {"topic": "nowhere", "event": "publish"}, "do": TELL}) as broker:
        assert broker.publish("nowhere", "a") == ""
        assert bodies(broker) == []


def test_an_action_that_sets_itself_off_ends_after_some_rounds(caplog: pytest.LogCaptureFixture) -> None:
    action = {"name": "loop", "on": {"topic": "q", "event": "publish"}, "do": {"publish": {"topic": "q"}}}
    with broker_of(action) as broker:
        broker.publish("q", "a")
        assert len(bodies(broker, "q")) == 9
        assert counted(broker, "loop") == (8, 1)
    assert "action 'loop' failed: it is number 9 of actions that set one another off; 8 are allowed" in caplog.text


def test_an_expiry_that_feeds_its_own_queue_ends_after_some_rounds() -> None:
    action = {"name": "again", "on": {"queue": "q", "event": "expire"}, "do": {"publish": {"topic": "q"}}}
    with broker_of(action, queues=({"name": "q", "expiration": "1s"},)) as broker:
        broker.publish("q", "a")
        broker.advance(60)
        assert broker.stats("q")["published"] == 9
        assert counted(broker, "again") == (0, 1)


def test_a_ring_of_an_action_and_a_dead_letter_exchange_ends_after_some_rounds() -> None:
    action = {"name": "on", "on": {"queue": "a", "event": "expire"}, "do": {"publish": {"topic": "b"}}}
    back = {"dead_letter_exchange": "", "dead_letter_routing_key": "a"}
    with broker_of(
        action, queues=({"name": "a", "expiration": "1s"}, {"name": "b", "expiration": "1s", **back})
    ) as broker:
        broker.publish("a", "x")
        broker.advance(120)
        assert broker.stats("a")["published"] == 9
        assert counted(broker, "on") == (0, 1)


def test_steps_run_in_order_and_see_what_earlier_ones_found(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "penstock.actions")
    steps: list[Step] = [
        {"extract_values": {"values": {"ID": "/id", "NAME": "CONCAT(/first, ' ', /last)", "NONE": "/absent"}}},
        {"query_sow": {"topic": "stock", "filter": "/id = 2", "capture": "FOUND", "default": "none"}},
        {"increment_counter": {"counter": "seen-{{ID}}", "capture": "N"}},
        {"echo_message": {"message": "{{NAME}} {{N}}\n{{NONE}}"}},
        {"publish": {"topic": "out", "data": '{"id": {{ID}}, "n": {{N}}, "stock": {{FOUND}}}'}},
    ]
    with broker_of({"on": {"topic": "q", "event": "publish"}, "do": steps}, queues=("q", "stock", "out")) as broker:
        for number in (1, 2, 3):
            broker.publish("stock", f'{{"id": {number}}}')
        for _ in range(2):
            broker.publish("q", '{"id": 7, "first": "Ann", "last": "Lee"}')
        assert bodies(broker) == [b'{"id": 7, "n": 1, "stock": {"id": 2}}', b'{"id": 7, "n": 2, "stock": {"id": 2}}']
        assert broker.stats("stock")["ready"] == 3
    assert r"action 1: Ann Lee 2\n" in caplog.messages


def test_a_query_that_finds_nothing_takes_the_default_whatever_is_leased() -> None:
    steps: list[Step] = [
        {"query_sow": {"topic": "stock", "capture": "FOUND", "default": "nothing for {{AMPS_DATA}}"}},
        {"publish": {"topic": "out", "data": "{{FOUND}}"}},
    ]
    with broker_of({"on": {"topic": "q", "event": "publish"}, "do": steps}, queues=("q", "stock", "out")) as broker:
        broker.publish("stock", "held")
        broker.subscribe("stock")
        broker.publish("q", "me")
        assert bodies(broker) == [b"nothing for me"]


def test_a_failing_step_stops_the_rest_and_is_counted(caplog: pytest.LogCaptureFixture) -> None:
    steps: list[Step] = [
        {"publish": {"topic": "out", "data": "before"}},
        {"query_sow": {"topic": "absent", "capture": "X"}},
        {"publish": {"topic": "out", "data": "after"}},
    ]
    with broker_of({"name": "lame", "on": {"topic": "q", "event": "publish"}, "do": steps}) as broker:
        broker.publish("q", "a")
        broker.publish("q", "b")
        assert bodies(broker) == [b"before", b"before"]
        assert counted(broker, "lame") == (0, 2)
    assert "action 'lame' failed: querying: no queue and no SOW topic 'absent'" in caplog.text


def test_a_condition_that_is_not_true_does_nothing() -> None:
    actions = [{"on": {"queue": "q", "event": event}, "if": "/n > 1", "do": TELL} for event in ("expire", "delete")]
    with broker_of(*actions) as broker:
        for n in (1, 2):
            broker.publish("q", f'{{"n": {n}}}')
            broker.publish("q", f'{{"n": {n}}}')
        for message in broker.subscribe("q", max_backlog=4).take():
            (message.ack if message.attempt and message.lsn % 2 else message.expire)()
        assert bodies(broker) == [b'q: {"n": 2}'] * 2


def test_several_events_share_what_is_done() -> None:
    action = {"on": [{"queue": "q", "event": "expire"}, {"queue": "q", "event": "delete"}], "do": TELL}
    with broker_of(action) as broker:
        broker.publish("q", "a")
        broker.publish("q", "b")
        first, second = broker.subscribe("q", max_backlog=2).take()
        first.ack()
        second.expire()
        assert sorted(bodies(broker)) == [b"q: a", b"q: b"]


def test_a_schedule_runs_whenever_its_time_has_come() -> None:
    action = {"on": {"schedule": "4h"}, "do": {"publish": {"topic": "out", "data": "{{AMPS_UNIX_TIMESTAMP}}"}}}
    with broker_of(action) as broker:
        begun = int(broker.now())
        broker.advance(13 * 3600)
        assert [int(body) - begun for body in bodies(broker)] == [14_400, 28_800, 43_200]


def test_an_expiry_publishes_in_the_group_of_the_removal_and_tells_afterwards() -> None:
    steps: list[Step] = [TELL, {"increment_counter": {"counter": "c", "capture": "N"}}, TELL]
    for seed in range(6):
        config = {
            "queue": [{"name": "q", "max_cancels": 1}, {"name": "out"}],
            "action": [{"on": {"queue": "q", "event": "expire"}, "do": steps}],
        }
        with Broker(config, seed=seed) as broker:
            broker.publish("q", "a")
            [message] = broker.subscribe("q").take()
            message.cancel()
            assert broker.stats("out")["ready"] == 2
            broker.crash()
            broker.restart()
            gone = broker.stats("q")["queue_depth"] == 0
            assert gone == (len(bodies(broker)) >= 1)


def test_events_wait_for_the_disk_and_what_they_publish_is_durable() -> None:
    action = {"on": {"topic": "q", "event": "publish"}, "do": TELL}
    with broker_of(action) as broker:
        broker.publish("q", "a")
        broker.crash()
        broker.restart()
        assert bodies(broker, "q") == [b"a"]
        assert set(bodies(broker)) <= {b"q: a"}


def test_many_messages_are_looked_at_in_their_order() -> None:
    with broker_of({"on": {"topic": "q", "event": "publish"}, "do": TELL}) as broker:
        for number in range(500):
            broker.publish("q", str(number))
        assert bodies(broker) == [b"q: %d" % number for number in range(500)]


def test_programs_run_when_that_is_allowed(tmp_path: Path) -> None:
    target = tmp_path / "told; rm -rf x"
    steps: list[Step] = [
        {"execute_system": {"command": f"touch '{target}'"}},
        {"execute_system": {"command": "false {{AMPS_DATA}}"}},
        TELL,
    ]
    action = {"name": "run", "on": {"topic": "q", "event": "publish"}, "do": steps}
    with broker_of(action, server={"allow_execute": True}) as broker:
        broker.publish("q", "'; touch y")
        assert target.exists()
        assert bodies(broker) == []
        assert counted(broker, "run") == (0, 1)


@pytest.mark.parametrize(
    ("action", "why"),
    [
        (
            {"on": {"schedule": "4h"}, "do": {"execute_system": {"command": "ls"}}},
            "do.execute_system: programs are run only with server.allow_execute = true",
        ),
        ({"on": {"schedule": "4h"}, "do": {"enable_proxied_transfer": {}}}, "do.enable_proxied_transfer.queue"),
        ({"on": {"schedule": "4h"}, "do": {"downgrade_replication": {}}}, "do.downgrade_replication.age"),
        ({"on": {"link": "b"}, "do": TELL}, "a link goes with the events 'up', 'down', 'level', 'downgrade'"),
        ({"on": {"queue": "q", "event": "up"}, "do": TELL}, "and they with a link; this one is 'up'"),
        ({"on": {"link": "b", "event": "up"}, "do": TELL}, "an action knows no variable {{AMPS_TOPIC}}"),
        ({"on": {"schedule": "often"}, "do": {"echo_message": {"message": ""}}}, "'often' is no schedule"),
        ({"on": {"schedule": "4h"}, "do": {"publish": {"topic": "t"}}}, "do.publish.data: an action knows no variable"),
        ({"on": {"queue": "q", "topic": "t"}, "do": TELL}, "exactly one of queue, topic, schedule and link"),
        ({"on": {"queue": "q", "event": "oof"}, "do": TELL}, "oof is for topics"),
        (
            {"on": {"queue": "q", "event": "delete", "reason": ["time_limit"]}, "do": TELL},
            "reason goes with event 'expire'",
        ),
        (
            {"on": {"queue": "q"}, "do": {"publish": {"topic": "t"}, "echo_message": {"message": ""}}},
            "exactly one of publish",
        ),
        ({"on": [], "do": TELL}, "on: needs at least 1 of them, and there is none"),
        ({"on": {"topic": "a(", "event": "publish"}, "do": TELL}, "'a(' is no RE2 pattern"),
        ({"on": {"queue": "q", "vhost": "shop"}, "do": TELL}, "on.vhost: there is no [[vhost]] 'shop'"),
        ({"on": [{"queue": "q"}, {"queue": "q", "event": "ack"}], "do": TELL}, "on[2].event: 'ack' is not one of"),
    ],
)
def test_actions_that_cannot_be_are_refused_with_a_sentence(action: Mapping[str, object], why: str) -> None:
    with pytest.raises(SettingsError) as caught:
        Broker({"action": [action]})
    assert why in str(caught.value)


def keyed(*actions: Mapping[str, object], **more: object) -> Broker:
    topics = [{"name": "stock", "key": ["/id"], **more}]
    queues = [{"name": "q"}, {"name": "out"}]
    return Broker({"topic": topics, "queue": queues, "action": list(actions)})


def test_records_that_are_deleted_or_expire_set_off_actions() -> None:
    actions = [
        {
            "on": {"topic": "stock", "event": "delete"},
            "do": {"publish": {"topic": "out", "data": "gone {{AMPS_DATA}}"}},
        },
        {
            "on": {"topic": "stock", "event": "expire", "reason": ["time_limit"]},
            "do": {"publish": {"topic": "out", "data": "{{AMPS_REASON}} {{AMPS_DATA}}"}},
        },
        {
            "on": {"topic": "stock", "event": "oof", "type": "delete"},
            "do": {"publish": {"topic": "out", "data": "was {{AMPS_PREVIOUS_DATA}}"}},
        },
    ]
    with keyed(*actions, expiration="5s") as broker:
        for number in (1, 2):
            broker.publish("stock", f'{{"id": {number}}}')
        told = broker.subscribe("out", max_backlog=None)
        broker.sow_delete("stock", "/id = 1")
        assert [one.body for one in told.take()] == [b'gone {"id": 1}', b'was {"id": 1}']
        broker.advance(6)
        assert [one.body for one in told.take()] == [b'time_limit {"id": 2}']
        assert broker.stats("out")["published"] == 3


def test_steps_for_records() -> None:
    steps: list[Step] = [
        {"query_sow": {"topic": "stock", "filter": "/left > 1", "capture": "FOUND"}},
        {"publish": {"topic": "stock", "data": '{"id": 2, "left": 0}', "delta": True}},
        {"delete_sow": {"topic": "stock", "filter": "/left = 9"}},
        {"publish": {"topic": "out", "data": "{{FOUND}}"}},
    ]
    with keyed({"on": {"topic": "q", "event": "publish"}, "do": steps}) as broker:
        for body in ('{"id": 1, "left": 9}', '{"id": 2, "left": 1, "name": "b"}', '{"id": 3, "left": 7}'):
            broker.publish("stock", body)
        broker.publish("q", "go")
        assert bodies(broker) == [b'{"id": 1, "left": 9}']
        left = sorted((record.json() for record in broker.sow("stock")), key=lambda one: one["id"])
        assert left == [{"id": 2, "left": 0, "name": "b"}, {"id": 3, "left": 7}]
        assert counted(broker) == (1, 0)


def test_a_delta_to_a_topic_without_records_fails() -> None:
    step = {"publish": {"topic": "out", "data": "{}", "delta": True}}
    with keyed({"on": {"topic": "q", "event": "publish"}, "do": step}) as broker:
        broker.publish("q", "go")
        assert counted(broker) == (0, 1)


def test_what_would_make_a_group_too_large_is_published_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(acted, "LED_MOST", 40)
    step = {"publish": {"topic": "out", "data": "{{AMPS_DATA}}{{AMPS_DATA}}"}}
    with broker_of(
        {"on": {"queue": "q", "event": "expire"}, "do": [step, step]}, queues=({"name": "q", "expiration": "1s"}, "out")
    ) as broker:
        for number in range(5):
            broker.publish("q", f"body {number}")
        broker.advance(2)
        assert sorted(bodies(broker)) == sorted(2 * [b"body %d" % number * 2 for number in range(5)])


@pytest.mark.parametrize("more", [[], [{"echo_message": {"message": "published"}}]])
def test_a_publish_that_filters_judge_off_the_loop_is_judged_once(more: list[Step]) -> None:
    picky = {"name": "picky", "filter": "/id = 1"}
    steps: list[Step] = [{"publish": {"topic": "picky"}}, *more]
    with broker_of({"on": {"topic": "q", "event": "publish"}, "do": steps}, queues=("q", picky)) as broker:
        assert broker.instance is not None
        engine, judged = broker.instance.engine, []

        def off(work: Callable[[], Any], done: Callable[[Any], None]) -> None:
            judged.append(work)
            engine.call_soon(lambda: done(work()))

        engine.judges.off = off
        for number in (1, 2):
            broker.publish("q", f'{{"id": {number}, "x": "{"x" * 300_000}"}}')
        assert broker.stats("picky")["ready"] == 1
        assert len(judged) == 2


def test_an_expression_over_a_large_body_is_evaluated_after_the_removal() -> None:
    steps: list[Step] = [
        {"extract_values": {"values": {"ID": "/id"}}},
        {"publish": {"topic": "out", "data": "{{ID}} {{AMPS_REASON}}"}},
    ]
    action = {"on": {"queue": "q", "event": "expire"}, "if": "/id > 1", "do": steps}
    with broker_of(action, queues=({"name": "q", "max_cancels": 1}, "out")) as broker:
        for number, size in ((1, 10), (2, 300_000), (3, 10), (1, 300_000)):
            broker.publish("q", f'{{"id": {number}, "x": "{"x" * size}"}}')
        for message in broker.subscribe("q", max_backlog=4).take():
            message.cancel()
        assert sorted(bodies(broker)) == [b"2 max_cancels", b"3 max_cancels"]
        assert broker.stats("q")["queue_depth"] == 0


def test_of_many_failures_one_a_second_is_told(caplog: pytest.LogCaptureFixture) -> None:
    step = {"query_sow": {"topic": "absent", "capture": "X"}}
    with broker_of({"name": "lame", "on": {"topic": "q", "event": "publish"}, "do": step}) as broker:
        for _ in range(5):
            broker.publish("q", "a")
        broker.advance(1)
        broker.publish("q", "a")
        assert counted(broker, "lame") == (0, 6)
    assert len(caplog.records) == 2
    assert caplog.records[1].getMessage().endswith("(4 more since the last line)")


def test_what_waits_for_the_disk_does_not_wait_for_all_that_came_since() -> None:
    with broker_of({"on": {"topic": "q", "event": "publish"}, "do": TELL}) as broker:

        def work(instance: Instance) -> tuple[int, int]:
            core, engine = instance.core, instance.engine
            topic, first = core.topic("/", "", "q"), core.next_lsn
            for _ in range(1000):
                core.publish(engine.now(), Publishes(topic, b"\x10\x00\x02", [b"a"]))
            engine.finish_turn()
            return first, engine.acts.waits_for() or 0

        first, waits_for = broker.command(work)
        assert first <= waits_for < first + 300
        assert counted(broker) == (1000, 0)


def test_large_messages_are_fetched_a_few_at_a_time() -> None:
    with broker_of({"on": {"topic": "q", "event": "publish"}, "do": TELL}) as broker:
        for size in (10, 3_000_000, 3_000_000, 10):
            broker.publish("q", "x" * size)
        assert [len(body) - 3 for body in bodies(broker)] == [10, 3_000_000, 3_000_000, 10]


def test_a_schedule_has_a_condition_too() -> None:
    tell = {"publish": {"topic": "out", "data": "told"}}
    conditions = ("1 = 2", "/a IS NULL")
    with broker_of(*({"on": {"schedule": "1h"}, "if": one, "do": tell} for one in conditions)) as broker:
        broker.advance(3600)
        assert bodies(broker) == [b"told"]
        assert (counted(broker, "action 1"), counted(broker, "action 2")) == ((0, 0), (1, 0))


def test_what_an_action_publishes_last_and_that_it_did_lie_in_one_group(monkeypatch: pytest.MonkeyPatch) -> None:
    with broker_of({"name": "tell", "on": {"topic": "q", "event": "publish"}, "do": TELL}) as broker:
        assert broker.instance is not None
        log, written = broker.instance.log, list[Entry]()
        append = log.append

        def note(journal: Sequence[Entry], **how: bool) -> None:
            written.extend(journal)
            append(journal, **how)

        monkeypatch.setattr(log, "append", note)
        broker.publish("q", "a")
        [group] = [entry for entry in written if isinstance(entry, Group)]
        message, word = group.entries[-2:]  # before them perhaps the route, which is new
        assert isinstance(message, Publishes)
        assert isinstance(word, Control)
        assert message.topic_of(0).name == "out"
        assert (word.kind, word.name) == (Kind.ACTED, "tell")


def test_a_rule_that_nobody_watches_costs_the_log_nothing() -> None:
    with broker_of({"on": {"schedule": "1h"}, "do": TICK}) as broker:
        broker.publish("q", "a")
        broker.restart()
        assert broker.instance is not None
        assert not broker.instance.core.acted
        assert all(kind != Kind.ACTED for kind in kinds_of(broker))


def test_an_action_that_is_not_there_any_more_is_forgotten() -> None:
    action = {"name": "tell", "on": {"topic": "q", "event": "publish"}, "do": TELL}
    with broker_of(action) as broker:
        broker.publish("q", "a")
        broker.restart({"queue": [{"name": "q"}, {"name": "out"}]})
        broker.publish("q", "b")
        broker.restart({"queue": [{"name": "q"}, {"name": "out"}], "action": [action]})
        broker.publish("q", "c")
        assert bodies(broker) == [b"q: a", b"q: c"]


TICK = {"publish": {"topic": "out", "data": "tick"}}


def kinds_of(broker: Broker) -> list[int]:
    assert broker.instance is not None
    log = broker.instance.log
    return [row["kind"] for batch in log.batches(1, log.durable + 1) for row in batch.to_pylist()]
