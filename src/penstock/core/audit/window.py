"""Rows of a log that are looked at in one go."""

from __future__ import annotations

import pyarrow as pa

from penstock.core.audit.queues import Bools
from penstock.core.state.lsns import Ints
from penstock.records.dataclass import dataclass


@dataclass(slots=True)
class Window:
    """Rows that are looked at in one go, as columns."""

    table: pa.Table
    batch: Ints  # number of the record batch of each row
    lsns: Ints
    kinds: Ints
    times: Ints
    publishes: Bools
