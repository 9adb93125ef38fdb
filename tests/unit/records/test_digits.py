"""Numbers in ages, times, sizes and bookmarks are written in ASCII: what looks like none is refused as none."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.errors import InvalidArgument
from penstock.records.queue_settings import parse_recovery_point
from penstock.units import parse_age, parse_duration, parse_size
from penstock.wire.flight.bookmarks import parse_mark, parse_point

READERS: list[tuple[Callable[[str], object], str]] = [
    (parse_age, "3D"), (parse_duration, "3s"), (parse_size, "3KiB"), (parse_recovery_point, "3|3|"),
    (parse_point, "3|3|"), (parse_mark, "3|3|"),
]  # fmt: skip


@pytest.mark.parametrize(
    "three", ["\N{ARABIC-INDIC DIGIT THREE}", "\N{FULLWIDTH DIGIT THREE}", "\N{SUPERSCRIPT THREE}"]
)
@pytest.mark.parametrize(("read", "text"), READERS)
def test_other_digits_are_no_number(read: Callable[[str], object], text: str, three: str) -> None:
    read(text)
    with pytest.raises((ValueError, InvalidArgument), match=three):
        read(text.replace("3", three))
