"""The rules for alerts on a single server name metrics that it has."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from penstock.server.http import exposition, metrics

ALERTS = Path(__file__).resolve().parents[3] / "examples/alerts.yml"


def test_alerts_name_metrics_that_are_there() -> None:
    told = set(re.findall(r'"((?:penstock|rabbitmq)_\w+)"', "".join(
        Path(str(one.__file__)).read_text() for one in (exposition, metrics)
    )))  # fmt: skip
    [group] = yaml.safe_load(ALERTS.read_text())["groups"]
    named = {name for rule in group["rules"] for name in re.findall(r"(?:penstock|rabbitmq)_\w+", rule["expr"])}
    assert "penstock_internal_errors_total" in named
    assert {name.removesuffix("_total") for name in named} <= told
