"""A log with a wait that no date and no whole number of a checkpoint holds, as was written before waits had a limit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.core.effects import Verb
from penstock.core.queue.settling import settle
from penstock.testing import Broker
from penstock.units import LATEST

Start = Callable[[Broker], None]


def crashed(broker: Broker) -> None:
    broker.crash()
    broker.restart()


@pytest.mark.parametrize("delay", [LATEST, 2**62, 2**63 - 1])
@pytest.mark.parametrize("start", [crashed, Broker.restart], ids=["after a crash", "after a stop"])
def test_the_log_is_opened_and_checkpoints_are_written(
    delay: int, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        late, _ = broker.publish("q", b"late"), broker.publish("q", b"next")
        one = broker.subscribe("q", max_backlog=2)
        held, acked = one.take()
        monkeypatch.setattr(settle, "LATEST", 1 << 64)
        assert one.settle(held, Verb.CANCEL, delay)
        monkeypatch.undo()
        assert acked.ack()
        crashed(broker)  # only the rows tell
        for _ in range(2):
            assert (broker.stats("q")["delayed"], broker.stats("q")["ready"]) == (1, 0)
            assert [reason.code for reason in broker.explain("q", late)] == ["delayed"]
            assert "returned" in [event.event for event in broker.story(late)]
            start(broker)  # of the second time a checkpoint, if there is one
        broker.advance("8000w")
        assert broker.subscribe("q").take() == []
        assert broker.cancel_message(late) == ["q"]


@pytest.mark.parametrize("delay", [LATEST, 2**63 - 1])
def test_none_is_written_any_more(delay: int) -> None:
    with Broker({"queue": [{"name": "q"}]}) as broker:
        late, one = broker.publish("q", b"late"), broker.subscribe("q")
        assert one.settle(one.take()[0], Verb.CANCEL, delay)
        assert broker.story(late)[-1].details["not_before"] == pytest.approx(LATEST / 1e6)
        broker.restart()
        assert broker.stats("q")["delayed"] == 1
