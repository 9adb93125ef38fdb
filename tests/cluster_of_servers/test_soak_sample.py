"""A sample of `make soak-cluster`; `PENSTOCK_CLUSTER_SAMPLE_SECONDS` sets how long it makes trouble (4)."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from choices import SEED
from soak.cluster_soak import ClusterSoak, told
from soak.restart_orders import EVERY, go_through

SAMPLE_S = float(os.environ.get("PENSTOCK_CLUSTER_SAMPLE_SECONDS", "4"))
REST_S = 0.1
CHANCES = 5
"""Leaders that are cut off, each of a cluster of its own, until one of them is noticed: the first was each time."""


def test_a_sample(tmp_path: Path) -> None:
    soak = ClusterSoak(tmp_path, SAMPLE_S, SEED, pause_most=3.0, least=201, rest=REST_S)
    soak.run()
    said = f"PENSTOCK_SEED={SEED}\n{told(soak)}"
    print(said)
    assert soak.books.wrong == [], "\n".join([*soak.books.wrong[:30], said])
    assert soak.counts["confirmed"] > 200
    assert soak.counts["bytes compared"] > 10_000
    assert soak.counts["terms"] >= 2


def test_all_are_stopped_and_killed_and_start_in_another_order(tmp_path: Path) -> None:
    """One order of each kind; which, the seed says."""
    go_through(tmp_path, ("stopped", "killed"), [EVERY[SEED % len(EVERY)]])


@pytest.mark.bulk("soak/test_soak.py::test_the_books_notice")
def test_a_leader_that_waits_for_nobody_is_noticed(tmp_path: Path) -> None:
    """It is cut off from the others, and confirms what they will never have."""
    wrong = list[str]()
    for chance in range(CHANCES):
        (folder := tmp_path / f"{chance}").mkdir()
        soak = ClusterSoak(folder, REST_S, SEED + chance, pause_most=3.0, leak="alone", rest=REST_S)
        soak.run()
        wrong += soak.books.wrong
        if any("is lost" in one or "came back" in one for one in wrong):
            return
    pytest.fail(f"nobody noticed: {wrong}")
