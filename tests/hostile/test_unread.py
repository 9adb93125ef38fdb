"""Reads of which nothing is read: what the server has of each of them is little, whatever is read."""

from __future__ import annotations

import time
from collections.abc import Iterator

import orjson
import pyarrow as pa
import pytest

import penstock
from choices import spread
from hostile.flight_wire import FlightWire, ticket
from hostile.pressing import Pressed
from hostile.watching import MIB, Bounds, Watched

READERS = 16
ROWS, SIZE = 1000, 20_000
STANDS_S = 0.5
"""What is on its way to who stands has come so far by then."""

READS = (
    {"replay": {"topic": "large", "bookmark": "EPOCH"}},
    {"replay": {"topic": "large", "bookmark": "EPOCH", "follow": True}},
    {"queue": {"name": "large"}},
    {"sow": {"topic": "records"}},
    {"subscribe": {"topic": "records"}},
)

RISES_MOST = 200 * MIB
"""Before, each kind but two took 282 MiB and more; now it is 80 to 145, as the arenas of the C library come to be."""


@pytest.fixture(scope="module")
def pressed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pressed]:
    with Pressed(tmp_path_factory.mktemp("unread")) as pressed:
        with penstock.connect(f"penstock://{pressed.server.ready['flight']}") as client:
            client.declare("large")
            client.declare_topic("records", key=["/id"])
            for topic in ("large", "records"):
                bodies = [orjson.dumps({"id": row, "pad": "x" * SIZE}) for row in range(ROWS)]
                client.publish_table(topic, pa.table({"body": pa.array(bodies, pa.binary())}))
        yield pressed


@pytest.mark.parametrize("read", spread(READS, 3), ids=lambda read: "-".join(map(str, read)) + str(len(str(read))))
def test_who_reads_nothing_takes_little_of_the_server(pressed: Pressed, read: dict[str, object]) -> None:
    """Each had a batch of 16 MiB or more, two or three times: 56 subscriptions took 2.7 GB with a budget of 64 MiB."""
    bounds = Bounds(memory=RISES_MOST)
    with FlightWire(pressed.server.ready["flight"]) as wire:
        assert pressed.server.process is not None
        with Watched(pressed.server.process.pid) as seen:
            begun = [wire.opened("DoGet", iter((ticket(orjson.dumps(read)),))) for _ in range(READERS)]
            for one in begun:  # it has begun, and stands from now on
                next(one)
                next(one)
            time.sleep(STANDS_S)
            seen.judge(bounds)
            for one in begun:
                one.cancel()


def test_all_of_it_comes_to_who_reads(pressed: Pressed) -> None:
    with penstock.connect(f"penstock://{pressed.server.ready['flight']}") as client:
        for found in (client.peek("large", ROWS), client.sow("records"), client.replay("large", "EPOCH")):
            assert sorted(one.json()["id"] for one in found) == list(range(ROWS))
