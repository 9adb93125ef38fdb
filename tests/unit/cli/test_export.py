"""`penstock log export`: files that other tools read, whole or not at all, from a folder and from a server."""

from __future__ import annotations

import csv
import gc
import io
import json
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner, Result

import penstock
from flight_house import FlightHouse
from penstock.cli.logfiles import export
from penstock.cli.main import command as built
from penstock.cli.messagefiles import ARROW_LEVELS, writer_for
from penstock.cli.output import nobody
from penstock.errors import InvalidArgument, PenstockError, Unavailable
from penstock.records.message_bodies import DEPTH
from penstock.server.bulk.process import Bulk
from penstock.server.bulk.relay import Relay

Run = Callable[..., Result]


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data folder with 30 JSON orders, 5 bodies that are no text, and a routed message."""
    folder = tmp_path_factory.mktemp("filled")
    with FlightHouse(folder) as house, penstock.connect(house.url) as client:
        write(client)
    return folder


def write(client: penstock.Client) -> None:
    client.declare_topic("orders")
    client.declare_topic("raw")
    client.declare_exchange("e")
    client.declare("bound")
    client.bind("bound", "e", "k")
    for n in range(30):
        client.publish("orders", {"id": n, "total": n / 2, "at": "2026-11-20"}, headers={"n": str(n)}, priority=n % 4)
    for n in range(5):
        client.publish("raw", bytes([255, n]))
    client.publish("k", b"routed", exchange="e")


@pytest.fixture
def run(filled: Path, tmp_path: Path) -> Run:
    def work(name: str, *arguments: object, code: int = 0) -> Result:
        file = name if name == "-" else str(tmp_path / name)
        result = CliRunner().invoke(built(None), ["log", "export", file, "--data", str(filled), *map(str, arguments)])
        if code:
            assert isinstance(result.exception, PenstockError)
            assert result.exception.exit_status == code
        else:
            assert result.exit_code == 0, result.output + repr(result.exception)
        assert sorted(path.name for path in tmp_path.iterdir()) in ([], [name])
        return result

    return work


def test_parquet_has_decoded_columns(run: Run, tmp_path: Path) -> None:
    run("orders.parquet", "--topic", "orders")
    table = pq.read_table(tmp_path / "orders.parquet")
    assert table.column_names == ["lsn", "time", "exchange", "topic", "priority", "headers", "body"]
    assert table.num_rows == 30
    row = table.slice(7, 1).to_pylist()[0]
    assert (row["topic"], row["priority"], dict(row["headers"])["n"]) == ("orders", 3, "7")
    assert json.loads(row["body"]) == {"id": 7, "total": 3.5, "at": "2026-11-20"}
    assert isinstance(row["time"], datetime)


def test_json_bodies_become_columns_of_parquet(run: Run, tmp_path: Path) -> None:
    run("orders.parquet", "--topic", "orders", "--body", "json")
    table = pq.read_table(tmp_path / "orders.parquet")
    assert table.column("body").to_pylist()[3] == {"id": 3, "total": 1.5, "at": "2026-11-20"}


def test_json_bodies_that_do_not_fit_are_null_and_counted(tmp_path: Path, run: Run) -> None:
    result = run("all.parquet", "--body", "json")
    bodies = pq.read_table(tmp_path / "all.parquet").column("body")
    assert bodies.null_count == 5
    assert "5 bodies are null" in result.stderr
    (tmp_path / "all.parquet").unlink()
    result = run("b.arrow", "--topic", "raw", "--body", "json", code=2)
    assert "none of the first bodies is a JSON object" in str(result.exception)


@pytest.mark.parametrize(("form", "levels"), [("parquet", DEPTH), ("arrow", ARROW_LEVELS), ("arrows", ARROW_LEVELS)])
def test_json_that_is_nested_too_deeply_for_a_file_is_null_and_counted(form: str, levels: int) -> None:
    """Arrow's own words ended the export, and the JSON writer's."""

    def nested(depth: int) -> pa.RecordBatch:
        return pa.record_batch({"body": pa.array([b'{"a":' * depth + b"1" + b"}" * depth], pa.binary())})

    writer = writer_for(form, io.BytesIO(), "json")
    writer.write(nested(levels))
    writer.write(nested(levels + 1))
    writer.finish()
    assert writer.warnings == [
        f"1 bodies are null: no JSON object of {levels} levels at most, or unlike the first ones"
    ]
    with pytest.raises(InvalidArgument, match=f"none of the first bodies is a JSON object of {levels} levels at most"):
        writer_for(form, io.BytesIO(), "json").write(nested(300))


def test_json_that_is_nested_too_deeply_for_a_line_is_text_there() -> None:
    sink = io.BytesIO()
    deep = b"[" * 300 + b"]" * 300
    writer_for("jsonl", sink, "json").write(pa.record_batch({"body": pa.array([deep, b"null", b" 3"], pa.binary())}))
    lines = [json.loads(line) for line in sink.getvalue().splitlines()]
    assert [line["body"] for line in lines] == [deep.decode(), None, 3]


def test_json_lines(run: Run) -> None:
    lines = [json.loads(line) for line in run("-", "--topic", "orders", "--body", "json").stdout.splitlines()]
    assert [line["body"]["id"] for line in lines] == list(range(30))
    assert lines[5]["headers"]["n"] == "5"
    raw = [json.loads(line) for line in run("-", "--topic", "raw").stdout.splitlines()]
    assert [line["body_base64"] for line in raw][:2] == ["/wA=", "/wE="]


def test_csv(run: Run, tmp_path: Path) -> None:
    run("orders.csv", "--topic", "orders", "--columns", "lsn,headers,body")
    with open(tmp_path / "orders.csv", newline="") as file:
        lines = list(csv.DictReader(file))
    assert len(lines) == 30
    assert json.loads(lines[4]["headers"])["n"] == "4"
    assert json.loads(lines[4]["body"])["id"] == 4


@pytest.mark.parametrize(("name", "opened"), [("a.arrow", pa.ipc.open_file), ("a.arrows", pa.ipc.open_stream)])
def test_arrow(run: Run, tmp_path: Path, name: str, opened: Any) -> None:
    run(name, "--exchange", "e", "--columns", "exchange,topic,body")
    with opened(tmp_path / name) as reader:
        assert reader.read_all().to_pylist() == [{"exchange": "e", "topic": "k", "body": b"routed"}]


def test_records_of_all_kinds(run: Run, tmp_path: Path) -> None:
    run("all.parquet", "--records")
    kinds = pq.read_table(tmp_path / "all.parquet").column("kind").to_pylist()
    assert kinds.count("publish") == 36
    assert {"boot", "via", "route", "queue_declare", "topic_declare"} <= set(kinds)


def test_ranges(run: Run, filled: Path) -> None:
    def ids(*arguments: object) -> list[int]:
        out = run("-", "--topic", "orders", "--body", "json", *arguments).stdout
        return [json.loads(line)["body"]["id"] for line in out.splitlines()]

    lines = [
        json.loads(line) for line in run("-", "--topic", "orders", "--columns", "lsn,bookmark,time").stdout.splitlines()
    ]
    low, high = lines[10], lines[19]
    assert ids("--from", low["lsn"], "--to", high["lsn"]) == list(range(10, 20))
    assert ids("--from", low["bookmark"], "--to", high["bookmark"]) == list(range(10, 20))
    assert ids("--from", low["time"], "--limit", 1) == [10]
    assert ids("--to", high["lsn"], "--filter", "/id > 17") == [18, 19]
    assert ids("--to", "EPOCH") == []
    assert ids("--limit", 3) == [0, 1, 2]


def test_an_empty_export_is_a_file_without_rows(run: Run, tmp_path: Path) -> None:
    run("none.parquet", "--topic", "nobody")
    assert pq.read_table(tmp_path / "none.parquet").num_rows == 0


def test_a_program_gets_numbers(run: Run) -> None:
    told = json.loads(run("orders.parquet", "--topic", "orders", "--json").stdout)
    assert told["rows"] == 30
    assert told["bytes"] > 100
    assert told["format"] == "parquet"


@pytest.mark.parametrize(
    ("name", "arguments", "text"),
    [
        ("a.xyz", [], "--format"),
        ("a.csv", ["--body", "json"], "CSV shows bodies as text"),
        ("a.jsonl", ["--body", "binary"], "JSON lines"),
        ("a.parquet", ["--body", "xml"], "binary, text, json"),
        ("a.parquet", ["--columns", "lsn,boddy"], "'boddy'"),
        ("a.parquet", ["--from", "yesterday"], "'yesterday' is no place in the log"),
        ("a.parquet", ["--from", "1|5|"], "comes from another log"),
        ("a.parquet", ["--topic", "a", "--pattern", "b"], "not both"),
        ("a.parquet", ["--records", "--topic", "a"], "--records"),
        ("a.parquet", ["--records", "--exchange", "e"], "--exchange"),
        ("a.parquet", ["--records", "--vhost", "shop"], "--vhost"),
        ("a.parquet", ["--format", "xls"], "'xls'"),
        ("a.parquet", ["--pattern", "("], "regular expression"),
        ("no/folder.parquet", [], "cannot be written"),
    ],
)
def test_mistakes_are_sentences_and_leave_no_file(run: Run, name: str, arguments: list[str], text: str) -> None:
    assert text in str(run(name, *arguments, code=2).exception)


def test_a_server_is_asked_for_another_vhost_by_its_url_alone() -> None:
    nowhere = ["log", "export", "-", "--url", "penstock://127.0.0.1:1", "--topic", "orders", "--vhost", "shop"]
    assert "--vhost 'shop' goes with --data; a URL names its own" in str(
        CliRunner().invoke(built(None), nowhere).exception
    )


def test_a_file_that_is_there_is_not_replaced_unless_asked(run: Run, tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("mine")
    assert "already there" in str(run("a.jsonl", code=2).exception)
    run("a.jsonl", "--overwrite", "--limit", 1)
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 1


def test_the_rows_of_a_statement_replace_no_file_unasked_before_anybody_is_asked(tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("mine")
    asked = ["query", "SELECT 1", "--output", str(file), "--url", "penstock://127.0.0.1:1"]
    told = CliRunner().invoke(built(None), asked).exception
    assert str(told) == f"{file} is already there; --overwrite replaces it"
    assert isinstance(CliRunner().invoke(built(None), [*asked, "--overwrite"]).exception, Unavailable)
    assert file.read_text() == "mine"


def test_a_server_gives_the_same_through_its_child(tmp_path: Path) -> None:
    bulk = Bulk(tmp_path / "data")
    with FlightHouse(tmp_path / "data", bulk=bulk) as house:
        house.door.reads.relay = Relay(bulk, house.log, large=0, large_filtered=0)
        with penstock.connect(house.url) as client:
            write(client)
        for arguments in (["--topic", "orders"], ["--records"], ["--exchange", "e"], ["--filter", "/id = 3"]):
            outs = [
                CliRunner().invoke(built(None), ["log", "export", "-", *where, *arguments]).stdout
                for where in (["--url", house.url], ["--data", str(house.folder)])
            ]
            assert outs[0] == outs[1] != ""
        assert bulk.requests == 4


@pytest.mark.parametrize("form", ["parquet", "arrow", "arrows", "jsonl", "csv"])
def test_a_source_that_breaks_off_leaves_no_file_and_says_so_once(
    tmp_path: Path, form: str, capfd: pytest.CaptureFixture[str]
) -> None:
    def source() -> Iterator[pa.RecordBatch]:
        yield pa.record_batch({"lsn": [1, 2], "body": [b"a", b"b"]})
        raise Unavailable("the child was killed")

    with pytest.raises(Unavailable, match="was killed"):
        export(source, 1, 9, tmp_path / "t", form, "", None, nobody)
    gc.collect()
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")  # no writer complains when it is collected


def test_a_wrong_pattern_is_told_in_one_sentence(run: Run, capfd: pytest.CaptureFixture[str]) -> None:
    told = str(run("a.parquet", "--pattern", "(", code=2).exception)
    assert told == "pattern '(' is not a regular expression: missing ): ("
    assert "re2" not in capfd.readouterr().err


def test_damage_leaves_no_file(tmp_path: Path) -> None:
    with FlightHouse(tmp_path / "data", segment=1 << 16) as house, penstock.connect(house.url) as client:
        client.declare_topic("t")
        for _ in range(20):
            client.publish_table("t", pa.table({"body": [b"x" * 100] * 100}))
        victim = tmp_path / "data" / house.log.segments()[0].name
        content = bytearray(victim.read_bytes())
        content[len(content) // 2] ^= 1
        victim.write_bytes(content)
        result = CliRunner().invoke(
            built(None), ["log", "export", str(tmp_path / "t.parquet"), "--data", str(tmp_path / "data")]
        )
    assert isinstance(result.exception, PenstockError)
    assert not isinstance(result.exception, InvalidArgument)
    assert result.exception.exit_status == 4
    assert [path.name for path in tmp_path.iterdir()] == ["data"]
