"""The pages on HTTP, views, links and clusters of servers: what they show runs but for addresses, as they say."""

from __future__ import annotations

import json
import shlex
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

import penstock
from event_stream import EventReader
from live_server import LiveServer
from page_lab import blocks, command, page, run
from penstock import connect
from penstock.testing import Broker


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"queue": [{"name": "jobs"}]}) as one:
        yield one


def lines_of(block: str) -> list[str]:
    """Its commands, each on one line."""
    return [line.removeprefix("$ ") for line in block.replace("\\\n", " ").splitlines()]


def test_the_requests_of_the_page_on_http(broker: Broker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    requests, events = blocks(page("http.md"), "sh")
    port = str(urlsplit(broker.http_url).port)

    def said(line: str) -> str:
        line = line.replace("curl ", "curl -sS --fail ").replace("15672", port)
        line = line.replace("python3 rabbitmqadmin", f"{sys.executable} rabbitmqadmin -P {port}")
        done = command(line, "")
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
        return done.stdout

    declared, published, got = map(said, lines_of(requests))
    assert (declared, json.loads(published)) == ("", {"routed": True})
    assert [one["payload"] for one in json.loads(got)] == ["hello"]
    [tool] = blocks(page("http.md"), "console")
    _, listed, again = map(said, lines_of(tool))
    assert [[part.strip() for part in line.split("|")[1:-1]] for line in listed.splitlines() if "jobs" in line] == [
        ["jobs", "1"]
    ]
    assert "Message published" in again
    [stream] = lines_of(events)
    with EventReader(broker.http_url, urlsplit(shlex.split(stream)[-1]).query) as reader:
        assert [one["name"] for one in reader.until("stats").data["queues"]] == ["jobs"]


def test_the_page_on_views(capsys: pytest.CaptureFixture[str]) -> None:
    """The rows that its comments show; what changes is waited for a moment, not for seconds."""
    [settings], [program] = (blocks(page("views.md"), language) for language in ("toml", "python"))
    with Broker(settings) as broker, connect(broker.flight_url) as client:
        for id in range(12):
            client.publish("to-ship", {"id": id, "region": "n", "total": 512.5 - 11 * 20 if id == 0 else 20})
        program = program.replace("penstock://localhost", broker.flight_url)
        run([program.replace('timeout="5s"', 'timeout="200ms"')], {}, "views.md")
    shown = program.split("print(row.sow_key, row.json())  # ")[1].splitlines()[0]
    first, *changes = capsys.readouterr().out.splitlines()
    assert first.replace("'", '"') == shown
    assert changes


def test_the_page_on_clusters_connects_to_the_member_that_serves() -> None:
    """Its settings and commands are run in `tests/cluster_of_servers`."""
    [program] = blocks(page("cluster-of-servers.md"), "python")
    admin = {"name": "admin", "password": "secret", "tags": ["administrator"]}
    with Broker({"user": [admin]}) as broker, socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        away, there = f"127.0.0.1:{nobody.getsockname()[1]}", broker.flight_url.rpartition("@")[2]
        for host, real in {"node-1": away, "node-2": there, "node-3": away}.items():
            assert host in program
            program = program.replace(host, real)
        with run([program], {"penstock": penstock}, "cluster-of-servers.md")["client"] as client:
            assert client.health()["status"] == "ok"


def test_the_page_on_links_and_its_commands(tmp_path: Path) -> None:
    """Of a site whose other one is away."""
    page_on_links = page("links.md")
    [settings], [commands] = blocks(page_on_links, "toml"), blocks(page_on_links, "sh")
    password, file = tmp_path / "berlin.password", tmp_path / "paris.toml"
    password.write_text("secret")
    for written, here in {"/etc/penstock/berlin.password": str(password), "berlin.example:8815": "127.0.0.1:1"}.items():
        assert written in settings
        settings = settings.replace(written, here)
    file.write_text(settings)
    with LiveServer(tmp_path, [str(file)], flight=True) as server:
        url = f"penstock://guest:guest@{server.ready['flight']}"
        status, pause, proxy = (command(line, url) for line in commands.splitlines())
        for done in (status, pause, proxy):
            assert done.returncode == 0, done
        assert "berlin" in status.stdout
        assert "paused" in pause.stdout
        with connect(url) as client:
            assert [one["state"] for one in client.links() if one["direction"] == "out"] == ["paused"]
            assert client.queue("orders")["proxied_transfer"]
