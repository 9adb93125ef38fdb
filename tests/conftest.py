"""What every test shares: how much effort random tests make, and hypothesis settings that do not depend on luck."""

from __future__ import annotations

import gc
import os
from collections.abc import Generator
from typing import Any

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


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules stay to the end: no collection of cycles walks them again."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure of a test that makes random choices says how they are repeated, whatever it is that failed."""
    report = yield
    module: Any = getattr(item, "module", None)
    seed = getattr(module, "SEED", None)
    if report.failed and isinstance(seed, int):
        report.sections.append(("choices", f"repeat them with PENSTOCK_SEED={seed} PENSTOCK_EFFORT={EFFORT}"))
    return report
