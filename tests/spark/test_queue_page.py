"""The section "Streams, queue mode" of docs/spark.md: its examples run in order against a server with its settings."""

from __future__ import annotations

import tomllib
from typing import Any

from page_lab import blocks, run, sections
from spark_lab import Lab

SECTION = sections("spark.md")["Streams, queue mode"]


def test_the_examples_run_and_do_what_they_say(lab: Lab) -> None:
    [settings] = blocks(SECTION, "toml")
    for one in tomllib.loads(settings)["queue"]:
        lab.declare(one.pop("name"), **one)
    names: dict[str, Any] = {"url": lab.house.url}
    programs = blocks(SECTION, "python")
    assert len(programs) == 3
    run(programs, names)
    lab.spark.streams.removeListener(names["listener"])
    assert lab.ids("results") == [*range(100), *(n for n in range(100, 130) if n != 110)]
    assert lab.ids("failed-jobs") == [110]
    assert lab.counts("jobs") == (0, 0, 129)
