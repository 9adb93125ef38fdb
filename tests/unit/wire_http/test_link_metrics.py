"""What a site tells of its links as metrics, and the rules for alerts that name them.

The rules for alerts on a single server name metrics that it has.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from prometheus_client.parser import text_string_to_metric_families

from alert_table import CASES, FILES, rules
from penstock.server.http import metrics
from penstock.server.http.exposition import exposition
from penstock.server.http.metrics import QUEUES, Metrics

SITES_ALERTS = Path(__file__).resolve().parents[3] / "examples/sites/alerts.yml"
LINK: dict[str, Any] = {
    "link": "b", "direction": "out", "up": False, "paused": False, "refused": True, "awaited": True,
    "state_seconds": 61.5, "downgraded": True, "lag_seconds": 3.5, "messages": 4, "bytes": 5, "asks": 6,
}  # fmt: skip


def samples(*links: dict[str, Any]) -> dict[str, float]:
    """By name."""
    text = b"".join(exposition(Metrics(), links=links)).decode()
    found = (sample for family in text_string_to_metric_families(text) for sample in family.samples)
    return {one.name: one.value for one in found}


def test_a_link_tells_how_it_is_and_for_how_long() -> None:
    found = samples(LINK)
    told = {name.removeprefix("penstock_link_"): value for name, value in found.items() if "_link_" in name}
    assert told == {
        "up": 0, "paused": 0, "refused": 1, "awaited": 1, "state_seconds": 61.5, "downgraded": 1, "lag_seconds": 3.5,
        "messages_total": 4, "bytes_total": 5, "asks_total": 6,
    }  # fmt: skip


def test_without_links_there_are_none() -> None:
    assert not any("_link_" in name for name in samples())


def test_alerts_of_sites_name_metrics_that_are_there() -> None:
    queues = {one.name for one in QUEUES.figures}
    told = {*samples(LINK), *queues, *(f"{name}_total" for name in queues)}
    [group] = yaml.safe_load(SITES_ALERTS.read_text())["groups"]
    named = {name for rule in group["rules"] for name in re.findall(r"penstock_\w+", rule["expr"])}
    assert len(group["rules"]) >= 6
    assert named
    assert named <= told


def test_each_rule_for_alerts_is_played_where_it_fires_and_where_it_is_quiet() -> None:
    """By promtool, which `make conformance` has."""
    there = [name for file in FILES for name in rules(file)]
    assert len(there) == len(set(there))
    assert {one.rule for one in CASES if one.of} == set(there)
    assert {one.rule for one in CASES if not one.of} == set(there)


ALERTS = Path(__file__).resolve().parents[3] / "examples/alerts.yml"


def test_alerts_name_metrics_that_are_there() -> None:
    texts = [(Path(metrics.__file__).parent / name).read_text() for name in ("exposition.py", "metrics.py")]
    told = set(re.findall(r'"((?:penstock|rabbitmq)_\w+)"', "".join(texts)))
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    named = {name for rule in group["rules"] for name in re.findall(r"(?:penstock|rabbitmq)_\w+", rule["expr"])}
    assert "penstock_internal_errors_total" in named
    assert {name.removesuffix("_total") for name in named} <= told
