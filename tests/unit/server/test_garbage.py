"""How much the collector of cycles walks at once while the server runs."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from penstock.server.process import settle_garbage


@pytest.fixture
def as_before() -> Iterator[None]:
    """The collector as it was."""
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.usefixtures("as_before")
def test_no_collection_walks_many_young_objects() -> None:
    walked = list[int]()

    def note(phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            walked.append(sum(len(gc.get_objects(young)) for young in range(info["generation"] + 1)))

    settle_garbage()
    gc.callbacks.append(note)
    try:
        kept = [[number] for number in range(300_000)]
    finally:
        gc.callbacks.remove(note)
    assert len(kept) == 300_000
    assert walked
    assert max(walked) <= 30_000
