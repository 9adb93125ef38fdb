"""A recovery point that is a time is looked up in the log, and the loop does not wait for that."""

from __future__ import annotations

import threading
from datetime import UTC, datetime

import pytest

import penstock
from penstock.history import spans
from penstock.server.opening import apply_settings, new_times
from penstock.testing import Broker
from sim.serverkit import Life, SimDisk, clock, load


def test_alter_with_a_time_reads_the_log_in_the_threads_of_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    readers = list[str]()
    with (
        Broker(config={"queue": [{"name": "q", "recovery_point": "epoch"}]}) as broker,
        penstock.connect(broker.flight_url) as client,
    ):
        for number in range(3):
            broker.publish("q", b"%d" % number)
            broker.advance(60.0)
        middle = datetime.fromtimestamp(broker.now() - 90, UTC).isoformat()
        look = spans.lsn_at

        def watched(log: spans.Kept, time: int) -> int:
            readers.append(threading.current_thread().name)
            return look(log, time)

        monkeypatch.setattr(spans, "lsn_at", watched)
        client.alter("q", recovery_point=middle)
        assert [message.body for message in broker.sow("q")] == [b"2"]
        assert len(readers) == 1
        assert readers != ["penstock-broker"]
        with pytest.raises(penstock.PenstockError, match="recovery_point"):
            client.alter("q", recovery_point="yesterday")


def test_a_start_looks_new_times_up_before_its_loop_has_them() -> None:
    then = datetime(2026, 11, 20, tzinfo=UTC)
    queues = [{"name": "q", "recovery_point": "epoch"}, {"name": "same", "recovery_point": then.isoformat()}]
    old = load({"queue": queues})
    life = Life(SimDisk(), clock())
    apply_settings(life.core, old, life.engine.now)
    new = load(
        {"queue": [{"name": name, "recovery_point": then.isoformat()} for name in ("q", "same", "new")]},
    )
    assert new_times(life.core, new) == {int(then.timestamp() * 1_000_000)}
    assert new_times(life.core, old) == set()
    asked = list[int]()
    life.core.lsn_at = lambda time: asked.append(time) or 0  # type: ignore[func-returns-value]
    apply_settings(life.core, new, life.engine.now, dict.fromkeys(new_times(life.core, new), 1))
    assert asked == []
