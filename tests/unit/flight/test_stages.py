"""Stages that nobody commits go after a day, in a thread: however long their removal takes, the loop goes on.

What a stage's file says of itself is believed where it is of its kind: the sums may be right all the same.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import asdict, replace
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from flight_house import FlightHouse
from penstock.client import Client
from penstock.log.simdisk import SimDisk
from penstock.ports import Disk
from penstock.server.flight import sink_stages as stages_of
from penstock.server.flight.door import SWEEP_BEATS
from penstock.server.flight.stage_files import FOLDER, StageInfo, StageWriter, info_of, path_of
from waiting import eventually

HOUR_US = 3_600_000_000


@pytest.fixture
def house(tmp_path: Path) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path / "data") as made:
        yield made


@pytest.fixture
def client(house: FlightHouse) -> Iterator[Client]:
    with penstock.connect(house.url) as made:
        made.declare("out")
        yield made


class Slow:
    """Removal of files that ends when it is told to."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.threads: list[threading.Thread] = []
        self.go_on = threading.Event()
        self._real = stages_of.discard
        monkeypatch.setattr(stages_of, "discard", self._discard)

    def _discard(self, disk: Disk, path: str) -> None:
        self.threads.append(threading.current_thread())
        assert self.go_on.wait(30)
        self._real(disk, path)


def stage(client: Client, batch: int) -> str:
    made = client.stage("q", batch, 0, 0, [pa.record_batch({"body": [b"%d" % batch]})], topic="out")
    assert made is not None
    return made[0]


def sweep(house: FlightHouse) -> None:
    """As many seconds as it takes."""
    for _ in range(SWEEP_BEATS):
        house.beat()


def test_old_ones_go_while_the_loop_goes_on(
    house: FlightHouse, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Slow(monkeypatch)
    old = [stage(client, batch) for batch in (1, 2)]
    held = stage(client, 3)
    house.door.stages.hold([held])
    house.clock.ahead += 20 * HOUR_US
    young = stage(client, 4)
    house.clock.ahead += 5 * HOUR_US
    before = house.door.stages.used
    for _ in range(SWEEP_BEATS - 1 - house.door._beats % SWEEP_BEATS):
        house.beat()
    assert slow.threads == []
    house.beat()
    eventually(lambda: len(slow.threads) == 1, "the removal began")
    [sweeper] = slow.threads
    assert sweeper.name == "penstock-stage-sweep"
    assert sweeper.daemon  # a removal that hangs keeps no server from ending
    client.publish("out", b"meanwhile")
    assert client.queue("out")["ready"] == 1
    sweep(house)  # the next one finds what the first has not got to
    eventually(lambda: len(slow.threads) == 2, "the second found the other")
    assert {one["stage"] for one in client.action("stages")["stages"]} == {held, young}
    few = client.action("stages", limit=1)
    assert ([one["stage"] for one in few["stages"]], few["left_off"]) == ([held], 1), "the oldest first"
    slow.go_on.set()
    folder = house.folder / "stage"
    eventually(lambda: {path.stem for path in folder.iterdir()} == {held, young}, "the files are gone")
    eventually(lambda: not any(one.is_alive() for one in slow.threads), "both have ended")
    assert len(slow.threads) == len(old)
    assert house.door.stages.used == sum(one.bytes for one in house.door.stages.known()) < before
    house.door.stages.release([held])
    sweep(house)
    eventually(lambda: [path.stem for path in folder.iterdir()] == [young], "what nobody holds goes with the next")
    client.action("sink_commit", query="q", batch=4, stages=[young])
    assert [message.body for message in client.peek("out")] == [b"meanwhile", b"4"]


def test_a_backup_keeps_all_of_them(house: FlightHouse, client: Client) -> None:
    name = stage(client, 1)
    house.clock.ahead += 25 * HOUR_US
    house.door.stages.freeze()
    assert house.door.stages.sweep() == 0
    house.door.stages.thaw()
    assert house.door.stages.sweep() == 1
    assert client.action("stages") == {"stages": [], "left_off": 0, "bytes": 0, "quota": house.door.stages.quota}
    assert not (house.folder / "stage" / f"{name}.arrows").exists()


def test_a_start_sweeps_what_an_earlier_one_left_only_once_it_looked(tmp_path: Path) -> None:
    """The folder is looked at with the first call that needs it, never by the beat."""
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        client.declare("out")
        name = stage(client, 1)
    with FlightHouse(tmp_path) as house, penstock.connect(house.url) as client:
        house.clock.ahead += 25 * HOUR_US
        assert house.door.stages.sweep() == 0
        assert [one["stage"] for one in client.action("stages")["stages"]] == [name]
        assert house.door.stages.sweep() == 1


SOUND = StageInfo("q", 1, 2, 3, None, "", "/", user="ann", time=5)


@pytest.mark.parametrize("wrong", [{}, {"user": ["ann"]}, {"batch": "1"}, {"topic": 7}, {"delta": 0}, {"time": None}])
def test_a_stage_that_says_what_none_says_is_none(wrong: dict[str, object]) -> None:
    disk = SimDisk()
    disk.mkdir(FOLDER)
    writer = StageWriter(disk, path_of("part"), pa.schema({"body": pa.binary()}), replace(SOUND, **wrong))  # type: ignore[arg-type]
    writer.add(pa.record_batch({"body": pa.array([b"x"])}))
    writer.finish(path_of("whole"))
    found = info_of(disk, path_of("whole"))
    if wrong:
        assert found is None
    else:
        assert found is not None
        assert {**asdict(found), "rows": 0, "bytes": 0, "crc": 0} == asdict(SOUND)
