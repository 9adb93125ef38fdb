"""A sample of `make soak-sites`; `PENSTOCK_SITES_SAMPLE_SECONDS` sets how long it makes trouble (2)."""

from __future__ import annotations

import os
from pathlib import Path

from choices import SEED
from soak.sites_soak import SitesSoak, told

SAMPLE_S = float(os.environ.get("PENSTOCK_SITES_SAMPLE_SECONDS", "2"))


def test_each_message_is_worked_once_at_whatever_site(tmp_path: Path) -> None:
    soak = SitesSoak(tmp_path, SAMPLE_S, SEED, least={"confirmed": 51})
    soak.run()
    said = f"PENSTOCK_SEED={SEED}\n{told(soak)}"
    print(said)
    assert soak.wrong == [], "\n".join([*soak.wrong[:30], said])
    assert soak.counts["confirmed"] > 50
