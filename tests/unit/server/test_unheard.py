"""Arguments that no queue knows are taken, and the log names them."""

from __future__ import annotations

import pytest

from penstock.config.queue_arguments import unknown_arguments
from penstock.log.simdisk import SimDisk
from penstock.records.declared_types import QUEUE_TYPES
from penstock.server.unheard import AGAIN_US, NAMES_MOST
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
    assert list(unknown_arguments(known)) == []
