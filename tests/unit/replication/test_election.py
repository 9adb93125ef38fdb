"""When a member tries to lead, and when one that leads stops."""

from __future__ import annotations

from dataclasses import replace

from penstock.replication.election import Election, End, Read, Role, Step, Swap, TakeOver
from penstock.replication.insync import Times
from penstock.replication.register import TERM_LSNS, ClusterState, Member

SECOND = 1_000_000
ABOUT = {name: Member(name, f"penstock://{name}:8815", 1) for name in "abc"}
NEW = ClusterState("c", 7, in_sync=frozenset("abc"), members=ABOUT)
LED = NEW.led_by("a", 0)


def member(name: str, state: ClusterState = LED, *, intact: bool = True, last: int = 0) -> Election:
    """One that has looked at the register at second 0."""
    made = Election(
        name, last_lsn=last, highest_term=0, min_in_sync=2, times=Times(), now=0, intact=intact
    )  # fmt: skip
    assert made.steps(0) == [Read()]
    made.read(1, state, 0)
    return made


def leading(name: str = "a") -> Election:
    """The leader of a new cluster, at second 0."""
    made = member(name, NEW.handing_to(name))
    made.steps(0)
    made.swapped(2, 0)
    assert made.steps(0) == [TakeOver(1, 1)]
    assert made.in_sync is not None
    made.in_sync.synced(1)
    for one in made.in_sync.counted:
        made.in_sync.acked(one, 1, 1, 0, level=True)
    made.booted(2, 0)
    return made


def swap(steps: list[Step]) -> ClusterState:
    [found] = steps
    assert isinstance(found, Swap)
    return found.value


def test_a_follower_takes_over_when_it_has_heard_nothing_for_a_lease() -> None:
    b = member("b", last=900)
    assert b.steps(5 * SECOND - 1) == []
    asked = swap(b.steps(5 * SECOND))
    assert (asked.term, asked.leader, asked.in_sync) == (2, "b", {"b", "c"})
    b.swapped(2, 5 * SECOND)
    assert b.steps(5 * SECOND) == [TakeOver(2, 1 + TERM_LSNS)]
    assert b.role is Role.TAKING_OVER


def test_who_opens_its_log_has_time_however_slow_the_register_is() -> None:
    """Nothing can have left it; it ends when somebody else leads, or when its opening does not come on."""
    b = member("b", last=900)
    b.steps(5 * SECOND)
    b.swapped(2, 5 * SECOND)
    assert b.steps(5 * SECOND) == [TakeOver(2, 1 + TERM_LSNS)]
    for second in range(6, 14):
        b.progress(1 + TERM_LSNS, second * SECOND)
        assert not any(isinstance(one, End) for one in b.steps(second * SECOND))
        assert b.until(second * SECOND) > second * SECOND
    assert b.in_sync is not None
    b.in_sync.synced(1 + TERM_LSNS)
    b.in_sync.acked("c", 1 + TERM_LSNS, 1 + TERM_LSNS, 14 * SECOND, level=True)
    [ended] = b.steps(14 * SECOND)
    assert isinstance(ended, End), "its first record is confirmed, and its lease is over"

    b = member("b", last=900)
    b.steps(5 * SECOND)
    b.swapped(2, 5 * SECOND)
    b.steps(5 * SECOND)
    [ended] = [one for one in b.steps(5 * SECOND + Times().stall) if isinstance(one, End)]
    assert "stood still" in ended.why


def test_a_beat_in_the_register_or_in_the_stream_puts_it_off() -> None:
    b = member("b")
    b.read(2, LED.beaten(), 4 * SECOND)
    assert b.steps(8 * SECOND) == []
    b.heard(1, 5, 8 * SECOND)
    assert b.steps(12 * SECOND) == []
    b.read(3, LED.beaten(), 12 * SECOND)  # the same beat again is no sign of life
    assert swap(b.steps(13 * SECOND)).leader == "b"


def test_only_who_is_in_sync_tries() -> None:
    c = member("c", LED.counting("ab"))
    assert (c.role, c.steps(60 * SECOND)) == (Role.JOINING, [])
    c.read(2, LED, 60 * SECOND)
    assert c.role is Role.FOLLOWING


def test_one_that_may_have_lost_what_it_acked_has_to_be_level_first() -> None:
    """That it was dropped and is in sync again proves nothing: a swap that was lost before may have landed late."""
    c = member("c", intact=False)
    assert (c.role, c.steps(60 * SECOND)) == (Role.JOINING, [])
    c.read(2, LED.counting("ab"), 60 * SECOND)
    c.read(3, LED, 61 * SECOND)
    assert (c.role, c.steps(120 * SECOND)) == (Role.JOINING, [])
    c.level()
    c.read(4, LED.beaten(), 121 * SECOND)
    assert c.role is Role.FOLLOWING


def test_one_whose_log_ends_before_what_all_had_is_no_candidate() -> None:
    """Its disk has lost what it acked, or is an older copy of itself."""
    state = LED.beaten(500)
    c = member("c", state, last=499)
    assert (c.role, c.intact, c.steps(60 * SECOND)) == (Role.JOINING, False, [])
    c.log_ends(500)
    c.read(2, state.beaten(), 60 * SECOND)
    assert c.role is Role.JOINING, "it may have acked more than the register says"
    assert member("c", state, last=500).role is Role.FOLLOWING


def test_who_is_promoted_against_all_odds_leads_with_what_it_has() -> None:
    c = member("c", LED.beaten(500).counting("ab").promoted("c", 500), last=300, intact=False)
    assert (c.role, c.intact) == (Role.FOLLOWING, True)
    assert swap(c.steps(0)).leader == "c"


def test_a_leader_ends_when_somebody_else_is_promoted() -> None:
    a = leading()
    a.read(9, LED.beaten(500).counting("a").promoted("c", 500), SECOND)
    [ended] = a.steps(SECOND)
    assert isinstance(ended, End)


def test_a_log_that_is_about_to_be_emptied_leads_nobody() -> None:
    b = member("b", last=900)
    b.incomplete()
    assert (b.role, b.steps(60 * SECOND)) == (Role.JOINING, [])


def test_a_beat_says_how_far_all_are() -> None:
    a = leading()
    assert a.in_sync is not None
    a.in_sync.synced(90)
    for one, lsn in (("b", 50), ("c", 70)):
        a.in_sync.acked(one, lsn, 90, 0, level=True)
    assert swap(a.steps(SECOND)).committed == 50


def test_who_is_named_takes_over_at_once() -> None:
    b = member("b", LED.handing_to("b"))
    assert swap(b.steps(0)).leader == "b"


def test_a_lost_election_makes_a_follower_again() -> None:
    b = member("b")
    b.steps(5 * SECOND)
    b.swapped("changed", 5 * SECOND)
    assert b.steps(5 * SECOND) == [Read()]
    b.read(2, LED.led_by("c", 0), 5 * SECOND)
    assert (b.role, b.steps(9 * SECOND)) == (Role.FOLLOWING, [])


def test_a_swap_without_an_answer_is_ours_when_the_register_shows_it() -> None:
    b = member("b")
    asked = swap(b.steps(5 * SECOND))
    b.swapped("unknown", 5 * SECOND)
    b.steps(5 * SECOND)
    b.read(1, LED, 5 * SECOND)
    assert b.role is Role.FOLLOWING
    b.read(2, asked, 7 * SECOND)  # it landed late
    assert b.steps(7 * SECOND) == [TakeOver(2, 1 + TERM_LSNS)]


def test_a_term_of_a_former_life_is_nobodys() -> None:
    a = member("a")  # the register says that it leads; it has just started
    assert (a.role, a.steps(0)) == (Role.FOLLOWING, [])
    assert swap(a.steps(5 * SECOND)).term == 2


def test_a_leader_renews_with_a_fifth_of_the_lease() -> None:
    a = leading()
    assert a.steps(SECOND - 1) == []
    asked = swap(a.steps(SECOND))
    assert (asked.beat, asked.term, asked.leader) == (LED.beat + 1, 1, "a")


def test_a_leader_that_cannot_renew_stops_before_anybody_takes_over() -> None:
    a = leading()
    a.steps(SECOND)
    a.swapped("unknown", SECOND)
    assert a.steps(SECOND) == [Read()]
    a.progress(2, 3 * SECOND)
    assert a.steps(3 * SECOND) == [Read()], "it asks again and again"
    [ended] = a.steps(3_400_000)
    assert ended == End("its lead could not be renewed in time")
    assert (a.role, a.steps(9 * SECOND)) == (Role.ENDED, [])


def test_it_goes_on_without_the_register_while_all_who_could_be_elected_hear_it() -> None:
    a = leading()
    a.steps(SECOND)
    a.swapped("unknown", SECOND)
    a.steps(SECOND)
    for now in range(2 * SECOND, 30 * SECOND, SECOND):
        for one in "bc":
            a.hears(one, now)
        a.progress(2, now)
        assert a.steps(now) == [Read()]
    a.hears("b", 30 * SECOND)
    a.progress(2, 34 * SECOND)
    assert a.steps(34 * SECOND) == [End("its lead could not be renewed in time")]


def test_a_leader_whose_commits_stand_still_stops_although_it_could_renew() -> None:
    a = leading()
    for now in range(SECOND, 10 * SECOND, SECOND):
        a.steps(now)
        a.swapped(now, now)
    assert a.steps(10 * SECOND) == [End("commits, or the loop, have stood still for too long")]


def test_a_higher_term_ends_a_leader() -> None:
    a = leading()
    a.read(9, LED.led_by("b", 0), SECOND)
    assert a.steps(SECOND) == [End("b leads term 2")]


def test_what_others_change_in_its_term_is_taken_over() -> None:
    a = leading()
    a.steps(SECOND)
    a.swapped("changed", SECOND)
    a.steps(SECOND)
    d = {**ABOUT, "d": ABOUT["a"]}
    a.read(7, replace(LED, members=d), SECOND)
    asked = swap(a.steps(SECOND + 1))
    assert asked.members.keys() == d.keys()


def test_a_drop_is_swapped_at_once() -> None:
    a = leading()
    assert a.in_sync is not None
    a.in_sync.gone("c")
    assert swap(a.steps(1)).in_sync == {"a", "b"}


def test_room_for_lsns_is_asked_for_in_time() -> None:
    a = leading()
    a.progress(TERM_LSNS // 2 + 2, 1)
    assert swap(a.steps(1)).ceiling == 1 + 2 * TERM_LSNS


def test_a_register_that_was_put_back_serves_nobody() -> None:
    b = member("b")
    b.heard(3, 1, 0)
    b.read(2, LED.beaten(), 0)
    [ended] = b.steps(0)
    assert isinstance(ended, End)
    assert "knows of term 3" in ended.why
    c = member("c", last=5 * TERM_LSNS)
    assert "it was put back to an older state" in c.why


def test_a_hand_over_names_the_next() -> None:
    a = leading()
    a.hand_over("b", 1)
    assert swap(a.steps(1)).to == "b"


def test_a_hand_over_drops_nobody_whom_it_names() -> None:
    """It has all of the log, and nothing that comes would wait for it: what a busy machine keeps it from saying is
    nothing.  One that was dropped could not lead, and nobody would before a lease is over.
    """
    a = leading()
    late = a.times.ack_timeout + 1
    assert a.in_sync is not None
    a.in_sync.acked("c", 1, 1, late, level=True)
    a.hand_over("b", late)
    named = swap(a.steps(late))
    assert (named.to, named.in_sync) == ("b", {"a", "b", "c"})
    a.swapped(100, late)
    a.in_sync.gone("b")
    a.progress(2, late + a.times.renew)
    again = swap(a.steps(late + a.times.renew))
    assert (again.to, again.in_sync) == ("b", {"a", "b", "c"})


def test_nobody_is_named_who_may_not_lead() -> None:
    """It was dropped before, or says that its disk has failed."""
    a = leading()
    assert a.in_sync is not None
    a.in_sync.declines("b")
    a.hand_over("b", 1)
    told = swap(a.steps(1))
    assert (told.to, told.in_sync) == (None, {"a", "c"})
    a.swapped(100, 1)
    assert a.steps(1) == []


def test_a_hand_over_waits_for_the_beat_that_is_under_way() -> None:
    a = leading()
    beat = swap(a.steps(a.times.renew))
    a.hand_over("b", a.times.renew)
    assert a.steps(a.times.renew) == []
    assert beat.to is None
    a.swapped(100, a.times.renew)
    assert swap(a.steps(a.times.renew)).to == "b"
