"""Calls over Flight: tokens, tags, places for streams, and what strangers cannot take from others."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

import pytest
from pyarrow import flight

from penstock.errors import NotFound, Unavailable
from penstock.server.flight.calls import Caller, Calls, Guarded, Intake, Slot
from penstock.server.flight.remote_call import CALLS_OF_LOGIN, CALLS_UNPROVEN, UNPROVEN_MAX, Credentials, Logins
from penstock.server.people.access import Who

DO_GET = flight.CallInfo(flight.FlightMethod.DO_GET)


ANN = Caller(Who("ann", ("administrator",)), "", lambda: False)
BOB = Caller(Who("bob"), "", lambda: False)
CAT = Caller(Who("cat"), "", lambda: False)


def test_no_user_takes_all_streams_and_an_administrator_always_gets_in() -> None:
    calls = Calls(Intake(1 << 20), 8)
    bobs = [calls.stream(BOB) for _ in range(4)]
    with pytest.raises(Unavailable, match="4 Flight streams of user 'bob' are open, and 4 are allowed"):
        calls.stream(BOB)
    cats = [calls.stream(CAT) for _ in range(4)]
    with pytest.raises(Unavailable, match="8 Flight streams are open, and 8 are allowed"):
        calls.stream(Caller(Who("dan"), "", lambda: False))
    anns = [calls.stream(ANN) for _ in range(8)]
    with pytest.raises(Unavailable, match="16 are allowed"):
        calls.stream(ANN)
    bobs.pop().close()
    for slot in (*anns, cats.pop()):
        slot.close()
    assert calls.stream(BOB).user == "bob"
    assert calls._moving.refused == 3


def test_streams_that_stand_still_are_their_users_own() -> None:
    """Their threads stay: four users' worth of them once kept everybody out, the administrator too."""
    calls = Calls(Intake(1 << 20), 4)
    still: list[Slot] = []
    for _ in range(8):
        still.append(calls.stream(BOB))
        still[-1].abandon()
    with pytest.raises(Unavailable, match="8 Flight streams of user 'bob' stand still, and 8 are allowed"):
        calls.stream(BOB)
    assert calls.stream(CAT)
    assert calls.stream(ANN)


def test_all_streams_give_up_their_places_at_once_and_keep_their_threads() -> None:
    calls = Calls(Intake(1 << 20), 4)
    slots = [calls.stream(ANN) for _ in range(4)]
    calls.abandon()
    assert (calls.streams, calls.abandoned) == (0, 4)
    for slot in slots:
        slot.close()
    assert (calls.streams, calls.abandoned) == (0, 0)


def logins_of_one() -> Logins:
    right = ("ann", "secret")
    return Logins(lambda *pair: pair != right, lambda *pair: pair == right)


def login(logins: Logins, user: str, password: str) -> Credentials:
    header = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    return logins.start_call(DO_GET, {"Authorization": [header]})


def test_a_token_stands_for_its_login() -> None:
    logins = logins_of_one()
    basic = login(logins, "ann", "secret")
    logins.proven(basic)
    bearer = logins.start_call(DO_GET, {"authorization": [f"Bearer {basic.token}"]})
    assert (bearer.user, bearer.password) == ("ann", "secret")
    assert login(logins, "ann", "secret").token == basic.token


@pytest.mark.parametrize(
    ("user", "told"),
    [
        ("bob", "user 'bob' may not log in with this password"),
        ("token/abc", "token 'token/abc' may not log in: it has ended, was revoked, or is none"),
    ],
)
def test_a_schema_is_refused_to_a_token_that_has_ended_in_the_words_for_tokens(user: str, told: str) -> None:
    """Of a token that ended within a Spark batch its tasks said that a password was wrong."""
    header = "Basic " + b64encode(f"{user}:x".encode()).decode()
    with pytest.raises(flight.FlightUnauthenticatedError, match=told):
        logins_of_one().start_call(flight.CallInfo(flight.FlightMethod.GET_SCHEMA), {"authorization": [header]})


def test_logins_that_are_wrong_push_no_right_one_out() -> None:
    logins = logins_of_one()
    right = login(logins, "ann", "secret")
    logins.proven(right)
    wrong = list[str]()
    for n in range(UNPROVEN_MAX + 1):
        call = login(logins, "ann", f"guess {n}")
        wrong.append(call.token)
        call.call_completed(None)
    assert logins.start_call(DO_GET, {"authorization": [f"Bearer {right.token}"]}).user == "ann"
    with pytest.raises(flight.FlightUnauthenticatedError, match="log in again"):
        logins.start_call(DO_GET, {"authorization": [f"Bearer {wrong[0]}"]})


@pytest.mark.parametrize("wrong", [True, False])
def test_logins_that_nobody_found_right_have_no_places_of_their_own(wrong: bool) -> None:
    """Too many guesses are neither wrong nor right, and each had the places of a right login."""
    logins = Logins(lambda *pair: wrong, lambda *pair: pair == ("ann", "secret"))
    silent = [login(logins, "bob", f"guess {n % 2}") for n in range(CALLS_UNPROVEN)]
    for n in range(3):
        with pytest.raises(flight.FlightUnavailableError, match="nobody knows yet: try again"):
            login(logins, "bob", f"guess {n}")
    rights = [login(logins, "ann", "secret") for _ in range(CALLS_OF_LOGIN)]
    with pytest.raises(flight.FlightUnavailableError, match="'ann' has too many calls under way"):
        login(logins, "ann", "secret")
    rights.pop().call_completed(None)
    login(logins, "ann", "secret").call_completed(None)
    silent.pop().call_completed(None)
    login(logins, "bob", "guess 2")


def test_a_stream_gives_its_place_back_however_it_ends() -> None:
    calls = Calls(Intake(1 << 20), 1)

    def rows() -> Iterator[int]:
        yield 1
        raise NotFound("the second")

    never_begun = Guarded(rows(), calls.stream(BOB), BOB)
    with pytest.raises(Unavailable, match="1 Flight streams .* 1 are allowed"):
        calls.stream(BOB)
    del never_begun
    left = Guarded(rows(), calls.stream(BOB), BOB)
    assert next(left) == 1
    del left
    failing = Guarded(rows(), calls.stream(BOB), BOB)
    with pytest.raises(NotFound, match="the second"):
        list(failing)
    read = Guarded(iter([1, 2]), calls.stream(BOB), BOB)
    assert list(read) == [1, 2]
    assert (calls.streams, calls.abandoned, calls.total) == (0, 0, 4)
