"""Why a message died: on its dead letter, until it dies again, at every door that shows it, and in both stories."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import dataclass, field

import orjson
import pytest
from tests.http_lab import Http

import penstock
from penstock.cli.main import main
from penstock.records.kinds import Kind
from penstock.server.actions.resuming import Record
from penstock.testing import Broker
from penstock.testing.inbox import Message
from penstock.testing.instance import Instance

DEAD = {"dead_letter_exchange": "", "dead_letter_routing_key": "dead"}


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ("ValueError: a, b", "ValueError: a, b"),
        ("x" * 1500, "x" * 1000),
        ("time_limit", "time_limit"),  # whatever it says, it is no cause
        (None, "rejected"),
    ],
)
def test_the_reason_of_a_reject_is_on_its_dead_letter(said: str | None, told: str) -> None:
    dead = {"name": "dead", "message_ttl": "10s", "dead_letter_exchange": "", "dead_letter_routing_key": "last"}
    config = {"queue": [{"name": "q", **DEAD}, dead, {"name": "last"}]}
    with Broker(config) as broker, penstock.connect(broker.flight_url) as client:
        client.publish("q", b"1", headers={"x-last-death-why": "a stranger's"})
        with client.consume("q", timeout=20) as consumer:
            next(iter(consumer)).reject(reason=said)
            consumer.flush()
        with client.consume("dead", timeout=20) as consumer:
            letter = next(iter(consumer))
            assert letter.reason == told
            assert letter.headers["x-last-death-reason"] == "rejected"
            assert ("x-last-death-why" in letter.headers) is (said is not None)
            letter.release()
            consumer.flush()
        broker.advance(11)
        with client.consume("last", timeout=20) as consumer:
            assert next(iter(consumer)).reason == "expired"


def first(broker: Broker, queue: str) -> Message:
    """The first message of a queue, which stays held."""
    return broker.subscribe(queue).take()[0]


def in_a_transaction(broker: Broker, queue: str) -> None:
    with penstock.connect(broker.flight_url) as client, client.consume(queue, timeout=20) as consumer:
        transaction = client.transaction()
        transaction.reject(next(iter(consumer)), reason=SAID)
        transaction.commit()


@dataclass
class Way:
    """One way to die: by what, in a queue with which settings, and what is told of it."""

    kill: Callable[[Broker, str], object]
    event: str
    cause: str
    settings: dict[str, object] = field(default_factory=dict[str, object])
    said: str = ""


def failed_late(message: Message, broker: Broker) -> None:
    broker.advance(11)
    message.retry(error=SAID)  # it did not die of that


SAID = "ValueError: no stock"
WAYS = {
    "refused": Way(lambda broker, queue: first(broker, queue).reject(SAID), "rejected", "forced_expire", said=SAID),
    "transaction": Way(in_a_transaction, "rejected", "forced_expire", said=SAID),
    "expire": Way(lambda broker, queue: first(broker, queue).expire(), "rejected", "forced_expire"),
    "late": Way(lambda broker, queue: broker.advance(11), "expired", "time_limit", {"message_ttl": "10s"}),
    "cancelled": Way(
        lambda broker, queue: first(broker, queue).cancel(), "delivery_limit", "max_cancels", {"max_cancels": 1}
    ),
    "delivered": Way(
        lambda broker, queue: first(broker, queue).release(), "delivery_limit", "max_deliveries", {"max_deliveries": 1}
    ),
    "failed": Way(
        lambda broker, queue: first(broker, queue).retry(error=SAID),
        "delivery_limit",
        "max_deliveries",
        {"retry": {"attempts": 1}},
        said=SAID,
    ),
    "failed late": Way(
        lambda broker, queue: failed_late(first(broker, queue), broker), "expired", "time_limit", {"message_ttl": "10s"}
    ),
    "crowd": Way(lambda broker, queue: broker.publish(queue, b"y"), "maxlen", "maxlen", {"max_length": 1}),
}


def test_every_door_and_both_stories_tell_why(capsys: pytest.CaptureFixture[str]) -> None:
    queues: list[dict[str, object]] = []
    for name, way in WAYS.items():
        letters = {"dead_letter_exchange": "", "dead_letter_routing_key": f"dead-{name}"}
        queues += [{"name": name, **letters, **way.settings}, {"name": f"dead-{name}"}]
    with Broker({"queue": queues}) as broker, penstock.connect(broker.flight_url) as client:
        for name, way in WAYS.items():
            mark = broker.publish(name, b"x")
            way.kill(broker, name)
            assert broker.stats(name)["expirations"] == {way.cause: 1}
            shown = doors(broker, client, f"dead-{name}", capsys)
            assert shown == dict.fromkeys(shown, way.said or way.event), name
            words = {"reason": way.said, "cause": way.cause} if way.said else {"reason": way.cause}
            died = next(one for one in broker.story(mark) if one.event == way.event)
            assert {key: died.details.get(key) for key in words} == words
            [letter] = died.details["letters"]  # type: ignore[misc]  # bookmarks
            wanted = {"of": mark, "from_queue": name, **words}
            born = broker.story(str(letter))[0].details
            assert {key: born.get(key) for key in wanted} == wanted
            [gone] = broker.explain(name, mark)
            assert gone.code == way.event
            assert (way.said or way.cause) in gone.text


def doors(broker: Broker, client: penstock.Client, queue: str, capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """What each door says of the one message in a queue."""
    http, url = Http(broker), broker.flight_url
    [peeked], [got] = http.get(f"queues/%2F/{queue}/peek"), http.take(queue, mode="reject_requeue_true")
    [message], [row] = client.peek(queue), client.sow(queue)

    def printed(*more: str) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["queue", "peek", queue, "--url", url, *more])
        assert not ended.value.code
        return capsys.readouterr().out

    return {
        "peek over HTTP": peeked["reason"],
        "get over HTTP": got["reason"],
        "peek over Flight": message.reason,
        "sow": row.reason,
        "SQL, queue": client.query(f'SELECT death_reason FROM queue."{queue}"').scalar(),
        "SQL, topic": client.query(f'SELECT death_reason FROM topic."{queue}"').scalar(),
        "peek --json": json.loads(printed("--json"))["reason"],
        "peek": printed().splitlines()[1].removeprefix("  died: "),
        "asyncio": asyncio.run(received(url, queue)),
        "in the process": first(broker, queue).reason,
    }


async def received(url: str, queue: str) -> str | None:
    async with penstock.aio.connect(url) as client, client.consume(queue, timeout=20) as consumer:
        message = await consumer.take()
        assert message is not None
        await message.release()
        return message.reason


def test_a_message_that_is_no_dead_letter_has_no_reason() -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        broker.publish("q", b"x")
        http = Http(broker)
        assert "reason" not in http.get("queues/%2F/q/peek")[0]
        with penstock.connect(broker.flight_url) as client:
            assert client.query("SELECT death_reason FROM q").scalar() is None
            assert client.peek("q")[0].reason is None


def test_the_words_of_consumers_set_off_no_other_action_and_are_told_to_those_that_are() -> None:
    on = {"queue": "q", "event": "expire"}
    told = {"publish": {"topic": "told", "data": "{{AMPS_REASON}}: {{PENSTOCK_WHY}}"}}
    config = {
        "queue": [{"name": "q"}, {"name": "told"}],
        "action": [
            {"name": "forced", "on": {**on, "reason": ["forced_expire"]}, "do": told},
            {"name": "late", "on": {**on, "reason": ["time_limit"]}, "do": told},
        ],
    }
    with Broker(config) as broker:
        for words in ("no stock, time_limit", "time_limit", None):
            broker.publish("q", b"x")
            subscription = broker.subscribe("q")
            subscription.take()[0].reject(words)
            subscription.close()
        assert [one.body.decode() for one in broker.sow("told")] == [
            "forced_expire: no stock, time_limit", "forced_expire: time_limit", "forced_expire: ",
        ]  # fmt: skip


def test_what_is_counted_by_reason_is_a_closed_set() -> None:
    config = {"queue": [{"name": "q", "max_cancels": 1}, {"name": "other"}]}
    with Broker(config) as broker, penstock.connect(broker.flight_url) as client:
        subscription = broker.subscribe("q")
        for number in range(20):
            broker.publish("q", b"x")
            subscription.take()[0].reject(f"order {number}, time_limit, {number}")
        broker.publish("q", b"x")
        subscription.take()[0].cancel()
        subscription.close()
        broker.publish("q", b"x")
        client.move("q", "other")
        assert broker.stats("q")["expirations"] == {"forced_expire": 20, "max_cancels": 1, "moved": 1}


def test_what_was_moved_did_not_expire() -> None:
    with (
        Broker({"queue": [{"name": "q", **DEAD}, {"name": "dead"}, {"name": "other"}]}) as broker,
        penstock.connect(broker.flight_url) as client,
    ):
        moved = broker.publish("q", b"x")
        client.move("q", "other")
        last = broker.story(moved)[-1]
        assert (last.event, last.details["reason"]) == ("moved", "moved")
        rejected = broker.publish("q", b"y")
        subscription = broker.subscribe("q")
        subscription.take()[0].reject("not today")
        subscription.close()
        [letter] = broker.story(rejected)[-1].details["letters"]  # type: ignore[misc]  # bookmarks
        client.redrive("dead")
        last = broker.story(str(letter))[-1]
        assert (last.event, last.details["reason"]) == ("moved", "redriven")
        assert [one.reason for one in client.peek("q")] == [None], "it begins anew"


def test_a_record_from_before_words_and_causes_were_apart_is_told_alike() -> None:
    from penstock.records.causes import told

    assert told({"reason": "ValueError: a"}) == ("forced_expire", "ValueError: a")
    assert told({"reason": "time_limit,max_cancels"}) == ("time_limit,max_cancels", "")
    assert told({"reason": "poison"}) == ("poison", "")
    assert told({"reason": "forced_expire", "why": "time_limit"}) == ("forced_expire", "time_limit")


TELL = {"publish": {"topic": "told", "data": "{{AMPS_REASON}}: {{PENSTOCK_WHY}}"}}


@pytest.mark.parametrize(
    "header", [{"reason": "forced_expire", "why": "no, stock"}, {"reason": "no, stock"}], ids=["apart", "as one"]
)
def test_an_action_that_goes_on_after_a_crash_still_knows_the_words(header: dict[str, object]) -> None:
    config = {
        "queue": [{"name": "q"}],
        "action": [{"name": "late", "on": {"queue": "q", "event": "expire"}, "do": TELL}],
    }
    with Broker(config) as broker:

        def resumed(instance: Instance) -> tuple[str, str]:
            look_back, cause = instance.engine.acts.resuming, instance.core.last_lsn + 1
            rules = instance.core.rules.expire["/", "q"]
            look_back._by_name = {rule.name: rule for _, rule in rules}  # pyright: ignore[reportPrivateUsage] - by a start
            left = orjson.dumps({**header, "left": [["late", 0, [cause - 1, cause]]]})
            [event] = look_back.events_of(Record(cause, Kind.EXPIRE, "q", left, b""))
            return event.reason, event.why

        assert broker.command(resumed) == ("forced_expire", "no, stock")
