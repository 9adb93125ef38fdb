"""Pipelines: several outputs in one step, checks with dead letters, checkpoints that belong to a definition."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow.dataset
import pytest
from pyspark.errors import StreamingQueryException

from choices import EFFORT, spread
from penstock.errors import NotFound, SettingsError
from penstock.spark.pipelines import outputs
from penstock.spark.pipelines.definition import Output
from penstock.spark.pipelines.folders import Place
from penstock.spark.pipelines.outputs import COMPILING, GENERATES, INTERPRETING, Outputs, named_apart
from penstock.spark.pipelines.pipeline import Pipeline
from penstock.spark.pipelines.running import Running
from penstock.spark.remote import Where
from pipeline_lab import define, run
from spark_java import INTERPRETED
from spark_lab import Lab, forget_last_commit, sentence


def table(folder: Path) -> list[dict[str, Any]]:
    rows: Any = pyarrow.dataset.dataset(folder, format="parquet").to_table()
    return list(rows.to_pylist())


def test_topic_and_tables_of_one_query(lab: Lab, tmp_path: Path) -> None:
    lab.declare("flights", "eu", "odd")
    definition = define(
        name="split",
        sql="SELECT id, total FROM input WHERE region = 'EU'",
        to=[{"topic": "eu"}, {"table": str(tmp_path / "eu")}],
        expect=[
            {"that": "id % 10 <> 3", "otherwise": "dead-letter", "topic": "odd"},
            {"that": "id <> 5", "otherwise": "drop"},
        ],
    )
    with pytest.raises(NotFound, match="has no message yet"):
        run(lab, definition, tmp_path / "spark")
    lab.publish("flights", range(40))
    run(lab, definition, tmp_path / "spark")
    lab.publish("flights", range(40, 100))
    run(lab, definition, tmp_path / "spark")
    wanted = [i for i in range(1, 100, 2) if i % 10 != 3 and i != 5]
    assert lab.ids("eu") == wanted
    assert sorted(row["id"] for row in table(tmp_path / "eu")) == wanted
    assert lab.ids("odd") == list(range(3, 100, 10))
    assert lab.client.peek("odd")[0].headers == {"x-failed-check": "id % 10 <> 3"}
    assert lab.counts("flights") == (0, 0, 100)

    # The last batch once more, as after a kill before Spark's own commit: nothing comes twice.
    forget_last_commit(tmp_path / "spark" / "split")
    run(lab, definition, tmp_path / "spark")
    assert lab.ids("eu") == wanted
    assert sorted(row["id"] for row in table(tmp_path / "eu")) == wanted
    assert len(lab.ids("odd")) == 10

    # What remembers nothing goes on from its checkpoint with another definition, but not with another queue or a sum.
    lab.publish("flights", [200])
    run(lab, define(name="split", sql="SELECT id FROM input", to=[{"topic": "eu"}]), tmp_path / "spark")
    assert lab.ids("eu") == [*wanted, 200]
    lab.declare("other")
    lab.publish("other", [1])
    for given, told in (
        ({"from": {"queue": "other"}, "sql": "SELECT id FROM input"}, "it reads queue other now, and the checkpoint"),
        ({"sql": "SELECT count(*) AS n FROM input"}, "it remembers something between batches now"),
    ):
        with pytest.raises(SettingsError, match=f"pipeline split has changed since its checkpoint was made: {told}"):
            run(lab, define(name="split", to=[{"topic": "eu"}], **given), tmp_path / "spark")


def test_a_complete_aggregate_replaces_its_snapshot(lab: Lab, tmp_path: Path) -> None:
    lab.declare("flights")
    out = tmp_path / "by_region"
    definition = define(
        name="sums", sql="SELECT region, count(*) AS n FROM input GROUP BY region", to=[{"table": str(out)}]
    )
    lab.publish("flights", range(10))
    run(lab, definition, tmp_path / "spark")
    assert sorted((row["region"], row["n"]) for row in table(out)) == [("EU", 5), ("US", 5)]
    lab.publish("flights", range(10, 31))
    run(lab, definition, tmp_path / "spark")
    assert sorted((row["region"], row["n"]) for row in table(out)) == [("EU", 15), ("US", 16)]
    assert out.is_symlink()
    forget_last_commit(tmp_path / "spark" / "sums")
    lab.publish("flights", range(31, 33))
    run(lab, definition, tmp_path / "spark")
    assert sorted((row["region"], row["n"]) for row in table(out)) == [("EU", 16), ("US", 17)]


def test_a_failing_check_stops_the_pipeline(lab: Lab, tmp_path: Path) -> None:
    lab.declare("flights", "strict")
    lab.publish("flights", [1, 2])
    definition = define(
        name="strict",
        sql="SELECT id FROM input",
        to=[{"topic": "strict"}],
        expect=[{"that": "id < 2", "otherwise": "fail"}],
    )
    with pytest.raises(StreamingQueryException) as caught:
        run(lab, definition, tmp_path / "spark")
    assert "pipeline strict: a row fails the check id < 2" in str(caught.value)
    assert lab.ids("strict") == []
    assert sentence(caught.value)


@pytest.mark.parametrize(
    ("that", "told"),
    [("id >", "Syntax error"), ("nothing > 1", "`nothing` cannot be resolved"), ("id + 1", "data type mismatch")],
)
def test_a_condition_that_is_none_is_told_by_the_name_of_its_rule(
    lab: Lab, tmp_path: Path, that: str, told: str
) -> None:
    lab.declare("ruled-in", "ruled-out")
    given = {"name": "ruled", "from": {"queue": "ruled-in", "columns": "id BIGINT"}, "to": [{"topic": "ruled-out"}]}
    rule = {"name": "in order", "that": that, "otherwise": "drop"}
    with pytest.raises(SettingsError, match=f"^pipeline ruled: the rule 'in order' of input, '.*': .*{told}"):
        run(lab, define(sql="SELECT id FROM input", **given, expect=[rule]), tmp_path / "spark")


def test_a_dead_letter_that_nobody_kept_comes_with_the_next_try(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.declare("letters-in", "letters-out")
    lab.publish("letters-in", [1, 2])
    rule = {"that": "id < 2", "otherwise": "dead-letter", "topic": "letters-bad"}
    given = {"name": "letters", "from": {"queue": "letters-in"}, "to": [{"topic": "letters-out"}], "expect": [rule]}
    definition = define(sql="SELECT id FROM input", **given)
    with monkeypatch.context() as patched:
        patched.setattr(Outputs, "declare", lambda *_: None)  # as of one who may not declare topics
        for _ in range(2):
            with pytest.raises(StreamingQueryException, match="no queue takes topic 'letters-bad'"):
                run(lab, definition, tmp_path / "spark")
    assert lab.counts("letters-in") == (0, 2, 0)
    run(lab, definition, tmp_path / "spark")
    assert [one.json()["id"] for one in lab.client.replay("letters-bad", "EPOCH")] == [2]
    assert (lab.ids("letters-out"), lab.counts("letters-in")) == ([1], (0, 0, 2))


def test_a_row_that_fails_again_and_again_is_put_aside(lab: Lab, tmp_path: Path) -> None:
    lab.declare("rows-dead")
    lab.declare("rows", dead_letter_exchange="", dead_letter_routing_key="rows-dead")
    lab.publish("rows", range(6))
    definition = define(
        name="rows",
        **{"from": {"queue": "rows", "columns": "id BIGINT"}},
        sql="SELECT if(id = 3, raise_error('cannot work with 3'), id) AS id FROM input",
        to=[{"table": str(tmp_path / "out")}, {"topic": "rows-out"}],
        expect=[{"that": "id <> 4", "otherwise": "dead-letter", "topic": "rows-odd"}],
        poison_after=1,
    )
    one = Running(Pipeline(definition, Place(Where(lab.house.url), tmp_path / "spark")), once=True)
    lab.until(lambda: one.look(lab.spark, time.monotonic()) or one.is_over, 60)
    assert (one.state, one.failures_total) == ("done", 2), "the batch, and the row"
    assert lab.ids("rows-dead") == [3]
    assert [one.json()["id"] for one in lab.client.replay("rows-odd", "EPOCH")] == [4], "of the try that counts"
    wanted = [0, 1, 2, 5]
    assert sorted(row["id"] for row in table(tmp_path / "out")) == wanted
    assert sorted(one.json()["id"] for one in lab.client.replay("rows-out", "EPOCH")) == wanted


@pytest.mark.parametrize(
    ("sql", "other", "wanted"),
    [
        ("SELECT id FROM input", "SELECT id + 100 AS id FROM input WHERE id > 1", [102, 103]),
        ("SELECT count(*) AS id FROM input", None, [5]),
    ],
)
def test_a_batch_that_is_refused_leaves_no_files_and_comes_as_its_query_is_then(
    lab: Lab, tmp_path: Path, sql: str, other: str | None, wanted: list[int]
) -> None:
    name = "refused-whole" if other is None else "refused"
    lab.declare(name)
    lab.declare(f"{name}-full", max_length=2, overflow="reject-publish")
    out, place = tmp_path / "out", Place(Where(lab.house.url, patience=0.0), tmp_path / "spark")
    given = {"from": {"queue": name, "columns": "id BIGINT"}}

    def once(sql: str) -> None:
        to = [{"table": str(out)}, {"queue": f"{name}-full"}]
        query = Pipeline(define(name=name, sql=sql, to=to, **given), place).start(lab.spark)
        try:
            query.processAllAvailable()
        finally:
            query.stop()

    def whole() -> list[int]:
        return sorted(row["id"] for row in table(out)) if out.exists() else []

    if other is None:  # there is a snapshot before, which stays
        lab.publish(name, [0])
        once(sql)
    before = whole()
    lab.publish(f"{name}-full", range(90, 93 - len(lab.ids(f"{name}-full")) - 1))
    lab.publish(name, range(4))
    for _ in range(1 if EFFORT == 1 else 2):
        with pytest.raises(StreamingQueryException, match="max_length is 2"):
            once(sql)
        assert (whole(), list(out.rglob("*.parquet")) == []) == (before, not before)
        assert not list(out.glob(".penstock*"))
    lab.act("purge", queue=f"{name}-full")
    once(other or sql)
    assert (whole(), lab.ids(f"{name}-full")) == (wanted, wanted)
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []


def test_a_text_that_is_no_name_for_a_folder_is_told(lab: Lab, tmp_path: Path) -> None:
    """With `v=` 255 bytes are a name, of which Spark writes some as three."""
    to = Output(None, str(tmp_path / "out"), partition_by=("v",))

    def rows(*texts: str) -> Any:
        return lab.spark.createDataFrame([(text, 1) for text in texts], "v STRING, n INT")

    fits = ["x" * 253, "é" * 126, "/" * 84, "a b", "..", "[{^", "\x01"]
    named_apart(rows(*fits), to).write.partitionBy("v").parquet(f"file://{tmp_path / 'fits'}")
    found = lab.spark.read.option("basePath", f"file://{tmp_path / 'fits'}").parquet(f"file://{tmp_path / 'fits'}")
    assert sorted(row["v"] for row in found.collect()) == sorted(fits)
    for text in ("x" * 254, "é" * 127, "/" * 85, "a\0b"):
        with pytest.raises(Exception, match=f"partition_by names 'v', and a value of {len(text.encode())} bytes is no"):
            named_apart(rows(text), to).collect()


def test_a_table_has_the_rows_of_the_batch_as_it_was_narrowed(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The table is in place and the process then dies: what comes next is fewer rows."""
    lab.declare("narrow")
    lab.publish("narrow", range(6))
    definition = define(
        name="narrow",
        **{"from": {"queue": "narrow", "columns": "id BIGINT"}},
        sql="SELECT id FROM input",
        to=[{"table": str(tmp_path / "out")}],
        poison_after=1,
    )

    def commit(*_: object, within: Any, **__: object) -> None:
        with within():
            raise ValueError("it dies here")

    with monkeypatch.context() as patched:
        patched.setattr(outputs, "commit", commit)
        with pytest.raises(StreamingQueryException, match="it dies here"):
            run(lab, definition, tmp_path / "spark")
    assert len(table(tmp_path / "out")) == 6
    run(lab, definition, tmp_path / "spark")
    assert sorted(row["id"] for row in table(tmp_path / "out")) == list(range(6)), "each once"
    assert lab.counts("narrow") == (0, 0, 6)


def test_a_row_of_a_view_without_its_key_is_told_with_the_way_out(lab: Lab, tmp_path: Path) -> None:
    lab.declare("keyless")
    lab.client.publish("keyless", {"id": 1, "region": "EU"})
    lab.client.publish("keyless", {"id": "one", "region": "US"})
    source = {"queue": "keyless", "columns": "id BIGINT, region STRING"}
    given = {"from": source, "to": [{"view": "by-region", "key": ["region"]}]}
    with pytest.raises(StreamingQueryException) as caught:
        run(lab, define(name="keyless", sql="SELECT region, id FROM input", **given), tmp_path / "spark")
    assert "view by-region: column 'region' of its key is NULL in a row" in sentence(caught.value)
    assert "WHERE region IS NOT NULL" in sentence(caught.value)
    sql = "SELECT region, id FROM input WHERE region IS NOT NULL"
    run(lab, define(name="keyless", sql=sql, **given), tmp_path / "spark")
    assert [one.json() for one in lab.client.sow("by-region")] == [{"region": "EU", "id": 1}]


def test_texts_whose_folder_is_that_of_null_are_null(lab: Lab, tmp_path: Path) -> None:
    """Spark writes each by itself, and failed at the second file of one name, so that the pipeline ended there."""
    lab.declare("holed")
    texts = ["", None, "a/b", "__HIVE_DEFAULT_PARTITION__", "", None]
    for number, text in enumerate(texts):
        lab.client.publish("holed", {"id": number, "a.`k": text})
    source = {"queue": "holed", "columns": "id BIGINT, `a.``k` STRING"}
    to = [{"table": str(tmp_path / "holed"), "partition_by": ["a.`k"]}]
    sql = "SELECT id, `a.``k` FROM input"
    run(lab, define(name="holed", sql=sql, **{"from": source}, to=to), tmp_path / "spark")
    found = lab.spark.read.parquet(str(tmp_path / "holed")).select("id", "`a.``k`")
    assert sorted(tuple(row) for row in found.collect()) == [
        (number, text if text == "a/b" else None) for number, text in enumerate(texts)
    ]


def test_a_time_in_a_table_is_the_same_for_every_reader(lab: Lab, tmp_path: Path) -> None:
    """Spark's own form of it (INT96) has no zone, and pandas and Polars count it in nanoseconds from 1970, of which
    there are enough for 292 years: "without end" was 1816."""
    lab.declare("timed")
    times = [
        "0001-01-01T00:00:00Z",
        "2026-11-20T08:00:00.000001Z",
        "2300-01-01T00:00:00Z",
        "9999-12-31T23:59:59.999999Z",
    ]
    for number, time_of in enumerate(times):
        lab.client.publish("timed", {"id": number, "at": time_of})
    source = {"queue": "timed", "columns": "id BIGINT, at TIMESTAMP"}
    to = [{"table": str(tmp_path / "timed")}]
    run(lab, define(name="timed", sql="SELECT id, at FROM input", **{"from": source}, to=to), tmp_path / "spark")
    found = sorted((row["id"], row["at"]) for row in table(tmp_path / "timed"))
    assert found == [(number, datetime.fromisoformat(time_of)) for number, time_of in enumerate(times)]


def test_columns_have_any_name_that_a_body_has(lab: Lab, tmp_path: Path) -> None:
    """Spark looks for columns by name where a function is given batches, and finds none with a dot in it."""
    lab.declare("dotted", "dotted-out")
    for number in range(3):
        lab.client.publish("dotted", {"c.d": number, "a`b": "x", "E": 1, "e": 2})
    source = {"queue": "dotted", "columns": "`c.d` INT, `a``b` STRING, e INT"}
    sql = "SELECT `c.d`, `a``b`, e FROM input"
    to = [{"queue": "dotted-out"}, {"view": "dotted-view", "key": ["c.d"]}]
    expect = [{"that": "`c.d` <> 1", "otherwise": "dead-letter", "topic": "dotted-bad"}]
    run(lab, define(name="dotted", sql=sql, **{"from": source}, to=to, expect=expect), tmp_path / "spark")
    wanted = [{"c.d": number, "a`b": "x", "e": 2} for number in (0, 2)]
    assert [json.loads(message.body) for message in lab.client.peek("dotted-out", count=9)] == wanted
    assert sorted((one.json() for one in lab.client.sow("dotted-view")), key=str) == wanted
    bad = lab.read(topic="dotted-bad").select("body").collect()
    assert [json.loads(row.body)["c.d"] for row in bad] == [1]


NAMED = [{"table": "x", "partition_by": ["k"]}]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            {"sql": "SELECT id, X'00' AS k FROM input", "to": NAMED},
            "partition_by names 'k', which is binary, and",
        ),
        (
            {"sql": "SELECT id, array(1) AS k FROM input", "to": NAMED},
            "partition_by names 'k', which is array<int>,",
        ),
        ({"sql": "SELECT body, lsn FROM input", "to": [{"topic": "x"}]}, "column 'lsn' has no place beside 'body'"),
        ({"python": "nowhere:f", "to": [{"topic": "x"}]}, "python = 'nowhere:f' cannot be loaded"),
    ],
)
def test_what_is_wrong_is_told_before_the_first_batch(lab: Lab, tmp_path: Path, given: Any, told: str) -> None:
    lab.declare("flights")
    lab.publish("flights", [1])
    with pytest.raises(Exception, match=told):
        run(lab, define(name="wrong", **given), tmp_path / "spark")


@pytest.fixture
def interpreted(lab: Lab) -> Iterator[None]:
    """The session compiles nothing beside the query."""
    before = {name: lab.spark.conf.get(name) for name in INTERPRETED}
    for values in (INTERPRETED, before):
        for name, value in values.items():
            lab.spark.conf.set(name, value)
        if values is INTERPRETED:
            yield


RULES = [{"that": "id >= 0", "otherwise": "drop"}]


@pytest.mark.usefixtures("interpreted")
@pytest.mark.parametrize(
    ("more", "makes_code"),
    spread([
        pytest.param({}, [False, False, True], id="by itself"),
        pytest.param({"conf": {GENERATES: "true"}}, [True, True, True], id="as it is told"),
        pytest.param({"expect": RULES}, [True, True, True], id="for rules, which count rows"),
    ], 2),
)  # fmt: skip
def test_spark_makes_code_for_a_query_whose_batches_take_long(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: Any, makes_code: list[bool]
) -> None:
    """Code is compiled as a query starts, and for small ones costs more than it saves."""
    found = list[bool]()
    staged = Outputs.staged

    def watched(outputs: Outputs, frame: Any, *others: Any) -> list[str]:
        conf = frame.sparkSession.conf
        (kind,) = [one for one in (COMPILING, INTERPRETING) if all(conf.get(name) == one[name] for name in one)]
        found.append(kind is COMPILING)
        return staged(outputs, frame, *others)

    def last_plan(name: str, batches: int) -> str:
        given = {"from": {"queue": "flights", "columns": "id BIGINT", "max_rows": 10}, **more}
        lab.publish("flights", range(10 * batches))
        definition = define(name=name, sql="SELECT id + 7001 AS id FROM input", to=[{"topic": "out"}], **given)
        return str(run(lab, definition, tmp_path / "spark")._jsq.explainInternal(False))

    lab.declare("flights", "out")
    monkeypatch.setattr(Outputs, "staged", watched)
    monkeypatch.setattr("penstock.spark.pipelines.outputs.LONG_S", 1e9)
    before = compiled(lab)
    assert ("*(1)" in last_plan("quick", 2)) is makes_code[0]
    assert makes_code[0] or compiled(lab) == before  # no expression by itself either
    assert set(found) == set(makes_code[:1])
    found.clear()
    monkeypatch.setattr("penstock.spark.pipelines.outputs.LONG_S", -1.0)
    assert ("*(1)" in last_plan("slow", 3)) is makes_code[2]
    assert [*found[:2], *{*found[2:]}] == makes_code


def compiled(lab: Lab) -> int:
    """How often Spark has compiled code."""
    return int(lab.spark._jvm.org.apache.spark.metrics.source.CodegenMetrics.METRIC_COMPILATION_TIME().getCount())


@pytest.mark.parametrize(("long", "together"), [(-1.0, 1e9), (1e9, -1.0)])
def test_one_long_batch_is_worth_code_and_so_are_many(
    monkeypatch: pytest.MonkeyPatch, long: float, together: float
) -> None:
    monkeypatch.setattr("penstock.spark.pipelines.outputs.LONG_S", long)
    monkeypatch.setattr("penstock.spark.pipelines.outputs.ALL_S", together)
    conf = dict(INTERPRETING)
    frame: Any = SimpleNamespace(sparkSession=SimpleNamespace(conf=SimpleNamespace(set=conf.__setitem__)))
    outputs = Outputs.__new__(Outputs)
    outputs.interpreted, outputs.warm, outputs.took_s = True, False, 0.0
    outputs._look_at_time(frame, 0.1)  # the first: what it takes is Spark's start
    assert conf == INTERPRETING
    outputs._look_at_time(frame, 0.1)
    assert conf == COMPILING


KINDS = """1L, CAST(1 AS TINYINT), true, CAST('NaN' AS FLOAT), -0.0D, 'a text of more than eight letters, ü', X'0102',
    DATE'2026-01-01', TIMESTAMP'2026-01-01 00:00:00', 1.23, CAST(1.23 AS DECIMAL(30, 4)), array(1, null),
    map('k', array(true, null)), named_struct('a', 1, 'b', CAST(null AS DECIMAL(30, 2))), INTERVAL '1' DAY,
    make_interval(1, 2, 3)"""


def test_rows_are_the_same_bytes_with_code_and_without(lab: Lab) -> None:
    """A state is looked up by the bytes of its keys, and a query goes over to code while it has one."""
    names = [f"col{place + 1}" for place in range(16)]
    mixed = [f"if(n % 2 = 0, {name}, null), array({name}), named_struct('x', {name})" for name in names]
    rows = f"SELECT * FROM (SELECT id AS n FROM range(3)), VALUES ({KINDS})"
    context, told = lab.spark.sparkContext, list[list[str]]()
    try:
        for way in (COMPILING, INTERPRETING):
            session = lab.spark.newSession()
            for name, value in way.items():
                session.conf.set(name, value)
                context.setLocalProperty(name, value)  # as tasks of a query have it
            plan = session.sql(f"SELECT {', '.join(mixed)} FROM ({rows})")._jdf.queryExecution().executedPlan()
            before = compiled(lab)
            told.append(sorted(bytes(row.getBytes()).hex() for row in plan.executeCollect()))
            assert (compiled(lab) > before) is (way is COMPILING)
    finally:
        for name in INTERPRETING:
            context.setLocalProperty(name, None)
    assert told[0] == told[1]
    assert len({*told[0]}) == 2
