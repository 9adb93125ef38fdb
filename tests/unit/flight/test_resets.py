"""A pipeline begins anew whatever became of its stream: what is settled then is what its outputs have got."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from flight_house import FlightHouse
from penstock import connect
from penstock.spark.checkpoint import Checkpoint
from penstock.spark.pipelines import reset
from penstock.spark.pipelines.folders import Place
from penstock.spark.remote import Where, remote
from pipeline_lab import define

QUERY = "4e5a0c0e-0000-4000-8000-000000000001"


class Stopped:
    """A pipeline over `q` that has committed Spark's batch 1, which ends at batch 2 of its stream."""

    def __init__(self, where: Where, folder: Path, origin: int) -> None:
        self.definition = define(name="p", to=[{"topic": "out"}], sql="SELECT 1 AS x", **{"from": {"queue": "q"}})
        self.where, self.place, self.checkpoint = where, Place(where, folder), Checkpoint(folder / "p")
        offset = json.dumps({"batch": 2, "stream": "p", "origin": origin})
        for name, text in (("metadata", json.dumps({"id": QUERY})), ("offsets/1", f"v1\n{{}}\n{offset}")):
            file = folder / "p" / name
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)

    def old_manifest(self) -> None:
        return None


@pytest.mark.parametrize(
    ("meanwhile", "acked"),
    [("nothing", 2), ("the queue was made again", 0), ("the stream was dropped", 1), ("another log", 1)],
)
def test_a_pipeline_begins_anew_whatever_became_of_its_stream(tmp_path: Path, meanwhile: str, acked: int) -> None:
    with FlightHouse(tmp_path / "s") as house, connect(house.url) as client:
        where = Where(house.url)
        server = remote(where)

        def opened() -> dict[str, Any]:
            return server.act("stream_open", stream="p", vhost="/", queue="q", mode="queue")

        client.declare("q")
        client.publish("q", b"1")
        client.publish("q", b"2")
        epoch = opened()["epoch"]
        for start in range(2):
            server.act("plan", stream="p", epoch=epoch, start=start, max_rows=1)
        server.act("sink_commit", query=QUERY, batch=1, stages=[])
        if meanwhile == "the queue was made again":
            client.delete("q")
            client.declare("q")
            client.publish("q", b"3")
        elif meanwhile == "the stream was dropped":
            client.release_stream("p", drop=True)
        if meanwhile.startswith("the"):
            server.act("plan", stream="p", epoch=opened()["epoch"], start=0, max_rows=1)  # as a try to go on does
        pipeline = Stopped(where, tmp_path, house.log.origin + (meanwhile == "another log"))
        reset.ask(tmp_path, "p", keep_place=False)
        reset.carry_out(cast("reset.Resettable", pipeline))
        assert not reset.request_of(tmp_path, "p").exists()
        assert not (tmp_path / "p").exists()
        assert client.streams() == []
        told = client.queue("q")
        assert (told["acked"], told["leased"]) == (acked, 0)
        assert told["ready"] == (0 if meanwhile == "nothing" else 1)
