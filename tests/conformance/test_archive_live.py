"""A real server with an archive: retention waits for it, and every reader goes through both as if nothing had gone."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

import penstock
import penstock.errors
from live_server import LiveServer
from penstock.cli.main import command as built
from waiting import eventually

PAGE = Path(__file__).resolve().parents[2] / "docs" / "archive.md"

pytestmark = pytest.mark.conformance

CONFIG = """
[log]
segment = "64KiB"
retention = { age = "0s" }
archive = { topics = 1 }
[[queue]]
name = "work"
[[queue]]
name = "stuck"
[[user]]
name = "admin"
password = "admin"
tags = ["administrator"]
[[user]]
name = "eu"
password = "eu"
[[entitlement]]
tag = "administrator"
read = true
write = true
[[entitlement]]
user = "eu"
topic = "work"
read = "/region = 'EU'"
"""


def url(server: LiveServer, user: str = "admin") -> str:
    return f"penstock://{user}:{user}@{server.ready['flight']}"


def command(*arguments: object) -> Any:
    result = CliRunner().invoke(built(None), [*map(str, arguments), "--json"])
    assert result.exit_code == 0, result.output + repr(result.exception)
    return json.loads(result.stdout)


def publish(client: penstock.Client, topic: str, start: int, count: int) -> None:
    rows = [
        {"id": i, "region": "EU" if i % 3 else "US", "more": os.urandom(150).hex()} for i in range(start, start + count)
    ]
    client.publish_table(topic, pa.table({"body": [json.dumps(row).encode() for row in rows]}), mandatory=False)


def log_of(client: penstock.Client, end: int) -> pa.Table:
    return pa.Table.from_batches(list(client.log_batches(1, end))).combine_chunks()


def replayed(client: penstock.Client, **options: Any) -> list[tuple[str, bytes]]:
    found = client.replay("work", **{"bookmark": "EPOCH", **options})
    return [(one.bookmark, one.body) for one in found]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[LiveServer]:
    (tmp_path / "penstock.toml").write_text(CONFIG)
    with LiveServer(tmp_path / "one", [str(tmp_path / "penstock.toml")], flight=True) as made:
        yield made


def test_what_retention_removes_is_read_from_the_archive(server: LiveServer, tmp_path: Path) -> None:
    with penstock.connect(url(server)) as client:
        for n in range(12):
            publish(client, "work", n * 50, 50)
            publish(client, "stuck", n * 2, 2)
        end = client.action("position", with_vhost=False, bookmark="NOW")["end"]
        before, messages = log_of(client, end), replayed(client)
        filtered = replayed(client, filter="/id < 150")
        middle = messages[250][0]
        client.purge("work")
        with penstock.connect(url(server, "eu")) as reader:
            theirs = replayed(reader)
        assert 0 < len(theirs) < len(messages)

        # nothing goes before it is archived; then all but what waits does
        first = command("log", "archive", "--dry-run", "--url", url(server))
        assert first["planned"] or first["left"] == 0
        done = command("log", "archive", "--url", url(server))
        assert done["left"] == 0
        assert done["behind"] == 0
        client.action("compact", with_vhost=False, dry_run=False)
        place = client.action("position", with_vhost=False, bookmark="EPOCH")
        assert place["first"] == place["start"] == 1
        assert place["whole_from"] > 500
        assert replayed(client, bookmark=messages[0][0], bookmark_not_found="fail") == messages[1:], "all is there"
        # a reader that nobody knows any more finds all of it: it is archived
        assert client.action("hold", with_vhost=False, read="late", start=1)["kept"]
        segments = client.action("segments", with_vhost=False)["segments"]
        assert sum(one["rows"] for one in segments if one["last"] < place["whole_from"]) <= 24
        assert log_of(client, end).equals(before)
        assert replayed(client) == messages
        assert replayed(client, filter="/id < 150") == filtered
        assert replayed(client, bookmark=middle) == messages[251:]
        assert replayed(client, follow=True, limit=len(messages)) == messages
        assert replayed(client, rate="1000000/s", limit=30) == messages[:30]
        with penstock.connect(url(server, "eu")) as reader:
            assert replayed(reader) == theirs
            assert replayed(reader, follow=True, limit=len(theirs)) == theirs
        assert client.query("SELECT count(*) FROM topic.work WHERE region = 'EU'").scalar() == len(theirs)
        assert over_amqp(server, 40) == [body for _, body in messages[:40]]
        assert len(client.peek("stuck", count=100)) == 24

        listed = command("log", "ls", "--url", url(server))
        assert [one["archived"] for one in listed] == [True] * (len(listed) - 1) + [False]
        shown = CliRunner().invoke(built(None), ["log", "ls", "--url", url(server)])
        assert "archived: 1 to " in shown.output
        told = command("log", "verify", "--url", url(server))
        assert told["archive"]["rows"] == place["whole_from"] - 1 or told["archive"]["rows"] > 500

    page = dict[str, Any]()
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        exec(block, page)
    archived = page["bodies"](str(server.data / "archive"), "work")
    assert len(archived) > 300
    assert archived == [body for _, body in messages][: len(archived)]

    backup, copy = tmp_path / "backup", tmp_path / "two" / "data"
    command("backup", backup, "--url", url(server))
    server.stop()
    report = command("audit", "--data", server.data)
    assert report["findings"] == []
    assert report["counts"]["records publish"] == 624
    assert "audited from LSN" not in report["counts"]
    command("restore", backup, copy)
    for data in (server.data, copy):
        assert command("log", "verify", "--data", data)["archive"]["rows"] > 500
        exported = tmp_path / "work.parquet"
        command("log", "export", exported, "--topic", "work", "--data", data, "--overwrite")
        assert bodies_of(exported) == [body for _, body in messages]
    for made in (server, LiveServer(tmp_path / "two", server.arguments, flight=True)):
        made.start()
        with penstock.connect(url(made)) as client:
            assert log_of(client, end).equals(before)
            assert [body for _, body in replayed(client)] == [body for _, body in messages]
            assert command("log", "archive", "--prune", "0s", "--url", url(made))["pruned"] is None  # it is of today
        made.stop()
    lost_manifest(copy, tmp_path / "again.parquet", [body for _, body in messages])


def test_while_the_archive_is_not_mounted_reads_fail_and_health_says_so(server: LiveServer) -> None:
    with penstock.connect(url(server)) as client:
        for n in range(8):
            publish(client, "work", n * 50, 50)
        messages = replayed(client)
        client.purge("work")
        assert command("log", "archive", "--url", url(server))["left"] == 0
        client.action("compact", with_vhost=False, dry_run=False)
        assert client.action("position", with_vhost=False, bookmark="EPOCH")["whole_from"] > 100
        assert "alarms" not in client.health()
    server.stop()
    there = server.data / "archive"
    there.rename(server.data / "unmounted")
    there.mkdir()
    server.start()
    with penstock.connect(url(server)) as client:
        eventually(lambda: client.health().get("alarms") == ["archive"])
        with pytest.raises(penstock.errors.LogDamaged, match="is its disk mounted"):
            replayed(client)
        publish(client, "work", 800, 1)
        assert [one.json()["id"] for one in client.peek("work")] == [800]
    server.stop()
    there.rmdir()
    (server.data / "unmounted").rename(there)
    server.start()
    with penstock.connect(url(server)) as client:
        assert replayed(client)[: len(messages)] == messages
    server.stop()
    there.rename(server.data / "elsewhere")
    for found in (("log", "verify", "--data"), ("log", "ls", "--data")):
        told = CliRunner().invoke(built(None), [*found, str(server.data)])
        assert (told.exit_code, "has an archive in another folder" in told.stderr) == (0, True)
        named = CliRunner().invoke(built(None), [*found, str(server.data), "--archive", str(server.data / "elsewhere")])
        assert (named.exit_code, named.stderr) == (0, "")


def lost_manifest(data: Path, exported: Path, bodies: list[bytes]) -> None:
    """It is told, made anew from the files, and everything is there."""
    manifest = data / "archive" / "manifest.json"
    manifest.write_bytes(manifest.read_bytes()[:100])
    told = CliRunner().invoke(built(None), ["log", "verify", "--data", str(data)])
    assert isinstance(told.exception, penstock.errors.LogDamaged)
    assert "--repair makes it anew" in str(told.exception)
    repair = ("log", "archive", "--repair", "--data", data)
    told = CliRunner().invoke(built(None), list(map(str, repair)))
    found = re.search(r"is of another log, with origin (\d+); if .* say --origin \1$", str(told.exception))
    assert found is not None
    repair = (*repair, "--origin", found[1])
    planned = command(*repair, "--dry-run")
    assert planned["repaired"]
    assert len(manifest.read_bytes()) == 100
    manifest.unlink()
    refused = CliRunner().invoke(built(None), ["log", "archive", "--data", str(data)])
    assert isinstance(refused.exception, penstock.errors.LogDamaged)
    assert "has files and no manifest" in str(refused.exception)
    assert command(*repair) == planned
    assert not command(*repair)["repaired"]
    assert command("log", "verify", "--data", data)["damage"] == []
    assert command("log", "archive", "--prune", "1d", "--data", data) == {"pruned": None}
    command("log", "export", exported, "--topic", "work", "--data", data, "--overwrite")
    assert bodies_of(exported) == bodies


def bodies_of(path: Path) -> list[bytes]:
    import pyarrow.parquet as parquet

    read: Any = parquet.read_table
    return read(path).column("body").to_pylist()


def over_amqp(server: LiveServer, count: int) -> list[bytes]:
    """The first messages of the topic, by a bookmark over AMQP."""
    import pika

    login = pika.PlainCredentials("admin", "admin")
    channel = server.connect(credentials=login).channel()
    channel.basic_qos(prefetch_count=100)
    out = list[bytes]()
    for method, _, body in channel.consume("work", arguments={"x-bookmark": "EPOCH"}, inactivity_timeout=20):
        assert method is not None, "no message came"
        out.append(body)
        if len(out) == count:
            break
    channel.connection.close()
    return out
