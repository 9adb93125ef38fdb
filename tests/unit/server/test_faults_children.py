"""A fault in a child of the server ends one request: whoever asked is told, it is counted, and the child goes on.

One row a place where the fault is planted.  The child's side runs here, on a pair of sockets.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import duckdb
import orjson
import pytest

from penstock.errors import DiskFull, PenstockError, Unavailable
from penstock.history.view import Folder, Listing
from penstock.server.base.faults import reports
from penstock.server.bulk import child, process, requests
from penstock.server.doors.line import Ended, Frame, Kind, Line, plain
from penstock.server.sql import sql_child
from penstock.server.sql.duckdb_engine import Engine


class Place(NamedTuple):
    """A call of a child."""

    owner: object
    name: str


BULK = {
    "what is asked for": Place(requests, "unpacked"),
    "the files of the log": Place(Listing, "of"),
    "a look at them": Place(Folder, "view"),
    "a job": Place(requests, "do"),
    "its function": Place(requests, "resolve_name"),
    "its result": Place(requests, "packed"),
}
SQL = {
    "a database": Place(Engine, "__init__"),
    "the tables that it names": Place(Engine, "examine"),
    "the sockets of tables": Place(sql_child, "received"),
    "the rows": Place(Engine, "run"),
    "the end of the database": Place(Engine, "close"),
}


NO_SOCKETS = cast("Any", None)
"""Where those of tables would come."""


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("as planted")


MAY = {**requests.ANSWERS, Kind.CONTROL: 1 << 20}


def last_answer(ours: Line) -> Frame:
    """The last of all frames."""
    while (frame := ours.receive(MAY)).kind not in (Kind.DONE, Kind.FAILED):
        pass
    return frame


def bulk(folder: Path) -> Frame:
    """The last word of a request that shows the log and runs a job."""
    (ours, theirs), packed = socket.socketpair(), requests.with_head
    with ours, theirs:
        ours.settimeout(20)
        listed = Listing(1, 0, {}, []).plain()
        Line(ours).send(Kind.CALL, 0, *packed({"job": "ping", "values": {"log": listed}, "blobs": []}))
        child.Work(str(folder)).serve(theirs)
        return last_answer(Line(ours))


def sql(folder: Path) -> Frame:
    """The last word of a statement."""
    ours, theirs = socket.socketpair()
    bounds = {"memory": 64 << 20, "spill": 64 << 20, "folder": str(folder), "threads": 1}
    with ours, theirs:
        ours.settimeout(20)
        line = Line(ours)
        line.send(Kind.CALL, 0, orjson.dumps({"sql": "SELECT 1 AS one", **bounds}))
        line.send(Kind.CONTROL, 0, orjson.dumps({"tables": []}))
        with suppress(Ended):  # the process goes, and another one begins
            sql_child.attend(Line(theirs), NO_SOCKETS, cast("Any", SimpleNamespace(set=int)))
        theirs.close()
        last = last_answer(line)
        with pytest.raises(Ended):
            line.receive(MAY)  # nothing that the next one would take for an answer
        return last


@pytest.mark.parametrize("name", [*BULK, *SQL])
def test_a_fault_in_a_child_is_told_to_who_asked_and_counted_and_the_next_request_is_answered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask, place, kind = (bulk, BULK[name], "bulk") if name in BULK else (sql, SQL[name], "sql")
    with monkeypatch.context() as planted, caplog.at_level(logging.ERROR):
        planted.setattr(place.owner, place.name, fails)
        last = ask(tmp_path)
    if name == "the end of the database":
        assert last.kind is Kind.DONE, "it has its rows"
        assert "as planted" in caplog.text
        return
    assert last.kind is Kind.FAILED, last
    told = plain(last.payload)
    assert "KeyError: 'as planted'" in told["message"], "and not that the statement is wrong"
    assert "as planted" in caplog.text, "the child's log has where"
    before = reports.counts[kind]
    error = process._error(told)  # pyright: ignore[reportPrivateUsage]  # what the server makes of it
    assert type(error) is PenstockError
    assert reports.counts["bulk"] + reports.counts["sql"] > before
    assert ask(tmp_path).kind is Kind.DONE, "the next one"


@pytest.mark.parametrize("number", [errno.EROFS, errno.EIO, errno.ENOSPC])
@pytest.mark.parametrize("name", ["the files of the log", "a job"])
def test_what_a_disk_says_is_no_mistake_of_the_server(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An archive that was mounted read-only counted as an internal error, with its traceback, once a minute."""

    def refuses(*_: Any, **__: Any) -> Any:
        raise OSError(number, os.strerror(number), "/archive/.new/1")

    monkeypatch.setattr(BULK[name].owner, BULK[name].name, refuses)
    with caplog.at_level(logging.ERROR):
        told = plain(bulk(tmp_path).payload)
    before = reports.counts["bulk"]
    error = process._error(told)  # pyright: ignore[reportPrivateUsage]
    assert type(error) is (DiskFull if number == errno.ENOSPC else Unavailable)
    assert os.strerror(number) in str(error)
    assert "/archive/.new/1" in str(error)
    assert reports.counts["bulk"] == before
    assert not caplog.text


def test_a_database_is_made_before_a_statement_is_there_to_wait_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made = list[object]()
    monkeypatch.setattr(sql_child, "made", lambda: made.append(1))
    ours, theirs = socket.socketpair()
    with theirs:
        ours.close()  # no statement comes any more
        with pytest.raises(Ended):
            sql_child.attend(Line(theirs), NO_SOCKETS, cast("Any", SimpleNamespace(set=int)))
    assert made


@pytest.mark.parametrize("error", [MemoryError(), duckdb.IOException("as planted"), KeyError("as planted")])
def test_a_database_that_cannot_be_made_ahead_is_made_for_the_statement_and_told_to_nobody_else(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said before anybody has asked would be the next statement's answer, and be said again and again."""

    def fails() -> None:
        raise error

    monkeypatch.setattr(sql_child, "made", fails)
    assert sql(tmp_path).kind is Kind.DONE
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.shutdown(socket.SHUT_WR)
        with pytest.raises(Ended):
            sql_child.attend(Line(theirs), NO_SOCKETS, cast("Any", SimpleNamespace(set=int)))
        ours.setblocking(False)
        with pytest.raises(BlockingIOError):
            ours.recv(1)
