"""Backups of a running server under load: what was confirmed before is there once, and exactly-once state too."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import pyarrow as pa
import pytest
from click.testing import CliRunner

import penstock
from bulk_lab import alive
from choices import EFFORT
from forked import beside
from live_server import LiveServer
from penstock.cli.main import command as built
from penstock.errors import InvalidArgument
from waiting import eventually

SEGMENT = '[log]\nsegment = "1MiB"\n'
REST_S = 0.01


def url(server: LiveServer) -> str:
    return f"penstock://guest:guest@{server.ready['flight']}"


def command(*arguments: object, code: int = 0) -> dict[str, Any]:
    """A command of ours with --json; what it prints."""
    result = CliRunner().invoke(built(None), [*map(str, arguments), "--json"])
    if code:
        assert isinstance(result.exception, penstock.PenstockError)
        assert result.exception.exit_status == code
        return {"message": str(result.exception)}
    assert result.exit_code == 0, result.output + repr(result.exception)
    answer: dict[str, Any] = json.loads(result.stdout)
    return answer


@pytest.fixture
def settings(tmp_path: Path) -> Path:
    path = tmp_path / "penstock.toml"
    path.write_text(SEGMENT)
    return path


@pytest.fixture
def server(tmp_path: Path, settings: Path) -> Iterator[LiveServer]:
    with LiveServer(tmp_path / "one", [str(settings)], flight=True) as made:
        yield made


class Writing:
    """A publisher that rests for a moment only, as what it writes is read again and again; `confirmed` is how many
    messages the server has taken for good.
    """

    def __init__(self, server: LiveServer) -> None:
        self.confirmed = 0
        self._client = penstock.connect(url(server))
        self._client.declare("work")
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self.started = threading.Event()

    def _run(self) -> None:
        n = 0
        while not self._stop.is_set():
            self._client.publish_table("work", pa.table({"body": [b"%d" % (n + at) for at in range(500)]}))
            n += 500
            self.confirmed = n
            if n >= 40_000:
                self.started.set()
                self._stop.wait(REST_S)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self.started.wait(60)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join()
        self._client.close()


def bodies(batches: Iterator[pa.RecordBatch]) -> Counter[int]:
    return Counter(int(body) for batch in batches for body in batch.column("body").to_pylist())


def test_a_backup_under_load_has_all_that_was_confirmed_before_it(
    server: LiveServer, tmp_path: Path, settings: Path
) -> None:
    with Writing(server) as writing:
        before = writing.confirmed
        told = command("backup", tmp_path / "backup", "--url", url(server))
        again = command("backup", tmp_path / "copied", "--copy", "--url", url(server))
        assert command("log", "verify", "--url", url(server))["good"]
        assert command("audit", "--url", url(server))["findings"] == []
        for _ in range(2 if EFFORT == 1 else 5):  # the files of a server that writes to them, read without its help
            exported = command("log", "export", tmp_path / "work.parquet", "--overwrite", "--data", server.data)
            assert exported["rows"] >= before
            assert command("log", "verify", "--data", server.data)["good"]
            assert command("audit", "--data", server.data)["findings"] == []
    assert told["linked"] > 0
    assert again["linked"] == 0
    server.stop()
    done = command("restore", tmp_path / "backup", tmp_path / "two" / "data")
    assert command("audit", "--data", tmp_path / "two" / "data")["findings"] == []
    with (
        LiveServer(tmp_path / "two", [str(settings)], flight=True) as restored,
        penstock.connect(url(restored)) as client,
    ):
        found = bodies(client.queue_batches("work", columns=["body"]))
        assert set(found.values()) == {1}, "every message once"
        assert sorted(found) == list(range(len(found))), "a prefix, without holes"
        assert len(found) >= before
        lsns = [lsn for batch in client.queue_batches("work", columns=["lsn"]) for lsn in batch.column(0).to_pylist()]
        assert max(lsns) <= told["last"]
        assert client.publish("work", b"7").lsn > told["last"] + 2**32, "the first start is one after a crash"
        with pytest.raises(InvalidArgument, match=rf"{done['old_origin']}\|5\|.*{done['origin']}\|"):
            list(client.replay("work", f"{done['old_origin']}|5|"))
        restored.stop()
    assert command("audit", "--data", tmp_path / "two" / "data")["findings"] == []


def test_streams_and_sinks_go_on_where_they_were(server: LiveServer, tmp_path: Path) -> None:
    with penstock.connect(url(server)) as client:
        client.declare("work")
        client.publish_table("work", pa.table({"body": [b"%d" % n for n in range(100)]}))
        epoch = client.action("stream_open", stream="s", queue="work", mode="queue")["epoch"]
        plan = client.action("plan", with_vhost=False, stream="s", start=0, epoch=epoch, max_rows=60)
        first = bodies(client.plan_batches("s", plan["batch"]))
        client.action("sink_commit", with_vhost=False, query="out", batch=4, stages=[])
        command("backup", tmp_path / "backup", "--url", url(server))
    command("restore", tmp_path / "backup", tmp_path / "two" / "data")
    with LiveServer(tmp_path / "two", flight=True) as restored, penstock.connect(url(restored)) as client:
        opened = client.action("stream_open", stream="s", queue="work", mode="queue")
        again = client.action("plan", with_vhost=False, stream="s", start=0, epoch=opened["epoch"], max_rows=60)
        assert again["batch"] == plan["batch"]
        assert bodies(client.plan_batches("s", again["batch"])) == first
        assert client.action("sink_commit", with_vhost=False, query="out", batch=4, stages=[])["already"]
        with pytest.raises(penstock.PenstockError, match="4"):
            client.action("sink_commit", with_vhost=False, query="out", batch=3, stages=[])


def test_a_backup_cut_short_by_a_kill_is_no_backup(server: LiveServer, tmp_path: Path) -> None:
    target = tmp_path / "backup"
    with Writing(server):
        pass
    failed = list[BaseException]()

    def back_up() -> None:
        try:
            with penstock.connect(url(server), timeout=None) as client:
                client.action("backup", with_vhost=False, target=str(target), copy=True)
        except penstock.PenstockError as error:
            failed.append(error)

    asking = threading.Thread(target=back_up)
    asking.start()
    pause = threading.Event()
    while not (target / "log").is_dir() and asking.is_alive():
        pause.wait(0.001)
    workers = beside(server.ready["pid"], "penstock.server.bulk.child")
    server.kill()
    asking.join()
    eventually(lambda: not any(map(alive, workers)), "the child ends with its server")
    if (target / "backup.json").exists():  # it was quicker than the kill, whether that was answered or not
        command("restore", target, tmp_path / "whole")
        assert command("log", "verify", "--data", tmp_path / "whole")["good"]
    else:
        assert failed
        told = command("restore", target, tmp_path / "two", code=2)
        assert "no complete backup" in told["message"]
        if any(target.iterdir()):
            assert "unfinished backup" in command("backup", target, "--data", server.data, code=2)["message"]
        else:  # the child lived long enough to tidy up: the folder is one for a backup again
            command("backup", target, "--data", server.data)
            command("restore", target, tmp_path / "whole")
    command("backup", tmp_path / "offline", "--data", server.data)
    command("restore", tmp_path / "offline", tmp_path / "two")
    assert command("log", "verify", "--data", tmp_path / "two")["good"]


def test_a_folder_in_use_is_backed_up_by_its_server(server: LiveServer, tmp_path: Path) -> None:
    told = command("backup", tmp_path / "backup", "--data", server.data, code=3)
    assert "leave --data away" in told["message"]
    assert not (tmp_path / "backup").exists()


def test_no_server_starts_beside_an_unfinished_restore(tmp_path: Path) -> None:
    (tmp_path / "one" / "data" / "restore.part").mkdir(parents=True)
    with pytest.raises(AssertionError, match="unfinished restore"):
        LiveServer(tmp_path / "one").start()
