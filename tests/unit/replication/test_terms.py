"""Which term wrote what, and where two logs part."""

from __future__ import annotations

import pytest

from penstock.replication.terms import Written, common
from sim.cluster_model import Terms

OURS = [Written(1, 1, 50), Written(3, 200, 260), Written(4, 300, 310)]


def test_each_lsn_has_one_term() -> None:
    terms = Terms(OURS)
    assert [terms.of(lsn) for lsn in (1, 50, 51, 200, 299, 300, 311)] == [1, 1, None, 3, None, 4, None]


def test_a_cut_takes_what_lies_above() -> None:
    terms = Terms(OURS)
    terms.cut(230)
    assert list(terms) == [Written(1, 1, 50), Written(3, 200, 230)]
    terms.begin(5, 400)
    assert terms.newest == 5


@pytest.mark.parametrize(("term", "first"), [(4, 400), (3, 400), (5, 310)])
def test_terms_neither_repeat_nor_overlap(term: int, first: int) -> None:
    with pytest.raises(ValueError, match="behind term 4 up to 310"):
        Terms(OURS).begin(term, first)


@pytest.mark.parametrize(
    ("theirs", "end"),
    [
        (OURS, 310),
        ([Written(1, 1, 50), Written(3, 200, 255)], 255),  # it has less of our third
        ([Written(1, 1, 50), Written(3, 200, 270)], 260),  # it has more of it, which nobody confirmed
        ([Written(1, 1, 60), Written(2, 100, 150)], 50),  # a term of which we know nothing
        ([Written(2, 100, 150)], 0),
        ([], 0),
    ],
)
def test_two_logs_part_in_the_newest_term_that_both_know(theirs: list[Written], end: int) -> None:
    assert common(OURS, theirs) == common(theirs, OURS) == end
