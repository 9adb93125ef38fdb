"""`penstock stream`: what it shows, what it asks, what it says when there is nothing; and streams in the metrics."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator

import httpx
import pytest

import penstock
from forked import penstock as command
from http_lab import NO_TLS
from penstock.testing.process import ServerProcess

pytestmark = pytest.mark.conformance


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("streams") / "data") as process:
        yield process


def stream(server: ServerProcess, *arguments: str) -> tuple[int, str, str]:
    done = command("stream", *arguments, "--url", server.flight_url)
    return done.returncode, done.stdout, done.stderr


def test_streams_from_the_command_line(server: ServerProcess) -> None:
    assert stream(server, "list")[1].split()[:2] == ["stream", "reads"]
    assert stream(server, "show", "none")[0] == 1
    assert "no stream 'none'" in stream(server, "release", "none", "--yes")[2]
    with penstock.connect(server.flight_url) as client:
        client.declare("work")
        for n in range(10):
            client.publish("work", {"n": n})
        epoch = client.action("stream_open", stream="eu", topic="work", filter="/n > 2", abandon_after="7d")["epoch"]
        start = client.action("stream_begin", stream="eu", epoch=epoch, bookmark="EPOCH")["start"]
        client.action("plan_range", stream="eu", epoch=epoch, start=start, max_rows=2)
        client.action("stream_open", stream="shared", queue="work", instance="driver 1")
        client.action("plan", stream="shared", epoch=1, start=0, max_rows=4)
        text = stream(server, "list")[1]
        assert "topic work" in text
        assert "queue work" in text
        assert "4 messages" in text
        assert "abandon after           1w" in stream(server, "show", "eu")[1]
        listed = {one["stream"]: one for one in json.loads(stream(server, "list", "--json")[1])}
        assert listed["eu"]["lag"] > 4
        assert (listed["shared"]["lag"], listed["shared"]["held"], listed["shared"]["reader"]) == (10, 4, "driver 1")
        event, deadline = threading.Event(), time.monotonic() + 30
        while next(one["lag_messages"] for one in client.streams() if one["stream"] == "eu") != 5:  # n of 5 to 9
            assert time.monotonic() < deadline
            event.wait(0.05)
        shown = stream(server, "show", "eu")[1]
        assert "behind                  5 messages" in shown
        assert "/n > 2" in shown
        assert f"begins at LSN           {start}" in shown
        metrics = httpx.get(
            f"{server.http_url}/metrics/per-object", verify=NO_TLS, auth=("guest", "guest"), timeout=20
        ).text
        assert 'penstock_stream_lag_messages{mode="queue",stream="shared"} 10.0' in metrics
        assert 'penstock_stream_lag_messages{mode="log",stream="eu"} 5.0' in metrics
        assert 'penstock_stream_lag_lsns{mode="log",stream="eu"}' in metrics
        assert 'penstock_stream_held_bytes{mode="log",stream="eu"}' in metrics
        # Nobody is there to ask: nothing happens without --yes.
        code, _, told = stream(server, "release", "shared")
        assert code == 2
        assert "stream shared reads queue work and holds 4 messages" in told
        assert "say --yes" in told
        assert client.queue("work")["leased"] == 4
        code, told, _ = stream(server, "release", "shared", "--yes")
        assert (code, told) == (0, "stream shared released: 4 messages went back to queue work\n")
        assert client.queue("work")["ready"] == 10
        assert json.loads(stream(server, "release", "eu", "--drop", "--yes", "--json")[1]) == {
            "released": "eu", "messages": 0, "dropped": True
        }  # fmt: skip
        assert [one["stream"] for one in client.streams()] == ["shared"]


def test_a_stream_of_a_pipeline_that_is_gone_is_told(server: ServerProcess) -> None:
    with penstock.connect(server.flight_url) as client:
        client.declare("left")
        client.publish("left", b"1")
        client.action("stream_open", stream="old.a", queue="left", pipeline="old")
        client.action("plan", stream="old.a", epoch=1, start=0, max_rows=4)
        hint = "for pipeline old, which the settings do not have: penstock stream release old.a --drop"
        listed = " ".join(stream(server, "list")[1].split())
        assert "no pipeline" in listed
        assert "stream old.a holds 1 message" in listed
        assert hint in listed
        assert "pipeline                old, which the settings do not have" in stream(server, "show", "old.a")[1]
        assert hint in " ".join(command("pipeline", "status", "--url", server.flight_url).stdout.split())
        told = {"driver": "d", "host": "h", "pid": 1, "state": "running", "pipelines": {"old": {"state": "running"}}}
        client.action("pipeline_report", with_vhost=False, **told)
        assert hint not in stream(server, "list")[1]
        client.action("pipeline_leave", with_vhost=False, pipelines=["old"])
        assert hint in stream(server, "list")[1]
        stream(server, "release", "old.a", "--drop", "--yes")
        assert hint not in stream(server, "list")[1]
