"""The description of the paths is that of the paths that there are."""

from __future__ import annotations

import re
from typing import Any

import httpx
import pytest

from event_stream import EventReader
from http_lab import NO_TLS, Http


def test_every_path_is_described_and_answers(http: Http) -> None:
    document = http.get("openapi.json")
    assert document["openapi"] == "3.1.0"
    paths: dict[str, dict[str, Any]] = document["paths"]
    assert {"/api/queues/{vhost}/{name}", "/api/openapi.json", "/api/whoami"} <= paths.keys()
    operations = [one["operationId"] for path in paths.values() for one in path.values()]
    assert len(operations) == len(set(operations))
    for path, methods in paths.items():
        if not path.startswith("/api/"):
            continue  # see below
        plain = re.sub(r"\{\w+\}", "none", path).removeprefix("/api/")
        allowed = http.ask("OPTIONS", plain).headers["allow"].split(", ")
        named = set(re.findall(r"\{(\w+)\}", path))
        for method, operation in methods.items():
            assert method.upper() in allowed, path
            assert {one["name"] for one in operation["parameters"] if one["in"] == "path"} == named
            assert operation["summary"]
        assert {one.lower() for one in allowed} - {"head", "options"} == methods.keys(), path
        assert http.ask("OPTIONS", f"{plain}/").headers["allow"].split(", ") == allowed, f"{path}/"


def test_reading_needs_nothing_but_a_login(http: Http) -> None:
    """What is listed for a plain user does not fail: each GET answers 200, or 404 for an object that is not there."""
    for path, methods in http.get("openapi.json")["paths"].items():
        if path == "/api/events":  # its answer has no end
            with EventReader(http.broker.http_url) as stream:
                assert stream.status == 200
        elif "get" in methods and path.startswith("/api/"):
            status = http.ask("GET", re.sub(r"\{\w+\}", "none", path).removeprefix("/api/")).status_code
            assert status in {200, 400, 404, 503}, path
            if "{" not in path:
                assert status == (404 if path == "/api/cluster" else 200), path  # this server is in none


def test_probes_are_described_with_who_needs_a_login(http: Http) -> None:
    """Beside the table: each answers with what its line says, and asks for a login where its line does."""
    found = http.get("openapi.json")["paths"].items()
    probes = {path: methods["get"] for path, methods in found if not path.startswith("/api/")}
    assert {"/healthz", "/readyz", "/leader", "/metrics", "/metrics/per-object", "/metrics/detailed"} <= probes.keys()
    with httpx.Client(base_url=http.broker.http_url, verify=NO_TLS, timeout=20) as client:
        for path, told in probes.items():
            closed = told.get("security") != []
            assert (client.get(path).status_code == 401) == closed == ("401" in told["responses"]), path
            answer = client.get(path, auth=("guest", "guest") if closed else None)
            assert str(answer.status_code) in told["responses"], path
            [content] = told["responses"]["200"]["content"]
            assert answer.headers["content-type"].startswith(content), path
    assert [one["name"] for one in probes["/metrics/detailed"]["parameters"]] == ["family", "vhost"]


OWN = re.compile(
    r"/api/(openapi.json|events|log|topics|views|streams|cluster(/.+)?|links(/.+)?|tokens(/.+)?|pipelines(/.+)?|query)"
    r"|/api/queues/.+/(peek|leases|explain|pause|resume|redrive|move|proxy)"
)
"""Paths that RabbitMQ has not."""


def test_a_parameter_that_a_path_of_ours_has_not_is_refused_by_name_and_value(http: Http) -> None:
    """On each of them, with what is allowed; RabbitMQ's pass over what its pages and tools send."""
    own = set[str]()
    with httpx.Client(base_url=http.broker.http_url, verify=NO_TLS, timeout=20, auth=("guest", "guest")) as client:
        for path, methods in http.get("openapi.json")["paths"].items():
            for method, told in methods.items():
                known = [one["name"] for one in told["parameters"] if one["in"] == "query"]
                answer = client.request(method, f"{path.format_map(Names())}?disable_stats=indeed")
                if not OWN.fullmatch(path):
                    assert "disable_stats" not in answer.text, path
                    continue
                own.add(path)
                allowed = f"it is not one of {', '.join(known)}" if known else "none is known here"
                said = f"unknown parameter 'disable_stats' with the value 'indeed': {allowed}"
                assert (answer.status_code, answer.json().get("reason")) == (400, said), path
    assert len(own) > 20


class Names(dict[str, str]):
    """Of a vhost that is there, and of things in it that are not: nothing is changed."""

    def __missing__(self, variable: str) -> str:
        return "%2F" if variable == "vhost" else "none"


@pytest.mark.parametrize(
    ("way", "known"),
    [
        ("get /api/queues/{vhost}/{name}/peek", ["count", "filter", "truncate"]),
        ("delete /api/queues/{vhost}/{name}", ["if-unused", "if-empty"]),
        ("get /api/queues/{vhost}/{name}/explain", ["bookmark"]),
        ("get /api/queues/{vhost}/{name}", ["columns"]),
        ("get /api/queues", ["sort", "sort_reverse", "columns", "name", "use_regex", "page", "page_size"]),
        ("get /api/events", ["interval", "vhost", "queue", "top", "only", "last_event_id"]),
        ("get /api/links", []),
    ],
)
def test_the_parameters_of_a_query_are_described(http: Http, way: str, known: list[str]) -> None:
    method, path = way.split()
    told = http.get("openapi.json")["paths"][path][method]["parameters"]
    assert [one["name"] for one in told if one["in"] == "query"] == known
