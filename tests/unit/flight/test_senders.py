"""Who is to blame for what gRPC holds: whoever sent many calls that did not come out, never who brings a batch."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from penstock.server.flight.senders import (
    BEGIN_S,
    BESIDE,
    CALL,
    END_S,
    FILLED_S,
    FIRST_WINDOW,
    GROWN,
    IN_VAIN_S,
    LEAST,
    OF_A_CALL,
    OF_A_SMALL_CALL,
    SHORT_S,
    STARVED,
    UNSEEN_MOST,
    Senders,
)

MIB = 1 << 20
FLOODER, HONEST, OTHER = ("10.0.0.1", 1), ("10.0.0.2", 2), ("10.0.0.3", 3)
SMALL = 40
"""Bytes of a call of an action, in frames that say again what was said before."""


class House:
    """What came of each, as the kernel counts it."""

    def __init__(self) -> None:
        self.now = self.worked = 100.0
        self.crowded = False
        self.calls = 0
        self.came = dict[tuple[str, int], int]()
        self.senders = Senders(64 * MIB, lambda: self.crowded, lambda: self.calls, lambda: self.worked)

    def joins(self, *peers: tuple[str, int]) -> None:
        for peer in peers:
            self.came[peer] = 600
            self.senders.known(peer, 10)
            self.senders.found(peer, lambda peer=peer: self.came[peer])

    def brings(self, peer: tuple[str, int], size: int) -> None:
        """An upload of one batch, which is over."""
        with self.senders.uploading(peer) as came:
            came(size)

    def blamed(self, later: float = 0.0, short_of: int = 0, grown: int = 0, had: float = 1.0) -> tuple[str, int] | None:
        """had: the part of that time in which the door had the processor."""
        self.now += later
        self.worked += had * later
        found = self.senders.blamed(self.came.items(), self.now, short_of, grown)
        return None if found is None else found[0]


def test_small_calls_that_come_out_explain_nothing_of_those_that_do_not() -> None:
    """Each gave its connection 4,096 bytes, so that who sent thousands was never cut while others were."""
    house = House()
    house.joins(FLOODER, HONEST)
    house.crowded = True
    for _ in range(100):
        house.came[FLOODER] += 100 * SMALL
        house.senders.known(FLOODER, 2)  # one in a hundred comes out
    house.came[HONEST] += 20 * (200 + SMALL)
    for _ in range(20):
        house.senders.known(HONEST, 200)
    assert house.blamed() == FLOODER


def test_calls_of_long_ago_explain_nothing_of_a_flood() -> None:
    house = House()
    house.joins(FLOODER, HONEST)
    for _ in range(100_000):
        house.came[FLOODER] += SMALL
        house.senders.known(FLOODER, 2)
    house.came[FLOODER] += FIRST_WINDOW + LEAST + UNSEEN_MOST
    assert house.blamed() == FLOODER


def test_rows_that_became_many_explain_no_more_than_came() -> None:
    house = House()
    house.joins(FLOODER)
    for _ in range(10):
        house.came[FLOODER] += 300_000
        house.brings(FLOODER, 64 * MIB)
    house.came[FLOODER] += 64 * MIB + FIRST_WINDOW + LEAST
    assert house.blamed() == FLOODER


def test_who_makes_many_calls_for_long_is_not_to_blame_for_their_headers() -> None:
    house = House()
    house.joins(HONEST)
    for _ in range(100_000):
        house.came[HONEST] += OF_A_CALL // 2 + 100
        house.senders.known(HONEST, 100)
    assert house.blamed() is None


def test_a_batch_on_its_way_is_no_flood() -> None:
    house = House()
    house.joins(FLOODER, HONEST)
    house.came[FLOODER] += FIRST_WINDOW + 2 * LEAST
    house.came[HONEST] += FIRST_WINDOW  # its thread has not begun
    assert house.blamed() == FLOODER
    house.came[HONEST] += 60 * MIB
    with house.senders.uploading(HONEST):
        assert house.blamed() == FLOODER
        house.came[FLOODER] = 600 + OF_A_CALL + LEAST  # it has only begun
        assert house.blamed() == FLOODER
    assert house.blamed() == HONEST  # nobody takes it any more


def test_what_comes_behind_a_batch_before_its_thread_has_begun_is_no_flood() -> None:
    house = House()
    house.joins(FLOODER, HONEST)
    house.came[HONEST] += 32 * MIB
    house.brings(HONEST, 32 * MIB)
    house.came[HONEST] += 60 * MIB  # of the next upload: gRPC takes in more where much came before
    assert house.blamed() is None
    assert house.blamed(0.9 * IN_VAIN_S) is None
    house.came[FLOODER] += OF_A_CALL + LEAST
    assert house.blamed() == FLOODER


def test_where_all_bring_batches_who_has_most_is_taken() -> None:
    house = House()
    house.joins(FLOODER, HONEST, OTHER)
    for peer, size in ((FLOODER, 3 * MIB), (HONEST, 1 * MIB), (OTHER, 2 * MIB)):
        house.came[peer] += size
    with house.senders.uploading(FLOODER), house.senders.uploading(HONEST), house.senders.uploading(OTHER):
        assert house.blamed() is None
        assert house.blamed(0.9 * FILLED_S, 10 * MIB) is None
        assert house.blamed(0.2 * FILLED_S) is None
        assert house.blamed(0.0, 20 * MIB) is None, "what fills the memory is not what these sent"
        assert house.blamed(0.0, 10 * MIB) == FLOODER
        assert house.blamed(0.8 * SHORT_S, 20 * MIB) is None
        assert house.blamed(0.2 * SHORT_S, 20 * MIB) == FLOODER
        while house.now < 100.0 + IN_VAIN_S:
            assert house.blamed() is None
            house.now += 0.5
            house.worked += 0.5
        assert house.blamed() == FLOODER


FLOOD, EACH_S = 20_000, 0.5
"""Calls of who was cut, and seconds from one look to the next."""


@pytest.mark.parametrize(
    ("short_of", "each", "seconds"),
    [
        (0, 0, IN_VAIN_S), (200 * MIB, 0, SHORT_S), (0, FLOOD // 50, 50 * EACH_S + IN_VAIN_S),
        (200 * MIB, FLOOD // 50, 50 * EACH_S + SHORT_S),
        (200 * MIB, FLOOD // 1000, END_S - EACH_S + SHORT_S),
    ],
)  # fmt: skip
@pytest.mark.parametrize("had", [0.0, 0.5])
def test_what_is_left_of_a_flood_counts_against_nobody_while_its_calls_come_out(
    short_of: int, each: int, seconds: float, had: float
) -> None:
    """Who was left with a batch on its way was cut for them: they were many, or the door got no processor.

    each: calls that come out from one look to the next.
    """
    house = House()
    house.joins(FLOODER, HONEST)
    house.came[FLOODER] = 10 + OF_A_CALL + FLOOD * OF_A_SMALL_CALL
    house.came[HONEST] += MIB
    with house.senders.uploading(HONEST):
        assert house.blamed(0.0, short_of) == FLOODER
        del house.came[FLOODER]
        vain = SHORT_S if short_of else IN_VAIN_S
        left = seconds - vain + vain / max(had, 1 / STARVED)
        while left > EACH_S:
            house.calls += each
            assert house.blamed(EACH_S, short_of, had=had) is None
            left -= EACH_S
        house.calls += each  # of others: those of the flood have come out, or are waited for no longer
        assert house.blamed(left, short_of, had=had) == HONEST


def test_what_others_call_meanwhile_is_waited_for_no_longer_than_what_is_left_of_a_flood() -> None:
    house = House()
    house.joins(FLOODER, HONEST)
    house.came[FLOODER] = 10 + OF_A_CALL + 2000 * OF_A_SMALL_CALL
    house.came[HONEST] += MIB
    with house.senders.uploading(HONEST):
        assert house.blamed(0.0, 200 * MIB) == FLOODER
        del house.came[FLOODER]
        for calls in (2000, 1, 1, 1):
            house.calls += calls
            assert house.blamed(EACH_S, 200 * MIB) is None
        house.calls += 1
        assert house.blamed(EACH_S, 200 * MIB) == HONEST


def test_strangers_are_to_blame_for_all_that_they_sent() -> None:
    house = House()
    house.joins(HONEST)
    house.came[FLOODER] = LEAST
    assert house.blamed() == FLOODER
    house.came[FLOODER] = LEAST - 1
    assert house.blamed() is None


def test_who_has_left_is_forgotten() -> None:
    house = House()
    house.joins(HONEST)
    house.senders.left([HONEST, HONEST])
    assert HONEST not in house.senders
    house.brings(HONEST, 5)
    assert HONEST not in house.senders


def test_a_first_call_that_is_an_upload_is_excused_once_it_is_let_in() -> None:
    house = House()
    house.joins(OTHER)
    house.came[OTHER] += 2 * LEAST
    with house.senders.uploading(HONEST):
        house.came[HONEST] = 10 * MIB
        assert house.blamed() == HONEST  # it is anybody so far
        house.joins(HONEST)
        house.came[HONEST] = 10 * MIB
        assert house.blamed() == OTHER
    assert house.blamed() == HONEST


CALLS = 5 * MIB // 2
"""Bytes of 150,000 calls that have only begun."""


def test_uploads_that_stay_open_excuse_no_calls_that_take_the_memory() -> None:
    """Each excused a batch, so that who made the calls was found two seconds later: the process had ended by then."""
    house = House()
    house.joins(FLOODER, HONEST)
    with ExitStack() as open_:
        for peer in (FLOODER, FLOODER, FLOODER, HONEST):
            open_.enter_context(house.senders.uploading(peer))
        house.came[FLOODER] += CALLS
        house.came[HONEST] += LEAST
        most = BESIDE + GROWN * (CALLS + LEAST - 2 * OF_A_CALL)
        assert house.blamed(0.0, grown=most) is None, "batches of these could have taken it"
        assert house.blamed(0.01, grown=most + 2 * MIB) == FLOODER
        assert house.blamed(0.01) is None, "it has not grown"


def test_calls_behind_who_brought_no_large_batch_are_looked_at_before_a_batch_on_its_way() -> None:
    house = House()
    house.joins(FLOODER, HONEST)
    house.brings(HONEST, MIB)
    house.came[HONEST] += 61 * MIB
    house.came[FLOODER] += CALLS
    with house.senders.uploading(FLOODER), house.senders.uploading(HONEST):
        assert house.blamed(0.0, grown=BESIDE + GROWN * 70 * MIB) == FLOODER
        house.came[FLOODER] = 600
        assert house.blamed(BEGIN_S, grown=BESIDE + GROWN * 70 * MIB) == HONEST


def test_calls_of_who_was_cut_begin_yet_and_are_nobody_elses() -> None:
    """gRPC had read 1.9 MB of them: a tenth of a second later they took so much that a batch on its way was cut."""
    house = House()
    house.joins(FLOODER, HONEST)
    house.brings(HONEST, 16 * MIB)
    house.came[HONEST] += 32 * MIB
    house.came[FLOODER] += FIRST_WINDOW + 2 * MIB
    with house.senders.uploading(HONEST):
        assert house.blamed() == FLOODER
        del house.came[FLOODER]
        most = BESIDE + GROWN * 32 * MIB + 2 * MIB // OF_A_SMALL_CALL * CALL
        assert house.blamed(0.1, grown=most) is None
        assert house.blamed(0.1, grown=2 * most) == HONEST, "these could not have taken all of it"
        assert house.blamed(BEGIN_S, grown=most) == HONEST


def test_batches_that_came_out_and_lie_in_the_door_are_no_calls() -> None:
    house = House()
    house.joins(HONEST)
    house.came[HONEST] += 40 * MIB
    with house.senders.uploading(HONEST) as came, house.senders.uploading(HONEST) as other:
        came(20 * MIB)
        other(16 * MIB)
        assert house.blamed(0.0, grown=BESIDE + GROWN * 36 * MIB) is None
        came(0)
        other(0)
        assert house.blamed(0.01, grown=BESIDE + GROWN * 36 * MIB) == HONEST
