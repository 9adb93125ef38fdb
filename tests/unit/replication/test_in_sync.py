"""Whose disks a confirm waits for, in each moment of adding and dropping.

How long acks take, as metrics tell it.
"""

from __future__ import annotations

from penstock.replication.insync import InSync, Times
from penstock.server.cluster.log_sending import BOUNDS, AckTimes, Unacked

SECOND = 1_000_000


def leader(*members: str, least: int = 2) -> InSync:
    made = InSync("a", ["a", *members], min_in_sync=least, times=Times(), now=0)
    made.synced(100)
    return made


def test_a_confirm_waits_for_each_that_counts() -> None:
    made = leader("b", "c")
    made.acked("b", 100, 100, 0, level=True)
    assert made.committed == 0
    made.acked("c", 60, 100, 0, level=True)
    assert made.committed == 60
    made.acked("c", 100, 100, 0, level=True)
    assert made.committed == 100


def test_an_ack_before_our_own_sync_confirms_nothing() -> None:
    made = leader("b")
    made.acked("b", 150, 150, 0, level=True)
    assert made.committed == 100


def test_who_is_silent_counts_until_the_register_has_dropped_it() -> None:
    made = leader("b", "c")
    made.acked("b", 100, 100, 4 * SECOND, level=True)
    assert made.wanted(4 * SECOND) == {"a", "b"}
    made.asked(frozenset("ab"))
    assert made.committed == 0, "the swap may still be lost"
    made.settled(frozenset("ab"), 4 * SECOND)
    assert made.committed == 100


def test_one_that_never_gets_level_is_dropped_although_it_goes_on() -> None:
    made = leader("b")
    made.acked("b", 10, 100, SECOND, level=False)
    made.acked("b", 10, 100, 5 * SECOND, level=False)
    assert made.wanted(5 * SECOND) == {"a"}


def test_a_lost_connection_is_dropped_without_waiting() -> None:
    made = leader("b", "c")
    made.gone("c")
    assert made.wanted(0) == {"a", "b"}


def test_a_leader_whose_disk_is_full_is_relieved_where_those_with_room_can_confirm_without_it() -> None:
    """Never by one that is not in sync, nor where a person says who leads."""
    made = leader("b", "c")
    for with_room, able in (("bc", "bc"), ("b", ""), ("bz", ""), ("", ""), ("bcz", "bc")):
        assert made.relief(frozenset(with_room)) == set(able), with_room
    alone = leader("b", "c", least=1)
    assert alone.relief({"b"}) == {"b"}
    assert alone.relief(set()) == set(), "where all disks are full the lead stays"
    for asked, able in ((InSync("a", "ab", min_in_sync=2, times=Times(), now=0, local=True), {"b"}),
                        (InSync("a", "ab", min_in_sync=1, times=Times(), now=0, waits=True), set[str]())):  # fmt: skip
        assert asked.relief({"b"}) == able


def test_who_declined_once_is_waited_for_again_when_it_counts_again() -> None:
    """A person may have it lead: dropped because of what it said long ago, it would lack what is confirmed now."""
    made = InSync("a", "ab", min_in_sync=1, times=Times(), now=0, waits=True)
    made.synced(100)
    made.declines("c")  # which counts for nothing yet
    for member in "bc":
        made.acked(member, 100, 100, SECOND, level=True)
    made.acked("c", 100, 100, 2 * SECOND + Times().level, level=True)
    both = frozenset("abc")
    made.asked(both)
    made.settled(both, 3 * SECOND)
    made.declines("b")
    assert made.wanted(4 * SECOND) == set("ac"), "it knows that it is no candidate"
    made.asked(frozenset("ac"))
    made.settled(frozenset("ac"), 4 * SECOND)
    for at in (5, 5 + 2 * Times().level_most // SECOND):
        made.acked("b", 100, 100, at * SECOND, level=True)
        made.acked("c", 100, 100, at * SECOND, level=True)
    made.asked(both)
    made.settled(both, at * SECOND)
    later = (at + 100) * SECOND
    assert made.waited_for(later) == set("bc")
    assert made.wanted(later) == both


def test_a_stream_that_ends_before_its_first_ack_is_nothing() -> None:
    made = leader("b")
    made.gone("c")
    made.declines("c")
    assert made.counted == {"b"}
    assert made.wanted(0) == set("ab")


def test_files_beside_the_log_are_nowhere_while_too_few_are_in_sync() -> None:
    """What is answered is on `min_in_sync` disks, as what is confirmed."""
    for least, kept in ((2, 3), (3, 0)):
        made = leader("b", least=least)
        made.keeps("b", 3)
        assert made.kept_by_all(5) == kept


def test_fewer_than_the_least_confirm_nothing() -> None:
    made = leader("b")
    made.gone("b")
    made.asked(made.wanted(0))
    assert not made.enough, "it may be out already"
    assert (made.certain, made.agreed) == (1, {"a", "b"}), "which is what a person is told"
    made.settled(frozenset("a"), 0)
    made.synced(200)
    assert (made.enough, made.committed) == (False, 0)


def test_alone_where_that_is_allowed() -> None:
    made = leader(least=1)
    assert made.committed == 100


def test_its_own_disk_alone_where_that_is_chosen() -> None:
    """Who is in sync is counted as ever: who leads next has what the register says."""
    made = InSync("a", "abc", min_in_sync=3, times=Times(), now=0, local=True)
    made.synced(100)
    made.keeps("b", 1)
    assert (made.committed, made.enough, made.held, made.kept_by_all(7)) == (100, True, 0, 7)
    made.acked("b", 50, 100, 0, level=True)
    made.acked("c", 70, 100, 0, level=True)
    assert (made.held, made.committed) == (50, 100)
    assert made.wanted(9 * SECOND) == {"a"}


def test_who_comes_back_counts_before_it_is_in() -> None:
    made = leader(least=1)
    made.acked("b", 90, 100, 0, level=True)
    made.synced(120)
    assert made.committed == 100, "its ack counts from now on"
    assert made.wanted(0) == {"a"}, "it lacks what was there when it came"
    made.acked("b", 110, 120, 0, level=True)
    assert made.wanted(0) == {"a", "b"}
    assert made.committed == 110


def test_who_comes_back_is_in_when_it_has_the_files_beside_the_log_too() -> None:
    """Those that were answered without it: what is answered from now on waits for it."""
    made = leader(least=1)
    made.keeps("b", 3)
    made.acked("b", 100, 100, 0, level=True, newest=5)
    assert made.kept_by_all(6) == 3
    assert made.wanted(0) == {"a"}
    made.keeps("b", 5)
    made.acked("b", 100, 100, 0, level=True, newest=7)
    assert made.wanted(0) == {"a", "b"}


def test_an_addition_without_an_answer_counts_until_a_swap_is_known() -> None:
    made = leader(least=1)
    made.acked("b", 100, 100, 0, level=True)
    made.asked(made.wanted(0))
    made.gone("b")
    made.synced(200)
    made.read(frozenset("a"), 0)
    assert made.committed == 100, "what was read proves nothing: the swap may land later"
    made.asked(made.wanted(0))
    made.settled(frozenset("a"), 0)
    assert made.committed == 200


def test_who_was_dropped_has_to_keep_up_for_longer_each_time() -> None:
    made = leader("b", least=1)
    waits, now = list[int](), 0
    for _ in range(3):
        made.gone("b")
        made.settled(made.wanted(now), now)
        since = now
        while "b" not in made.counted:
            now += SECOND
            made.acked("b", 100, 100, now, level=True)
        waits.append((now - since) // SECOND)
        made.acked("b", 100, 100, now, level=True)
        made.settled(made.wanted(now), now)
    assert waits == [3, 5, 9], "2, 4 and 8 seconds from the first sign of being level"


def test_how_long_who_was_dropped_has_to_keep_up_yet_is_told() -> None:
    """It is level, and nothing else says why it is not in sync."""
    made = leader("b", least=1)
    assert made.trial("b", 0) == made.trial("c", 0) == 0, "nothing was held against either yet"
    made.gone("b")
    made.settled(made.wanted(0), 0)
    assert made.trial("b", SECOND) == 2 * SECOND, "of which nothing has gone by before it is level"
    made.acked("b", 100, 100, SECOND, level=True)
    assert made.trial("b", 2 * SECOND) == SECOND
    assert made.trial("b", 9 * SECOND) == 0, "its next word brings it back"
    made.acked("b", 90, 200, 10 * SECOND, level=False)
    assert made.trial("b", 10 * SECOND) == 2 * SECOND, "from the beginning"
    for at in (11, 13):
        made.acked("b", 100, 100, at * SECOND, level=True)
    assert "b" in made.counted
    assert made.trial("b", 13 * SECOND) == 0


def test_nobody_is_on_trial_while_too_few_are_in_sync() -> None:
    made = leader("b", "c")
    for one in "bc":
        made.gone(one)
    made.settled(made.wanted(0), 0)
    assert not made.enough
    assert made.trial("b", 0) == 0, "it counts as soon as it is level"


def test_who_stayed_for_long_has_not_to_keep_up_for_longer_than_the_first_time() -> None:
    made = leader("b", least=1)
    long, now = list[int](), 0
    for stays in (5, 5, 90, 5):
        made.gone("b")
        made.settled(made.wanted(now), now)
        since = now
        while "b" not in made.counted:
            now += SECOND
            made.acked("b", 100, 100, now, level=True)
        long.append((now - since) // SECOND)
        made.acked("b", 100, 100, now, level=True)
        made.settled(made.wanted(now), now)
        now += stays * SECOND
    assert long == [3, 5, 9, 3]


def test_while_too_few_are_in_sync_who_is_level_counts_at_once() -> None:
    """However often it was dropped: nothing is confirmed until somebody counts."""
    made, now = leader("b", "c"), 0
    for _ in range(9):
        made.gone("b")
        made.gone("c")
        made.settled(made.wanted(now), now)
        assert not made.enough
        now += SECOND
        made.acked("b", 100, 900, now, level=False)
        assert "b" not in made.counted
        made.acked("b", 100, 100, now, level=True)
        assert made.counted == {"b"}
        made.acked("b", 100, 100, now, level=True)
        made.settled(made.wanted(now), now)
        assert made.enough
        made.acked("c", 100, 100, now, level=True)
        assert "c" not in made.counted, "that one has time"


def test_one_that_falls_behind_begins_to_keep_up_anew() -> None:
    made = leader("b", least=1)
    made.gone("b")
    made.settled(made.wanted(0), 0)
    made.acked("b", 100, 100, SECOND, level=True)
    made.acked("b", 100, 900, 2 * SECOND, level=False)
    made.acked("b", 900, 900, 3 * SECOND + 500_000, level=True)
    assert "b" not in made.counted


def test_whose_drop_was_read_and_not_answered_is_added_again_later() -> None:
    """It is on no way in: it would count for ever, and never be one of them."""
    made = leader("b", "c")
    made.asked(frozenset("ab"))
    made.read(frozenset("ab"), SECOND)
    made.acked("c", 100, 100, SECOND, level=True)
    made.settled(frozenset("ab"), SECOND)
    assert made.counted == {"b"}
    made.acked("c", 100, 100, 2 * SECOND, level=True)
    made.acked("c", 100, 100, 5 * SECOND, level=True)
    assert made.wanted(5 * SECOND) >= {"a", "c"}


def test_where_nobody_could_tell_it_who_is_silent_is_waited_for() -> None:
    """It is dropped when it has said itself that it is no candidate."""
    made = InSync("a", "abc", min_in_sync=1, times=Times(), now=0, waits=True)
    made.synced(100)
    made.acked("b", 100, 100, 60 * SECOND, level=True)
    made.gone("c")
    assert made.waited_for(60 * SECOND) == {"c"}
    assert made.wanted(60 * SECOND) == {"a", "b", "c"}
    assert made.committed == 0
    made.declines("c")
    assert made.wanted(60 * SECOND) == {"a", "b"}
    made.asked(frozenset("ab"))
    made.settled(frozenset("ab"), 60 * SECOND)
    assert made.committed == 100
    made.acked("c", 100, 100, 61 * SECOND, level=True)
    made.acked("c", 100, 100, 64 * SECOND, level=True)
    assert made.wanted(64 * SECOND) == {"a", "b", "c"}
    assert made.wanted(90 * SECOND) == {"a", "b"}, "nobody knows yet that it was to be added"


def test_where_each_has_a_copy_nobody_is_added_before_the_terms_first_record_is_everywhere_that_counts() -> None:
    """`compared` takes a value with a later comer in sync for one where something was confirmed: its beat says so."""
    made = InSync("a", "a", min_in_sync=1, times=Times(), now=0, waits=True, first=90)
    made.synced(100)
    made.acked("c", 40, 100, 0, level=True)
    made.acked("b", 100, 100, 0, level=True)
    made.acked("b", 100, 100, 0, level=True)
    assert made.held == 40
    assert made.wanted(0) == {"a"}, "b has all, and a beat would tell of LSN 40"
    made.acked("c", 100, 100, 0, level=True)
    assert made.wanted(0) == set("abc")
    assert made.held >= 90


def test_who_is_silent_on_its_way_in_does_not_keep_others_out_there() -> None:
    made = InSync("a", "a", min_in_sync=1, times=Times(), now=0, waits=True, first=90)
    made.synced(100)
    made.acked("c", 40, 100, 0, level=True)
    made.acked("b", 100, 100, 0, level=True)
    later = Times().ack_timeout + SECOND
    made.acked("b", 100, 100, later, level=True)
    assert made.wanted(later) == {"a"}
    made.settled(frozenset("a"), later)
    made.acked("b", 100, 100, later, level=True)
    assert made.wanted(later) == set("ab")


def test_each_piece_is_counted_when_all_of_it_is_acked() -> None:
    times = AckTimes()
    one, other = Unacked(times), Unacked(times)
    for upto, now in ((100, 1.0), (250, 1.5), (400, 2.0)):
        one.sent(upto, now)
    other.sent(7, 2.0)
    one.acked(99, 1.2)
    assert times.plain() == {"counts": [0] * (len(BOUNDS) + 1), "sum": 0.0}
    one.acked(250, 1.75)
    one.acked(250, 1.9)
    other.acked(7, 9.0)
    assert times.plain() == {
        "counts": [sum((bound >= 0.75, bound >= 0.25, bound >= 7.0)) for bound in (*BOUNDS, 1e9)],
        "sum": 8.0,
    }
