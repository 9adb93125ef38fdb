"""What `penstock doctor` says of a server that runs: whether its links can be called, and of its internal errors."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from live_server import LiveServer
from penstock.cli import checkup
from penstock.cli.checkup import Finding, examine_links
from penstock.config.load import load_text
from penstock.errors import Unavailable
from penstock.log.disk import OsDisk
from penstock.log.log import Log
from penstock.log.writer import LogSettings
from penstock.server.base.clock import SystemClock
from sites.house import Sites
from waiting import eventually

Run = Callable[..., tuple[int, str, str]]

SETTINGS = """
[server]
name = "a"
{more}
[[link]]
name = "b"
to = ["penstock://127.0.0.1:{port}"]
topic = [{{ pattern = "orders.*" }}]
{link}
"""


def told(more: str = "", link: str = "", port: int = 1) -> list[Finding]:
    return list(examine_links(load_text(SETTINGS.format(more=more, link=link, port=port), source="p.toml")))


def test_each_address_is_called() -> None:
    with socket.create_server(("127.0.0.1", 0)) as there:
        port = there.getsockname()[1]
        [found] = told(port=port)
    assert (found.name, found.verdict) == ("link b", "good")
    [found] = told()
    assert (found.verdict, found.found.partition(": ")[0]) == ("poor", "penstock://127.0.0.1:1")


def test_a_ca_that_a_link_cannot_use_is_told(tmp_path: Path) -> None:
    """That it can be read was enough: the link was down, and doctor content."""
    (tmp_path / "junk").write_text("junk")
    for file, why in (
        ("absent", "cannot be read: No such file or directory"),
        ("junk", "holds no CA certificates in PEM"),
    ):
        text = SETTINGS.format(more="", link=f'ca = "{tmp_path / file}"', port=1).replace("penstock:", "penstocks:")
        found, _ = examine_links(load_text(text, source="p.toml"))
        assert (found.verdict, found.found) == ("bad", f"ca = {tmp_path / file}")
        assert f"link.ca: {tmp_path / file} {why}" in found.advice


def test_a_log_that_no_server_can_open_is_found(run: Run, tmp_path: Path) -> None:
    data = tmp_path / "data"
    config = tmp_path / "p.toml"
    config.write_text('[listen]\namqp = "127.0.0.1:0"\nhttp = "off"\nflight = "off"\n')

    def asked() -> tuple[int, dict[str, str]]:
        status, out, _ = run("doctor", str(config), "--data", str(data), "--json")
        found = [one for one in json.loads(out)["findings"] if one["name"] == "data folder"]
        return status, found[0] if found else {}

    assert asked() == (0, {})
    Log.open(OsDisk(data), SystemClock(), LogSettings(reserve=0, ahead=0)).close()
    assert (asked()[0], asked()[1]["verdict"]) == (0, "good")
    [segment] = (data / "log").glob("*.arrows")
    segment.write_bytes(b"x" * 10_000)
    status, found = asked()
    assert (status, found["verdict"]) == (1, "bad")
    assert f"log/{segment.name} is no segment of this log" in found["found"]
    assert "penstock log verify" in found["advice"]
    assert segment.read_bytes() == b"x" * 10_000
    config.write_text(f'[server]\ndata = "{config}"\n{config.read_text()}')
    status, out, _ = run("doctor", str(config), "--json")
    assert status == 1
    assert f"{config}/log: Not a directory" in out


def test_a_server_that_says_nothing_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checkup, "ASK_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as there:
        settings = load_text(f'[listen]\nflight = "127.0.0.1:{there.getsockname()[1]}"', source="p.toml")
        door = checkup.door_of(settings)
        assert door is not None
        for found in (checkup.alarms(settings, door), checkup.streams(settings, door)):
            assert found.found == "not known"
            assert "nothing was heard from there for 0.1 s" in found.advice


def test_files_that_cannot_be_read_and_confirms_that_wait_for_ever(tmp_path: Path) -> None:
    found = told(link=f'sync = true\npassword_file = "{tmp_path / "none"}"')
    assert [one.verdict for one in found] == ["bad", "poor", "poor"]
    assert "cannot be read" in found[0].advice
    assert "downgrade_after" in found[2].advice
    assert [one.found for one in told(link='sync = true\ndowngrade_after = "1s"')] == [found[1].found]


def test_queues_that_cannot_be_shared_and_owners_that_nobody_reaches() -> None:
    queue = '[[queue]]\nname = "{}"\n{}\n'
    found = told(
        queue.format("orders.a", "group_key = '/id'") + queue.format("other", "group_key = '/id'")
        + queue.format("orders.b", 'kind = "group-local"\ninitial_owner = "c"')
        + queue.format("orders.c", 'kind = "group-local"\ninitial_owner = "b"')
        + queue.format("orders.d", 'kind = "local"\ngroup_key = "/id"')
    )[1:]  # fmt: skip
    assert [one.found for one in found] == ["queue 'orders.a' has groups", "its initial_owner is 'c'"]


@pytest.mark.parametrize("topic", ['"orders.a", filter = "/n > 1"', '"orders.a"', '"other"'])
@pytest.mark.parametrize("owner", "abc")
def test_a_first_owner_that_would_not_hear_of_all(topic: str, owner: str) -> None:
    queue = f'[[queue]]\nname = "orders.a"\nkind = "group-local"\ninitial_owner = "{owner}"\n'
    text = SETTINGS.format(more=queue, link="", port=1).replace('"orders.*"', topic)
    wanted = {
        ("b", True): [("bad", "its initial_owner is 'b', and the link to it leaves out some of the queue")],
        ("c", True): [("bad", "its initial_owner is 'c', and no link carries all of the queue")],
        ("c", False): [("poor", "its initial_owner is 'c'")],
    }
    found = list(examine_links(load_text(text, source="p.toml")))[1:]
    assert [(one.verdict, one.found) for one in found] == wanted.get((owner, topic != '"orders.a"'), [])


def test_of_a_server_that_runs_it_says_how_its_links_are(tmp_path: Path) -> None:
    """As the command tells it, asked of the server itself."""
    from penstock.cli.checkup import running_links
    from penstock.cli.driver_jobs import door_of

    with Sites(tmp_path) as sites:
        a, b = sites["a"], sites["b"]
        sites.linked()
        text = a.settings.read_text() + f'\n[listen]\nflight = "{a.flight}"\n'
        settings = load_text(text, source="p.toml")
        door = door_of(settings)
        assert door is not None
        [found] = running_links(settings, door)
        assert (found.name, found.verdict) == ("link b, running", "good")
        b.kill()
        down = list[Finding]()

        def is_down() -> bool:  # a busy machine may not answer in time, which is poor, too
            down[:] = running_links(settings, door)
            return down[0].found.startswith("down since 20") and "cannot be reached" in down[0].advice

        eventually(is_down, lambda: str(down))  # first it is told how the connection ended, then that there is none
        assert down[0].verdict == "poor"


NOTHING = load_text("", source="p.toml")


def errors_found(monkeypatch: pytest.MonkeyPatch, health: object) -> checkup.Finding:
    def health_told(settings: object, door: object, action: str) -> Any:
        assert action == "health"
        if isinstance(health, Exception):
            raise health
        return health

    monkeypatch.setattr(checkup, "_told", health_told)
    door: Any = None
    return checkup.internal_errors(NOTHING, door)


def test_it_says_how_many_there_were_since_when_and_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = errors_found(monkeypatch, {"internal_errors": {"count": 3, "since": 0, "last": 60_000_000}})
    assert finding.verdict == "poor"
    assert finding.found == "3 since 1970-01-01T00:00:00+00:00, the last 1970-01-01T00:01:00+00:00"
    assert "'a fault ended what was asked for'" in finding.advice


def test_none_is_good_and_silence_is_poor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert errors_found(monkeypatch, {"status": "ok"}).verdict == "good"
    assert errors_found(monkeypatch, Unavailable("it is gone")).found == "not known"


def test_alarms_that_are_set_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    door: Any = None
    some: list[tuple[dict[str, object], str, str]] = [
        ({}, "good", "none is set"), ({"alarms": ["archive", "clock"]}, "poor", "archive, clock"),
    ]  # fmt: skip
    for told, verdict, found in some:
        monkeypatch.setattr(checkup, "_told", lambda *_, told=told: told)
        finding = checkup.alarms(NOTHING, door)
        assert (finding.verdict, finding.found) == (verdict, found)


def test_the_server_of_the_same_settings_is_found_wherever_its_data_is(tmp_path: Path, run: Run) -> None:
    """Its start named another folder, or the settings one from where it was started: its ports are its own."""
    server = LiveServer(tmp_path, flight=True)
    server.children_load = True
    with server:
        assert server.process is not None
        settings = tmp_path / "elsewhere" / "p.toml"
        settings.parent.mkdir()
        ready = {name: f'{name} = "{server.ready[name]}"' for name in ("amqp", "flight")}
        text = f'[server]\ndata = "{tmp_path / "elsewhere"}"\n[listen]\nhttp = "off"\n'
        settings.write_text(text + "\n".join(ready.values()))
        status, out, _ = run("doctor", str(settings), "--json")
        found = {one["name"]: (one["verdict"], one["found"]) for one in json.loads(out)["findings"]}
        said = f"{server.data}, which process {server.process.pid} serves at present"
        assert (status, found["data folder"]) == (0, ("good", said))
        for name in ready:
            there = f"{server.ready[name]}, where process {server.process.pid} listens"
            assert found[f"{name} door"] == ("good", there)
        settings.write_text(text + f'{ready["amqp"]}\nflight = "127.0.0.1:1"\n')
        status, out, _ = run("doctor", str(settings), "--json")
        found = {one["name"]: (one["verdict"], one["found"]) for one in json.loads(out)["findings"]}
        assert (status, found["amqp door"][0]) == (1, "bad"), "a server that has not all of these ports is another one"
