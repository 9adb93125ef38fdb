"""The value of the register: what each change makes of it, and that nobody serves by half a value."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from penstock.errors import InvalidArgument, NotFound, PreconditionFailed
from penstock.replication.register import (
    BYTES_MOST,
    RAISE_WITHIN,
    TERM_LSNS,
    ClusterState,
    Member,
    Tenure,
    decode,
    written,
)
from penstock.replication.terms import Written, common

ABOUT = {name: Member(name, f"penstock://{name}:8815", 1) for name in "abc"}
NEW = ClusterState("c", 7, in_sync=frozenset("abc"), members=ABOUT)
LED = NEW.led_by("a", 0)


def test_a_new_leader_gets_lsns_that_nobody_can_have_used() -> None:
    led = LED.led_by("b", 900)
    assert (led.term, led.leader, led.address) == (2, "b", "penstock://b:8815")
    assert led.terms == (Tenure(1, 1, 900), Tenure(2, LED.ceiling, None))
    assert led.ceiling == LED.ceiling + TERM_LSNS


def test_the_leader_that_was_is_no_longer_in_sync() -> None:
    assert LED.led_by("b", 900).in_sync == {"b", "c"}
    assert LED.led_by("a", 900).in_sync == {"a", "b", "c"}, "its own disk has what it wrote"


def test_the_ceiling_is_raised_when_the_next_lsn_comes_near() -> None:
    assert LED.raised(LED.ceiling - RAISE_WITHIN - 1) == LED
    assert LED.raised(LED.ceiling - RAISE_WITHIN).ceiling == LED.ceiling + TERM_LSNS


def test_a_member_goes_unless_it_leads() -> None:
    left = LED.handing_to("b").without_member("b")
    assert ("b" in left.members, left.in_sync, left.to) == (False, {"a", "c"}, None)
    with pytest.raises(InvalidArgument, match="a leads; hand over to another member first"):
        LED.without_member("a")


def test_who_is_in_sync_is_promoted_and_anybody_else_by_naming_what_is_lost() -> None:
    assert LED.promoted("b") == LED.handing_to("b")
    state = LED.beaten(500).counting("ab")
    for lose in (None, 499, 501):
        with pytest.raises(PreconditionFailed, match="c is not in sync.*up to LSN 500 are known.*say --lose 500"):
            state.promoted("c", lose)
    forced = state.promoted("c", 500)
    assert (forced.in_sync, forced.leader, forced.to, forced.committed) == ({"c"}, None, "c", 0)
    assert decode(forced.encode()) == forced
    assert forced.led_by("c", 300).terms[-1].start == LED.ceiling


def test_a_member_is_named_by_its_id_or_its_name() -> None:
    state = replace(NEW, members={"m-1": Member("one", "x", 1), "m-2": Member("two", "x", 1)}, in_sync=frozenset())
    assert (state.key_of("m-1"), state.key_of("two")) == ("m-1", "m-2")
    with pytest.raises(NotFound, match=r"no member 'three'.*one \(m-1\), two \(m-2\)"):
        state.key_of("three")
    with pytest.raises(InvalidArgument, match="2 members are called 'one'"):
        replace(state, members={**state.members, "m-2": Member("one", "x", 1)}).key_of("one")


def test_the_format_rises_to_what_all_can_read() -> None:
    reads = (3, 2, 3)
    state = replace(NEW, members={key: Member(key, "x", n) for key, n in zip("abc", reads, strict=True)})
    assert state.finalized().format == 2
    assert state.finalized().finalized().format == 2
    assert replace(state, format=5).finalized().format == 5, "it never falls"


def test_how_far_all_are_never_falls_and_nobody_leads_who_has_less() -> None:
    state = LED.beaten(500).beaten(300)
    assert state.committed == 500
    assert state.led_by("b", 500).committed == 500
    with pytest.raises(AssertionError):
        state.led_by("b", 499)


def test_members_are_bounded() -> None:
    state = NEW
    for n in range(13):
        state = state.with_member(f"m{n}", ABOUT["a"])
    with pytest.raises(InvalidArgument, match="has 16 members; at most 16"):
        state.with_member("m13", ABOUT["a"])
    assert state.with_member("m12", ABOUT["b"]).members["m12"].name == "b", "one that is there may say something new"


def test_what_is_written_is_what_is_read() -> None:
    state = LED.led_by("b", 900).handing_to("c").beaten(800).counting("bc")
    assert decode(state.encode()) == state


def test_the_terms_of_a_hundred_elections_fit() -> None:
    state = NEW
    for n in range(200):
        state = state.led_by("abc"[n % 3], n).counting("abc")
    assert len(state.encode()) < BYTES_MOST
    assert decode(state.encode()).terms[-1].term == 200


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"leader": "x"}, "['x'] are no members"),
        ({"in_sync": ["b", "c"]}, "'a' leads and is not in sync"),
        ({"terms": [[3, 1, None]]}, "its last term is not 1"),
        ({"terms": [[1, 5, 9], [1, 7, None]]}, "its terms do not ascend"),
        ({"terms": [[1, 1]]}, "not [term, first LSN, last LSN or null]"),
        ({"terms": [[1, True, None]]}, "true, which is no whole number"),
        ({"terms": 5}, "terms is 5, not a list of at most"),
        ({"term": -1}, "term is -1, not in 0.."),
        ({"origin": "7"}, "origin is '7', not a whole number"),
        ({"members": {"a": {"name": "a"}}}, "address is missing"),
        ({"more": 1}, "unknown field 'more'"),
    ],
)
def test_a_value_that_is_not_whole_is_refused(change: dict[str, Any], told: str) -> None:
    value = json.loads(LED.encode()) | change
    with pytest.raises(InvalidArgument) as caught:
        decode(json.dumps(value).encode())
    assert told in str(caught.value)


def test_a_value_of_any_size_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="8193 bytes; at most 8192"):
        decode(b" " * 8193)


def test_a_log_has_of_a_term_what_the_leaders_after_it_have_found() -> None:
    """Who led term 3 had found a record of term 2, and died alone; who leads term 4 never had it."""
    tenures = (Tenure(1, 100, 109), Tenure(2, 200, 200), Tenure(3, 300, 109), Tenure(4, 400, None))
    state = ClusterState("c", 7, term=4, ceiling=500, terms=tenures)
    assert written(state, 420) == [Written(1, 100, 109), Written(4, 400, 420)]
    assert written(state, 200) == [Written(1, 100, 109), Written(2, 200, 200)]
    assert written(state, 105) == [Written(1, 100, 105)]
    assert written(state, 99) == []
    assert common(written(state, 420), written(state, 200)) == 109


def test_the_log_lacks_what_no_leader_after_it_has_found() -> None:
    led = LED.led_by("b", 900)
    assert [led.lacks(lsn) for lsn in (1, 900, 901, LED.ceiling - 1, LED.ceiling, LED.ceiling + 5)] == [
        False, False, True, True, False, False,
    ]  # fmt: skip
    behind = replace(led, in_sync=frozenset("c"), leader=None).led_by("c", 500)
    assert [behind.lacks(lsn) for lsn in (500, 501, 900, LED.ceiling + 5)] == [False, True, True, True]
    assert not NEW.lacks(5), "nobody has led"
    assert not replace(led, terms=led.terms[1:]).lacks(901), "of what is older it says nothing"
