"""Bookmarks in all their forms, and where they are in a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pyarrow as pa
import pytest

from penstock.errors import InvalidArgument, NotFound
from penstock.history.spans import Missing, Stretch, check_missing, resolve
from penstock.records.schema import TIMESTAMP
from penstock.wire.flight.bookmarks import Point, parse_span

T = 1_795_161_600_000_000  # 2026-11-20T08:00:00Z


class Kept:
    """LSNs 5 to 14, one a second from T on; 10 is not there."""

    origin = 7
    first_lsn = 5
    durable = 14
    thinned: tuple[int, int] = (0, 0)  # LSNs [a, b) that rows were left out of

    def has_every(self, a: int, b: int) -> bool:
        low, high = self.thinned
        return a >= self.first_lsn and (a >= high or b <= low)

    def batches(self, a: int, b: int, columns: Sequence[str] | None = None) -> Iterator[pa.RecordBatch]:
        for lsns in ([5, 6, 7], [8, 9], [11, 12, 13, 14]):
            some = [lsn for lsn in lsns if a <= lsn < b]
            if some:
                times = pa.array([T + (lsn - 5) * 1_000_000 for lsn in some], pa.int64()).cast(TIMESTAMP)
                yield pa.RecordBatch.from_arrays([pa.array(some, pa.int64()), times], names=["lsn", "time"])


def places(text: str, missing: Missing | None = "now", wall: int | None = T + 3600_000_000) -> Stretch:
    return resolve(Kept(), parse_span(text), missing, wall=wall)


@pytest.mark.parametrize(
    ("text", "start", "end"),
    [
        ("EPOCH", 5, None),
        ("earliest", 5, None),
        ("0", 5, None),
        ("NOW", 15, None),
        ("latest", 15, None),
        ("0|1|", 15, None),
        ("7|8|", 9, None),  # a bookmark names a message: the next one is the first
        ("7|14|", 15, None),
        ("7|4|", 5, None),  # the message is gone, and nothing after it is
        ("7|12|,7|6|,7|9|", 7, None),  # the oldest of a list
        ("2026-11-20T08:00:03", 8, None),
        ("20261120T080003Z", 8, None),
        ("20261120T080003", 8, None),
        ("2026-11-20T09:00:03+01:00", 8, None),
        ("2026-11-20T08:00:04.500000", 10, None),  # after what came before it
        ("2020-01-01", 5, None),  # before the log is its beginning
        ("7|12|,20261120T080001Z", 6, None),
        ("[7|6|:7|8|]", 6, 9),
        ("(7|6|:7|8|)", 7, 8),
        ("[7|6|:7|8|)", 6, 8),
        ("(7|6|:7|8|]", 7, 9),
        ("[EPOCH:NOW)", 5, 15),
        ("[7|9|,7|7|:7|12|,7|13|]", 7, 13),
        ("(20261120T080001Z:20261120T080003Z]", 7, 9),
        ("[20261120T080001Z:20261120T080003Z)", 6, 8),
        ("[2026-11-20T08:00:01,7|9|:2026-11-20T08:00:03]", 6, 9),
        ("[7|9|:7|6|]", 9, 9),  # nothing lies between
        ("[7|6|:7|99|)", 6, 99),  # a range may end where nothing is yet
        ("[7|15|:7|15|)", 15, 15),  # and begin with what comes next
    ],
)
def test_forms(text: str, start: int, end: int | None) -> None:
    found = places(text)
    assert (found.start, found.end, found.notice) == (start, end, "")


def test_times_ahead_wait() -> None:
    ahead = "2026-11-20T10:00:00"
    assert places(ahead) == Stretch(15, None, since=T + 7_200_000_000)
    assert places(f"[EPOCH:{ahead})") == Stretch(5, None, until=T + 7_200_000_000)
    assert places(f"[EPOCH:{ahead}]") == Stretch(5, None, until=T + 7_200_000_001)
    assert places(f"[EPOCH:{ahead},7|9|]") == Stretch(5, 10), "the oldest of the list is there already"


@pytest.mark.parametrize(
    ("text", "why"), [("7|2|", "the log begins at 7|5|"), ("7|15|", "the last one is 7|14|"), ("(7|2|:NOW]", "begins")]
)
def test_a_bookmark_that_is_not_found(text: str, why: str) -> None:
    assert places(text).start == 15, "from now on is the documented default"
    assert why in places(text).notice
    assert places(text, "epoch").start == 5
    assert "from the beginning" in places(text, "epoch").notice
    with pytest.raises(NotFound, match="not found"):
        places(text, "fail")


def test_another_logs_bookmark_is_refused() -> None:
    for missing in ("epoch", "now", "fail", None):
        with pytest.raises(InvalidArgument, match=r"8\|3\| comes from another log; here they begin with 7\|"):
            places("8|3|", missing)
    with pytest.raises(InvalidArgument, match="another log"):
        places("7|9|,8|3|")


def test_most_recent_needs_a_name() -> None:
    with pytest.raises(InvalidArgument, match="needs the name"):
        parse_span("MOST_RECENT")
    asked = parse_span("[most_recent:NOW]", lambda: Point("lsn", 7, 9))
    assert resolve(Kept(), asked).start == 9
    assert resolve(Kept(), parse_span("MOST_RECENT", lambda: Point("lsn", 7, 9))).start == 10


def test_words_for_what_is_not_found() -> None:
    assert check_missing("fail") == "fail"
    with pytest.raises(InvalidArgument, match="there is 'epoch', 'now' and 'fail'"):
        check_missing("never")


@pytest.mark.parametrize(
    "text", ["", "soon", "7|", "[7|6|", "[7|6|)", "[7|6|:", "7|1|,", "7|1|,soon", "99999999T000000"]
)
def test_what_is_no_bookmark(text: str) -> None:
    with pytest.raises(InvalidArgument):
        parse_span(text)


@pytest.mark.parametrize(
    ("text", "start", "is_whole"),
    [
        ("EPOCH", 5, True),
        ("2020-01-01", 5, True),
        ("2026-11-20T08:00:03", 8, True),
        ("[EPOCH:7|9|)", 5, True),
        ("7|9|", 10, True),
        ("[7|10|:NOW)", 10, True),
        ("7|4|", 5, False),
        ("7|8|", 9, False),
        ("[7|9|:7|9|]", 9, False),
        ("7|12|,7|8|", 9, False),
        ("2026-11-20T08:00:03,7|7|", 8, False),
        ("[7|5|:7|7|)", 5, True),  # ends before what was left out
        ("[7|5|:7|7|]", 5, False),
        ("[7|5|:2026-11-20T10:00:00)", 5, False),
    ],
)
def test_rows_that_were_left_out_behind_a_bookmark(text: str, start: int, is_whole: bool) -> None:
    log, span = Kept(), parse_span(text)
    log.thinned = 7, 10
    wall = T + 3600_000_000
    left = resolve(log, span, None, wall=wall)
    assert (left.start, left.notice) == (start, "")
    assert resolve(log, span, "epoch", wall=wall) == left
    told = resolve(log, span, "now", wall=wall)
    assert told.start == start
    assert told.notice == "" if is_whole else "left out by compaction; reading what is left" in told.notice
    if is_whole:
        assert resolve(log, span, "fail", wall=wall) == left
    else:
        with pytest.raises(NotFound, match=r"bookmark 7\|\d+\| and what follows it: rows .* were left out"):
            resolve(log, span, "fail", wall=wall)
