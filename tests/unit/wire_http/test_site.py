"""The dashboard's files: who is given them and under which policy, and that all they ask of the API is there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import httpx
import pytest

import penstock.dashboard
from http_lab import NO_TLS, Http

HOME = Path(penstock.dashboard.__file__).parent
FILES = sorted(one.name for one in HOME.iterdir() if one.suffix in {".html", ".css", ".js", ".svg"})
PATHS = dict(re.findall(r'^  (\w+): "([A-Z]+ /api/[^"]*)",$', (HOME / "paths.js").read_text(), re.MULTILINE))


def at(http: Http, path: str, **more: Any) -> httpx.Response:
    return httpx.get(f"{http.broker.http_url}{path}", verify=NO_TLS, timeout=20, **more)


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_served_under_the_policy(http: Http, name: str) -> None:
    answer = at(http, "/" if name == "index.html" else f"/dashboard/{name}")
    assert answer.status_code == 200
    assert answer.content == (HOME / name).read_bytes()
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "require-trusted-types-for 'script'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert at(http, answer.request.url.path, headers={"if-none-match": answer.headers["etag"]}).status_code == 304


def test_nothing_else_is_served(http: Http) -> None:
    for path in (
        "/dashboard/__init__.py",
        "/dashboard/",
        "/dashboard/../errors.py",
        "/dashboard/%2e%2e/errors.py",
        "/x",
    ):
        assert at(http, path).status_code in {401, 404}, path


def test_the_page_loads_and_holds_nothing_of_others() -> None:
    """No address of another host, no script or style within a page, no way for text to become markup."""
    for name in FILES:
        text = (HOME / name).read_text()
        assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)|//cdn", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function", text), name
    page = (HOME / "index.html").read_text()
    assert not re.search(r"<style|\son\w+=|\sstyle=|<script(?![^>]* src=)", page)
    for name in re.findall(r'(?:src|href)="/dashboard/([^"]+)"', page):
        assert name in FILES
    for script in HOME.glob("*.js"):
        for name in re.findall(r'from "\./([^"]+)"', script.read_text()):
            assert name in FILES, script


def test_every_path_that_the_scripts_use_is_one_of_the_api(http: Http) -> None:
    assert len(PATHS) > 15
    described = http.get("openapi.json")["paths"]
    for use, path in PATHS.items():
        method, _, pattern = path.partition(" ")
        assert method.lower() in described.get(pattern, {}), (use, path)
    for script in HOME.glob("*.js"):
        text = script.read_text()
        if script.name != "paths.js":
            assert not re.search(r'["`]/api/', text), script
        for use in re.findall(r'\b(?:ask|send|all|paged|bindings)\("(\w+)"', text):
            assert use in PATHS, (script, use)


def test_the_list_of_queues_asks_for_all_that_it_shows() -> None:
    """It names the columns that it wants: what it shows of others is never there."""
    text = (HOME / "queues.js").read_text()
    asked = re.findall(r'^const COLUMNS = "([^"]+)"', text, re.MULTILINE)[0].split(",")
    shown = {use.replace("?", "") for use in re.findall(r"\brow\.(\w+(?:\??\.\w+)*)", text)}
    assert len(shown) > 8
    assert {use for use in shown if not any(f"{use}.".startswith(f"{one}.") for one in asked)} == set()


def test_every_path_that_the_scripts_use_answers(http: Http) -> None:
    """For a queue with a message; what changes something is given what the dialogs send."""
    for name in ("q", "other"):
        http.do("PUT", f"exchanges/%2F/{name}", {"type": "topic"}, 201)
    http.do("PUT", "queues/%2F/other", {}, 201)
    http.publish("q", '{"n": 1}')
    binding = {"routing_key": "x", "arguments": {}}
    policy = {"pattern": "^none$", "apply-to": "queues", "priority": 1, "definition": {"max-length": 9}}
    bodies = {
        "move": {"to": "other", "dry": True},
        "redrive": {"dry": True},
        "query": {"sql": "SELECT 1", "vhost": "/"},
        "publish": {"routing_key": "x", "payload": "1", "payload_encoding": "string", "properties": {}},
        "bindQueue": binding,
        "bindExchange": binding,
        "setPolicy": policy,
        "setOperatorPolicy": policy,
    }
    answers = {
        "closeConnection": 404, "cluster": 404, "purge": 204, "query": 200, "bindQueue": 201, "bindExchange": 201,
        "unbindQueue": 204, "unbindExchange": 204, "setPolicy": 201, "setOperatorPolicy": 201, "clearPolicy": 204,
        "clearOperatorPolicy": 204,
    }  # fmt: skip
    names = {"vhost": "%2F", "name": "q", "source": "q", "destination": "other", "props": "x"}
    for use, path in PATHS.items():
        method, _, pattern = path.partition(" ")
        if use == "events":
            continue  # has tests of its own
        plain = pattern.format(**names).removeprefix("/api/")
        answer = http.ask(method, plain, bodies.get(use, {} if method == "POST" else None))
        assert answer.status_code == answers.get(use, 200), (use, answer.text)


def test_a_queue_tells_its_settings_and_where_they_are_from(http: Http) -> None:
    http.do("PUT", "queues/%2F/own", {"arguments": {"x-max-length": 7}}, 201)
    http.do("PUT", "policies/%2F/slow", {"pattern": "^own$", "definition": {"message-ttl": 60000}}, 201)
    settings = http.get("queues/%2F/own")["penstock"]["settings"]
    assert settings["max_length"] == {"value": 7, "from": "argument"}
    assert settings["message_ttl"]["value"] == "1m"
    assert "slow" in settings["message_ttl"]["from"]


def test_a_peek_with_a_filter_goes_through_the_queue_and_takes_nothing(http: Http) -> None:
    for n in range(600):
        http.broker.publish("q", b'{"n": %d, "body": "%s"}' % (n, b"<script>" * 100))
    answer = http.ask("GET", "queues/%2F/q/peek", params={"filter": "/n >= 590", "count": 5, "truncate": 20})
    assert [one["payload"][:9] for one in answer.json()] == [f'{{"n": {n}'[:9] for n in range(590, 595)]
    assert {len(one["payload"]) for one in answer.json()} == {20}
    assert answer.headers["x-looked-at"] == "600"
    assert answer.json()[0]["payload_bytes"] > 800
    assert "/n >>" in http.refused("GET", "queues/%2F/q/peek?filter=/n%20%3E%3E")
    assert http.broker.stats("q")["ready"] == 600


def test_a_page_of_queues_is_what_the_whole_list_has(http: Http) -> None:
    for n in range(30):
        http.do("PUT", f"queues/%2F/jobs-{n:02}", {}, 201)
        for _ in range(n % 4):
            http.publish(f"jobs-{n:02}", "x")
    for sort in (
        "messages",
        "messages_ready",
        "name",
        "consumers",
        "penstock.delayed",
        "message_stats.publish",
        "state",
    ):
        query = f"sort={sort}&sort_reverse=true&name=jobs&columns=name,messages,consumers"
        whole = http.get(f"queues?{query}")
        page = http.get(f"queues?{query}&page=2&page_size=7")
        assert page["items"] == whole[7:14], sort
        assert (page["total_count"], page["filtered_count"], page["page_count"]) == (31, 30, 5)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"sec-fetch-site": "cross-site"}, 403),
        ({"sec-fetch-site": "same-site"}, 403),
        ({"origin": "http://elsewhere.example"}, 403),
        ({"origin": "null"}, 403),
        ({"sec-fetch-site": "same-origin"}, 204),
        ({"sec-fetch-site": "none"}, 204),
        ({}, 204),
    ],
)
def test_a_page_of_another_site_changes_nothing(http: Http, headers: dict[str, str], status: int) -> None:
    """A browser that remembers a login sends it with what any page asks for."""
    assert http.ask("DELETE", "queues/%2F/q/contents", headers=headers).status_code == status
    assert http.ask("GET", "queues/%2F/q", headers=headers).status_code == 200
