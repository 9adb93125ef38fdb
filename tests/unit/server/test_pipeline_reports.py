"""What drivers tell of pipelines, and what comes of their word over Flight, HTTP and in the metrics."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

import penstock
from http_lab import NO_TLS, Http
from penstock.cli.pipeline_status import facts, trouble
from penstock.errors import InvalidArgument, NotFound
from penstock.server.pipelines import FORGOTTEN_US, SILENT_US, PipelineReports, known
from penstock.testing import Broker

STATUS = {
    "state": "running",
    "since": "2026-11-20T08:00:00Z",
    "rows": 30,
    "rows_per_second": 2.5,
    "batches": 3,
    "batch": 2,
    "batch_ms": 150,
    "lag": 7,
    "state_rows": 4,
    "state_bytes": 1200,
    "failures_total": 1,
    "error": None,
    "reads": ["queue flights"],
    "late_rows": 5,
    "phases": {"addBatch": 120, "walCommit": 9, "wrong": "x"},
    "waits_for": None,
    "expect": {
        "rows": 30,
        "rules": [
            {"input": "input", "rule": "delay is known", "otherwise": "keep", "rows": 2},
            {"input": "input", "rule": "delay is known", "otherwise": "drop", "rows": 1},
            {"input": "other", "rule": "delay is known", "otherwise": "keep", "rows": 4},
        ],
    },
    "whatever": object,
}


FAILED = "penstock_pipeline_expectation_failed_rows_total{"


class Hand:
    """A clock that is moved by hand."""

    now = 0

    def mono(self) -> int:
        return self.now


def test_a_silent_driver_is_gone_and_forgotten_after_an_hour() -> None:
    clock = Hand()
    reports = PipelineReports(clock)  # type: ignore[arg-type]
    reports.declared = ("delays",)
    assert reports.all() == [{"pipeline": "delays", "state": "not running"}]
    reports.tell("driver", "here", 12, "running", {"delays": STATUS, "sums": {"state": "failed", "error": "no column"}})
    delays, sums = reports.all()
    assert (delays["state"], delays["rows"], delays["pid"], "whatever" in delays) == ("running", 30, 12, False)
    clock.now += SILENT_US + 5_000_000
    delays, sums = reports.all()
    assert (delays["state"], delays["silent_seconds"], delays["rows_per_second"]) == ("gone", 15, 0.0)
    assert (sums["state"], sums["error"]) == ("failed", "no column")
    clock.now += FORGOTTEN_US
    reports.tell("driver", "here", 13, "running", {"other": STATUS})
    assert [(one["pipeline"], one["state"]) for one in reports.all()] == [
        ("delays", "not running"),
        ("other", "running"),
    ]


def test_a_pipeline_that_left_the_settings_is_known_no_more() -> None:
    clock = Hand()
    reports = PipelineReports(clock)  # type: ignore[arg-type]
    reports.declared = ("delays", "sums", "view.v")
    reports.tell("driver", "here", 12, "running", {"delays": STATUS, "sums": STATUS, "by-hand": STATUS})
    reports.leave(["delays", "view.v"])
    reports.tell("driver", "here", 12, "running", {"delays": STATUS, "sums": STATUS})  # it has not heard yet
    assert [reports.knows(name) for name in ("delays", "sums", "view.v", "by-hand")] == [False, True, False, True]
    assert [one["pipeline"] for one in reports.all()] == ["by-hand", "sums"]
    clock.now += SILENT_US
    reports.tell("hand", "here", 13, "running", {"delays": STATUS})
    assert reports.knows("delays"), "somebody runs it by hand"


@pytest.mark.parametrize("wrong", [{"../x": {}}, {"x": 1}, {f"p{i}": {} for i in range(1001)}])
def test_what_no_driver_says_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        PipelineReports(Hand()).tell("driver", "", 0, "running", wrong)  # type: ignore[arg-type]


def test_told_over_flight_and_seen_over_flight_http_and_in_the_metrics() -> None:
    pipeline = {"name": "delays", "from": {"queue": "flights"}, "sql": "SELECT 1", "to": [{"topic": "t"}]}
    with Broker(config={"pipeline": [pipeline]}) as broker, penstock.connect(broker.flight_url) as client:
        http = Http(broker)
        told = {name: value for name, value in STATUS.items() if name != "whatever"}
        act: Any = client._link.act
        act("pipeline_report", {"driver": "driver", "host": "h", "pid": 1, "state": "running",
                                "pipelines": {"delays": told}})  # fmt: skip
        [shown] = act("pipeline_status", {"pipeline": "delays"})["pipelines"]
        assert (shown["pipeline"], shown["lag"], shown["reads"]) == ("delays", 7, ["queue flights"])
        with pytest.raises(NotFound, match="no pipeline 'sums'"):
            act("pipeline_status", {"pipeline": "sums"})
        assert http.get("pipelines") == [shown]
        assert http.get("pipelines/delays") == shown
        assert http.ask("GET", "pipelines/sums").status_code == 404
        metrics = httpx.get(
            f"{broker.http_url}/metrics/per-object", verify=NO_TLS, auth=("guest", "guest"), timeout=20
        ).text
        summed = httpx.get(f"{broker.http_url}/metrics", verify=NO_TLS, timeout=20).text
    for line in (
        "penstock_pipelines 1.0",
        'penstock_pipeline_rows_total{pipeline="delays"} 30.0',
        'penstock_pipeline_rows_per_second{pipeline="delays"} 2.5',
        'penstock_pipeline_lag{pipeline="delays"} 7.0',
        'penstock_pipeline_batch_seconds{pipeline="delays"} 0.15',
        'penstock_pipeline_state_bytes{pipeline="delays"} 1200.0',
        'penstock_pipeline_failures_total{pipeline="delays"} 1.0',
        'penstock_pipeline_late_rows_total{pipeline="delays"} 5.0',
        'penstock_pipeline_phase_seconds{phase="addBatch",pipeline="delays"} 0.12',
        f'{FAILED}input="input",otherwise="keep",pipeline="delays",rule="delay is known"}} 2.0',
        f'{FAILED}input="input",otherwise="drop",pipeline="delays",rule="delay is known"}} 1.0',
        f'{FAILED}input="other",otherwise="keep",pipeline="delays",rule="delay is known"}} 4.0',
    ):
        assert line in metrics
    assert "penstock_pipeline_expectation_failed_rows_total 7.0" in summed


def test_rules_and_what_a_pipeline_waits_for_are_told_to_people() -> None:
    rules = [
        {"input": "input", "rule": name, "otherwise": name, "rows": rows}
        for rows, name in enumerate(("keep", "drop", "dead-letter", "fail"))
    ]
    told = facts({"pipeline": "delays", "late_rows": 5, "expect": {"rows": 30, "rules": rules}})
    assert [told[f"expect '{rule['rule']}'"] for rule in rules] == [
        "0 rows kept with a warning", "1 row dropped", "2 rows put aside", "3 rows stopped it"
    ]  # fmt: skip
    assert (told["late rows"], told["rows checked"]) == (5, 30)
    apart = {"rows": 30, "rules": [{**rule, "input": f"i{n}", "rule": "a"} for n, rule in enumerate(rules)]}
    assert facts({"pipeline": "delays", "expect": apart})["expect of i1 'a'"] == "1 row dropped"
    assert trouble({"pipeline": "p", "state": "waiting", "waits_for": "queue q"}) == "p waits: queue q"
    assert trouble({"pipeline": "p", "state": "running"}) is None


@pytest.mark.parametrize("rules", [None, 1, [1], [{}], [{"rule": "x" * 300, "rows": "many"}] * 2, {"a": 1}])
def test_rules_that_no_driver_tells_harm_nobody(rules: object) -> None:
    expect = known({"expect": {"rows": 1, "rules": rules}})["expect"]
    assert isinstance(expect, dict)
    assert all(one["rows"] == 0 for one in expect["rules"])
    assert len(expect["rules"]) <= 1
