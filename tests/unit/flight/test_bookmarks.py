"""Places in the log as text."""

from __future__ import annotations

import pytest

from penstock.errors import InvalidArgument
from penstock.wire.flight.bookmarks import (
    LISTED_MOST,
    MARKS_MOST,
    Point,
    Span,
    format_bookmark,
    parse_mark,
    parse_point,
    parse_span,
    read_marks,
)


def test_a_bookmark_comes_back_as_it_went() -> None:
    assert parse_point(format_bookmark(42, 7)) == Point("lsn", origin=42, lsn=7)
    assert parse_point("42|7") == Point("lsn", origin=42, lsn=7)


@pytest.mark.parametrize("word", ["EPOCH", "earliest", "Epoch"])
def test_the_beginning_has_two_names(word: str) -> None:
    assert parse_point(word) == Point("epoch")


def test_times_are_utc_unless_they_say_otherwise() -> None:
    assert parse_point("1970-01-01T00:00:01") == Point("time", time=1_000_000)
    assert parse_point("1970-01-01T01:00:01+01:00") == Point("time", time=1_000_000)
    assert parse_point("1970-01-02") == Point("time", time=86_400_000_000)


def test_a_range_says_which_ends_belong_to_it() -> None:
    assert parse_span("[1|5|:1|9|)") == Span(
        Point("lsn", origin=1, lsn=5), Point("lsn", origin=1, lsn=9), with_start=True, with_end=False
    )
    assert parse_span("(EPOCH:NOW]") == Span(Point("epoch"), Point("now"), with_start=False, with_end=True)


def test_colons_within_times_do_not_end_them() -> None:
    span = parse_span("[1970-01-01T00:00:01:1970-01-01T00:00:02)")
    assert (span.start.time, span.end and span.end.time) == (1_000_000, 2_000_000)


@pytest.mark.parametrize(
    "text", ["", "x", "1|", "|1|", "1|2|3|", "[1|2|", "[1|2|:)", "MOST_RECENT", "1|99999999999999999|"]
)
def test_what_is_no_bookmark_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_span(text)


def test_what_is_no_bookmark_is_told_the_words_that_pages_use() -> None:
    with pytest.raises(
        InvalidArgument, match=r"^'erliest' is no bookmark: write .*, EPOCH \(earliest\), NOW \(latest\), "
    ):
        parse_span("erliest")


@pytest.mark.parametrize("text", ["", "0", "1", "NOW", "1|0|", "1|x|", "2024-01-01T00:00:00Z", "1|2|3"])
def test_what_names_no_message_is_refused(text: str) -> None:
    with pytest.raises(InvalidArgument, match=r"names no message: write its bookmark <origin>\|<lsn>\|, or none"):
        parse_mark(text, ", or none")


def test_there_are_at_most_so_many_at_once() -> None:
    with pytest.raises(InvalidArgument, match=f"{MARKS_MOST + 1} bookmarks at once; {MARKS_MOST} are allowed"):
        read_marks(["1|1|"] * (MARKS_MOST + 1))
    with pytest.raises(InvalidArgument, match=f"a list of {LISTED_MOST + 1} bookmarks; {LISTED_MOST} are allowed"):
        parse_point(",".join(["1|1|"] * (LISTED_MOST + 1)))
