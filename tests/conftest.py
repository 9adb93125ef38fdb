"""What every test shares: how much effort random tests make, and hypothesis settings that do not depend on luck."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, settings

EFFORT = int(os.environ.get("PENSTOCK_EFFORT", "1"))

settings.register_profile(
    "penstock",
    deadline=None,  # a shared machine pauses; a slow example is no failure
    max_examples=100 * EFFORT,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("penstock")


@pytest.fixture(scope="session")
def effort() -> int:
    """By how much random and crash tests multiply their work: 1, or what `PENSTOCK_EFFORT` says."""
    return EFFORT
