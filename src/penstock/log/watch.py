"""Who looks on while a log is opened and replayed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

Watch: TypeAlias = Callable[[str, int, int], object]
"""(stage, done, in all), called between steps.  Stages: "checking" counts segments, "checkpoint" one step, "folding"
records.  What it raises ends the opening."""


def nobody(stage: str, done: int, total: int) -> None:
    """No one looks on."""
