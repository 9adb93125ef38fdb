"""Who let a lease end waits where somebody's filter has still to look; told as short stories."""

from __future__ import annotations

from typing import Any

import pytest

from penstock.core.effects import Scan
from penstock.core.queue.dispatching.consumers import Consumer, Credit
from penstock.core.queue.dispatching.joining import replace
from penstock.core.queue.settling.settle import extend
from penstock.records.chunks import as_chunk
from penstock.records.queue_settings import FairnessModel
from unit.core_queue.test_queue import Bench, First

MODELS: tuple[FairnessModel, ...] = ("fast", "round-robin", "proportional")

every_model = pytest.mark.parametrize("model", MODELS)


class Hanging(Bench):
    """A queue of messages with the body `x`, whose leases end soon; it keeps scans until they are answered."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(lease_period=10, **settings)

    def held(self, count: int = 1, **options: Any) -> tuple[Consumer, list[int]]:
        """A consumer that holds all that it takes, and what."""
        one = self.worker(max_backlog=count, **options)
        self.publish(count, body=b"x")
        return one, self.sent(to=one)

    def answer(self, most: int = 1000) -> int:
        """Answer the scans that were asked for, for so many messages each; how many they were."""
        scans = [effect for effect in self.sink.effects if isinstance(effect, Scan)]
        self.sink.effects = [effect for effect in self.sink.effects if not isinstance(effect, Scan)]
        for scan in scans:
            chunk = scan.chunk[:most]
            found = [list(chunk) if one.text == "x" else [] for one in scan.filters]
            self.queue.scanned(self.now, scan.token, found, chunk[-1], self.sink)
        return len(scans)


@every_model
@pytest.mark.parametrize("own", [None, "", "x"])
def test_what_a_lease_gave_back_goes_to_somebody_whose_filter_has_to_look_first(
    model: FairnessModel, own: str | None
) -> None:
    q = Hanging(fairness_model=model)
    _, lsns = q.held(priority=9, filter=None if own is None else First(own))
    other = q.worker(filter=First("x"))
    q.advance(10)
    if own != "x":  # else they share a list, which knows it
        assert q.sent() == []
        assert q.answer() == 1
    assert (q.sent(to=other), q.sent()) == (lsns, [])
    q.queue.check()


@every_model
@pytest.mark.parametrize("own", [None, "x"])
def test_who_is_silent_gets_what_nobody_else_wants_when_their_filters_have_looked(
    model: FairnessModel, own: str | None
) -> None:
    q = Hanging(fairness_model=model)
    hanging, lsns = q.held(3, filter=None if own is None else First(own))
    q.worker(filter=First("never"))
    q.worker(filter=First("other"), max_backlog=0)
    q.advance(10)
    assert q.sent() == []
    for lsn in lsns:
        q.answer(most=1)
        assert q.sent(to=hanging) == [lsn]
    q.queue.check()


@pytest.mark.parametrize("what", ["full", "choked", "gone", "silent"])
def test_who_is_silent_waits_for_nobody_who_takes_nothing(what: str) -> None:
    q = Hanging(fairness_model="fast")
    other, of_the_other = q.held(filter=First("x"))
    hanging, lsns = q.held()
    assert extend(q.queue, other, as_chunk(of_the_other), q.now.mono + 1000) == 1
    if what != "full":
        replace(q.queue, q.now, other, q.sink, filter=other.filter, max_backlog=5)
    if what == "choked":
        q.queue.choke(other)
    elif what == "gone":
        q.queue.unsubscribe(q.now, [other], q.sink, requeue=False)
    elif what == "silent":
        q.queue.roster.rank(other, silent=True)
    q.advance(10)
    assert q.sent(to=hanging) == lsns


def test_who_is_silent_waits_where_a_filter_is_behind_with_what_comes() -> None:
    q = Hanging(fairness_model="fast")
    hanging, lsns = q.held()
    other = q.worker(filter=First("x"), max_backlog=1)
    q.advance(10)
    q.answer()
    assert q.sent(to=other) == lsns
    replace(q.queue, q.now, other, q.sink, filter=other.filter, max_backlog=2)
    late = range(q.sink.next_lsn, q.sink.next_lsn + 2)
    q.sink.next_lsn += 2
    q.queue.arrive(q.now, late, q.sink)  # its body is too large to be looked at as it comes
    assert q.sent() == []
    assert q.answer() == 1
    assert (q.sent(to=other), q.sent(to=hanging)) == ([late[0]], [late[1]])


@pytest.mark.parametrize("shared", [False, True])
def test_who_is_silent_is_served_up_to_there(shared: bool) -> None:
    q = Hanging(fairness_model="fast")
    hanging, lsns = q.held(4, shared=Credit(4) if shared else None)
    other = q.worker(filter=First("x"))
    q.queue.roster.rank(other, silent=True)
    q.worker(filter=First("never"))
    q.advance(10)
    for lsn in lsns:
        assert q.sent() == []
        q.answer(most=1)
        assert (q.sent(to=hanging), q.sent()) == ([lsn], [])


@pytest.mark.parametrize("limit", [{"ring_size": 1}, {"max_length": 1, "overflow": "drop-head"}])
def test_what_gives_way_lets_who_is_silent_have_the_next_in_a_batch_as_one_by_one(limit: dict[str, Any]) -> None:
    def got(*together: int) -> list[int]:
        q = Hanging(fairness_model="fast", **limit)
        hanging, _ = q.held()
        q.worker(filter=First("never"))
        q.advance(10)
        for count in together:
            q.publish(count)
        return q.sent(to=hanging)

    assert got(4) == got(1, 1, 1, 1) == [103]  # the first of them


def test_a_filter_of_who_is_silent_does_not_sleep_while_it_waits_for_one_that_walks() -> None:
    q = Hanging(fairness_model="fast")
    hanging = q.worker(filter=First("x"), max_backlog=1)
    q.queue.roster.rank(hanging, silent=True)
    q.publish(body=b"nobody wants it")
    q.worker(filter=First("never"))
    [lsn] = q.publish(body=b"x")
    assert q.sent() == []
    assert q.answer() == q.answer() == 1  # what waited before it, and what came since
    assert q.sent(to=hanging) == [lsn]
