"""Free memory is given back when the process has grown, and not before."""

from __future__ import annotations

import pytest

from penstock.server.base import allocator


def test_memory_is_given_back_when_the_process_has_grown(monkeypatch: pytest.MonkeyPatch) -> None:
    resident = [100]
    given: list[int] = []
    monkeypatch.setattr(allocator, "resident_bytes", lambda: resident[0])
    monkeypatch.setattr(allocator, "give_back", lambda: given.append(resident[0]))
    tidy = allocator.Tidy(growth=20)
    assert not tidy.due()
    resident[0] = 90
    assert not tidy.due()
    resident[0] = 111
    assert tidy.due()
    tidy.run()
    assert given == [111]
    assert not tidy.due(), "what is left is in use"
    resident[0] = 132
    assert tidy.due()


def test_the_process_has_a_size() -> None:
    assert 10 << 20 < allocator.resident_bytes() < 1 << 40
