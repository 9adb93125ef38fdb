"""Streams in log mode: every state a checkpoint can be found in, what is held, and the same rows whatever changes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import StreamingQueryException

import penstock
from choices import EFFORT, spread
from flight_house import FlightHouse
from spark_lab import Lab, forget_last_commit, sentence

COLUMNS = "id bigint, region string, total double"


def forget_last_offset(checkpoint: Path) -> None:
    """As a power cut leaves a checkpoint: neither the last commit nor the last offset is there."""
    last = forget_last_commit(checkpoint)
    for name in (str(last), f".{last}.crc"):
        (checkpoint / "offsets" / name).unlink(missing_ok=True)


def offsets(checkpoint: Path) -> dict[str, dict[str, int]]:
    """The offset of each batch, by its file."""
    found = {path.name: path.read_text() for path in (checkpoint / "offsets").iterdir() if path.name.isdigit()}
    return {name: json.loads(text.splitlines()[-1]) for name, text in found.items()}


class Copy:
    """A stream from one topic into a queue, run again and again."""

    def __init__(self, lab: Lab, name: str, folder: Path) -> None:
        self.lab, self.name, self.checkpoint = lab, name, folder / "checkpoint"
        self.source, self.copy = f"{name}-in", f"{name}-out"
        lab.declare(self.source, self.copy)
        self.progress: list[Any] = []

    def run(self, **options: object) -> None:
        given: dict[str, object] = {"topic": self.source, "stream": self.name, "schema": COLUMNS, **options}
        query = self.lab.write(self.lab.stream(**given).select("id"), self.checkpoint, topic=self.copy)
        self.progress = list(query.recentProgress)

    def rows(self) -> list[int]:
        return [progress["numInputRows"] for progress in self.progress if progress["numInputRows"]]

    @property
    def ids(self) -> list[int]:
        return self.lab.ids(self.copy)


LOST = (forget_last_offset,) if EFFORT == 1 else (forget_last_commit, forget_last_offset)
"""The commit alone is lost in `test_log_mode_goes_on_where_it_stopped`, too."""


@pytest.mark.parametrize("lost", LOST)
def test_a_batch_is_the_same_again_whatever_the_options_are(
    lab: Lab, tmp_path: Path, lost: Callable[[Path], object], effort: int
) -> None:
    for turn in range(1 if effort == 1 else 20):
        copy = Copy(lab, f"again-{lost.__name__}-{turn}", tmp_path / str(turn))
        lab.publish(copy.source, range(100))
        copy.run(maxRowsPerTrigger=60, filter="/id % 2 = 0")
        before = offsets(copy.checkpoint)
        assert copy.rows() == [50]
        lab.publish(copy.source, range(100, 200))
        copy.run(maxRowsPerTrigger=30, filter="/id % 2 = 0")
        assert copy.rows() == [30, 20]
        assert copy.ids == list(range(0, 200, 2))
        # The last batch runs again, with another limit and another filter: its rows and its parts are what they were.
        after = offsets(copy.checkpoint)
        lost(copy.checkpoint)
        lab.publish(copy.source, range(200, 220))
        copy.run(maxRowsPerTrigger=7, minPartitions=5, filter="/id % 3 = 0")
        assert copy.ids == sorted([*range(0, 200, 2), *range(201, 220, 3)])
        assert before.items() <= after.items() <= offsets(copy.checkpoint).items()
        assert copy.rows()[0] == 20


def test_batches_end_where_rows_and_bytes_say(lab: Lab, tmp_path: Path) -> None:
    copy = Copy(lab, "sized", tmp_path)
    for n in range(12):
        lab.client.publish(copy.source, {"id": n, "region": "x" * (1000 if n < 6 else 10), "total": 1.0})
    lab.client.publish(copy.source, {"id": 12, "region": "x" * 9000, "total": 1.0})
    lab.client.publish(copy.source, {"id": 13, "region": "x", "total": 1.0})
    copy.run(maxBytesPerTrigger="3KiB", maxRowsPerTrigger=4)
    assert copy.ids == list(range(14))
    assert copy.rows() == [2, 2, 4, 4, 1, 1], "by bytes, then by rows; a large message goes alone"
    latest = json.loads(copy.progress[-1]["sources"][0]["latestOffset"])
    end = json.loads(copy.progress[-1]["sources"][0]["endOffset"])
    assert latest["lsn"] >= end["lsn"] > 0
    assert end["origin"] == lab.house.log.origin


def test_several_topics_and_a_time(lab: Lab, tmp_path: Path) -> None:
    copy = Copy(lab, "many", tmp_path)
    for n, region in enumerate(("many.eu", "many.us", "many.eu")):
        lab.declare(region)
        lab.publish(region, range(n * 10, n * 10 + 10))
    [first] = lab.read(topic="many.us").selectExpr("min(time)").collect()
    copy.run(topic=r"^many\.", startingTimestamp=str(int(first[0].timestamp() * 1000)), minPartitions=3)
    assert copy.ids == list(range(10, 30))


@pytest.fixture
def small(spark: Any, tmp_path: Path) -> Iterator[Lab]:
    """A server whose log nobody else holds."""
    with FlightHouse(tmp_path / "house", segment=1 << 20) as house, penstock.connect(house.url) as client:
        yield Lab(spark, house, client)


def test_what_retention_has_passed(small: Lab, tmp_path: Path) -> None:
    copy = Copy(small, "passed", tmp_path)
    small.publish(copy.source, range(10))
    copy.run(abandon_after="7d")
    for _ in range(8):
        small.client.publish(copy.source, b'{"id": 1, "pad": "%s"}' % (b"x" * 500_000))
    small.client.purge(copy.source)
    small.client.purge(copy.copy)
    assert small.house.retire(1 << 20) == 1, "held for the stream"
    [stream] = small.client.streams()
    assert (stream["state"], stream["abandon_after_seconds"]) == ("held", 7 * 86_400)
    small.client.release_stream("passed", drop=True)
    first = small.house.retire(1 << 20)
    assert first > 1
    small.publish(copy.source, range(20, 30))
    at = max(offset["lsn"] for offset in offsets(copy.checkpoint).values())
    with pytest.raises(StreamingQueryException) as caught:
        copy.run()
    told = sentence(caught.value)
    assert f"stream 'passed' is at LSN {at}, and retention has removed what lies before LSN {first}" in told
    assert "failOnDataLoss" in told
    copy.run(failOnDataLoss="false", filter="/id >= 20")
    assert copy.ids == list(range(20, 30))


def test_lost_checkpoints_and_checkpoints_of_others(lab: Lab, tmp_path: Path) -> None:
    copy = Copy(lab, "lost", tmp_path)
    lab.publish(copy.source, range(10))
    copy.run(startingBookmark="EPOCH")
    lab.publish(copy.source, range(10, 20))
    copy.run(startingBookmark="EPOCH")
    # Without its checkpoint a query begins with the last range, which may not have been done.
    shutil.rmtree(copy.checkpoint)
    lab.client.purge(copy.copy)
    lab.publish(copy.source, range(20, 30))
    copy.run(startingBookmark="MOST_RECENT")
    assert copy.ids == list(range(10, 30))
    # A checkpoint of another log is told.
    [last] = [
        path for path in (copy.checkpoint / "offsets").iterdir() if path.name == str(len(offsets(copy.checkpoint)) - 1)
    ]
    mine = last.read_text()
    last.write_text(mine.replace(str(lab.house.log.origin), "77"))
    (last.parent / f".{last.name}.crc").unlink(missing_ok=True)
    with pytest.raises(StreamingQueryException) as caught:
        copy.run()
    assert "of log 77, and this server has log" in sentence(caught.value)
    # So is one of a query that read something else: what lies before its LSN would be passed over.
    last.write_text(mine)
    others = {"topic": "lost-other"}, {"topic": "^lost-.*"}, {"topic": copy.source, "exchange": "amq.topic"}
    for asked in spread(others, 2):
        with pytest.raises(StreamingQueryException) as caught:
            copy.run(**asked)
        told = sentence(caught.value)
        assert "belongs to a query that reads topic 'lost-in' in vhost '/', and this one reads topic" in told
        assert repr(asked["topic"]) in told
    with pytest.raises(StreamingQueryException) as caught:
        copy.run(stream="lost-else")  # as when two streams of a query have changed places
    assert "is no place of stream 'lost-else' in mode log" in sentence(caught.value)
    # Filters may change, and checkpoints of before say nothing of what was read.
    place = json.loads(mine.splitlines()[-1])
    assert (place.pop("reads"), place.pop("stream")) == ("topic 'lost-in' in vhost '/'", "lost")
    last.write_text("\n".join([*mine.splitlines()[:-1], json.dumps(place, separators=(",", ":"))]))
    lab.publish(copy.source, range(30, 40))
    copy.run(filter="/id >= 35")
    assert copy.ids == [*range(10, 30), *range(35, 40)]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"endingBookmark": "NOW"}, "option endingBookmark has no effect in a stream in mode log"),
        ({"startingBookmark": "[EPOCH:NOW)"}, "has an end, and a stream has none"),
        ({"startingBookmark": "5|7|"}, "comes from another log"),
        ({"abandon_after": "soon"}, "option abandon_after"),
    ],
)
def test_what_cannot_be_is_refused(lab: Lab, tmp_path: Path, options: dict[str, str], told: str) -> None:
    lab.declare("refused-in")
    with pytest.raises(Exception, match="penstock|abandon_after|bookmark") as caught:
        lab.write(lab.stream(topic="refused-in", stream="refused", **options).select("body"), tmp_path, topic="sink")
    assert told in str(caught.value)
