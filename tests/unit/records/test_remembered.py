"""What is remembered of keys that strangers make stays within its bound."""

from __future__ import annotations

from penstock.records.remembered import Memo, Remembered


def test_beyond_its_bound_the_oldest_are_forgotten() -> None:
    found = Remembered[str, int](3)
    for number, key in enumerate("abcd"):
        assert found.keep(key, number) == number
        assert len(found) <= 3
    assert found == {"b": 1, "c": 2, "d": 3}


def test_who_is_known_takes_nobodys_place_and_is_young_again() -> None:
    found = Remembered[str, int](3)
    for key in "abcabcad":
        found.keep(key, 1)
        assert len(found) <= 3
    assert list(found) == ["c", "a", "d"]


def test_many_strangers_leave_most_of_what_came_last() -> None:
    found = Remembered[int, int](1000)
    for key in range(100_000):
        found.keep(key, key)
        assert key < 1000 or 874 < len(found) <= 1000
        assert max(key - 874, 0) in found


def test_equal_values_are_one_object() -> None:
    found = Remembered[int, list[int]](2)
    first = [1]
    assert found.alike(1, first) is first
    assert found.alike(1, [1]) is first
    found.alike(2, [2])
    assert found.alike(1, [1]) is first, "who is known is found in a full one as well"
    other = [3]
    assert found.alike(3, other) is other
    assert found.keys() == {2, 3}


def test_a_memo_asks_once_while_it_remembers() -> None:
    asked = list[int]()

    def twice(key: int) -> int:
        asked.append(key)
        return 2 * key

    memo = Memo[int, int](2, twice)
    assert [memo[key] for key in (1, 2, 1, 2, 3, 1)] == [2, 4, 2, 4, 6, 2]
    assert asked == [1, 2, 3, 1]
    assert memo.get(7) is None
    assert asked[-1] == 1
