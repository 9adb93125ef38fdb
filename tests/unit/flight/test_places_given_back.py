"""Every place that Flight counts is given back, at whichever step of its call memory ends."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from linecache import getline
from types import FrameType
from typing import Any

import pytest
from pyarrow import flight

from penstock.server.flight import remote_call
from penstock.server.flight.calls import Caller, Calls, Guarded, Intake
from penstock.server.flight.entrance import Peers
from penstock.server.flight.remote_call import NOBODY, Logins, Places
from penstock.server.flight.senders import FIRST_WINDOW, Holder, Living, Senders
from penstock.server.people.access import Shares, Who
from waiting import eventually

MINE = "penstock/server/"
WITHOUT_MEMORY = ("calls.py", "remote_call.py", "senders.py", "access.py", "entrance.py")
TAKES_NOTHING = re.compile(r" *(with |try:|finally:|else:|return( \w+)?$)")
"""Lines that are run once more as a block is left, or that only name something."""

ANN = Who("ann")
PEER = ("127.0.0.1", 5000)


class Fails:
    """There is no memory at one line of ours that is run, counted from the first."""

    def __init__(self, at: int) -> None:
        self.left = at
        self.where = ""

    def __call__(self, frame: FrameType, event: str, arg: object) -> Fails | None:
        name = frame.f_code.co_filename
        if MINE not in name or not name.endswith(WITHOUT_MEMORY):
            return None
        if event == "line" and not self.where and not TAKES_NOTHING.match(getline(name, frame.f_lineno)):
            self.left -= 1
            if self.left < 0:
                self.where = f"{name.rpartition('/')[2]}:{frame.f_lineno}"
                raise MemoryError(self.where)
        return self


def at_each_step(work: Callable[[], object]) -> Iterator[str]:
    """Once for each line of ours that the work runs: where it failed.  Nothing of it is kept."""
    for at in range(1000):
        fails = Fails(at)
        before = sys.gettrace()
        sys.settrace(fails)
        try:
            with suppress(MemoryError, flight.FlightError):
                work()
        finally:
            sys.settrace(before)
        if not fails.where:
            return
        yield fails.where
    raise AssertionError("it does not end")


def logins() -> Logins:
    return Logins(lambda *pair: False, lambda *pair: True)


def call_of(ours: Logins, *, ended: bool = True) -> Any:
    header = {"authorization": ["Basic YW5uOnNlY3JldA=="]}
    credentials = ours.start_call(flight.CallInfo(flight.FlightMethod.DO_GET), header)  # type: ignore[arg-type]
    if ended:
        credentials.call_completed(None)
    return credentials


@pytest.mark.parametrize("proven", [True, False])
def test_the_place_of_a_call(proven: bool) -> None:
    ours = logins()
    if proven:
        ours.proven(call_of(ours))
    steps = set[str]()
    for where in at_each_step(lambda: call_of(ours)):
        steps.add(where)
        assert ours.under_way() == 0, where
    assert {where.partition(":")[0] for where in steps} >= {"remote_call.py", "senders.py"}
    assert len(steps) > 15


def test_a_call_whose_end_nobody_could_say_gives_its_place_back_as_it_is_forgotten() -> None:
    """pyarrow lets go of what a call has with the call; to say that it has ended took memory, and there was none."""
    ours = logins()
    credentials = call_of(ours, ended=False)
    assert ours.under_way() == 1
    del credentials
    assert ours.under_way() == 0


def test_places_that_nobody_gave_back_are_there_for_others() -> None:
    places, kept = Places(), [Holder() for _ in range(remote_call.CALLS_OF_LOGIN)]
    pair = ("ann", "secret")
    assert all(places.take(pair, one) for one in kept)
    assert not places.take(pair, Holder())
    other, more = Holder(), Holder()
    assert places.take(("bob", "x"), other)
    del kept[::2]
    assert places.take(pair, more)
    assert places.total() == remote_call.CALLS_OF_LOGIN // 2 + 2
    other.over = more.over = True
    kept.clear()
    assert places.total() == 0
    for n in range(3 * remote_call.CALLS_MOST):  # logins that are gone are not remembered
        assert places.take((f"user {n}", ""), Holder())
    assert len(places._of) < 3 * remote_call.CALLS_MOST
    strangers = [Holder() for _ in range(remote_call.CALLS_UNPROVEN)]
    assert all(places.take(NOBODY, one) for one in strangers)
    assert not places.take(NOBODY, Holder())
    strangers.pop()
    assert places.take(NOBODY, Holder())


def test_questions_and_waits_of_logins(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = logins()
    monkeypatch.setattr(remote_call.time, "sleep", lambda _: None)
    for where in at_each_step(lambda: (ours._found_right(("ann", "x")), ours.delay())):
        assert (ours._asking.count(), ours._waiting.count()) == (0, 0), where


def test_uploads_and_what_they_have_at_hand() -> None:
    senders = Senders(64 << 20, lambda: False, lambda: 0)
    senders.known(PEER, 10)

    def upload() -> None:
        with senders.uploading(PEER) as came:
            came(1000)
            came(FIRST_WINDOW + 1)

    for where in at_each_step(upload):
        assert senders._uploads.here() == [], where


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # what fails in a `__del__`
def test_streams() -> None:
    calls = Calls(Intake(1 << 20), 2)
    caller = Caller(ANN, "peer", lambda: False)

    def stream() -> None:
        rows = Guarded(iter([1, 2]), calls.stream(caller), caller)
        list(rows)

    for where in at_each_step(stream):
        assert (calls.streams, calls._moving.taken, calls._still.taken) == (0, 0, 0), where


def test_shares_of_users_and_strangers() -> None:
    shares = Shares()
    peers = Peers(shares.of("connections"))
    share = shares.of("connections")

    def connection() -> None:
        peers.known(PEER, ANN)
        peers.left([PEER])

    for where in at_each_step(connection):
        assert share.taken == share.of("ann") == len(peers._users), where
        peers.left([PEER])  # it is told once more, at the latest with the end of the door
        assert share.taken == share.of("ann") == 0, where


def test_things_are_counted_as_long_as_they_live() -> None:
    living, kept = Living(), [Holder() for _ in range(3)]
    assert [living.take(one, 2) for one in kept] == [True, True, False]
    kept[0].over = True
    assert (living.count(), living.here()) == (1, [kept[1]])
    kept.clear()
    assert (living.count(), living.most()) == (0, 0)


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # pyarrow has nobody to tell
def test_grpc_lets_go_of_the_place_of_a_call_whose_end_could_not_be_said(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, ends = logins(), list[object]()

    class Echo(flight.FlightServerBase):
        def do_action(self, context: Any, action: Any) -> Any:
            assert ours.under_way() > 0
            return [flight.Result(b"")]

    def fails(self: object, exception: object) -> None:
        ends.append(exception)
        raise MemoryError("none left")

    monkeypatch.setattr(remote_call.Credentials, "call_completed", fails)
    with Echo("grpc://127.0.0.1:0", middleware={"login": ours}) as server:
        client: Any = flight.connect(f"grpc://127.0.0.1:{server.port}")
        options = flight.FlightCallOptions(headers=[(b"authorization", b"Basic YW5uOnNlY3JldA==")])
        for _ in range(3):
            list(client.do_action(flight.Action("one", b""), options))
        client.close()
        eventually(lambda: ours.under_way() == 0, lambda: f"{ours.under_way()} of {len(ends)} have a place")
    assert len(ends) == 3
