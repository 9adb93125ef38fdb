"""The description of the paths is that of the paths that there are."""

from __future__ import annotations

import re
from typing import Any

from event_stream import EventReader
from http_lab import Http


def test_every_path_is_described_and_answers(http: Http) -> None:
    document = http.get("openapi.json")
    assert document["openapi"] == "3.1.0"
    paths: dict[str, dict[str, Any]] = document["paths"]
    assert {"/api/queues/{vhost}/{name}", "/api/openapi.json", "/api/whoami"} <= paths.keys()
    operations = [one["operationId"] for path in paths.values() for one in path.values()]
    assert len(operations) == len(set(operations))
    for path, methods in paths.items():
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
        elif "get" in methods:
            status = http.ask("GET", re.sub(r"\{\w+\}", "none", path).removeprefix("/api/")).status_code
            assert status in {200, 400, 404, 503}, path
            if "{" not in path:
                assert status == (404 if path == "/api/cluster" else 200), path  # this server is in none
