"""A sample of `make soak-cluster`; `PENSTOCK_CLUSTER_SAMPLE_SECONDS` sets how long it makes trouble (8)."""

from __future__ import annotations

import os
from pathlib import Path

from choices import SEED
from soak.cluster_soak import ClusterSoak, told
from soak.restart_orders import EVERY, go_through

SAMPLE_S = float(os.environ.get("PENSTOCK_CLUSTER_SAMPLE_SECONDS", "8"))
REST_S = 0.1


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


def test_a_leader_that_waits_for_nobody_is_noticed(tmp_path: Path) -> None:
    """It is cut off from the others, and confirms what they will never have."""
    soak = ClusterSoak(tmp_path, 60.0, SEED, pause_most=3.0, leak="alone", rest=REST_S)
    soak.run()
    assert any("is lost" in one or "came back" in one for one in soak.books.wrong), soak.books.wrong
