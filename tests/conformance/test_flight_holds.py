"""Over Flight: holds of readers, and replays of one topic that use the indexes of closed segments."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.errors import InvalidArgument
from penstock.log.name_index import build
from penstock.server.upkeep.retention import HOLD_US

pytestmark = pytest.mark.conformance


def test_a_hold_keeps_the_log_for_ten_minutes_after_it_was_asked_for_last(tmp_path: Path) -> None:
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        client.declare("q")
        assert house.run(house.engine.held) > 2
        said = client.action("hold", with_vhost=False, read="r1", start=2)
        assert said == {"seconds": 600, "kept": False, "first": 1, "floor": 0}
        assert house.run(house.engine.held) == 2
        house.clock.ahead += HOLD_US - 60_000_000
        assert client.action("hold", with_vhost=False, read="r1", start=9)["kept"]
        house.clock.ahead += 120_000_000
        assert house.run(house.engine.held) == 2
        client.action("hold", with_vhost=False, read="r1", release=True)
        assert house.run(house.engine.held) > 2
        with pytest.raises(InvalidArgument):
            client.action("hold", with_vhost=False, start=2)


def test_a_replay_of_one_topic_reads_what_has_it(tmp_path: Path) -> None:
    with FlightHouse(tmp_path, segment=64 * 1024) as house, penstock.connect(house.url) as client:
        for n in range(4):
            client.declare(f"t{n}")
        for n in range(40):
            client.publish_table(f"t{n % 4}", pa.table({"body": [b"%d-%d" % (n, k) + b"x" * 200 for k in range(20)]}))
        before = {topic: list(client.replay(topic, bookmark="EPOCH")) for topic in ("t1", "none")}
        for first in house.log.unindexed():
            assert build(house.log.disk, first)
        read = list[tuple[str, int]]()
        decode = house.log._reader._decode

        def watched(segment: object, number: int) -> object:
            read.append((str(segment), number))
            return decode(segment, number)  # type: ignore[arg-type]

        house.log._reader._decode = watched  # type: ignore[assignment,method-assign]
        for topic, messages in before.items():
            read.clear()
            now = list(client.replay(topic, bookmark="EPOCH"))
            assert [(one.lsn, one.body) for one in now] == [(one.lsn, one.body) for one in messages]
            assert len(read) <= (10 if topic == "t1" else 0) + 4
        assert len(before["t1"]) == 200
