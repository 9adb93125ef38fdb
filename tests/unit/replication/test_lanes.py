"""Terms that nobody makes twice, and which of two copies of a register is to be believed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from penstock.errors import InvalidArgument, PreconditionFailed
from penstock.replication.register import TENURES_MOST, ClusterState, Member, Verdict, compared, decode, end_of_line
from penstock.replication.terms import (
    LANES,
    Written,
    common,
    first_base,
    in_stretches,
    next_term,
    runs,
    start_of,
    term_of,
    unrolled,
)

BASE = first_base(5000)


def cluster(*names: str) -> ClusterState:
    """Of these members, all in sync, and `a` told to lead first."""
    made = ClusterState("c", 7, base=BASE, to="a")
    for name in names:
        made = made.with_member(name, Member(name, f"{name}:1", 1, 1, f"p-{name}"))
    return made.counting(names)


def led(state: ClusterState, member: str, last: int = 9000) -> ClusterState:
    """By a member whose process is another one each time."""
    there = state.members[member]
    made = state.led_by(member, last)
    return made.with_member(member, replace(there, starts=there.starts + 1, process=f"p{made.term}"))


A = led(cluster("a", "b", "c"), "a").counting("abc").beaten(9000)
"""Term 1, led by `a`, and all are in sync."""


def promoted(
    state: ClusterState, member: str, lose: int | None = None, rival: ClusterState | None = None
) -> ClusterState:
    return led(state.told_to_lead(member, rival=rival, lose=lose), member)


def test_each_member_makes_terms_of_its_own() -> None:
    made = {number: [next_term(number, above) for above in (0, 1, 63, 64, 65, 1000)] for number in range(1, LANES)}
    assert made[1] == [1, 65, 65, 65, 129, 1025]
    assert made[2] == [2, 2, 66, 66, 66, 1026]
    for number, terms in made.items():
        assert {term % LANES for term in terms} == {number}
    assert all(term > above for terms in made.values() for term, above in zip(terms, (0, 1, 63, 64, 65), strict=False))


def test_lsns_of_terms_do_not_overlap_and_tell_their_term() -> None:
    assert BASE > 5000
    for term in (1, 2, 65, 66):
        first, end = start_of(BASE, term), start_of(BASE, term + 1)
        assert (term_of(BASE, first), term_of(BASE, end - 1), term_of(BASE, end)) == (term, term, term + 1)
    assert term_of(BASE, 5000) == 0
    assert (A.terms[-1].start, A.ceiling) == (start_of(BASE, 1), start_of(BASE, 2))
    assert A.raised(A.ceiling - 1) == A


def test_a_log_tells_itself_which_terms_wrote_it() -> None:
    """Its copy of the register may be another line's by now."""
    one, other = start_of(BASE, 1), start_of(BASE, 65)
    mine = in_stretches(BASE, [0, one >> 32, other >> 32], other + 3)
    assert mine == [Written(1, one, start_of(BASE, 2) - 1), Written(65, other, other + 3)]
    theirs = [Written(1, one, one + 7), Written(66, start_of(BASE, 66), start_of(BASE, 66) + 100)]
    assert common(mine, theirs) == one + 7


def test_who_leads_what_it_gave_up_its_own_line_for_has_not_been_waited_for_there() -> None:
    """It took the copy that a third one had of its first line for newer: what was confirmed meanwhile was lost."""
    first, other = led(A, "a"), promoted(A, "c")
    again = other.told_to_lead("a", lose=other.committed).led_by("a", 9000, above=first.term)
    assert compared(again, first.told_to_lead("b")) is Verdict.RIVAL


def test_who_goes_on_from_a_value_is_believed() -> None:
    b = promoted(A, "b")
    assert (b.term, b.in_sync, b.leader) == (2, {"b"}, "b")
    assert compared(A, b) is Verdict.NEW
    assert compared(b, A) is Verdict.OLD
    assert compared(A, A.beaten()) is Verdict.NEW
    assert compared(A.beaten(), A) is compared(A, A) is Verdict.OLD


def test_a_leader_that_was_started_again_has_confirmed_nothing_without_who_was_promoted_meanwhile() -> None:
    again, b = led(A, "a"), promoted(A, "b")
    assert (again.term, b.term) == (65, 2)
    assert compared(again, b) is Verdict.NEW, "though its number is lower"
    assert compared(b, again) is Verdict.OLD


def test_who_gave_up_its_own_line_and_followed_another_has_acked_there() -> None:
    """Its own is told again, by one that heard of it before: nobody goes back to it, though its term is higher."""
    common_ground = led(replace(cluster("a", "b"), to="b"), "b").counting("ab")
    a, again = promoted(common_ground, "a"), led(common_ground, "b")
    assert (a.term, again.term, again.in_sync) == (65, 66, {"a", "b"})
    assert compared(again, a) is Verdict.NEW, "b waited for a, and has confirmed nothing"
    joined = a.counting("ab")
    assert compared(joined, again) is Verdict.NEW, "nothing is known to have been confirmed in either"
    acked = joined.beaten(start_of(BASE, 65) + 5)
    assert compared(acked, again) is Verdict.OLD
    assert compared(again, acked) is Verdict.NEW


def test_of_two_that_were_both_promoted_neither_is_believed() -> None:
    a, b = promoted(A, "a"), promoted(A, "b")
    assert compared(a, b) is compared(b, a) is Verdict.RIVAL
    with pytest.raises(PreconditionFailed, match="b leads term 2, of which a has nothing.*--lose 9000"):
        a.told_to_lead("a", rival=b)
    decided = promoted(a, "a", 9000, b)
    assert decided.term > b.term
    assert not decided.given_up
    assert compared(b, decided) is Verdict.NEW
    assert compared(decided, b) is Verdict.OLD
    assert decode(decided.encode()) == decided


def test_one_that_is_not_in_sync_is_promoted_by_naming_what_is_lost() -> None:
    without = A.counting("a").beaten(9500)
    with pytest.raises(PreconditionFailed, match="b is not in sync.*in sync: a.*--lose 9500"):
        without.told_to_lead("b")
    with pytest.raises(PreconditionFailed, match="--lose 9000"):
        A.told_to_lead("b", lacks=True)
    order = without.told_to_lead("b", lose=9500)
    assert (order.order, order.given_up, order.committed) == (True, True, 0)
    assert not A.told_to_lead("b").given_up
    assert not A.handing_to("b").order
    assert decode(order.encode()) == order


def test_an_order_binds_nobody_but_who_has_it_until_its_term_begins() -> None:
    """It may come to nothing, since another one is told to go on without both."""
    a, b, c = (promoted(A, one) for one in "abc")
    order = a.told_to_lead("a", rival=b, lose=9000)
    assert compared(order, b) is Verdict.OLD
    assert compared(b, order) is Verdict.RIVAL
    assert compared(b, led(order, "a")) is Verdict.NEW
    assert not promoted(c, "c", 0, order).knows(b.term), "nobody has said so to c"
    assert decode(order.encode()) == order


def test_two_processes_of_one_folder_are_told_from_one() -> None:
    there = A.members["a"]
    other = A.with_member("a", replace(there, process="another"))
    assert compared(A, other) is Verdict.TWICE


def test_a_member_that_was_removed_is_no_rival() -> None:
    a, c = promoted(A, "a"), promoted(A, "c")
    with pytest.raises(PreconditionFailed, match="does not know"):
        A.without_member("c")
    gone = a.without_member("c")
    assert compared(gone, c) is Verdict.OLD
    with pytest.raises(InvalidArgument, match="c was removed"):
        gone.with_member("c", A.members["c"])


def test_numbers_are_given_once() -> None:
    less = promoted(A, "a").without_member("c")
    assert less.with_member("d", Member("d", "d:1", 1)).members["d"].number == 4
    full = less.numbering(1000)
    with pytest.raises(InvalidArgument, match="63 members"):
        full.with_member("d", Member("d", "d:1", 1))


def test_old_terms_are_remembered_in_few_bytes() -> None:
    state = A
    for n in range(300):
        leader = "abc"[n // 3 % 3]
        state = led(state, leader) if n % 3 else promoted(state.counting("abc"), leader)
        assert state.knows(1)
    assert len(state.terms) == TENURES_MOST
    assert decode(state.encode()) == state


def test_runs_are_terms_of_a_lane() -> None:
    assert runs([1, 65, 129, 2, 130]) == ((1, 129), (2, 2), (130, 130))
    assert unrolled(runs([1, 65, 129, 2, 130])) == {1, 65, 129, 2, 130}


@pytest.mark.parametrize("over", [[[65, 1]], [[1, 2]], [[0, 0]], [[2, 2], [1, 1]], [[1]], [[1, 1 << 40]]])
def test_runs_that_nobody_made_are_refused(over: list[list[int]]) -> None:
    text = A.encode().decode().replace('"over":[]', f'"over":{over}')
    with pytest.raises(InvalidArgument, match="over"):
        decode(text.encode())


def test_a_value_of_a_register_of_others_is_as_it_was() -> None:
    plain = ClusterState("c", 7, members={"a": Member("a", "a:1", 1)}, in_sync=frozenset("a"))
    assert not {"base", "numbers", "gone", "over", "number"} & set(plain.encode().decode().replace('"', " ").split())


def test_what_a_value_went_on_without_is_not_in_a_log_that_is_to_lead() -> None:
    """Its member has heard of another line, and may be told to lead before it has followed there."""
    one, two = start_of(BASE, 1), start_of(BASE, 2)
    value = promoted(A, "c").counting("abc")  # it found nothing of term 1
    assert end_of_line(value, [Written(1, one, two - 1)]) == one - 1
    value = led(led(cluster("a", "b", "c"), "a").counting("abc"), "c", one + 7).counting("abc")
    assert end_of_line(value, [Written(1, one, one + 5)]) == one + 5
    assert end_of_line(value, [Written(1, one, two - 1)]) == one + 7
    assert end_of_line(value, [Written(1, one, two - 1), Written(2, two, two + 4)]) == one + 7
    assert end_of_line(value, [Written(2, two, two + 4)]) == two - 1
    assert end_of_line(value, []) is None
