"""Elements of a queue in an AMPSConfig file: what may be left out, what must not be, and what cannot stand together."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from penstock.cli.main import main
from penstock.config.load import load_file
from penstock.errors import SettingsError
from penstock.records.queue_settings import QueueSettings
from penstock.testing import Broker
from penstock.testing.process import Config
from scenario import Worker, amqp, bodies, broker_of, publish, waiting

QUEUE = "<Name>q</Name><MessageType>json</MessageType>"
MANY = 1200


def written(tmp_path: Path, *elements: str, tag: str = "Queue", inside: str = QUEUE) -> str:
    """A file with one queue, each of these elements on a line of its own from line 3 on."""
    file = tmp_path / "amps.xml"
    lines = ["<AMPSConfig><SOW>", f"<{tag}>{inside}", *elements, f"</{tag}></SOW></AMPSConfig>"]
    file.write_text("\n".join(lines))
    return str(file)


def settings_of(file: str) -> QueueSettings:
    return load_file(file, environ={}).queue[0].settings


def complaint(file: str) -> str:
    """Of one mistake, from the line on."""
    with pytest.raises(SettingsError) as caught:
        load_file(file, environ={})
    return str(caught.value).removeprefix(f"{file}:")


# --- what is left out -----------------------------------------------------------------------------------------------


def test_a_queue_of_an_amps_file_has_the_defaults_of_the_reference(tmp_path: Path) -> None:
    with Broker(written(tmp_path)) as broker:
        for n in range(MANY):
            broker.publish("q", b'{"isSyncPoint": 1, "n": %d}' % n)
        stats = broker.stats("q")
        assert (stats["queue_depth"], stats["inactive"]) == (MANY, 0)  # no TargetQueueDepth, Filter or barrier
        workers = [broker.subscribe("q", max_backlog=5) for _ in range(MANY)]
        assert [worker.effective_backlog for worker in workers[:3]] == [1, 1, 1]  # MaxPerSubscriptionBacklog
        held = [message for worker in workers for message in worker.take()]
        assert [message.json()["n"] for message in held] == list(range(MANY))  # no MaxBacklog, in order, each to one
        assert {message.lease_until for message in held} == {None}
        assert {message.topic for message in held} == {"q"}  # UnderlyingTopic


def test_there_is_no_barrier_without_an_expression() -> None:
    with broker_of({"name": "q"}) as broker:
        one, other = (broker.subscribe("q", max_backlog=5, name=name) for name in ("one", "other"))
        broker.publish("q", b'{"n": 1}')
        broker.publish("q", b'{"isSyncPoint": 1}')
        assert sorted(bodies([*one.take(), *other.take()])) == [b'{"isSyncPoint": 1}', b'{"n": 1}']


def test_one_message_at_a_time_is_the_default_of_amps_files_alone(tmp_path: Path) -> None:
    texts = [str(n) for n in range(5)]
    with broker_of({"name": "q"}) as broker, amqp(broker) as channel:
        publish(channel, "q", *texts)
        assert [body.decode() for _, body in Worker(channel, "q").take(5)] == texts
    with Broker(written(tmp_path)) as broker, amqp(broker) as channel:
        publish(channel, "q", *texts)
        worker = Worker(channel, "q", prefetch=10)
        [(method, body)] = worker.take(1)
        assert (body, worker.nothing()) == (b"0", True)
        channel.basic_ack(method.delivery_tag)
        assert worker.take(1)[0][1] == b"1"


def test_the_log_is_read_from_its_beginning_by_queues_of_amps_files_alone(tmp_path: Path) -> None:
    theirs = written(tmp_path, "<UnderlyingTopic>Work</UnderlyingTopic>")
    ours: Config = {"queue": [{"name": "q", "underlying_topic": "Work"}]}
    for config, expected in ((theirs, [b"old", b"new"]), (ours, [b"new"])):
        with broker_of(topic=[{"name": "Work"}]) as broker:
            broker.publish("Work", b"old")
            broker.restart(config)
            broker.publish("Work", b"new")
            assert waiting(broker, "q") == expected


@pytest.mark.parametrize("element", ["<MaxDeliveries>0</MaxDeliveries>", "<MaxCancels>0</MaxCancels>", ""])
def test_no_limit_of_deliveries_and_cancels_is_zero_or_nothing(tmp_path: Path, element: str) -> None:
    with Broker(written(tmp_path, element)) as broker:
        broker.publish("q", b"one")
        worker = broker.subscribe("q")
        for _ in range(50):
            [message] = worker.take()
            assert message.cancel()
        assert bodies(worker.take()) == [b"one"]


# --- what must be there, and what may not ---------------------------------------------------------------------------


def test_a_queue_needs_its_name_and_its_message_type(tmp_path: Path) -> None:
    assert complaint(written(tmp_path, inside="<MessageType>json</MessageType>")) == "2: <Queue>: has no <Name>"
    assert complaint(written(tmp_path, inside="<Name>q</Name>")) == '2: <Queue> "q": has no <MessageType>'


def test_topic_is_taken_for_the_name_where_there_is_none(tmp_path: Path) -> None:
    with Broker(written(tmp_path, inside="<Topic>q</Topic><MessageType>json</MessageType>")) as broker:
        broker.publish("q", b"{}")
        assert bodies(broker.subscribe("q").take()) == [b"{}"]
    assert complaint(written(tmp_path, "<Topic>q</Topic>")) == (
        '3: <Topic> of <Queue> "q": says the same as <Name> (line 2)'
    )


@pytest.mark.parametrize("element", ["MaxBacklog", "MaxPerSubscriptionBacklog"])
def test_a_backlog_without_limit_is_left_out_and_not_zero(tmp_path: Path, element: str) -> None:
    said = f'3: <{element}> of <Queue> "q": 0 is not in 1..9007199254740991'
    assert complaint(written(tmp_path, f"<{element}>0</{element}>")) == said


def test_check_tells_the_line_of_a_filter_that_cannot_be_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = written(tmp_path, "<LeasePeriod>1s</LeasePeriod>", "<Filter>/total &gt;</Filter>")
    with pytest.raises(SystemExit) as caught:
        main(["check", file])
    assert caught.value.code == 2
    assert f'{file}:4: <Filter> of <Queue> "q": the expression ends' in capsys.readouterr().err


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("<Priority>/p</Priority>", "<BarrierExpression>/b = 1</BarrierExpression>"),
        ("<Priority>/p</Priority>", "<TargetQueueDepth>1000</TargetQueueDepth>"),
        ("<BarrierExpression>/b = 1</BarrierExpression>", "<TargetQueueDepth>1000</TargetQueueDepth>"),
    ],
)
@pytest.mark.parametrize("turned", [False, True])
def test_priority_barrier_and_depth_cannot_stand_together(
    tmp_path: Path, first: str, second: str, turned: bool
) -> None:
    upper, lower = (second, first) if turned else (first, second)
    one, other = (text[1 : text.index(">")] for text in (upper, lower))
    assert complaint(written(tmp_path, upper, lower)) == (
        f'4: <{other}> of <Queue> "q": cannot stand beside <{one}> (line 3)'
    )
    assert settings_of(written(tmp_path, upper)) != settings_of(written(tmp_path, lower))


def test_the_elements_are_the_same_whatever_the_tag(tmp_path: Path) -> None:
    elements = (
        "<UnderlyingTopic>^a</UnderlyingTopic><DefaultPublishTarget>ab</DefaultPublishTarget>",
        "<LeasePeriod>30s</LeasePeriod><Semantics>at-least-once</Semantics><FairnessModel>fast</FairnessModel>",
        "<MaxBacklog>9</MaxBacklog><MaxPerSubscriptionBacklog>3</MaxPerSubscriptionBacklog><Leasing>strict</Leasing>",
        "<Expiration>2h</Expiration><ExpirationModel>latest</ExpirationModel><Filter>/n = 1</Filter>",
        "<RecoveryPoint>now</RecoveryPoint><DeferredAckExpiration>15m</DeferredAckExpiration>",
        "<MaxDeliveries>4</MaxDeliveries><MaxCancels>2</MaxCancels><FileBackedMetadata>enabled</FileBackedMetadata>",
        "<TargetQueueDepth>2000</TargetQueueDepth>",
    )
    tags = {"Queue": "", "QueueDefinition": "", "LocalQueue": "", "GroupLocalQueue": "<InitialOwner>one</InitialOwner>"}
    of = {tag: settings_of(written(tmp_path, *elements, tag=tag, inside=QUEUE + more)) for tag, more in tags.items()}
    assert [one.kind for one in of.values()] == ["distributed", "distributed", "local", "group-local"]
    first = of["Queue"]
    assert (first.max_backlog, first.target_queue_depth, first.leasing) == (9, 2000, "strict")
    assert [replace(one, kind=first.kind, initial_owner=None) for one in of.values()] == [first] * 4


@pytest.mark.parametrize("none", ["0", "0s", "disabled"])
def test_early_acks_may_be_kept_for_no_time(tmp_path: Path, none: str) -> None:
    told = settings_of(written(tmp_path, f"<DeferredAckExpiration>{none}</DeferredAckExpiration>"))
    assert told.deferred_ack_expiration == 0


# --- topics ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("pattern", ["^a", "a.b$", "a*b", "a+b", "a?b", "(a)b", "[a]b", "a{1}b", "x|a", r"\Aa"])
def test_what_makes_a_topic_a_pattern(tmp_path: Path, pattern: str) -> None:
    queue = f"<UnderlyingTopic>{pattern}</UnderlyingTopic>"
    assert "is a pattern, so <Queue> needs a <DefaultPublishTarget>" in complaint(written(tmp_path, queue))


def test_a_dot_alone_makes_no_pattern_and_a_pattern_is_not_anchored(tmp_path: Path) -> None:
    with Broker(written(tmp_path, "<UnderlyingTopic>a.b</UnderlyingTopic>")) as broker:
        assert broker.publish("axb", b"{}") == ""
        assert broker.publish("a.b", b"{}")
    pattern = "<UnderlyingTopic>b+</UnderlyingTopic><DefaultPublishTarget>b</DefaultPublishTarget>"
    with Broker(written(tmp_path, pattern)) as broker:
        assert broker.publish("abc", b"{}")
        assert broker.publish("ac", b"{}") == ""


@pytest.mark.parametrize("setting", ["expiration", "message_ttl"])
@pytest.mark.parametrize(("before", "after"), [(None, "1s"), ("1s", "1h")])
def test_another_expiration_is_for_what_comes_from_then_on(setting: str, before: str | None, after: str) -> None:
    with Broker({"queue": [{"name": "q"} | ({setting: before} if before else {})]}) as broker:
        broker.publish("q", b"old")
        broker.alter("q", **{setting: after})
        broker.publish("q", b"new")
        broker.advance(2.0)
        assert [one.body for one in broker.sow("q")] == [b"old" if before is None else b"new"]
