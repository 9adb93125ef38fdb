"""What `pipeline check` says without running anything, and stateful Python that may not change under its state."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from penstock.config.load import load_mapping
from penstock.errors import SettingsError
from penstock.spark.pipelines.definition import Definition
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.pipelines.plan_check import check
from penstock.spark.remote import Where
from penstock.spark.sessions import apart
from spark_lab import Lab

NOWHERE = "penstock://127.0.0.1:9"


def pipeline(folder: Path, url: str = NOWHERE, **given: Any) -> Pipeline:
    source = {"queue": "flights", "columns": "id BIGINT, carrier STRING, at TIMESTAMP"}
    table = {"name": "p", "from": source, "to": [{"topic": "out"}], **given}
    settings = load_mapping({"pipeline": [table]})
    definition = Definition.of(settings.pipeline[0].model_dump(mode="json", by_alias=True))
    where = Where(url, patience=0.1) if url == NOWHERE else Where(url)
    return Pipeline(definition, Place(where, folder))


@pytest.mark.parametrize(
    ("given", "verdict", "why"),
    [
        ({"sql": "SELECT id, carrier FROM input"}, "good", ""),
        ({"sql": "SELECT carier FROM input"}, "wrong", "with name `carier` cannot be resolved. Did you mean"),
        ({"sql": "SELEC id"}, "wrong", "Syntax error at or near 'SELEC'"),
        ({"sql": "SELECT id FROM flights"}, "wrong", "the SQL reads 'flights', and there is input to read"),
        ({"sql": "SELECT 1 AS n"}, "wrong", "does not come from input, so nothing new would ever come"),
        ({"sql": "SELECT count(*) AS n FROM input", "output_mode": "append"}, "wrong", "output mode: append"),
        (
            {"sql": "SELECT count(*) AS n FROM input", "output_mode": "append"},
            "wrong",
            "output_mode = 'append' does not go with this query; leave it out, which means 'complete' (",
        ),
        (
            {"sql": "SELECT id FROM input", "from": {"topic": "t", "columns": "id BIGINT", "filter": "/id >"}},
            "wrong",
            "input: filter, '/id >' at character ",
        ),
        (
            {"sql": "SELECT id FROM input", "from": {"topic": "t", "columns": "id BIGINT", "start": "soon"}},
            "wrong",
            "input: start: 'soon' is no bookmark: write",
        ),
        (
            {"sql": "SELECT id, id FROM input", "to": [{"table": "t"}]},
            "wrong",
            "table t: column 'id' is there twice: give one another name",
        ),
        ({"sql": "SELECT id FROM input ORDER BY id"}, "wrong", "orting is not supported"),
        ({"sql": "SELECT id, 'x' AS priority FROM input"}, "wrong", "column 'priority' is string, not tinyint or"),
        (
            {"sql": "SELECT id FROM input", "to": [{"view": "v", "key": ["carrier"]}]},
            "wrong",
            "view v: its key /carrier is none of the columns id",
        ),
        (
            {"sql": "SELECT id FROM input", "to": [{"table": "t", "partition_by": ["day"]}]},
            "wrong",
            "table t: partition_by names 'day', and there are the columns id",
        ),
        ({"sql": "SELECT id FROM input", "expect": {"known": "delay > 0"}}, "wrong", "with name `delay` cannot be"),
        ({"python": "nowhere:f"}, "wrong", "python = 'nowhere:f' cannot be loaded: ModuleNotFoundError"),
        (
            {"sql": "SELECT id FROM input", "from": {"queue": "flights"}},
            "unknown",
            "no server answers, and only a message could tell its columns",
        ),
        ({"sql": "SELECT id FROM input", "conf": {"spark.sql.warehouse.dir": "x"}}, "wrong", "Cannot modify the value"),
    ],
)
def test_verdicts(spark: Any, tmp_path: Path, given: dict[str, Any], verdict: str, why: str) -> None:
    told = check(spark, pipeline(tmp_path, **given))
    assert told["verdict"] == verdict, told
    assert why in (told["why"] or "")
    assert "\n" not in (told["why"] or "")
    if verdict == "good":
        assert told["columns"] == {"id": "bigint", "carrier": "string"}
        assert (told["mode"], told["remembers"]) == ("append", False)
    assert not list(tmp_path.iterdir())


COUNTER = """
import pandas as pd
from pyspark.sql.streaming.state import GroupStateTimeout


def _count(key, frames, state):
    seen = (state.get[0] if state.exists else 0) + sum(len(frame) for frame in frames) * {times}
    state.update((seen,))
    yield pd.DataFrame({{"carrier": [key[0]], "seen": [seen]}})


def count(flights):
    return flights.groupBy("carrier").applyInPandasWithState(
        _count, "carrier STRING, seen BIGINT", "seen BIGINT", "update", GroupStateTimeout.NoTimeout
    )
"""


def test_stateful_python_goes_on_but_not_with_other_code(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("pandas")
    monkeypatch.syspath_prepend(str(tmp_path))
    module = tmp_path / "penstock_counter_x.py"
    module.write_text(COUNTER.format(times=1))
    lab.declare("flights", "out")
    counting = pipeline(tmp_path / "spark", lab.house.url, python="penstock_counter_x:count", name="counting")
    for number in range(2):
        lab.client.publish("flights", {"id": number, "carrier": "UA"})
        query = counting.start(lab.spark, once=True)
        query.awaitTermination()
        assert query.exception() is None
    assert [json.loads(one.body)["seen"] for one in lab.client.peek("out")] == [1, 2]
    assert not counting.code_changed()
    module.write_text(COUNTER.format(times=100))
    assert counting.code_changed()
    with pytest.raises(SettingsError, match="pipeline counting has changed .* Python code .* has changed"):
        counting.start(lab.spark, once=True)
    module.write_text(COUNTER.format(times=1))
    counting.start(lab.spark, once=True).awaitTermination()
    sys.modules.pop("penstock_counter_x", None)


PROCESSOR = """
from pyspark.sql.streaming import StatefulProcessor


class Seen(StatefulProcessor):
    def init(self, handle):
        self.seen = handle.getValueState("seen", "n BIGINT")

    def handleInputRows(self, key, rows, timers):
        return iter(())

    def close(self):
        pass


def seen(flights):
    return flights.groupBy("carrier").transformWithState(Seen(), "carrier STRING", "Append", "None")
"""


def test_python_that_remembers_is_kept_in_rocksdb_alone(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "penstock_seen_x.py").write_text(PROCESSOR)
    given = {"name": "seen", "python": "penstock_seen_x:seen"}
    told = check(spark, pipeline(tmp_path / "spark", **given))
    assert (told["verdict"], told["mode"], told["remembers"]) == ("good", "append", True)
    told = check(spark, pipeline(tmp_path / "spark", **given, state="memory"))
    assert (told["verdict"], told["why"]) == (
        "wrong",
        "transformWithState keeps its state in RocksDB alone: leave out state = 'memory'",
    )
    monkeypatch.setattr("penstock.spark.pipelines.pipeline.find_spec", lambda name: None)
    told = check(spark, pipeline(tmp_path / "spark", **given))
    assert told["why"] == "transformWithState needs protobuf: pip install protobuf"
    sys.modules.pop("penstock_seen_x", None)


def test_streams_of_two_queries_share_nothing_that_spark_writes_when_it_starts_them(spark: Any) -> None:
    """Nine that started at once broke the map of all, and no query of the session ran again."""

    def environment(session: Any) -> Any:
        found = session._jsparkSession.sessionState().dataSourceManager().lookupDataSource("penstock")
        return found.dataSourceCls().envVars()

    one, other = environment(apart(spark)), environment(apart(spark))
    one.put("SPARK_BUFFER_SIZE", "of one")
    assert "SPARK_BUFFER_SIZE" not in other
    assert one["PYTHONPATH"] == other["PYTHONPATH"]
