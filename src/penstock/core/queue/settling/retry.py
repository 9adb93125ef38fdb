"""Back-off of a failed message: how long it stays away from its consumers.

The chance in it is a function of queue, message and failure, so that living through a history twice gives the same
records, and no generator needs keeping.
"""

from __future__ import annotations

from penstock.records.settings import Retry

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


def back_off(retry: Retry, failures: int, queue: int, lsn: int) -> int:
    """Microseconds that a message waits after its n-th failure (n >= 1); what failed together waits together."""
    # past 2**62 the power is the maximum anyway; floats would overflow at 2**1024
    steps = min(max(failures - 1, 0), 1023)
    try:
        delay = min(retry.initial * retry.factor**steps, float(retry.max))
    except OverflowError:
        delay = float(retry.max)
    delay *= 1 + retry.jitter * (2 * chance(queue, lsn, failures) - 1)
    return max(round(delay), 0)
