"""The parts that need no Spark: options, columns, outgoing rows, checkpoint folders, Java."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    DataType,
    DayTimeIntervalType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
    VariantType,
)

from penstock.config.load import load_mapping
from penstock.errors import InvalidArgument, NotFound, PreconditionFailed, SettingsError
from penstock.spark.checkpoint import Checkpoint, local_folder
from penstock.spark.options import read_options
from penstock.spark.pipelines.code import may_be_a_row, short, stack_of_java
from penstock.spark.pipelines.definition import Definition, with_vhost
from penstock.spark.pipelines.outputs import forget, point, refuse_folder
from penstock.spark.reading.batch import _cut, _runs, by_rows, cut_evenly
from penstock.spark.reading.columns import declared, layout, names_in
from penstock.spark.reading.parts import parts_for
from penstock.spark.remote import Where
from penstock.spark.sessions import find_java, session
from penstock.spark.sink import write_options
from penstock.spark.sink_rows import outgoing

UTC = pa.timestamp("us", tz="UTC")


def test_names_of_a_ddl() -> None:
    assert names_in("id bigint, `odd, name` string, m map<string,array<int>>, d decimal(10, 2) COMMENT 'a, b'") == [
        "id",
        "odd, name",
        "m",
        "d",
    ]
    with pytest.raises(InvalidArgument, match="where a column's name and type should be"):
        names_in("id bigint,, x int")


def test_a_column_of_the_body_hides_one_of_the_message() -> None:
    options = read_options({"topic": "a", "schema": "time string, id bigint"})
    assert declared(options, options.ddl) == (
        "lsn bigint, bookmark string, topic string, headers map<string,string>, attempt int, body binary, "
        "`time` string COMMENT 'field of the body', `id` bigint, parse_error string"
    )
    schema = StructType([StructField("time", StringType()), StructField("lsn", LongType())])
    assert layout(options, schema, options.ddl).parsed == ("time",)


@pytest.mark.parametrize("name", ["parse_error", "Parse_Error"])
def test_a_schema_does_not_silence_why_bodies_are_bad(name: str) -> None:
    """As a column of the body it was null in every row, and bad rows looked like empty ones."""
    ddl = f"id bigint, {name} string"
    options = read_options({"topic": "a", "schema": ddl})
    wanted = StructType([StructField("id", LongType())])
    for ask in (lambda: declared(options, options.ddl), lambda: layout(options, wanted, options.ddl)):
        with pytest.raises(
            InvalidArgument, match=f"^option schema: {name} is the column that says why .* leave it out"
        ):
            ask()
    aside = read_options({"topic": "a", "schema": ddl, "badRecordsTopic": "b"})  # no such column is there
    assert declared(aside, aside.ddl).endswith(f"`{name}` string COMMENT 'field of the body'")
    found = read_options({"topic": "a", "schema": "registered"})
    assert declared(found, ddl).count(name) == 1


def own(ddl: str, **options: str) -> list[str]:
    """Columns of the body as Spark is told of them."""
    given = read_options({"topic": "a", "schema": ddl, **options})
    return [piece.strip() for piece in declared(given, given.ddl).split("body binary, ")[1].split(", ")]


def test_a_column_may_be_null_unless_bad_bodies_leave_the_rows() -> None:
    """A body without a value for such a column is bad, and a bad body that stays has null in all of its columns."""
    ddl = "`id` bigint NOT NULL COMMENT 'is not null', `s` struct<`b`:int NOT NULL>, `not null` int not  null"
    assert own(ddl) == [
        "`id` bigint COMMENT 'is not null'", "`s` struct<`b`:int NOT NULL>", "`not null` int", "parse_error string"
    ]  # fmt: skip
    assert own(ddl, badRecordsTopic="bad") == ddl.split(", ")
    options = read_options({"topic": "a", "schema": ddl})
    nullable = StructType([StructField("id", LongType()), StructField("not null", LongType())])
    assert layout(options, nullable, options.ddl).needed == {"id", "not null"}
    certain = StructType([StructField("id", LongType(), False)])
    with pytest.raises(InvalidArgument, match="column 'id' is NOT NULL, and a bad body has null in all of its columns"):
        layout(options, certain, options.ddl)
    options = read_options({"topic": "a", "parse": "json", "badRecordsTopic": "bad"})
    assert layout(options, certain, None).parsed == ("id",)


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (VariantType(), "gives no variant; there are boolean,"),
        (ArrayType(VariantType()), "gives no variant"),
        (StructType([StructField("b", NullType())]), "gives no void"),
        (DayTimeIntervalType(), "gives no interval day to second"),
        (MapType(LongType(), StringType()), "the keys of a JSON object are string, not bigint"),
    ],
)
def test_a_type_that_no_body_gives_is_refused_before_anything_is_read(kind: DataType, told: str) -> None:
    options = read_options({"topic": "a", "parse": "json"})
    with pytest.raises(InvalidArgument, match=f"column 'x': .*{told}"):
        layout(options, StructType([StructField("x", kind)]), None)


def test_options_know_their_types() -> None:
    options = read_options(
        {"path": "q", "mode": "queue", "stream": "s", "maxbytespertrigger": "1MiB", "patience": "2s"}
    )
    assert (options.queue, options.max_bytes, options.where.patience) == ("q", 1 << 20, 2.0)
    assert repr(Where("penstock://u:secret@h")) == "penstock://u@h:8815/"
    with pytest.raises(InvalidArgument, match="option failOnDataLoss is 'maybe', not true or false"):
        read_options({"topic": "a", "failondataloss": "maybe"})
    with pytest.raises(InvalidArgument) as caught:
        read_options({"topic": "a", "qqqqqq": "1"})
    assert "startingBookmark, " in str(caught.value)
    assert "backfill" not in str(caught.value), "what pipelines alone give is not offered"
    assert read_options({"topic": "a", "startingTimestamp": "1763712000000"}).starting == "2025-11-21T08:00:00+00:00"
    with pytest.raises(InvalidArgument, match="CREATE TABLE .* use CREATE TEMPORARY VIEW"):
        read_options({"provider": "penstock", "option.topic": "a", "topic": "a"})  # as Spark hands them over there
    with pytest.raises(InvalidArgument, match="the vhost is part of the url"):
        write_options({"topic": "a", "vhost": "v"})


def test_a_frame_of_columns_becomes_json() -> None:
    schema = StructType(
        [StructField("at", TimestampType()), StructField("raw", BinaryType()), StructField("topic", StringType())]
    )
    out = outgoing(schema, None)
    batch = pa.record_batch({"at": pa.array([0], UTC), "raw": pa.array([b"\x00\xff"]), "topic": pa.array(["t"])})
    [row] = out.encode(batch).to_pylist()
    assert json.loads(row["body"]) == {"at": "1970-01-01T00:00:00Z", "raw": "AP8="}
    assert (row["topic"], row["content_type"]) == ("t", "application/json")
    with pytest.raises(InvalidArgument, match="nobody says where to"):
        outgoing(StructType([StructField("id", LongType())]), None)


def test_parts() -> None:
    assert [parts_for(rows, None) for rows in (0, 1, 50_000, 50_001, 10**9)] == [1, 1, 1, 2, 8]
    assert parts_for(5, 16) == 5
    assert cut_evenly(1, 10, [4, 4, 7]) == [(1, 4), (4, 7), (7, 10)]
    lsns = pa.array([5, 2**33, 2**33 + 1, 2**33 + 2]).to_numpy()
    assert by_rows(0, 2**34, lsns, 2) == [(0, 2**33 + 1), (2**33 + 1, 2**34)]
    rows = pa.record_batch(
        {"lsn": [1, 2, 3, 7, 8], "exchange": [""] * 5, "attempt": [0, 0, 1, 1, 1], "state": ["ready"] * 5}
    )
    runs = _runs(rows)
    assert runs == [("", 1, 3, 0, "ready"), ("", 3, 4, 1, "ready"), ("", 7, 9, 1, "ready")]
    assert list(_cut([run[1:] for run in runs], 4)) == [
        [(1, 3, 0, "ready"), (3, 4, 1, "ready"), (7, 8, 1, "ready")],
        [(8, 9, 1, "ready")],
    ]


def test_a_checkpoint_is_read_and_swept(tmp_path: Path) -> None:
    checkpoint = Checkpoint(tmp_path)
    with pytest.raises(PreconditionFailed, match="has no query id"):
        checkpoint.query_id()
    (tmp_path / "metadata").write_text('{"id":"abc"}')
    for folder in ("offsets", "commits"):
        (tmp_path / folder).mkdir()
    (tmp_path / "offsets" / "9").write_text('v1\n{"conf":{}}\n{"batch": 57, "stream": "s", "origin": 7}')
    (tmp_path / "offsets" / "10").touch()
    (tmp_path / "offsets" / ".10.crc").touch()
    (tmp_path / "commits" / "8").write_text("v1\n{}")
    assert checkpoint.query_id() == "abc"
    assert checkpoint.inputs(9) == [("s", 57, 7)]
    assert [path.name for path in checkpoint.sweep()] == ["10"]
    assert sorted(path.name for path in (tmp_path / "offsets").iterdir()) == ["9"]
    assert checkpoint.sweep() == []
    assert local_folder("file:///a/b") == Path("/a/b")
    assert local_folder("s3://bucket/x") is None


def test_a_snapshot_is_a_link_that_moves(tmp_path: Path) -> None:
    link, snapshots = tmp_path / "table", tmp_path / "table.snapshots"
    for place, name in enumerate("abc"):
        (snapshots / name).mkdir(parents=True)
        os.utime(snapshots / name, (place, place))
        point(link, snapshots / name)
        assert link.resolve() == snapshots / name
        forget(snapshots, keep=name)
    assert sorted(path.name for path in snapshots.iterdir()) == ["b", "c"]
    refuse_folder(link)
    with pytest.raises(PreconditionFailed, match="should be a link to the newest snapshot"):
        refuse_folder(snapshots)


def test_no_java_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(SettingsError, match="has no bin/java: install Java 17 or newer"):
        find_java()
    (tmp_path / "bin").mkdir()
    old = tmp_path / "bin" / "java"
    old.write_text("#!/bin/sh\necho 'openjdk version \"1.8.0_392\"' >&2\n")
    old.chmod(0o755)
    with pytest.raises(SettingsError, match="is Java 8"):
        find_java()


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            "#!/bin/sh\necho\necho 'Error: VM option X must be enabled' >&2\nexit 1\n",
            "says: Error: VM option X",
        ),
        ("#!/bin/sh\nexit 3\n", "says: nothing, and ends with 3"),
        ("not a program", "says: Exec format error"),
    ],
)
def test_a_java_that_does_not_run_says_why(
    program: str, words: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    java = tmp_path / "bin" / "java"
    java.parent.mkdir()
    java.write_text(program)
    java.chmod(0o755)
    with pytest.raises(SettingsError, match=f"{java} does not run: install Java 17 or newer.*; it {words}"):
        find_java()


def test_no_pyspark_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql", None)
    with pytest.raises(
        ImportError, match=r"penstock.spark needs pyspark: pip install 'penstock\[spark\]', and Java 17"
    ):
        session()


def test_a_definition() -> None:
    given = {
        "name": "p",
        "from": {"queue": "q", "vhost": "/", "columns": "json", "max_rows": 5},
        "sql": "SELECT 1",
        "to": [{"topic": "t", "vhost": "/"}, {"table": "out", "vhost": "/"}],
        "trigger": 5_000_000,
    }
    one = Definition.of(given)
    [source] = one.inputs
    assert (source.name, source.mode, source.text) == ("input", "queue", "queue q")
    assert (one.to[0].text, one.to[1].text) == ("topic t", "table out")
    assert (one.stream_of(source), one.settles) == ("p", ("p",))
    assert with_vhost("penstock://u:p@h:1/x", "a/b") == "penstock://u:p@h:1/a%2Fb"


def test_the_sentence_of_a_spark_error() -> None:
    text = "[X] boom\nTraceback (most recent call last):\n  File 'x', line 1\n"
    text += "penstock.errors.Fenced: stream 's' is read\n\tat java.x"
    assert short(text) == "stream 's' is read"
    assert short("[PARSE.SYNTAX] wrong. SQLSTATE: 42601; line 1\n  at java") == "wrong; line 1"


def test_what_spark_says_of_a_plan_is_told_and_not_how_it_was_handed_on() -> None:
    text = f"[STREAM_FAILED] Query [id = 1] terminated: [X] An error occurred. Reason: {PROXY}{AT.strip()}\n"
    text += "pyspark.errors.exceptions.captured.AnalysisException: [UNRESOLVED_COLUMN.A] A column cannot be resolved. "
    assert (
        short(text + "SQLSTATE: 42703\n SQLSTATE: 39000\n=== Streaming Query ===\n") == "A column cannot be resolved."
    )


def test_what_says_too_little_is_told_with_its_cause_in_java() -> None:
    text = f"{PROXY}{AT}py4j.protocol.Py4JJavaError: An error occurred while calling o9.collectToPython.\n"
    text += ": org.apache.spark.SparkException: Task not serializable\n\tat a.X(Y:1)\n"
    text += "Caused by: java.io.IOException: outer\n\tat b.X(Y:1)\n"
    text += "Caused by: java.lang.IllegalStateException: Illegal size 3 of collection\n"
    text += "\t... 81 more\n\n\n\tat py4j.P(P:4)"
    assert short(text) == "Task not serializable: java.lang.IllegalStateException: Illegal size 3 of collection"
    assert short("Task not serializable") == "Task not serializable"
    wrote = "Task failed while writing rows to file:/t/.penstock_batch=1.part"
    failed = (
        f"An error occurred while calling o5.parquet.\n: a.SparkException: [TASK_WRITE_FAILED] {wrote}. SQLSTATE: 5"
    )
    assert short(f"{failed}\n\tat a.X(Y:1)\nCaused by: java.io.IOException: File name too long\n\tat b.X(Y:1)") == (
        f"{wrote}: java.io.IOException: File name too long"
    )


class Captured(Exception):
    """As pyspark hands an error of Java on: its text lacks the stack, and that of a query only its own frames."""

    def __init__(self, said: str, stack: str, cause: Captured | None = None) -> None:
        super().__init__(said)
        self._stackTrace = stack
        self._cause = cause


CHANGED = "java.lang.IllegalStateException: Illegal size 3 of collection"
JAVA = f"org.apache.spark.SparkException: Task not serializable\n\tat a.X(Y:1)\nCaused by: {CHANGED}\n\tat b.X(Y:1)"


def test_all_that_java_says_is_kept_of_what_nobody_else_explains() -> None:
    query = Captured("Task not serializable\n=== Streaming Query ===\n", "q.Frame", Captured("Task", JAVA))
    stack = stack_of_java(query)
    assert stack is not None
    assert [stack.count(one) for one in ("=== Streaming Query ===", "q.Frame", JAVA)] == [1, 1, 1]
    assert short(str(query), stack) == f"Task not serializable: {CHANGED}"
    assert stack_of_java(Captured(f"Job aborted: {AT}ValueError: no", JAVA)) is None, "Python says what it is"
    assert stack_of_java(Captured("[X]\npenstock.errors.Fenced: stream 's'", JAVA)) is None
    assert stack_of_java(NotFound("no message yet")) is None


def test_a_machine_that_fails_is_blamed_on_no_row() -> None:
    assert not may_be_a_row("org.apache.spark.SparkException: Task not serializable\n\tat a.X(Y:1)")
    assert not may_be_a_row("Python worker failed to connect back.")
    assert may_be_a_row("ValueError: cannot work with 7")


PROXY = "An exception was raised by the Python Proxy. Return Message: "
AT = 'Traceback (most recent call last):\n  File "busy.py", line 5, in f\n    ValueError: a line of the code\n'


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (f"[X] Thrown from the Python worker: {AT}ValueError: no\n SQLSTATE: 38000\n=== Streaming", "ValueError: no"),
        (f"{AT}KeyError: 1\n\nThe above exception was:\n\n{AT}Mine: 2\n  lines\n\n\tat a.X(Y:1)", "Mine: 2 lines"),
        (f"Job aborted: {AT}Mine\n\tat org.a.B(C.scala)\n", "Mine"),
        (f"{PROXY}{AT}pyspark.errors.PythonException: worker:\n{AT}OSError: [Errno 5]\n\n=== S", "OSError: [Errno 5]"),
        (f"{PROXY}{AT}pyspark.errors.ArithmeticException: [DIVIDE_BY_ZERO] By 0. SQLSTATE: 2\n== SQL", "By 0."),
        (f"{AT}ValueError: {'x' * 900}", f"ValueError: {'x' * 488}"),
    ],
)
def test_the_cause_in_python_is_told_by_its_type_and_text(text: str, told: str) -> None:
    assert short(text) == told


def test_rules_have_names_of_their_own() -> None:
    rules = [{"that": "a > 0", "otherwise": "drop"}, {"that": "b > 0", "name": "a > 0", "otherwise": "drop"}]
    given = {"name": "p", "from": {"queue": "q", "expect": rules}, "sql": "SELECT 1", "to": [{"topic": "t"}]}
    with pytest.raises(SettingsError, match="rule 'a > 0' is there twice: give each a name"):
        load_mapping({"pipeline": [given]})


def test_rules_that_drop_rows_come_last() -> None:
    """What drops a row must not take it from the rule that would put it aside."""
    rules = [
        {"that": "a > 0", "otherwise": "drop"},
        {"that": "b > 0", "otherwise": "fail"},
        {"that": "parse_error IS NULL", "otherwise": "dead-letter", "topic": "bad"},
    ]
    given = {"name": "p", "from": {"queue": "q"}, "to": [{"topic": "t"}], "expect": rules}
    [read] = Definition.of(given).inputs
    assert [check.otherwise for check in read.expect] == ["fail", "dead-letter", "drop"]
