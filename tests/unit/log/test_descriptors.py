"""Descriptors kept for the log: what becomes of a process's limits."""

from __future__ import annotations

import errno
import resource

import pytest

from penstock.log.disk import KEPT, MOST, exhausted, to_be


@pytest.mark.parametrize(
    ("soft", "hard", "made"),
    [
        (1024, 20_000, (20_000 - KEPT, KEPT)),
        (1024, 1024, (1024 - KEPT, KEPT)),
        (256, 256, (192, 64)),
        (64, 64, (48, 16)),
        (1024, 1 << 30, (MOST - KEPT, KEPT)),
        (1024, resource.RLIM_INFINITY, (MOST - KEPT, KEPT)),
        (1 << 21, 1 << 21, ((1 << 21) - KEPT, KEPT)),
    ],
)
def test_the_soft_limit_is_raised_but_for_what_is_kept(soft: int, hard: int, made: tuple[int, int]) -> None:
    assert to_be(soft, hard) == made


def test_only_a_want_of_descriptors_is_one() -> None:
    assert exhausted(OSError(errno.EMFILE, ""))
    assert exhausted(OSError(errno.ENFILE, ""))
    assert not exhausted(OSError(errno.ENOSPC, ""))
