"""`penstock publish` and `consume` against a server: what is said is what happened."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import penstock
from flight_house import FlightHouse
from penstock.cli.logfiles import listing
from penstock.cli.main import main
from penstock.wire.flight.commands import HEADERS

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FlightHouse]:
    with FlightHouse(tmp_path_factory.mktemp("house")) as house:
        yield house


@pytest.fixture
def run(house: FlightHouse, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command line against the server; exit status, output and errors."""

    def run(*arguments: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main([*map(str, arguments), "--url", house.url])
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run


@pytest.fixture
def lines(tmp_path: Path) -> Path:
    file = tmp_path / "lines.jsonl"
    file.write_text('{"id": 1}\nno JSON\n{"id": 3}\n')
    return file


def bodies(house: FlightHouse, queue: str) -> list[bytes]:
    with penstock.connect(house.url) as client:
        return [message.body for message in client.peek(queue, 10)]


def test_what_nobody_wants_is_not_called_stored(run: Run, lines: Path) -> None:
    status, out, err = run("publish", "nobody-wants-this", lines)
    assert status == 1
    assert out.startswith("0 messages published")
    assert "3 messages not stored: no queue and no declared topic takes 'nobody-wants-this'" in err
    status, out, _ = run("publish", "nobody-wants-this", lines, "--json")
    told = json.loads(out)
    assert (status, told["published"], told["unroutable"], told["refused"]) == (1, 0, 3, 0)
    assert run("publish", "amq.topic/nobody-wants-this", lines)[0] == 0  # an exchange may have nobody behind it


def test_a_dash_is_standard_input(run: Run, house: FlightHouse, monkeypatch: pytest.MonkeyPatch) -> None:
    with penstock.connect(house.url) as client:
        client.declare("dashes")
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"one\ntwo\n")))
    assert run("publish", "dashes", "-")[0] == 0
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbfthree\r\n\xef\xbb\xbffour\r\n")))
    assert run("publish", "dashes", "-")[0] == 0
    assert bodies(house, "dashes") == [b"one", b"two", b"three", b"\xef\xbb\xbffour"]


def test_text_in_the_place_of_a_file_is_told_so(run: Run) -> None:
    status, out, err = run("publish", "a", '{"id":3}')
    assert (status, out) == (2, "")
    assert "there is no file '{\"id\":3}', and what comes after the topic is a file with messages" in err
    assert "one message as text: echo '{\"id\":3}' | penstock publish a" in err
    status, _, err = run("publish", "a", "long " * 1000)
    assert (status, "echo TEXT | penstock publish a" in err) == (2, True)


def test_a_topic_may_name_its_exchange(run: Run, house: FlightHouse, lines: Path) -> None:
    with penstock.connect(house.url) as client:
        client.declare_exchange("shop", "topic")
        client.declare("routed")
        client.bind("routed", "shop", "orders.#")
        client.declare("with/slash")
    assert json.loads(run("publish", "shop/orders.new", lines, "--json")[1])["published"] == 3
    assert bodies(house, "routed") == [b'{"id": 1}', b"no JSON", b'{"id": 3}']
    assert run("publish", "with/slash", lines)[0] == 0  # no such exchange: a key of the default one
    assert len(bodies(house, "with/slash")) == 3


def test_refused_rows_are_told_and_end_with_1(run: Run, house: FlightHouse, tmp_path: Path) -> None:
    with penstock.connect(house.url) as client:
        client.declare("to-fill")
    headers = pa.array([[], [("x-delay", "soon")]], pa.map_(pa.string(), pa.string()))
    table = pa.table({"body": [b"fits", b"does not"], "headers": headers})
    file = tmp_path / "rows.arrows"
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    status, out, err = run("publish", "to-fill", file, "--json")
    assert status == 1
    assert json.loads(out)["refused"] == 1
    assert json.loads(out)["published"] == 1
    assert "1 of 2 messages were refused" in json.loads(err)["error"]["message"]


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("/there/is/none", "/there/is/none is no program"),
        ("", "names no command"),
        ("'open", "No closing quotation"),
    ],
)
def test_a_command_that_cannot_run_takes_no_message(run: Run, house: FlightHouse, command: str, text: str) -> None:
    with penstock.connect(house.url) as client:
        client.declare("kept")
        client.publish("kept", b"one")
        before = client.queue("kept")["delivered"]
        status, _, err = run("consume", "kept", "--exec", command, "--count", 1)
        assert status == 2
        assert text in err
        assert client.queue("kept")["delivered"] == before


def test_wrong_usage_ends_with_2_whoever_finds_it(run: Run, tmp_path: Path) -> None:
    assert run("publish", "t", tmp_path / "absent.jsonl")[0] == 2
    assert run("publish", "t", "--format", "xls")[0] == 2
    assert run("publish", "", tmp_path)[0] == 2
    assert run("queue", "declare", "q", "--set", "lease=3")[0] == 2  # the server's own word
    assert run("queue", "show", "absent")[0] == 1  # nothing wrong with the question


def test_compact_counts_what_was_deleted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with FlightHouse(tmp_path, segment=1 << 16) as house, penstock.connect(house.url) as client:
        client.declare_topic("t")
        for _ in range(20):
            client.publish_table("t", pa.table({"body": [b"x" * 100] * 100}))
    before = listing(str(tmp_path))
    with pytest.raises(SystemExit) as caught:
        main(["log", "compact", "--data", str(tmp_path), "--age", "1us", "--json"])
    assert not caught.value.code
    told = json.loads(capsys.readouterr().out)
    left = {one.name for one in listing(str(tmp_path))}
    gone = [one for one in before if one.name not in left]
    assert told["deleted"] == len(gone) > 1
    assert told["freed"] == sum(one.bytes for one in gone)
    assert told["dropped"] == sum(one.rows for one in gone)


def test_looking_without_a_count_shows_all(run: Run, house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("looked-at")
        client.publish_table("looked-at", pa.table({"body": [b"%d" % number for number in range(12)]}))
    for words, told in ((), 12), (("--count", 0), 12), (("--count", 3), 3):
        status, out, _ = run("consume", "looked-at", "--peek", *words)
        assert (status, len(out.splitlines())) == (0, told)
    assert len(bodies(house, "looked-at")) == 10


def test_an_empty_format_is_none(run: Run, lines: Path) -> None:
    status, _, err = run("publish", "q", lines, "--format", "")
    assert (status, "format '' is not one of" in err) == (2, True)


def test_options_say_what_every_message_has(run: Run, house: FlightHouse, lines: Path, tmp_path: Path) -> None:
    with penstock.connect(house.url) as client:
        client.declare("optioned")
        said = ("--header", "region=north", "--header", "empty=", "--priority", 3, "--content-type", "text/plain",
                "--message-id", "m", "--correlation-id", "c", "--reply-to", "r")  # fmt: skip
        assert run("publish", "optioned", lines, *said)[0] == 0
        found = client.peek("optioned")
        assert len(found) == 3
        for one in found:
            assert (dict(one.headers), one.priority) == ({"region": "north", "empty": ""}, 3)
            assert (one.content_type, one.message_id, one.correlation_id, one.reply_to) == ("text/plain", "m", "c", "r")
        client.purge("optioned")
        heads = pa.array([[("region", "south")], None], HEADERS)
        pq.write_table(
            pa.table({"body": [b"1", b"2"], "priority": [7, None], "headers": heads}), tmp_path / "own.parquet"
        )
        assert run("publish", "optioned", tmp_path / "own.parquet", *said[:6])[0] == 0
        own = [(dict(one.headers), one.priority) for one in client.peek("optioned")]
        assert own == [({"region": "south", "empty": ""}, 7), ({"region": "north", "empty": ""}, 3)]
        client.purge("optioned")
        (tmp_path / "rows.csv").write_text("id,priority\n1,5\n")
        assert run("publish", "optioned", tmp_path / "rows.csv", "--priority", 2)[0] == 0
        [row] = client.peek("optioned")
        assert (row.json(), row.priority) == ({"id": 1, "priority": 5}, 2), "without a column body a row is the body"
        client.purge("optioned")
        assert run("publish", "optioned", lines, "--delay", "1h", "--expiration", "2h")[0] == 0
        assert client.queue("optioned")["delayed"] == 3


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--header", "region"), "write NAME=VALUE"),
        (("--header", "=x"), "write NAME=VALUE"),
        (("--header", "a=1", "--header", "a=2"), "--header a is given twice"),
        (("--delay", "10"), "delay"),
        (("--priority", "256"), "--priority"),
    ],
)
def test_options_that_say_nothing_of_a_message(run: Run, lines: Path, options: tuple[str, ...], why: str) -> None:
    status, _, err = run("publish", "optioned", lines, *options)
    assert (status, why in err) == (2, True), err


def test_what_is_peeked_at_stands_behind_its_lsn_where_that_is_asked_for(run: Run, house: FlightHouse) -> None:
    with penstock.connect(house.url) as client:
        client.declare("peeked")
        lsn = client.publish("peeked", b"body").lsn
    assert run("queue", "peek", "peeked") == (0, "body\n", "")
    assert run("queue", "peek", "peeked", "--lsn") == (0, f"{lsn}  body\n", "")
    assert run("message", "cancel", lsn)[0] == 0
