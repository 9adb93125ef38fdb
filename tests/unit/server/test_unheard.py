"""Arguments that no queue knows are taken, and the log names them."""

from __future__ import annotations

import pytest

from penstock.config.queue_arguments import QUEUE_ARGUMENTS
from penstock.core.topology.topology import OWN_QUEUES
from penstock.log.simdisk import SimDisk
from penstock.records.declared_types import QUEUE_TYPES
from penstock.server.unheard import AGAIN_US, NAMES_MOST, unknown_arguments
from penstock.wire.amqp import methods as m
from sim.serverkit import Life, clock


def declared(life: Life, *queues: tuple[str, dict[str, object]]) -> None:
    client = life.client()
    for name, arguments in queues:
        client.method(m.QueueDeclare(queue=name, durable=True, arguments=arguments))
    life.run()
    assert all(isinstance(one, m.QueueDeclareOk) for one in client.take_all())


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [one.getMessage() for one in caplog.records if "has no effect" in one.getMessage()]
    caplog.clear()
    return found


def test_a_misspelt_argument_is_named_with_what_may_be_meant(caplog: pytest.LogCaptureFixture) -> None:
    life = Life(SimDisk(), clock())
    declared(life, ("jobs", {"x-max-lenght": 10, "x-mine": 1, "note": "ours", "x-max-length": 5}))
    assert lines(caplog) == [
        (
            "argument 'x-max-lenght' of queue 'jobs' in vhost '/' has no effect: no setting is called that; "
            "did you mean 'x-max-length'?"
        ),
        "argument 'x-mine' of queue 'jobs' in vhost '/' has no effect: no setting is called that",
    ]
    assert life.engine.core.queue("/", "jobs").settings.max_length == 5


def test_a_name_is_told_once_in_a_while_and_few_names_are(caplog: pytest.LogCaptureFixture) -> None:
    life = Life(SimDisk(), clock())
    declared(life, ("a", {"x-mine": 1}), ("b", {"x-mine": 1}), ("a", {"x-mine": 1}))  # the last one is there
    assert len(lines(caplog)) == 1
    declared(life, *((f"q{number}", {f"x-made-up-{number}": 1}) for number in range(2 * NAMES_MOST)))
    assert len(lines(caplog)) == NAMES_MOST - 1
    life.advance(AGAIN_US)
    declared(life, ("c", {"x-mine": 1}))
    assert len(lines(caplog)) == 1


def test_what_some_type_of_queue_knows_is_no_slip() -> None:
    known = {one for kind in QUEUE_TYPES.values() for one in (*kind.idle, *kind.refused) if one.startswith("x-")}
    assert known
    assert unknown_arguments(known, QUEUE_ARGUMENTS) == []


def test_misspelt_arguments_of_an_exchange_are_named(caplog: pytest.LogCaptureFixture) -> None:
    life = Life(SimDisk(), clock())
    client = life.client()
    for arguments in (
        {"alternate_exchange": "rest", "hash-heder": "id", "note": "ours"},
        {"x-alternate-exchange": "rest", "alternate-exchange": "other"},
    ):
        client.method(m.ExchangeDeclare(exchange=f"e{len(arguments)}", durable=True, arguments=arguments))
    life.run()
    assert all(isinstance(one, m.ExchangeDeclareOk) for one in client.take_all())
    where, what = "in vhost '/' has no effect: no setting is called that; did you mean", "alternate-exchange"
    assert lines(caplog) == [
        f"argument 'alternate_exchange' of exchange 'e3' {where} '{what}'?",
        f"argument 'hash-heder' of exchange 'e3' {where} 'hash-header'?",
        f"argument 'x-alternate-exchange' of exchange 'e2' {where} '{what}'?",
    ]


@pytest.mark.parametrize("queue", ["jobs", "^jo"], ids=["of a queue", "of a pattern"])
def test_misspelt_arguments_of_a_consumer_are_named(caplog: pytest.LogCaptureFixture, queue: str) -> None:
    life = Life(SimDisk(), clock())
    declared(life, ("jobs", {}))
    client = life.client()
    given = {"x-priorty": 9, "x-priority": 1, "note": "ours"}
    client.method(m.BasicConsume(queue=queue, consumer_tag="c", arguments=given))
    life.run()
    assert client.take_all() == [m.BasicConsumeOk("c")]
    assert lines(caplog) == [
        (
            f"argument 'x-priorty' of a consumer of queue '{queue}' in vhost '/' has no effect: "
            "no setting is called that; did you mean 'x-priority'?"
        )
    ]


def test_queues_that_the_server_makes_for_exchanges_are_not_told_of(caplog: pytest.LogCaptureFixture) -> None:
    life = Life(SimDisk(), clock())
    client = life.client()
    for own in OWN_QUEUES:
        arguments = {"x-delayed-type": "direct", "x-cache-size": 10}
        client.method(m.ExchangeDeclare(exchange=own.type, type=own.type, durable=True, arguments=arguments))
    life.run()
    assert all(isinstance(one, m.ExchangeDeclareOk) for one in client.take_all())
    assert [life.engine.core.find_queue("/", own.prefix + own.type) is not None for own in OWN_QUEUES] == [True] * 3
    assert lines(caplog) == []
