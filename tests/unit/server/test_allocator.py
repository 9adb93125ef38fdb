"""Memory goes back to the system when a burst is over."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.server import allocator


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="resident memory is read from /proc")
def test_free_memory_goes_back() -> None:
    burst = [bytes(4000) for _ in range(20_000)]
    full = resident()
    kept = burst[::1000]
    del burst
    allocator.give_back()
    assert len(kept) == 20
    assert full - resident() > 40 << 20
