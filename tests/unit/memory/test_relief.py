"""Memory that no cache can give up: who has to give way, when, and what he is told."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from penstock.errors import MemoryShort
from penstock.memory import LEAST, PATIENCE_US, Budget, Held, Relief

MIB = 1 << 20
SECOND = 1_000_000
PATIENCE = PATIENCE_US // SECOND


@dataclass
class Holder:
    """Somebody with memory."""

    user: str
    bytes: int
    moved: int = 0
    pace: int = 1
    told: list[MemoryShort] = field(default_factory=list[MemoryShort])


class World:
    """A budget, holders by account, and time."""

    def __init__(self, limit: int = 16 * MIB) -> None:
        self.budget = Budget(limit)
        self.memory = SimpleNamespace(tight=False, budget=self.budget)
        self.now = 0
        self.relief = Relief(self.memory, lambda: self.now)
        self.asked = 0

    def account(self, name: str, *holders: Holder, lacking: int | None = None, most: int = 0) -> None:
        def held() -> list[Held]:
            self.asked += 1
            return [
                Held(id(one), one.user, f"what {one.user} holds", one.bytes, one.moved, one.told.append, one.pace)
                for one in holders if not one.told
            ]  # fmt: skip

        self.relief.register(name, held, None if lacking is None else lambda: lacking, most)
        self.budget.watch(name, lambda: sum(one.bytes for one in holders if not one.told))

    def seconds(self, count: int, *moving: Holder) -> None:
        for _ in range(count):
            self.now += SECOND
            for one in moving:
                one.moved += 1
            self.memory.tight = self.budget.used > self.budget.limit
            self.relief.beat()


def cut(*holders: Holder) -> list[bool]:
    return [bool(one.told) for one in holders]


def test_nobody_is_asked_while_there_is_room() -> None:
    world, one = World(), Holder("a", 8 * MIB)
    world.account("things", one)
    world.seconds(100)
    assert world.asked == 0
    assert not one.told


def test_who_stands_still_is_cut_after_a_while_and_is_told_what_he_held_how_much_and_of_what() -> None:
    world, one = World(), Holder("a", 17 * MIB)
    world.account("things", one)
    world.seconds(PATIENCE)
    assert not one.told
    world.seconds(2)
    [error] = one.told
    assert error.retry
    for word in ("what a holds", str(17 * MIB), "10 s", "16MiB"):
        assert word in str(error).replace("16 MiB", "16MiB")
    assert len(str(error)) <= 255, "an AMQP client can be told"
    assert world.relief.counts() == {"things": 1}
    assert world.relief.rows["things"].freed == 17 * MIB


def test_no_more_are_cut_than_there_have_to_be_the_largest_of_who_has_most() -> None:
    world = World()
    many = [Holder("many", 2 * MIB + number) for number in range(6)]
    one, small = Holder("one", 5 * MIB), Holder("many", LEAST - 1)
    world.account("things", *many, small)
    world.account("others", one)
    world.seconds(PATIENCE + 2)
    assert cut(one, small) == [False, False], "he has less than the other has in all"
    assert cut(*many) == [False, False, False, False, True, True], "17 MiB of 14"
    world.seconds(100)
    assert sum(cut(*many)) == 2


def test_who_moves_stays_and_who_moves_too_slowly_does_not() -> None:
    world = World()
    fast, slow, still = Holder("a", 9 * MIB), Holder("b", 9 * MIB, pace=PATIENCE + 2), Holder("c", 9 * MIB)
    world.account("things", fast, slow, still)
    world.seconds(3 * PATIENCE, fast, slow)
    assert cut(fast, slow, still) == [False, True, True]


def test_time_begins_anew_when_there_was_room_meanwhile() -> None:
    world, one, other = World(), Holder("a", 12 * MIB), Holder("b", 5 * MIB)
    world.account("things", one, other)
    for _ in range(5):
        world.seconds(PATIENCE - 1)
        other.bytes = 0
        world.seconds(1)
        other.bytes = 5 * MIB
    assert cut(one, other) == [False, False]


@pytest.mark.parametrize("lacking", [0, MIB])
def test_an_account_that_is_short_by_itself_has_its_own_holders_alone_give_way(lacking: int) -> None:
    world, one, other, stranger = World(), Holder("a", 2 * MIB), Holder("a", MIB), Holder("b", 8 * MIB)
    world.account("bound", one, other, lacking=lacking, most=3 * MIB)
    world.account("things", stranger)
    world.seconds(PATIENCE + 1)
    assert cut(one, other, stranger) == [bool(lacking), False, False]
    if lacking:
        assert f"the account may have {3 * MIB} bytes" in str(one.told[0])


def test_the_log_names_the_first_who_are_cut_and_says_how_many_more(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.account("things", *(Holder(f"u{number}", 4 * MIB - number) for number in range(9)))
    world.seconds(PATIENCE + 1)
    [line] = [one.getMessage() for one in caplog.records]
    assert line == (
        "memory was short, and who gave none back for 10 s was cut: what u0 holds (user 'u0', 4194304 bytes), "
        "what u1 holds (user 'u1', 4194303 bytes), what u2 holds (user 'u2', 4194302 bytes), and 3 more; "
        "server.memory is 16 MiB"
    )


def test_the_log_says_nothing_where_nobody_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    world, one = World(), Holder("a", 17 * MIB)
    world.account("things", one)
    world.seconds(3 * PATIENCE, one)
    assert not caplog.records
