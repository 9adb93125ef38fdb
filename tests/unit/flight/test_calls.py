"""Calls over Flight: tokens, tags, places for streams, and what strangers cannot take from others."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterator

import pytest
from pyarrow import flight

from penstock.errors import AccessRefused, NotFound, Unavailable
from penstock.server.flight.calls import Caller, Calls, Guarded
from penstock.server.flight.intake import Intake
from penstock.server.flight.logins import UNPROVEN_MAX, Credentials, Logins


class People:
    """One user, who administers."""

    def rights(self, user: str) -> None:
        """Nothing is limited."""

    def check(self, user: str, password: str, host: str) -> bool:
        return (user, password, host) == ("ann", "secret", "10.0.0.1")

    def tags(self, user: str) -> tuple[str, ...]:
        return ("administrator",) if user == "ann" else ()


def login(logins: Logins, user: str, password: str) -> Credentials:
    header = "Basic " + b64encode(f"{user}:{password}".encode()).decode()
    return logins.start_call(None, {"Authorization": [header]})  # type: ignore[arg-type]


def test_a_token_stands_for_its_login() -> None:
    logins = Logins(People())
    basic = login(logins, "ann", "secret")
    assert logins.verify(basic, "10.0.0.1") == ("administrator",)
    bearer = logins.start_call(None, {"authorization": [f"Bearer {basic.token}"]})  # type: ignore[arg-type]
    assert (bearer.user, bearer.password) == ("ann", "secret")
    assert login(logins, "ann", "secret").token == basic.token


def test_logins_that_are_wrong_push_no_right_one_out() -> None:
    logins = Logins(People())
    right = login(logins, "ann", "secret")
    logins.verify(right, "10.0.0.1")
    wrong = [login(logins, "ann", f"guess {n}").token for n in range(UNPROVEN_MAX + 1)]
    assert logins.start_call(None, {"authorization": [f"Bearer {right.token}"]}).user == "ann"  # type: ignore[arg-type]
    with pytest.raises(flight.FlightUnauthenticatedError, match="log in again"):
        logins.start_call(None, {"authorization": [f"Bearer {wrong[0]}"]})  # type: ignore[arg-type]


def test_a_stream_gives_its_place_back_however_it_ends() -> None:
    calls = Calls(Logins(People()), Intake(1 << 20), 1)

    def rows() -> Iterator[int]:
        yield 1
        raise NotFound("the second")

    never_begun = Guarded(rows(), calls.stream())
    with pytest.raises(Unavailable, match="1 allowed"):
        calls.stream()
    del never_begun
    left = Guarded(rows(), calls.stream())
    assert next(left) == 1
    del left
    failing = Guarded(rows(), calls.stream())
    with pytest.raises(flight.FlightServerError, match="the second"):
        list(failing)
    read = Guarded(iter([1, 2]), calls.stream())
    assert list(read) == [1, 2]
    assert (calls.streams, calls.abandoned, calls.total) == (0, 0, 4)


def test_who_has_no_tag_administers_nothing() -> None:
    Caller("ann", "", lambda: False, ("administrator",)).administer("compact")
    with pytest.raises(AccessRefused, match="compact: for users with the tag 'administrator', which 'bob' does not"):
        Caller("bob", "", lambda: False, ("monitoring",)).administer("compact")
