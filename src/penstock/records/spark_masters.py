"""Masters of Spark: what one is written like, for settings files and commands, which know it without Spark."""

from __future__ import annotations

import re

from penstock.units import shown_address

_MASTER = re.compile(r"local(\[(\d+|\*)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]|spark://\S+|k8s://\S+|yarn")
"""What Spark takes for a master."""


def wrong_master(value: str) -> str | None:
    """Why Spark would not take it; None where it is one by its form."""
    if _MASTER.fullmatch(value) is not None:
        return None
    return f"{shown_address(value)[:60]!r} is no master of Spark: write local[*], local[4], spark://host:7077, yarn or k8s://"
