"""How AMPS writes intervals, sizes and words, what is refused, and that settings written as TOML read back equal."""

from __future__ import annotations

import tomllib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.config.foreign import amps_elements
from penstock.config.foreign.converted import to_toml
from penstock.config.queue_arguments import queue_settings_from_mapping


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("15m", "15m"),
        ("2h", "2h"),
        ("1d", "1d"),
        ("30s", "30s"),
        ("500ms", "500ms"),
        ("250 us", "250us"),
        ("1H", "1h"),
        ("90", "90s"),
        ("5000000ns", "5ms"),
        ("1.5s", "1.5s"),
    ],
)
def test_intervals(written: str, read: str) -> None:
    assert amps_elements.interval(written) == read


@pytest.mark.parametrize("written", ["", "m", "15x", "-1s", "0s", "1 m 2", "999999999999d", "1e3s"])
def test_what_is_no_interval(written: str) -> None:
    with pytest.raises(ValueError, match="interval|between|too large"):
        amps_elements.interval(written)


@pytest.mark.parametrize("written", ["0", "0s", "0.0 ms", "disabled", "Disabled", "off"])
def test_words_for_no_interval(written: str) -> None:
    assert amps_elements.interval_or_none(written) is None


@pytest.mark.parametrize(
    ("written", "read"), [("1GB", "1GB"), ("64kb", "64KB"), ("2G", "2GB"), ("100", "100B"), ("1.5 MB", "1.5MB")]
)
def test_sizes(written: str, read: str) -> None:
    assert amps_elements.size(written) == read


@pytest.mark.parametrize("written", ["", "big", "1 KiB", "-1GB"])
def test_what_is_no_size(written: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        amps_elements.size(written)


def test_words_for_yes_and_no() -> None:
    assert [amps_elements.yes_or_no(word) for word in ("enabled", "True", "yes", "1")] == [True] * 4
    assert [amps_elements.yes_or_no(word) for word in ("disabled", "FALSE", "no", "0")] == [False] * 4
    with pytest.raises(ValueError, match="'perhaps' is not one of enabled"):
        amps_elements.yes_or_no("perhaps")


def test_counts_have_bounds() -> None:
    assert amps_elements.count(1000)("1000") == 1000
    for written in ("999", "9" * 18, "9" * 40, "1.0", "\u0661"):
        with pytest.raises(ValueError, match="is not"):
            amps_elements.count(1000)(written)


@pytest.mark.parametrize("written", ["epoch", "now", "creation", "123|45|", "20260131T235959", "20260131T235959.123Z"])
def test_recovery_points(written: str) -> None:
    assert amps_elements.recovery_point(written) == written


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
VALUE = st.recursive(
    TEXT | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=8,
)
TABLE = st.dictionaries(TEXT, VALUE, max_size=4)


@given(st.dictionaries(TEXT, TABLE | st.lists(TABLE, min_size=1, max_size=3), max_size=4), TEXT)
def test_what_is_written_reads_back_equal(settings: dict[str, object], heading: str) -> None:
    assert tomllib.loads(to_toml(settings, heading=[heading])) == settings


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ("EPOCH", "epoch"), ("earliest", "epoch"), ("0", "epoch"), ("Now", "now"), ("LATEST", "now"), ("0|1|", "now"),
        ("Creation", "creation"), ("11|12|", "11|12|"),
    ],
)  # fmt: skip
def test_words_of_bookmarks_are_recovery_points_and_kept_as_one(written: str, kept: str) -> None:
    """Another one takes messages out of a queue, and another word for the same one must not."""
    assert amps_elements.recovery_point(written) == kept
    settings = queue_settings_from_mapping({"recovery_point": written})
    assert settings.recovery_point == kept
    assert queue_settings_from_mapping({"recovery_point": written}, base=settings) == settings
