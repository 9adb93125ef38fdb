"""`penstock top`: rates between two looks, one view, and the key that leaves."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from penstock.cli.top import Look, told
from penstock.testing import Broker

Run = Callable[..., tuple[int, str, str]]

SOURCE = Path(__file__).resolve().parents[3] / "src"


def queue(name: str, published: int, ready: int = 0) -> dict[str, Any]:
    counts = dict.fromkeys(("leased", "delayed", "consumers", "bytes", "delivered", "acked"), 0)
    return {"queue": name, "ready": ready, "published": published, **counts}


def server(published: int) -> dict[str, Any]:
    return {"published": published, "delivered": 0, "acknowledged": 0}


def test_rates_are_those_between_two_looks() -> None:
    before = Look(10.0, server(100), [queue("a", 5), queue("b", 90)])
    now = Look(12.0, server(150), [queue("a", 25, 1), queue("b", 30, 7), queue("c", 9)])
    figures = told(before, now)
    assert figures["server"]["published/s"] == 25.0
    rates = {one["queue"]: one["in/s"] for one in figures["queues"]}
    assert rates == {"a": 10.0, "b": 0.0, "c": 0.0}  # b was declared anew, c is new
    assert [one["queue"] for one in figures["queues"]] == ["b", "a", "c"]
    assert [one["queue"] for one in told(before, now, "in/s")["queues"]] == ["a", "b", "c"]
    assert [one["queue"] for one in told(before, now, "queue")["queues"]] == ["a", "b", "c"]


def test_processes_have_the_share_of_a_cpu_that_they_used() -> None:
    def at(moment: float, *used: tuple[int, float]) -> Look:
        there = [{"name": "core", "pid": pid, "cpu": cpu, "resident": 5} for pid, cpu in used]
        return Look(moment, {**server(0), "processes": there}, [])

    figures = told(at(1.0, (7, 2.0)), at(3.0, (7, 3.0), (8, 9.0)))  # the second one is new
    assert [one["cpu_share"] for one in figures["server"]["processes"]] == [0.5, 0.0]


def test_one_view(run: Run) -> None:
    with Broker({"queue": [{"name": "to-ship"}, {"name": "[odd]"}]}) as broker:
        broker.publish("to-ship", b"12345")
        url = ("--interval", "0s", "--url", broker.flight_url)
        figures = json.loads(run("top", "--json", *url)[1])
        assert figures["server"]["status"] == "ok"
        assert figures["server"]["last_lsn"] >= figures["server"]["durable_lsn"] > 0
        [first, second] = figures["queues"]
        assert (first["queue"], first["ready"], first["bytes"], second["queue"]) == ("to-ship", 1, 5, "[odd]")
        status, out, err = run("top", "--once", *url)
        assert (status, err) == (0, "")
        assert "0 connections" in out
        assert "processes  core " in out
        assert "gave way" not in out
        assert set(figures["server"]["memory_gave_way"].values()) == {0}
        assert "[odd]" in out
        assert run("top", "--sort", "size", *url)[0] == 2


def test_names_make_way_for_figures(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    name = "celeryev.52f0d8e1-e0ef-4ad2-8080-329a3f803a56"
    with Broker({"queue": [{"name": name}]}) as broker:
        broker.publish(name, b"12345")
        url = ("--interval", "0s", "--url", broker.flight_url)
        assert name in run("top", "--once", *url)[1], "into a pipe all is printed"
        monkeypatch.setenv("COLUMNS", "80")
        [row] = [line for line in run("top", "--once", *url)[1].splitlines() if "celery" in line]
    assert len(row) <= 80
    cut, *figures = row.split()
    assert cut.endswith("…")
    assert figures == ["1", "0", "0", "0", "0.0", "0.0", "0.0", "5", "B"]


def test_q_leaves() -> None:
    with Broker({"queue": [{"name": "to-ship"}]}) as broker:
        ours, theirs = pty.openpty()
        command = [sys.executable, "-m", "penstock", "top", "--interval", "60s", "--url", broker.flight_url]
        environment = {**os.environ, "PYTHONPATH": str(SOURCE), "TERM": "xterm", "COLUMNS": "120", "LINES": "30"}
        with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
            os.close(theirs)
            seen = b""
            while b"to-ship" not in seen:
                seen += os.read(ours, 65536)
            os.write(ours, b"q")
            assert process.wait(20) == 0
        os.close(ours)
