"""What `penstock doctor` says of internal errors of a server that runs."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.cli import checkup
from penstock.config.load import load_text
from penstock.errors import Unavailable

SETTINGS = load_text("", source="p.toml")


def found(monkeypatch: pytest.MonkeyPatch, health: object) -> checkup.Finding:
    def told(settings: object, door: object, action: str) -> Any:
        assert action == "health"
        if isinstance(health, Exception):
            raise health
        return health

    monkeypatch.setattr(checkup, "_told", told)
    door: Any = None
    return checkup.internal_errors(SETTINGS, door)


def test_it_says_how_many_there_were_since_when_and_where_to_look(monkeypatch: pytest.MonkeyPatch) -> None:
    finding = found(monkeypatch, {"internal_errors": {"count": 3, "since": 0, "last": 60_000_000}})
    assert finding.verdict == "poor"
    assert finding.found == "3 since 1970-01-01T00:00:00+00:00, the last 1970-01-01T00:01:00+00:00"
    assert "'a fault ended what was asked for'" in finding.advice


def test_none_is_good_and_silence_is_poor(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found(monkeypatch, {"status": "ok"}).verdict == "good"
    assert found(monkeypatch, Unavailable("it is gone")).found == "not known"
