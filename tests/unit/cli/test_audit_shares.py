"""An audit in shares says what one audit says, of sound logs and of forged ones, however the messages are shared."""

from __future__ import annotations

import random
from pathlib import Path

import pyarrow as pa
import pytest

from choices import spread
from penstock.core.audit_histories import Report, shares, verdict
from penstock.history.view import stand_alone
from penstock.log.disk import OsDisk
from penstock.spark.audits import judged, parted
from unit.cli.forging import forged

SEEDS = 12


def in_shares(folder: Path, borders: list[int], at_once: int) -> Report:
    """As the Spark job does it, without Spark: rows parted, sorted, judged."""
    view = stand_alone(OsDisk(folder))
    rows = pa.Table.from_batches([parted(batch, groups, borders) for batch, groups in view.groups(0, view.durable + 1)])
    ordered = rows.sort_by([("share", "ascending"), ("lsn", "ascending")])
    found = list(judged(ordered.to_batches(max_chunksize=at_once), shares(borders), None))
    view.close()
    waiting = next(waiting for *_, waiting in found if waiting is not None)
    return verdict([part for _, part, _ in found], waiting)


def said(report: Report) -> tuple[dict[str, int], list[tuple[str, str, list[int]]]]:
    counts = {name: count for name, count in report.counts.items() if name not in ("segments", "bytes")}
    return counts, sorted((one.guarantee, one.text, one.lsns) for one in report.findings)


@pytest.mark.parametrize("seed", spread(range(SEEDS), 6))
def test_shares_find_what_one_audit_finds(seed: int, tmp_path: Path) -> None:
    local, last, planted = forged(tmp_path, seed)
    whole = said(local)
    assert bool(whole[1]) == planted
    chance = random.Random(seed)
    for count in (0, 1, 4):
        borders = sorted(chance.sample(range(2, last + 2), count))
        assert said(in_shares(tmp_path, borders, chance.choice([7, 1000]))) == whole, borders
