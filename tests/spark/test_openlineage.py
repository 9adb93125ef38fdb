"""OpenLineage events as a receiver gets them: the shape that the specification 2.0.2 asks for."""

from __future__ import annotations

import json
import re
import socketserver
import threading
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from pyspark.errors import StreamingQueryException

from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.openlineage import Target, Teller, transport_to
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.pipelines.running import Running
from penstock.spark.remote import Where
from spark_lab import Lab

KINDS = {"START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"}


class Receiver(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        self.events: list[tuple[str, dict[str, Any]]] = []
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()


class Handler(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Content-Type"] == "application/json"
        self.server.events.append((self.path, json.loads(body)))
        self.send_response(201)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


def check(event: dict[str, Any]) -> None:
    """What the schema of a RunEvent requires of it."""
    assert event["eventType"] in KINDS
    assert datetime.fromisoformat(event["eventTime"]).tzinfo is not None
    assert urlsplit(event["producer"]).scheme
    assert re.fullmatch(r"https://openlineage.io/spec/[\d-]+/OpenLineage.json#/\$defs/RunEvent", event["schemaURL"])
    assert str(uuid.UUID(event["run"]["runId"])) == event["run"]["runId"]
    assert event["job"]["namespace"]
    assert event["job"]["name"]
    facets = [*event["run"]["facets"].values(), *event["job"]["facets"].values()]
    for dataset in (*event["inputs"], *event["outputs"]):
        assert isinstance(dataset["namespace"], str)
        assert isinstance(dataset["name"], str)
        facets += [*dataset["facets"].values(), *dataset.get("outputFacets", {}).values()]
    for facet in facets:
        assert urlsplit(facet["_producer"]).scheme
        assert urlsplit(facet["_schemaURL"]).scheme


def finish(lab: Lab, running: Running, teller: Teller) -> None:
    now = 0.0
    while not running.is_over:
        running.look(lab.spark, now := now + 1.0)
        teller.look(running)
        if running.query is not None:
            with suppress(StreamingQueryException):  # `Running` finds out by itself
                running.query.awaitTermination(0.2)
    teller.look(running)


def test_events_of_a_run_and_of_a_failure(lab: Lab, tmp_path: Path) -> None:
    lab.declare("flights", "eu")
    lab.publish("flights", range(8))
    receiver = Receiver()
    target = Target(f"http://127.0.0.1:{receiver.server_address[1]}")
    teller = Teller(target, "penstock://here:8815")
    given = {
        "name": "told", "from": {"queue": "flights", "columns": "id int, region string"},
        "sql": "SELECT id FROM input WHERE region = 'EU'", "to": [{"topic": "eu"}, {"table": str(tmp_path / "eu")}],
    }  # fmt: skip
    place = Place(Where(lab.house.url), tmp_path / "spark")
    finish(lab, Running(Pipeline(Definition.of(given), place), once=True), teller)
    lab.publish("flights", [1])
    failing = {**given, "name": "broken", "sql": "SELECT CAST(raise_error('no') AS INT) AS id FROM input"}
    finish(lab, Running(Pipeline(Definition.of(failing), place), once=True), teller)
    teller.close([])
    receiver.shutdown()
    receiver.server_close()

    assert {path for path, _ in receiver.events} == {"/api/v1/lineage"}
    events = [event for _, event in receiver.events]
    for event in events:
        check(event)
    mine = [event for event in events if event["job"]["name"] == "told"]
    assert [event["eventType"] for event in mine] == ["START", "RUNNING", "COMPLETE"]
    assert len({event["run"]["runId"] for event in mine}) == 1
    [given_in], [topic, table] = mine[1]["inputs"], mine[1]["outputs"]
    assert (given_in["namespace"], given_in["name"]) == ("penstock://here:8815", "queue/flights")
    assert given_in["facets"]["schema"]["fields"] == [
        {"name": "id", "type": "int"},
        {"name": "region", "type": "string"},
    ]
    assert given_in["facets"]["penstock_read"]["batches"] == [1]
    assert topic["name"] == "topic/eu"
    assert topic["outputFacets"]["outputStatistics"]["rowCount"] == 4
    assert topic["facets"]["schema"]["fields"] == [{"name": "id", "type": "int"}]
    assert (table["namespace"], table["name"]) == ("file", str(tmp_path / "eu"))
    assert mine[0]["job"]["facets"]["sql"]["query"] == given["sql"]
    broken = [event for event in events if event["job"]["name"] == "broken"]
    assert [event["eventType"] for event in broken] == ["START", "FAIL"]
    assert "no" in broken[1]["run"]["facets"]["errorMessage"]["message"]


def test_events_into_a_file_and_a_receiver_that_is_gone(tmp_path: Path) -> None:
    target = Target(f"file:{tmp_path / 'events.jsonl'}")
    target.tell({"a": 1})
    target.tell({"b": 2})
    target.close()
    assert [json.loads(line) for line in (tmp_path / "events.jsonl").read_text().splitlines()] == [{"a": 1}, {"b": 2}]
    gone = Target("http://127.0.0.1:1")
    gone.tell({"a": 1})
    gone.close()
    assert gone.dropped == 1


def test_a_receiver_that_talks_nonsense_does_not_end_the_telling(caplog: pytest.LogCaptureFixture) -> None:
    receiver = Receiver()
    nonsense = socketserver.TCPServer(("127.0.0.1", 0), Nonsense)
    threading.Thread(target=nonsense.serve_forever, daemon=True).start()
    target = Target(f"http://127.0.0.1:{nonsense.server_address[1]}")
    target.tell({"n": 1})
    target.tell({"n": 2})
    lab_until(lambda: target.dropped == 1)
    target.transport = transport_to(f"http://127.0.0.1:{receiver.server_address[1]}/x")
    target.close()
    assert [event["n"] for _, event in receiver.events] == [2]
    assert "OpenLineage events do not reach" in caplog.text
    for server in (receiver, nonsense):
        server.shutdown()
        server.server_close()


class Nonsense(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.request.recv(65536)
        self.wfile.write(b"what do you want\r\n\r\n")


def lab_until(what: Callable[[], bool]) -> None:
    event, deadline = threading.Event(), time.monotonic() + 60
    while not what():
        assert time.monotonic() < deadline
        event.wait(0.005)
