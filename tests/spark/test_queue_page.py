"""The section "Streams, queue mode" of docs/spark.md: its examples run in order against a server with its settings."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

from spark_lab import Lab

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "spark.md").read_text()
SECTION = PAGE.partition("\n## Streams, queue mode\n")[2].partition("\n## ")[0]


def test_the_examples_run_and_do_what_they_say(lab: Lab, tmp_path: Path) -> None:
    [settings] = re.findall(r"```toml\n(.*?)```", SECTION, re.DOTALL)
    for one in tomllib.loads(settings)["queue"]:
        lab.declare(one.pop("name"), **one)
    names: dict[str, Any] = {"url": lab.house.url, "checkpoint": str(tmp_path)}
    blocks = re.findall(r"```python\n(.*?)```", SECTION, re.DOTALL)
    assert len(blocks) == 3
    for block in blocks:
        exec(compile(block, "docs/spark.md", "exec"), names)
    lab.spark.streams.removeListener(names["listener"])
    assert lab.ids("results") == [*range(100), *(n for n in range(100, 130) if n != 110)]
    assert lab.ids("failed-jobs") == [110]
    assert lab.counts("jobs") == (0, 0, 129)
