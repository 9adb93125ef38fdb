"""Parts of a topic have like numbers of its rows, by what indexes know; nothing of it decides what is read."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter

from penstock.log.catalog import Span, cuts, pieces_of, span
from penstock.log.simdisk import SimDisk
from penstock.records.entries import Topic
from sim.logkit import commit, messages, opened
from unit.log.test_names import SETTINGS, found, index_all


def test_shares_are_even_wherever_the_rows_are() -> None:
    assert cuts([Span(0, 100, 100)], 4) == [25, 50, 75]
    assert cuts([Span(0, 1000, 10), Span(5000, 5100, 90)], 2) == [5044]
    assert cuts([Span(7, 9, 2)], 9) == [8], "fewer rows than parts"
    assert cuts([], 3) == []
    assert cuts([Span(0, 10, 0)], 3) == []
    assert cuts([Span(0, 100, 50), Span(10, 90, 50)], 2) == [10], "files of an archive overlap"
    assert pieces_of(0, 10, 250_000) == [Span(0, 3, 83_333), Span(3, 6, 83_333), Span(6, 10, 83_334)]


def test_a_gap_behind_a_batch_is_no_rows() -> None:
    assert span(10, 10 + 2**32, 0, 1 << 60, 3200) == Span(10, 110, 100)
    assert span(10, 20, 15, 18, 3200) == Span(15, 18, 3)
    assert span(10, 20, 30, 40, 3200).rows == 0


def test_a_rare_topic_is_cut_where_its_messages_are() -> None:
    """Its messages lie in the first tenth of the log: parts by LSNs alone would leave all of them to one."""
    log, rare, common = opened(SimDisk(), SETTINGS), Topic("/", "", "rare"), Topic("/", "", "common")
    for at in range(200):
        topic = rare if at % 2 == 0 and at < 40 else common
        commit(log, messages(log.appended + 1, *(b"%d" % n for n in range(10)), topic=topic))
    index_all(log)
    assert len(log.segments()) > 3
    lsns = [lsn for lsn, name in found(log, "rare") if name == "rare"]
    places = cuts(list(log.spans(0, 1 << 60, "rare")), 4)
    shares = Counter(bisect_right(places, lsn) for lsn in lsns)
    assert len(lsns) == 200
    assert max(shares.values()) <= 60, shares
    last = log.segments()[-1].first
    assert all(one.end > last or one.first < lsns[-1] for one in log.spans(0, 1 << 60, "rare"))
    assert sum(one.rows for one in log.spans(0, 1 << 60)) == log.durable
    log.close()
