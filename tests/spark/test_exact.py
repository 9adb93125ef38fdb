"""`expect` under steps of Spark's that read a checked input otherwise than once: refused with the reason, or exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from choices import spread
from penstock.errors import SettingsError
from penstock.spark.pipelines import expectations
from penstock.spark.pipelines.definition import Definition
from pipeline_lab import define, run
from spark_lab import Lab

LARGE = {"spark.sql.autoBroadcastJoinThreshold": "-1"}
"""Nothing is small enough to be sent to each task unless the query says so."""

LEFT = "SELECT d.id FROM d LEFT JOIN p ON d.id = p.n LIMIT 3"
INTERPRETED = {"spark.sql.codegen.wholeStage": "false"}
NARROW = {"spark.sql.codegen.maxFields": "1"}
"""Steps of more columns are interpreted as well; a hundred, unless something else is said."""

EQUAL = "SELECT d.id FROM d JOIN p ON d.id = p.n"
WIDE = "SELECT d.id, p.n FROM d JOIN p ON d.id = p.n"
SEMI = "SELECT d.id FROM d LEFT SEMI JOIN p ON d.id = p.n"
CROSS = "SELECT {hint} d.id, p.n FROM d JOIN p ON d.id > p.n"


def joined(lab: Lab, folder: Path, name: str, sql: str, rows: range, **given: Any) -> Definition:
    """Twenty messages, of which the odd ones are dead letters, beside a table of these rows in two files."""
    lab.declare(name, f"{name}-odd", f"{name}-out")
    lab.publish(name, range(20))
    planes = folder / "planes"
    planes.mkdir()
    for place in range(2):
        (planes / f"{place}.csv").write_text("".join(f"{n}\n" for n in rows[place::2]))
    rule = {"that": "id % 2 = 0", "otherwise": "dead-letter", "topic": f"{name}-odd"}
    source = {
        "d": {"queue": name, "columns": "id BIGINT", "expect": {"even": rule}},
        "p": {"table": str(planes), "format": "csv", "columns": "n BIGINT"},
    }
    return define(name=name, sql=sql, to=[{"topic": f"{name}-out"}], **{**given, "from": source})


@pytest.mark.parametrize(
    ("name", "sql", "conf", "told"),
    [
        ("limit", LEFT, {}, "expect of d cannot be exact: LIMIT stops reading it"),
        ("none", "SELECT id FROM d LIMIT 0", {}, "expect of d would have no rows"),
        ("cross", CROSS.format(hint=""), LARGE, "expect of d cannot be exact: it is joined with something large"),
        (
            "exists",
            "SELECT id FROM d LEFT SEMI JOIN p",
            {},
            "expect of d cannot be exact: a SEMI or ANTI join without a condition",
        ),
        ("slow", EQUAL, INTERPRETED, "expect of d cannot be exact: Spark interprets the join"),
        ("slow-semi", SEMI, INTERPRETED, "expect of d cannot be exact: Spark interprets the join"),
        ("wide", WIDE, NARROW, "expect of d cannot be exact: Spark interprets the join"),
    ],
)
def test_what_cannot_be_exact_is_refused(
    lab: Lab, tmp_path: Path, name: str, sql: str, conf: dict[str, str], told: str
) -> None:
    definition = joined(lab, tmp_path, name, sql, range(4), conf=conf)
    with pytest.raises(SettingsError, match=told):
        run(lab, definition, tmp_path / "spark")
    assert lab.counts(name) == (20, 0, 0)


@pytest.mark.bulk("test_what_cannot_be_exact_is_refused")
@pytest.mark.parametrize(
    ("name", "sql", "rows", "conf"),
    [
        ("first", "SELECT id FROM d LIMIT 3", range(4), {}),
        ("often", CROSS.format(hint=""), range(4), LARGE),
        ("unread", EQUAL, range(0), INTERPRETED),
        ("unread-semi", SEMI, range(0), INTERPRETED),
        ("unread-wide", WIDE, range(0), NARROW),
    ],
)
def test_why_it_is_refused(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, sql: str, rows: range, conf: dict[str, str]
) -> None:
    """A Spark in which these are exact says so here."""
    monkeypatch.setattr(expectations, "refuse_inexact", lambda *given: None)
    run(lab, joined(lab, tmp_path, name, sql, rows, conf=conf), tmp_path / "spark")
    assert lab.ids(f"{name}-odd") != list(range(1, 20, 2))


@pytest.mark.parametrize(
    ("name", "sql", "rows", "conf", "out"),
    spread([
        ("sent", CROSS.format(hint="/*+ BROADCAST(p) */"), range(2), LARGE, 18),
        ("nothing", EQUAL, range(0), {}, 0),
        ("merged", EQUAL.replace("SELECT", "SELECT /*+ MERGE(p) */"), range(0), INTERPRETED, 0),
        ("outer", EQUAL.replace("JOIN", "LEFT JOIN"), range(0), INTERPRETED, 10),
        ("top", "SELECT n, count(*) AS c FROM d JOIN p ON d.id > p.n GROUP BY n LIMIT 1", range(1), {}, 1),
    ], 2),
)  # fmt: skip
def test_what_is_exact(
    lab: Lab, tmp_path: Path, name: str, sql: str, rows: range, conf: dict[str, str], out: int
) -> None:
    query = run(lab, joined(lab, tmp_path, name, sql, rows, conf=conf), tmp_path / "spark")
    assert lab.ids(f"{name}-odd") == list(range(1, 20, 2))
    assert lab.counts(name) == (0, 0, 20)
    assert lab.counts(f"{name}-out")[0] == out
    counts = [one["observedMetrics"]["penstock expect d"] for one in query.recentProgress if one["numInputRows"]]
    assert [(int(one["rows"]), int(one["rule_0"])) for one in counts] == [(20, 10)]
