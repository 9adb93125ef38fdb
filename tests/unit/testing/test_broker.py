"""The broker as a tool: names, units, errors, time, and the life from start to crash to restart."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

import penstock
from penstock.errors import (
    DiskFull,
    ExpressionError,
    InvalidArgument,
    LogBroken,
    LogDamaged,
    NotFound,
    Refused,
    SettingsError,
    Unavailable,
)
from penstock.log.simdisk import SimDisk
from penstock.testing import Broker, FakeClock, evaluate
from penstock.testing.process import Config, ServerProcess

ONE: Config = {"queue": [{"name": "q", "lease_period": "30s"}]}


# --- settings -----------------------------------------------------------------------------------------------------

TOML = '[[queue]]\nname = "q"\nlease_period = "30s"\n'


def test_settings_are_a_mapping_text_or_a_path(tmp_path: Path) -> None:
    file = tmp_path / "penstock.toml"
    file.write_text(TOML)
    for config in (ONE, TOML, file, str(file)):
        with Broker(config) as broker:
            broker.publish("q", b"one")
            [message] = broker.subscribe("q").take()
            assert message.lease_until == broker.now() + 30


def test_no_settings_are_settings_too() -> None:
    for config in (None, {}, ""):
        with Broker(config) as broker, pytest.raises(NotFound):
            broker.subscribe("q")


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"queue": [{"name": "q", "message_type": "avro"}]}, "message_type: 'avro' needs a schema"),
        ({"schedule": [{"name": "s"}]}, "schedule.*not supported in this version"),
        ({"queue": [{"name": "q", "lease_perod": "30s"}]}, "did you mean 'lease_period'"),
        ({"queue": [{"name": "q", "lease_period": 30}]}, "30s"),
        ({"queue": [{"name": "q", "underlying_topic": "^a"}]}, "default_publish_target: is missing"),
        ("[[queue]\n", "no TOML"),
        ("/nowhere/penstock.toml", "cannot be read"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(config: Config, told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        Broker(config)


def test_the_environment_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PENSTOCK_SERVER__SYNC", "nonsense")
    Broker(ONE).close()


# --- publishing ---------------------------------------------------------------------------------------------------


def test_a_bookmark_names_origin_and_place() -> None:
    with Broker(ONE) as broker:
        first, second = broker.publish("q", b"one"), broker.publish("q", "two")
        assert first.split("|")[0] == second.split("|")[0]
        assert int(first.split("|")[1]) < int(second.split("|")[1])
        assert first.endswith("|")


def test_a_sequence_that_was_used_is_a_duplicate() -> None:
    with Broker(ONE) as broker:
        assert broker.publish("q", b"one", publisher="p", sequence=1)
        assert broker.publish("q", b"one", publisher="p", sequence=1) == ""
        broker.crash()
        broker.restart()
        assert broker.publish("q", b"one", publisher="p", sequence=1) == ""
        assert broker.publish("q", b"two", publisher="p", sequence=2)
        assert broker.stats("q")["ready"] == 2


def test_a_topic_of_another_exchange_is_written_with_a_slash() -> None:
    config: Config = {
        "exchange": [{"name": "shop", "type": "topic"}],
        "queue": [{"name": "q"}, {"name": "a/b"}],
        "binding": [{"source": "shop", "destination": "q", "key": "orders.#"}],
    }
    with Broker(config) as broker:
        broker.publish("shop/orders.new", b"one")
        broker.publish("a/b", b"two")  # no exchange has that name: a key of the default exchange
        [one] = broker.subscribe("q").take()
        [two] = broker.subscribe("a/b").take()
        assert (one.topic, two.topic) == ("shop/orders.new", "a/b")


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"priority": 256}, InvalidArgument),
        ({"expiration": -1.0}, InvalidArgument),
        ({"delay": -0.5}, InvalidArgument),
        ({"publisher": "p"}, InvalidArgument),
        ({"headers": {"x-delay": "soon"}}, Refused),
    ],
)
def test_what_is_refused_has_a_code_and_a_reason(given: dict[str, object], error: type[Refused]) -> None:
    with Broker(ONE) as broker:
        with pytest.raises(error) as caught:
            broker.publish("q", b"one", **given)  # type: ignore[arg-type]
        assert caught.value.code.startswith("PS")
        assert caught.value.reason
        assert broker.stats("q")["ready"] == 0


def test_headers_come_back_as_they_were() -> None:
    with Broker(ONE) as broker:
        broker.publish("q", b'{"a": 1}', headers={"n": 1, "t": "x", "b": True}, priority=9)
        [message] = broker.subscribe("q").take()
        assert (message.headers, message.priority, message.json()) == ({"n": 1, "t": "x", "b": True}, 9, {"a": 1})


# --- arguments that make no sense -----------------------------------------------------------------------------------


def test_wrong_arguments_are_named() -> None:
    with Broker(ONE) as broker:
        mark = broker.publish("q", b"one")
        with pytest.raises(InvalidArgument, match="option is 'nack'"):
            broker.ack("q", [mark], option="nack")
        with pytest.raises(InvalidArgument, match="names no message"):
            broker.ack("q", ["NOW"])
        with pytest.raises(InvalidArgument, match="'soon' names no message"):
            broker.ack("q", ["soon"])
        with pytest.raises(InvalidArgument, match="max_backlog"):
            broker.subscribe("q", max_backlog=-1)
        with pytest.raises(ExpressionError):
            broker.subscribe("q", filter="/a >")
        with pytest.raises(InvalidArgument, match="did you mean 'max_cancels'"):
            broker.alter("q", max_cancel=1)
        with pytest.raises(InvalidArgument, match="'avro': avro needs a schema"):
            broker.alter("q", message_type="avro")
        with pytest.raises(InvalidArgument, match="not negative"):
            broker.advance(-1)
        assert broker.ack("q", []) == 0
        assert broker.disconnect("nobody") == 0


@pytest.mark.parametrize(
    ("work", "told"),
    [
        (lambda b: b.subscribe("q", max_backlog="ten"), "max_backlog is 'ten', not a whole number"),
        (lambda b: b.subscribe("q", max_backlog=1.5), "max_backlog is 1.5, not a whole number"),
        (lambda b: b.subscribe("q", filter=12), "filter is 12, not text"),
        (lambda b: b.subscribe("q", name=3), "name is 3, not text"),
        (lambda b: b.subscribe("q", order_by=3), "order_by is 3, not text or a sequence of texts or None"),
        (lambda b: b.subscribe("q", rate_max_gap="x"), "rate_max_gap: 'x' is not a duration"),
        (lambda b: b.subscribe("q", conflation="x"), "conflation: 'x' is not a duration"),
        (lambda b: b.subscribe("("), r"queue is '\(': the regular expression cannot be used: missing \)"),
        (lambda b: b.subscribe(5), "queue is 5, not text"),
        (lambda b: b.subscribe("q").replace(max_backlog="x"), "max_backlog is 'x', not a whole number"),
        (lambda b: b.subscribe("q").replace(topic="("), "topic is '\\('"),
        (lambda b: b.advance("x"), "seconds: 'x' is not a duration"),
        (lambda b: b.advance(None), "seconds is None, not a duration"),
        (lambda b: b.advance(float("nan")), "seconds: nan is no duration"),
        (lambda b: b.subscribe("q", bookmark=""), "'' is no bookmark"),
        (lambda b: b.subscribe("q", sow=1), "sow is 1, not True or False"),
        (lambda b: b.pause("q", 0), "seconds is 0, which is not between 1us and 1,000 years"),
        (lambda b: b.redrive("q", count=True), "count is True, not a whole number"),
        (lambda b: b.restart(5), "config is 5, not a mapping, TOML text or a path"),
        (lambda b: ServerProcess("", cast("Any", 5)), "config is 5, not a mapping, TOML text or a path"),
        (lambda b: ServerProcess("", {"queue": [{1: 2}]}), r"config.queue\[0\] has the key 1, which is not text"),
        (lambda b: b.restart({"queue": [{1: 2}]}), r"config.queue\[0\] has the key 1, which is not text"),
        (lambda b: evaluate(5, [b""]), "text is 5, not text"),
        (lambda b: evaluate("/a", ["{}"]), "body number 0 is '{}', not bytes"),
        (lambda b: evaluate("/a", None), "bodies are None, not a sequence of them"),
        (lambda b: b.ack_filter("q", 12), "filter is 12, not text"),
        (lambda b: b.sow("q", top_n="x"), "top_n is 'x', not a whole number"),
    ],
)
def test_arguments_of_a_wrong_kind_are_named_with_their_value(work: Callable[[Broker], object], told: str) -> None:
    with Broker(ONE) as broker, pytest.raises(InvalidArgument, match=told):
        work(broker)


# --- time ---------------------------------------------------------------------------------------------------------


def test_time_stands_still_until_it_is_moved() -> None:
    with Broker(ONE) as broker:
        start = broker.now()
        broker.publish("q", b"one")
        assert broker.now() == start
        broker.advance(1.5)
        assert broker.now() == start + 1.5


def test_timers_run_in_order_of_time() -> None:
    """A lease that ends, a delay that is over and an expiration, all within one step of the clock."""
    config: Config = {"queue": [{"name": "q", "lease_period": "10s", "max_deliveries": 2}]}
    with Broker(config) as broker:
        subscription = broker.subscribe("q", max_backlog=10)
        leased = broker.publish("q", b"leased")
        delayed = broker.publish("q", b"delayed", delay=15)
        broker.advance(60)
        times = [
            (event.event, round(event.time - (broker.now() - 60)))
            for mark in (leased, delayed)
            for event in broker.story(mark)
        ]
        assert times == [
            *[("published", 0), ("leased", 0), ("returned", 10), ("leased", 10), ("delivery_limit", 20)],
            *[("published", 0), ("due", 15), ("leased", 15), ("returned", 25), ("leased", 25), ("delivery_limit", 35)],
        ]
        assert [message.body for message in subscription.take()] == [b"leased", b"leased", b"delayed", b"delayed"]


def test_a_fake_clock_never_goes_back() -> None:
    clock = FakeClock()
    clock.advance(5)
    with pytest.raises(ValueError, match="back"):
        clock.advance(-1)
    wall = clock.wall()
    clock.reboot()
    assert (clock.wall(), clock.mono()) == (wall, FakeClock().mono())
    assert FakeClock(wall=7).wall() == 7


# --- crash and restart --------------------------------------------------------------------------------------------


def test_after_a_crash_nothing_works_until_the_restart() -> None:
    with Broker(ONE) as broker:
        broker.publish("q", b"one")
        subscription = broker.subscribe("q")
        [message] = subscription.take()
        broker.crash()
        for command in (lambda: broker.publish("q", b"two"), lambda: broker.stats("q"), message.ack, broker.crash):
            with pytest.raises(Unavailable, match="restart"):
                command()
        assert subscription.take() == []
        subscription.close()
        broker.advance(5)
        broker.restart()
        assert subscription.effective_backlog == 0
        assert not subscription.is_open


def test_grants_that_nobody_waited_for_may_be_lost_in_a_crash_and_the_message_is_redelivered() -> None:
    with Broker(ONE) as broker:
        broker.publish("q", b"one")
        broker.subscribe("q").take()
        broker.crash()
        broker.restart()
        [message] = broker.subscribe("q").take()
        assert message.redelivered
        assert message.attempt in (1, 2)


def test_grants_are_durable_after_a_tenth_of_a_second() -> None:
    with Broker(ONE) as broker:
        broker.publish("q", b"one")
        broker.subscribe("q").take()
        broker.advance(0.1)
        broker.crash()
        broker.restart()
        [message] = broker.subscribe("q").take()
        assert (message.redelivered, message.attempt) == (True, 2)


def test_weaker_sync_may_lose_what_was_confirmed_but_keeps_a_prefix() -> None:
    lost = 0
    for seed in range(20):
        with Broker({**dict(ONE), "server": {"sync": "off"}}, seed=seed) as broker:  # type: ignore[arg-type, dict-item]
            for n in range(5):
                broker.publish("q", f"{n}")
            broker.crash()
            broker.restart()
            left = [message.body for message in broker.subscribe("q", max_backlog=None).take()]
            assert left == [b"%d" % n for n in range(len(left))]
            lost += 5 - len(left)
    assert lost  # else this test shows nothing


def test_a_failed_sync_ends_confirms_until_a_restart() -> None:
    with Broker(ONE) as broker:
        broker.publish("q", b"one")
        broker.disk.fail_next("sync")
        with pytest.raises(LogBroken):
            broker.publish("q", b"two")
        with pytest.raises(LogBroken):
            broker.publish("q", b"three")
        broker.crash()
        broker.restart()
        left = [message.body for message in broker.subscribe("q", max_backlog=None).take()]
        assert left in ([b"one"], [b"one", b"two"])
        assert broker.publish("q", b"four")


def test_an_ack_whose_outcome_is_unknown_is_no_ack() -> None:
    with Broker(ONE) as broker:
        broker.publish("q", b"one")
        [message] = broker.subscribe("q").take()
        broker.disk.fail_next("sync")
        with pytest.raises(LogBroken):
            message.ack()


def test_a_full_disk_breaks_nothing_but_the_publish() -> None:
    disk = SimDisk()
    with Broker(ONE, disk=disk) as broker:
        broker.publish("q", b"one")
        disk.capacity = disk.used() + 1000
        with pytest.raises((DiskFull, LogBroken)):
            broker.publish("q", b"x" * 100_000)
        disk.capacity = 1 << 40
        broker.crash()
        broker.restart()
        assert broker.subscribe("q", max_backlog=None).take()[0].body == b"one"


def test_a_damaged_disk_is_refused() -> None:
    disk = SimDisk()
    with Broker(ONE, disk=disk) as broker:
        for n in range(20):
            broker.publish("q", f"message {n}")
    [segment] = disk.list("log")
    place = disk.files()[f"log/{segment}"].index(b"message 7")
    disk.flip(f"log/{segment}", place * 8)
    with pytest.raises(LogDamaged):
        Broker(ONE, disk=disk)


def test_a_broker_goes_on_where_another_stopped_on_the_same_disk() -> None:
    disk = SimDisk()
    with Broker(ONE, disk=disk) as broker:
        mark = broker.publish("q", b"one")
    with Broker(ONE, disk=disk) as broker:
        [message] = broker.subscribe("q").take()
        assert message.bookmark == mark
        assert disk.list("checkpoints")
    broker.close()  # twice does no harm


def test_old_bodies_are_read_from_the_log() -> None:
    with Broker({**dict(ONE), "server": {"memory": "8MiB"}}) as broker:  # type: ignore[arg-type, dict-item]
        body = bytes(1 << 20)
        for n in range(12):
            broker.publish("q", body + b"%d" % n)
        taken = broker.subscribe("q", max_backlog=None).take()
        assert [message.body[1 << 20 :] for message in taken] == [b"%d" % n for n in range(12)]
        broker.restart()
        again = broker.subscribe("q", max_backlog=5).take()
        assert [message.bookmark for message in again] == [message.bookmark for message in taken[:5]]


# --- evaluate -----------------------------------------------------------------------------------------------------


def test_evaluate_takes_many_bodies() -> None:
    bodies = [b'{"total": 9, "region": "n"}', b'{"total": 1, "region": "n"}', b"{}"]
    assert evaluate("/total > 5 AND /region IN ('n','s')", bodies) == [True, False, None]
    assert evaluate("/total > 5 AND /region IN ('n','s')", bodies, backend="arrow") == [True, False, None]
    with pytest.raises(InvalidArgument, match="abacus"):
        evaluate("/total > 5", bodies, backend="abacus")


def test_the_spark_backend_without_spark_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("penstock.testing.expressions.find_spec", lambda name: None)
    with pytest.raises(SettingsError, match=r"backend spark needs pyspark, .* pip install 'penstock\[spark\]'"):
        evaluate("/total > 5", [b"{}"], backend="spark")
    assert penstock.InvalidArgument is InvalidArgument


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"body": 12}, "body is 12, not text or bytes"),
        ({"priority": "high"}, "priority is 'high'"),
        ({"priority": 999}, r"priority is 999, outside 0\.\.255"),
        ({"delay": -5}, "delay is -5: a duration is not negative"),
        ({"delay": 1e300}, "delay: 1e[+]300 is no duration"),
        ({"delay": True}, "delay is True, not a duration"),
        ({"delay": 1e12}, "delay is .*, which is not between 0 and 1,000 years"),
        ({"expiration": float("nan")}, "expiration: nan is no duration"),
        ({"expiration": "soon"}, "expiration: 'soon' is not a duration"),
        ({"headers": [1]}, r"headers are \[1\]"),
        ({"headers": {"a": object()}}, "field 'a'"),
        ({"headers": {1: 2}}, "field name 1 is not text"),
        ({"headers": {"a": {b"b": 2}}}, "field name b'b' in a is not text"),
        ({"headers": {"a\udcff": 2}}, "lone surrogate"),
        ({"topic": "\udcff"}, "topic is .*, which is no text in UTF-8"),
        ({"topic": "t" * 256}, "the topic has 256 bytes, 255 are allowed"),
        ({"topic": "amq.direct/" + "t" * 256}, "the topic has 256 bytes, 255 are allowed"),
        ({"sequence": 3}, "belong together"),
        ({"publisher": "p"}, "belong together"),
        ({"publisher": "", "sequence": 1}, "publisher is empty"),
        ({"publisher": "p", "sequence": 0}, "sequence is 0"),
        ({"publisher": "p", "sequence": 2**63}, "sequence is 9223372036854775808"),
    ],
)
def test_a_publish_that_no_door_would_take_is_refused_and_harms_nothing(given: dict[str, Any], told: str) -> None:
    with Broker(ONE) as broker:
        whole: dict[str, Any] = {"topic": "q", "body": b"x", **given}
        with pytest.raises(InvalidArgument, match=told):
            broker.publish(**whole)
        broker.publish("q", b"good")
        assert [message.body for message in broker.subscribe("q", max_backlog=None).take()] == [b"good"]
