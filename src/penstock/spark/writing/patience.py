"""Back-off of writers: a target that is full now is tried again, and the last refusal says for how long and what to do.

Nothing of a refused batch is visible, so a writer may ask as often as it likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from penstock.errors import DiskFull, QueueFull
from penstock.spark.remote import Tries, Where

T = TypeVar("T")


def patiently(where: Where, call: Callable[[], T]) -> T:
    """What the call gives.  QueueFull or DiskFull when there is no room after `where.patience` seconds."""
    tries = Tries(where.patience)
    while True:
        try:
            return call()
        except (QueueFull, DiskFull) as error:
            said = type(error)(
                f"{error}; this was tried for {where.patience:g} s, as option patience has it, and nothing of "
                f"the batch is visible. {type(error).to_do}",
                reason=error.reason,
            )
            tries.pause(said)
