"""kill -9 while a sink batch of more than 64 MiB is copied: the next start has all of it, once, in order."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from live_server import LiveServer
from waiting import eventually

pytestmark = pytest.mark.crash

PARTS, ROWS, SIZE = 4, 450, 40_000
FILL = b"x" * SIZE


def url(server: LiveServer) -> str:
    return f"penstock://guest:guest@{server.ready['flight']}"


def body(part: int, row: int) -> bytes:
    return b"%d %06d %b" % (part, row, FILL)


def rows(part: int) -> Iterator[pa.RecordBatch]:
    for start in range(0, ROWS, 90):
        yield pa.record_batch({"body": [body(part, row) for row in range(start, start + 90)]})


def heads(client: penstock.Client) -> list[bytes]:
    """The bodies that wait in `out`, oldest first, without their filling."""
    found = list[bytes]()
    for batch in client.queue_batches("out", columns=["body"]):
        for whole in batch.column(0).to_pylist():
            assert whole[9:] == FILL
            found.append(whole[:8])
    return found


def commit(client: penstock.Client, stages: list[str]) -> dict[str, object]:
    return dict(client.action("sink_commit", query="query", batch=0, stages=stages))


class Halting(LiveServer):
    """It stands between two chunks."""

    program = (str(Path(__file__).resolve().parents[1] / "halting_sink_server.py"),)
    loads = True  # a forked one has loaded what is to be halted


def test_a_kill_between_two_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = [body(part, row)[:8] for part in range(PARTS) for row in range(ROWS)]
    halt = tmp_path / "halt"
    halt.touch()
    monkeypatch.setenv("SINK_HALT", str(halt))
    with Halting(tmp_path, flight=True) as server:
        with (
            ThreadPoolExecutor(1) as pool,
            penstock.connect(url(server)) as client,
            penstock.connect(url(server)) as driver,
        ):
            client.declare("out")
            made = [client.stage("query", 0, part, 0, rows(part), topic="out") for part in range(PARTS)]
            stages = [one[0] for one in made if one is not None]
            assert client.queue("out")["ready"] == 0
            answer = pool.submit(commit, driver, stages)
            eventually(lambda: answer.done() or client.queue("out")["ready"] > 0, "nothing is copied")
            assert not answer.done()
            server.kill()
            halt.unlink()
            with pytest.raises(penstock.Unavailable):
                answer.result(60)
        assert any((tmp_path / "data" / "stage").iterdir())
        server.program, server.loads = LiveServer.program, LiveServer.loads  # nothing is to be halted any more
        server.start()
        with penstock.connect(url(server)) as client:
            assert heads(client) == expected
            assert commit(client, stages)["already"] is True
            assert client.action("stages")["stages"] == []
        server.stop()
        server.start()
        with penstock.connect(url(server)) as client:
            assert client.queue("out")["ready"] == PARTS * ROWS
