"""Chance that a rule needs: a function of what it is about, such as queue, message and failure.

So living through a history twice gives the same records, no generator needs keeping, and what was drawn is logged like
any other decision: whoever folds the log draws nothing.
"""

from __future__ import annotations

_MASK = (1 << 64) - 1


def chance(*values: int) -> float:
    """A number in [0, 1) that looks random and depends on the values alone (the finaliser of SplitMix64)."""
    x = 0
    for value in values:
        x = (x + value + 0x9E3779B97F4A7C15) & _MASK
        x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
        x ^= x >> 31
    return (x >> 11) / (1 << 53)
