"""What comes due by a deadline costs what it is, and not what lies between."""

from __future__ import annotations

from array import array

import numpy as np
import pytest

from penstock.core.queue.expiry import SPAN_MOST, Expiry

FAR = 1 << 40


@pytest.mark.parametrize("loaded", [False, True])
@pytest.mark.parametrize("gap", [1, SPAN_MOST, FAR])
def test_numbers_that_nobody_has_are_not_looked_through(gap: int, loaded: bool) -> None:
    """After a start that was not clean numbers go on far behind; messages with one deadline were on both sides."""
    expiry, lsns = Expiry(), [1, 2, 2 + gap, 3 + gap, 3 + 2 * gap]
    if loaded:
        expiry.load(np.array(lsns, dtype=np.int64), np.array([7] * len(lsns), dtype=np.int64))
    else:
        for lsn in lsns:
            expiry.add(array("q", [lsn]), 7)
    due, steps = list[int](), 0
    while expiry.due <= 7:
        for chunk in expiry.come_due(7):
            due += [lsn for lsn in lsns if chunk[0] <= lsn <= chunk[-1]]
        steps += 1
    assert due == lsns
    assert steps <= 1 + 2 * gap // SPAN_MOST if gap < FAR else steps == 1
    assert expiry.deadlines_of(array("q", lsns)).tolist() == [7] * len(lsns)
