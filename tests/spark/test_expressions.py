"""The expression language on Spark: cases of the table in one job, and columns as users write them.

`penstock expr` says the same on all three backends, for each row of the language's tables.  On Spark, where each
command line is a job of its own, every eightieth row is asked so, and all of them in one job.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import penstock.spark
from choices import EFFORT
from expr_cases import (
    BODIES,
    CASES,
    CONTEXT,
    HEADER,
    LSNS,
    ORIGIN,
    PAIRS,
    ROWS,
    SINGLES,
    TIMES,
    TOPICS,
    answer,
    comparable,
)
from expr_page import MESSAGE, SECTION_3, examples
from message_samples import SAMPLES
from penstock.cli.main import main
from penstock.cli.tools import as_text
from penstock.errors import ExpressionError, InvalidArgument
from penstock.expr import parse
from penstock.expr.batches import batch_of
from penstock.records.entries import Topic
from penstock.records.properties import EMPTY
from penstock.spark.expression_column import COLUMNS, _Builder, evaluate, kind_of
from penstock.testing import evaluate as evaluate_one
from penstock.testing.expressions import together
from property.test_expr import RECORDS, TREES, spell
from property.test_expr_arrow import CALLS, columns


def batch() -> pa.RecordBatch:
    rows = batch_of(BODIES, HEADER, TOPICS, LSNS, TIMES)
    for name in ("client_name", "client_version", "user", "instance_name", "sow_key"):
        rows = rows.append_column(name, pa.array([getattr(CONTEXT, name)] * ROWS, pa.string()))
    for name in ("last_read", "last_leased", "lease_count"):
        rows = rows.append_column(name, pa.array([float(getattr(CONTEXT, name))] * ROWS, pa.float64()))
    return rows


CONTEXT_COLUMNS = {
    name: name
    for name in ("client_name", "client_version", "user", "instance_name", "sow_key", "last_read", "last_leased")
} | {"lease_count": "lease_count"}


def judged_by_spark(texts: Sequence[str]) -> list[str]:
    """Those that Spark judges itself; for all others it runs what Python runs."""
    builder = _Builder({**COLUMNS, **CONTEXT_COLUMNS}, ORIGIN, metered=False)
    return [text for text in texts if builder.native(parse(text)) is not None]


def test_spark_says_what_python_says(spark: Any) -> None:
    """All cases that Spark judges itself, and of pairs of operands a part; each other one is a function of its own to
    Spark, which runs what Python runs: of these a sample, for `unit/expr/test_cases.py` has all."""
    hunts = EFFORT > 1
    cases = list(dict.fromkeys([*(text for text, _, _ in CASES), *SINGLES]))
    of_spark = [*judged_by_spark(cases), *judged_by_spark(PAIRS)[:: 1 if hunts else 28]]
    others = [*cases[:: 1 if hunts else 16], *PAIRS[:: 7 if hunts else 560]]
    texts = list(dict.fromkeys([*of_spark, *others]))
    texts += ["MESSAGE_SIZE() = NULL OR TOPIC_NAME() BETWEEN 'e' AND 'f'", "NOT (TOPIC_NAME() = 'x' AND /a = 8)"]
    texts += [
        f"MESSAGE_SIZE() BETWEEN {len(BODIES[0]) - n} AND {len(BODIES[0]) + m}" for n, m in ((0, 1), (1, 0), (-1, 1))
    ]
    texts += ["TOPIC_NAME() LIKE '^orders'", "TOPIC_NAME() LIKE '^events'"]
    texts += ["-MESSAGE_SIZE() * 3 + 1 < 0 AND (TOPIC_NAME() IS NULL OR /a > 1 OR TRUE)", "MESSAGE_SIZE() AND /a"]
    found = evaluate(texts, batch(), spark=spark, origin=ORIGIN, columns=CONTEXT_COLUMNS)
    for text, row in zip(texts, found, strict=True):
        assert list(map(comparable, row)) == list(map(comparable, answer(text))), text


@settings(max_examples=2, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    texts=st.lists(st.one_of(TREES.map(spell), CALLS), min_size=40, max_size=60, unique=True),
    records=st.one_of(columns(), st.lists(RECORDS, min_size=1, max_size=4)),
)
def test_spark_says_what_python_says_of_random_expressions(
    spark: Any, texts: list[str], records: list[dict[str, object]]
) -> None:
    bodies = [json.dumps(record).encode() for record in records]
    lsns = list(range(len(bodies)))
    times = [1_000_000 * lsn for lsn in lsns]
    rows = batch_of(bodies, EMPTY, None, lsns, times)
    nobody = pa.nulls(len(bodies), pa.string())
    for name in CONTEXT_COLUMNS:
        rows = rows.append_column(name, nobody)
    found = evaluate(texts, rows, spark=spark, origin=7, columns=CONTEXT_COLUMNS)
    for text, row in zip(texts, found, strict=True):
        wanted = evaluate_one(text, bodies, lsns=lsns, times=times, origin=7)
        assert list(map(comparable, row)) == list(map(comparable, wanted)), text


def test_what_is_not_known_of_a_message_is_null(spark: Any) -> None:
    texts = ["TOPIC_NAME() = 'x'", "TOPIC_NAME() IS NULL", "(TOPIC_NAME() IN (2, 'a', /b)) BEGINS WITH ('a', '2')"]
    texts += ["TOPIC_NAME()", "MESSAGE_SIZE() > 1", "/a = 1"]
    bodies = [b'{"a": 1, "b": 2}', b"{}"]
    found = evaluate(texts, pa.RecordBatch.from_pydict({"body": pa.array(bodies, pa.binary())}), spark=spark)
    for text, row in zip(texts, found, strict=True):
        assert list(map(comparable, row)) == list(map(comparable, evaluate_one(text, bodies))), text


def test_a_column_filters_a_frame(spark: Any) -> None:
    frame = spark.createDataFrame(pa.table({"payload": [b'{"total": 9, "region": "n"}', b'{"total": 1}', b"{}"]}))
    chosen = penstock.spark.column("/total > 5 AND MESSAGE_SIZE() < 100", columns={"body": "payload"})
    assert [row[0] for row in frame.where(chosen).collect()] == [b'{"total": 9, "region": "n"}']
    total = penstock.spark.column("/total * 2", type="bigint", columns={"body": frame["payload"]})
    text = penstock.spark.column("/region", columns={"body": "payload"})
    ratio = penstock.spark.column("/total / 2.0", type="double", columns={"body": "payload"})
    size = penstock.spark.column("MESSAGE_SIZE()", columns={"body": "payload"})
    made = frame.select(total, text, ratio, size)
    assert made.columns == ["/total * 2", "/region", "/total / 2.0", "MESSAGE_SIZE()"]
    assert [kind for _, kind in made.dtypes] == ["bigint", "string", "double", "bigint"]
    assert [tuple(row) for row in made.collect()] == [(18, "n", 4.5, 27), (2, None, 0.5, 12), (None, None, None, 2)]


def test_a_column_reads_bodies_of_the_type_that_it_is_told(spark: Any) -> None:
    bodies = [(bytearray(SAMPLES["msgpack"].body({"total": n})),) for n in (4, 9)]
    frame = spark.createDataFrame(bodies, "payload binary")
    where: dict[str, Any] = {"columns": {"body": "payload"}, "message_type": "msgpack"}
    total = penstock.spark.column("/total * 2", type="bigint", **where)
    found = frame.where(penstock.spark.column("/total > 5", **where)).select(total.alias("t")).collect()
    assert [row.t for row in found] == [18]
    sample = SAMPLES["avro-by-header"]
    rows = [(bytearray(sample.body({"total": n})), bytearray(sample.properties)) for n in (4, 9)]
    frame = spark.createDataFrame(rows, "body binary, properties binary")
    chosen = frame.where(penstock.spark.column("/total > 5", message_type=sample.name))
    assert [bytes(row.body) for row in chosen.collect()] == [sample.body({"total": 9})]
    with pytest.raises(InvalidArgument, match="reads nvfix"):
        penstock.spark.column("[nvfix] /total > 5", **where)


def test_what_spark_can_judge_needs_no_python(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    frame = spark.createDataFrame(pa.table({"body": [b"{}"], "topic": ["a"]}))
    frame.where(penstock.spark.column("MESSAGE_SIZE() > 10 AND TOPIC_NAME() LIKE 'eu'")).explain()
    assert "Python" not in capsys.readouterr().out
    frame.where(penstock.spark.column("MESSAGE_SIZE() > 10 AND /a = 1")).explain()
    plan = capsys.readouterr().out
    assert "ArrowEvalPython" in plan
    assert "octet_length" in plan


def test_refusals(spark: Any) -> None:
    with pytest.raises(ExpressionError, match="LEASE_COUNT cannot be used here"):
        penstock.spark.column("LEASE_COUNT() > 1")
    with pytest.raises(InvalidArgument, match="no type 'decimal'"):
        penstock.spark.column("/a", type="decimal")
    with pytest.raises(InvalidArgument, match="no column 'bodies'"):
        penstock.spark.column("/a", columns={"bodies": "payload"})


def test_evaluate_by_spark(spark: Any) -> None:
    assert evaluate_one("/a + 1", [b'{"a":1}', b'{"a":"x"}', b"{}"], "spark")[::2] == [2, None]
    assert evaluate_one("/a = 1 AND USER() IS NULL", [b'{"a":1}', b"{}"], backend="spark") == [True, None]


def test_types_that_an_expression_says() -> None:
    kinds = {"/a = 1": "boolean", "UPPER(/a)": "string", "INSTR(/a, 'x')": "bigint", "SQRT(/a)": "double", "/a": None}
    kinds |= {"IF(/a, 1, NULL)": "bigint", "IF(/a, 1, 'x')": None, "COALESCE('a', CONCAT(/b))": "string"}
    assert {text: kind_of(parse(text)) for text in kinds} == kinds


def printed(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as caught:
        main(("expr", *arguments))
    assert not caught.value.code
    return capsys.readouterr().out


def test_the_tables_on_every_backend(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    rows = examples(*SECTION_3)
    assert len(rows) > 150
    by_spark = together([expression for expression, _ in rows], [MESSAGE], topics=Topic("/", "", "orders"))  # one job
    for place, ((expression, wanted), [value]) in enumerate(zip(rows, by_spark, strict=True)):
        assert as_text(value) == wanted, expression
        for backend in ("python", "arrow", "spark") if place % 80 == 0 else ("python", "arrow"):
            told = ("--message", MESSAGE.decode(), "--topic", "orders", "--backend", backend)
            found = printed(capsys, expression, *told)
            assert found == f"{wanted}\n", (expression, backend)


def test_the_topic_is_told_beside_the_message(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    for backend in ("python", "arrow", "spark"):
        assert printed(capsys, "TOPIC_NAME()", "--backend", backend) == "NULL\n"  # a body alone was published nowhere
        for topic in ("orders", "shop/orders", "/orders"):
            assert printed(capsys, "TOPIC_NAME()", "--topic", topic, "--backend", backend) == f"{topic}\n"


def test_a_line_for_each_message(spark: Any, capsys: pytest.CaptureFixture[str]) -> None:
    bodies = ['{"a": 1.5}', '{"a": "x"}', "{}", '{"a": [2, 3]}']
    given = [part for body in bodies for part in ("--message", body)]
    for backend in ("python", "arrow", "spark"):
        assert printed(capsys, "/a * 2", *given, "--backend", backend) == "3.0\nNAN\nNULL\n4\n"
