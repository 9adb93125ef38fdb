"""`penstock log compact` against a real server, and on the folder that it leaves."""

from __future__ import annotations

import json
import struct
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import penstock
from conformance.test_cli_against_a_server import penstock as command
from conformance.test_log_streams import Reader
from live_server import LiveServer
from penstock.errors import LogDamaged
from penstock.log.disk import OsDisk
from penstock.log.rewrite import Old, Order, rewrite
from penstock.server.bulk.log_upkeep import Compactor
from penstock.server.bulk.process import Bulk
from sim.logkit import SMALL, commit, messages, opened

pytestmark = pytest.mark.conformance

CONFIG = """
[log]
segment = "64KiB"
retention = { bytes = "100KiB" }
[[queue]]
name = "work"
[[queue]]
name = "stuck"
"""
BODY = b"x" * 400
SEAL = 1024
"""Bytes at the end of a closed file that say that it is one, at most."""


def work(url: str, rounds: int) -> None:
    """Messages that are taken and settled."""
    with penstock.connect(url) as client:
        for n in range(rounds):
            client.publish_table("work", pa.table({"body": [b"%d-%d " % (n, k) + BODY for k in range(20)]}))
        for taken, message in enumerate(client.consume("work", backlog=500), 1):
            message.ack()
            if taken == 20 * rounds:
                break


class Untended(LiveServer):
    """Its own upkeep is held: what is done, the command did."""

    program = (str(Path(__file__).resolve().parents[1] / "untended_server.py"),)


def listed(data: str) -> list[dict[str, int]]:
    """The segments, oldest first."""
    return json.loads(command("log", "ls", "--data", data, "--json"))  # type: ignore[no-any-return]


def test_a_stuck_message_and_a_large_log(tmp_path: Path) -> None:
    config = tmp_path / "penstock.toml"
    config.write_text(CONFIG)
    with Untended(tmp_path, [str(config)], flight=True) as server:
        url = f"penstock://{server.ready['flight']}"
        work(url, 10)
        with penstock.connect(url) as client:
            client.publish("stuck", b"still here")
        work(url, 30)
        before = listed(str(server.data))
        planned = json.loads(command("log", "compact", "--dry-run", "--url", url, "--json"))
        assert planned["planned"]
        assert planned["done"] == planned["deleted"] == 0
        assert "sparse" in command("log", "compact", "--dry-run", "--url", url)
        said = json.loads(command("log", "compact", "--url", url, "--json"))
        after = listed(str(server.data))
        deleted = [one for one in before if one["last"] < after[0]["first"]]
        kept = {(one["first"], one["generation"]) for one in after}
        replaced = [one for one in before[len(deleted) :] if (one["first"], one["generation"]) not in kept]
        made = [one for one in after if one["generation"]]
        assert deleted
        assert replaced
        freed = sum(one["bytes"] for one in (*deleted, *replaced)) - sum(one["bytes"] for one in made)
        seals = SEAL * len([*deleted, *replaced])  # the server counts what is in a file, the listing its end too
        assert freed - seals <= said.pop("freed") <= freed
        assert said == {
            "planned": planned["planned"],
            "deleted": len(deleted),
            "done": len(replaced),
            "dropped": sum(one["rows"] for one in (*deleted, *replaced)) - sum(one["rows"] for one in made),
        }
        assert sum(one["bytes"] for one in after) < sum(one["bytes"] for one in before) / 2
        with penstock.connect(url) as client:
            assert [message.body for message in client.peek("stuck")] == [b"still here"]
        assert "0 rewritten" in command("log", "compact", "--url", url)
        command("log", "compact", "--data", str(server.data), status=3)
        server.kill()
        server.start()
        with penstock.connect(f"penstock://{server.ready['flight']}") as client:
            assert [message.body for message in client.peek("stuck")] == [b"still here"]
        assert "every guarantee held" in command("audit", "--data", str(server.data))
    data = str(server.data)
    assert "rewritten" in command("log", "compact", "--data", data, "--size", "1B")
    assert "every checksum is right" in command("log", "verify", "--data", data)
    assert "every guarantee held" in command("audit", "--data", data)
    shown = command("log", "show", "--data", data, "--json", "--limit", "1000")
    assert shown.count('"kind":"publish"') >= 1
    command("log", "compact", "--data", data, "--size", "many", status=2)


async def test_the_bulk_child_writes_the_same_file(tmp_path: Path) -> None:
    disk = OsDisk(tmp_path)
    log = opened(disk, replace(SMALL, segment=5000))
    for at in range(30):
        commit(log, messages(log.appended + 1, b"%d" % at, b"x" * at))
    olds = tuple(Old(one.first, one.last, one.generation, one.rows) for one in log.segments()[:3])
    order = Order(olds, keep=struct.pack("<4q", 2, 5, 9, 10), floor=1 << 40, compress=True)
    here = rewrite(disk, order)
    written = (tmp_path / "log" / f"{1:020d}.rewrite").read_bytes()
    bulk = Bulk(tmp_path)
    try:
        compactor = Compactor(bulk)
        assert await compactor.rewrite(order) == here
        assert (tmp_path / "log" / f"{1:020d}.rewrite").read_bytes() == written
        assert await compactor.index(1) == len((tmp_path / "index" / f"{1:020d}-00000.names").read_bytes())
        with pytest.raises(LogDamaged, match="rows, not 99"):
            await compactor.rewrite(Order((replace(olds[0], rows=99),)))
    finally:
        bulk.close()
        log.close()


def test_a_stream_that_let_go_is_told_of_rows_that_were_left_out(tmp_path: Path) -> None:
    """A message that is stuck keeps the log's beginning, and not what lies behind it."""
    config = tmp_path / "penstock.toml"
    config.write_text(CONFIG)
    with Untended(tmp_path, [str(config)], flight=True) as server:
        url = f"penstock://{server.ready['flight']}"
        with penstock.connect(url) as client:
            client.publish("stuck", b"still here")
            first = {name: Reader(client, stream=name, topic="work") for name in ("planned", "begun", "recent")}
            work(url, 10)
            at = first["planned"].begin()
            end = first["planned"].plan(at, max_rows=20)["end"]
            assert {first["begun"].begin(), first["recent"].begin("MOST_RECENT")} == {at}
            work(url, 20)
            holding = Reader(client, stream="held", topic="work")
            now = holding.begin("NOW")
            work(url, 10)
            held = holding.plan(now, max_rows=20)
            for name in first:
                client.release_stream(name)
            command("log", "compact", "--url", url)
            position = client.action("position")
            whole = position["whole_from"]
            assert position["first"] == at < end < whole <= now
            again = {name: Reader(client, stream=name, topic="work") for name in (*first, "held")}
            told = f"and retention has removed rows that lie before LSN {whole}, which nobody held for it"
            for asked in (
                lambda: again["planned"].plan(end),
                lambda: again["planned"].plan(at),
                again["begun"].begin,
                lambda: again["recent"].begin("MOST_RECENT"),
            ):
                for _ in range(2):  # a second try does not go on either
                    with pytest.raises(penstock.PreconditionFailed, match=told):
                        asked()
            parts = client.action("range_parts", stream="planned", start=at, end=end)
            assert told in parts["lost"]
            # What a stream holds is there, and so is all that one finds which begins now.
            assert again["held"].plan(now)["parts"] == held["parts"]
            assert again["held"].plan(held["end"])["rows"] == 180
            for words in ("EPOCH", "MOST_RECENT"):
                new = Reader(client, stream=f"new {words}", topic="work")
                some = new.plan(new.begin(words), max_rows=20)
                assert some["start"] < some["end"] < new.plan(some["end"], max_rows=20)["end"]
            passed = again["planned"].plan(end, max_rows=20, fail_on_data_loss=False)
            assert again["planned"].plan(passed["end"], max_rows=20)["end"] > passed["end"]
