"""The commands about topics, records and views: what they show, and what they say when there is nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from forked import penstock as command
from penstock.testing.process import ServerProcess
from waiting import eventually

pytestmark = pytest.mark.conformance

CONFIG = """
[[exchange]]
name = "shop"
type = "topic"
[[topic]]
name = "orders"
key = ["/id"]
[[topic]]
name = "kept"
exchange = "shop"
[[queue]]
name = "q"
[[view]]
name = "totals"
source = "orders"
select = ["/region", "SUM(/total) AS /total"]
group_by = ["/region"]
[[conflated_topic]]
name = "slow"
source = "totals"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("topics")
    (folder / "p.toml").write_text(CONFIG)
    with ServerProcess(folder / "data", config=folder / "p.toml") as process:
        yield process


def penstock(server: ServerProcess, *arguments: str, given: str = "") -> tuple[int, str, str]:
    done = command(*arguments, "--url", server.flight_url, given=given)
    return done.returncode, done.stdout, done.stderr


def test_views_are_listed_and_shown_with_their_kind(server: ServerProcess) -> None:
    assert penstock(server, "publish", "orders", given='{"id": 1, "region": "n", "total": 2}\n')[0] == 0
    listed = json.loads(penstock(server, "topic", "list", "--json")[1])
    kinds = {(one["topic"], one["kind"]) for one in listed}
    assert kinds == {("orders", "topic"), ("kept", "topic"), ("totals", "view"), ("slow", "conflated topic")}
    assert "conflated topic" in penstock(server, "topic", "list")[1]
    view = json.loads(penstock(server, "topic", "show", "totals", "--json")[1])
    assert (view["kind"], view["source"], view["key"], view["records"]) == ("view", "orders", ["/region"], 1)
    assert json.loads(penstock(server, "topic", "show", "slow", "--json")[1])["source"] == "totals"
    assert penstock(server, "topic", "show", "nothing")[0] == 1


def test_a_replay_of_nothing_says_so(server: ServerProcess) -> None:
    status, out, err = penstock(server, "replay", "TYPO")
    assert (status, out) == (1, "")
    assert "no records for topic 'TYPO' in the log, and no queue or declared topic has that name" in err
    for slip, meant in (("order", "orders"), ("total", "totals")):
        assert f"topic has that name; did you mean '{meant}'?" in penstock(server, "replay", slip)[2]
    for known in ("q", "shop/kept"):
        status, out, err = penstock(server, "replay", known)
        assert (status, out, err) == (0, "", f"no records for topic {known!r}\n")
    assert penstock(server, "replay", "orders", "--bookmark", "NOW")[::2] == (
        0,
        "no records for topic 'orders' from there on that match\n",
    )
    assert "no records for topics that match '^x'" in penstock(server, "replay", "--pattern", "^x")[2]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--skip", "1"), "--skip 1 needs --top"),
        (("--select", "/region"), "--select needs --group-by"),
        (("--group-by", "/region"), "--group-by needs --select"),
        (("--order-by", "/a,,/b"), "--order-by has an empty part"),
        (("--select", "/a", "--group-by", "/a", "--fields", "-/b"), "--fields does not go with --select"),
    ],
)
def test_mistakes_name_the_option_that_was_typed(server: ServerProcess, options: tuple[str, ...], said: str) -> None:
    status, _, err = penstock(server, "sow", "orders", *options)
    assert status == 2
    assert said in err


def test_the_list_of_segments_names_its_columns(server: ServerProcess) -> None:
    _, out, _ = penstock(server, "log", "ls")
    names = [line.split() for line in out.splitlines() if "first" in line]
    assert names == [["first", "last", "batches", "records", "LSNs", "size", "rewritten", "state"]]


def test_a_start_and_the_overview_tell_every_setting_with_where_it_came_from(server: ServerProcess) -> None:
    from urllib.request import Request, urlopen

    request = Request(f"{server.http_url}/api/overview", headers={"Authorization": "Basic Z3Vlc3Q6Z3Vlc3Q="})
    with urlopen(request, timeout=30) as answer:
        settings = json.load(answer)["penstock"]["settings"]
    assert settings["amqp.heartbeat"]["from"] == settings["log.retention.age"]["from"] == "default"
    assert settings["server.data"]["value"] == str(server.data)
    assert settings["server.data"]["from"] == "option --data"
    eventually(lambda: " is ready: " in server.output())  # the last line, which is written beside the start
    said = server.output()
    assert f"setting server.data = {server.data} (option --data)\n" in said
    lines = said.splitlines()
    for name, one in settings.items():
        section, _, key = name.rpartition(" ") if " " in name else name.partition(".")
        by_default = [line for line in lines if line.startswith(f"setting {section}: ") and line.endswith(" (default)")]
        told = f"setting {name} = {one['value']} ({one['from']})" in lines
        assert told or any(f"{key} = {one['value']}" in line for line in by_default), name
