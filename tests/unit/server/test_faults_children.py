"""A fault in a child of the server ends one request: whoever asked is told, it is counted, and the child goes on.

One row a place where the fault is planted.  The child's side runs here, on a pair of sockets.
"""

from __future__ import annotations

import logging
import socket
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple, cast

import pytest

from penstock.errors import PenstockError
from penstock.history.view import Folder, Listing
from penstock.server.base.faults import reports
from penstock.server.bulk import child, process, requests
from penstock.server.sql import sql_child
from penstock.server.sql.duckdb_engine import Engine


class Place(NamedTuple):
    """A call of a child."""

    owner: object
    name: str


BULK = {
    "what is asked for": Place(requests, "unpack"),
    "the files of the log": Place(Listing, "of"),
    "a look at them": Place(Folder, "view"),
    "a job": Place(requests, "do"),
    "its function": Place(requests, "load"),
    "its result": Place(requests, "pack"),
}
SQL = {
    "a database": Place(Engine, "__init__"),
    "the tables that it names": Place(Engine, "examine"),
    "the sockets of tables": Place(sql_child, "received"),
    "the rows": Place(Engine, "run"),
    "the end of the database": Place(Engine, "close"),
}


def fails(*_: Any, **__: Any) -> Any:
    raise KeyError("as planted")


def answers(ours: socket.socket) -> list[dict[str, Any]]:
    """All heads up to the last."""
    out = list[dict[str, Any]]()
    while not out or not {"end", "error"} & out[-1].keys():
        out.append(requests.receive(ours)[0] or {})
    return out


def bulk(folder: Path) -> dict[str, Any]:
    """The last word of a request that shows the log and runs a job."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(20)
        listed = Listing(1, 0, {}, []).plain()
        requests.send(ours, {"job": "ping", "values": {"log": listed}, "blobs": []})
        child.Work(str(folder)).serve(theirs)
        return answers(ours)[-1]


def sql(folder: Path) -> dict[str, Any]:
    """The last word of a statement."""
    ours, theirs = socket.socketpair()
    bounds = {"memory": 64 << 20, "spill": 64 << 20, "folder": str(folder), "threads": 1}
    with ours, theirs:
        ours.settimeout(20)
        requests.send(ours, {"sql": "SELECT 1 AS one", **bounds})
        requests.send(ours, {"tables": []})
        with suppress(requests.Ended):  # the process goes, and another one begins
            sql_child.attend(theirs, cast("Any", SimpleNamespace(set=int)))
        theirs.close()
        last = answers(ours)[-1]
        with pytest.raises(requests.Ended):
            requests.receive(ours)  # nothing that the next one would take for an answer
        return last


@pytest.mark.parametrize("name", [*BULK, *SQL])
def test_a_fault_in_a_child_is_told_to_who_asked_and_counted_and_the_next_request_is_answered(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ask, place, kind = (bulk, BULK[name], "bulk") if name in BULK else (sql, SQL[name], "sql")
    with monkeypatch.context() as planted, caplog.at_level(logging.ERROR):
        planted.setattr(place.owner, place.name, fails)
        last = ask(tmp_path)
    told = last.get("error")
    if name == "the end of the database":
        assert "end" in last, "it has its rows"
        assert "as planted" in caplog.text
        return
    assert told is not None, last
    assert "KeyError: 'as planted'" in told["message"], "and not that the statement is wrong"
    assert "as planted" in caplog.text, "the child's log has where"
    before = reports.counts[kind]
    error = process._error(told)  # pyright: ignore[reportPrivateUsage]  # what the server makes of it
    assert type(error) is PenstockError
    assert reports.counts["bulk"] + reports.counts["sql"] > before
    assert "end" in ask(tmp_path), "the next one"
