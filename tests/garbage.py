"""The collector of cycles for tests that set it: another test finds it as it was."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_as_before() -> Iterator[None]:
    """Thresholds are those of now again, and where what was loaded is not walked, nor is what has been loaded since.

    It is not walked for this either: that takes half a second, and copies all that a forked process shares.
    """
    thresholds, frozen = gc.get_threshold(), gc.get_freeze_count()
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
        if frozen:
            gc.collect()
            gc.freeze()
        else:
            gc.unfreeze()
