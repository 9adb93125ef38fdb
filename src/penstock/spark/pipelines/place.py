"""Where pipelines run: the server, and the folder of their checkpoints."""

from __future__ import annotations

from pathlib import Path

from penstock.records.dataclass import dataclass
from penstock.spark.remote import Where


@dataclass(frozen=True, slots=True)
class Place:
    """Where pipelines run."""

    where: Where
    folder: Path
