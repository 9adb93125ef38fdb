"""Our `dataclass` behaves as the standard library's: each case is asked of both."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import sys
from collections.abc import Callable
from dataclasses import FrozenInstanceError, asdict, field, fields, replace
from typing import Any, ClassVar

import pytest

from penstock.records import dataclass as ours

VARIANTS: tuple[dict[str, bool], ...] = (
    {},
    {"frozen": True},
    {"slots": True},
    {"frozen": True, "slots": True},
    {"slots": True, "eq": False},
    {"frozen": True, "slots": True, "eq": False},
)

Decorator = Callable[..., Any]
BOTH = pytest.mark.parametrize("decorate", [dataclasses.dataclass, ours.dataclass], ids=["standard", "ours"])
EACH = pytest.mark.parametrize("how", VARIANTS, ids=lambda how: "-".join(how) or "plain")


def point(decorate: Decorator, how: dict[str, bool]) -> Any:
    @decorate(**how)
    class Point:
        SIDES: ClassVar[int] = 4
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list[str])
        note: str = field(default="", compare=False, repr=False)
        area: int = field(init=False, default=0)
        drawn: int = field(init=False, default=0)
        seen: list[int] = field(init=False, default_factory=list[int])
        unit: str = field(default="m", kw_only=True)

        def __post_init__(self) -> None:
            object.__setattr__(self, "area", self.x * self.y)

    return Point


@EACH
def test_what_a_class_offers_is_the_same(how: dict[str, bool]) -> None:
    standard, own = point(dataclasses.dataclass, how), point(ours.dataclass, how)
    for one in (standard(1), own(1)):
        assert (one.x, one.y, one.tags, one.note, one.area, one.drawn, one.seen) == (1, 2, [], "", 2, 0, [])
        assert one.unit == "m"
    assert repr(own(1, tags=["a"])) == repr(standard(1, tags=["a"]))
    assert own.__match_args__ == standard.__match_args__
    assert [one.name for one in fields(own)] == [one.name for one in fields(standard)]
    assert asdict(own(3, unit="km")) == asdict(standard(3, unit="km"))
    assert ("__slots__" in own.__dict__) == ("__slots__" in standard.__dict__)
    assert (own.__hash__ is None) == (standard.__hash__ is None)
    assert (own(1) == own(1)) == (standard(1) == standard(1))
    assert own(1, tags=["a"]) != own(1)
    assert own(1) != standard(1)
    assert list(inspect.signature(own.__init__).parameters) == list(inspect.signature(standard.__init__).parameters)


@BOTH
@EACH
def test_instances_have_lists_of_their_own_and_fields_that_do_not_count(
    decorate: Decorator, how: dict[str, bool]
) -> None:
    made = point(decorate, how)
    first, second = made(1), made(1, note="other")
    first.tags.append("a")
    assert second.tags == []
    assert second.note == "other"
    first.tags.clear()
    assert (first == second) is how.get("eq", True)
    changed = replace(first, x=5)
    assert (changed.x, changed.area) == (5, 10)


@BOTH
@pytest.mark.parametrize("given", [(), (1, 2, [], "", "m"), (1, 2, [], "", 3)], ids=repr)
def test_wrong_arguments_are_refused(decorate: Decorator, given: tuple[Any, ...]) -> None:
    with pytest.raises(TypeError, match="__init__"):
        point(decorate, {"slots": True})(*given)
    with pytest.raises(TypeError, match="unexpected keyword argument 'z'"):
        point(decorate, {"slots": True})(1, z=1)


@BOTH
@pytest.mark.parametrize("slots", [False, True], ids=["dict", "slots"])
def test_a_frozen_one_stays_as_it_is(decorate: Decorator, slots: bool) -> None:
    one = point(decorate, {"frozen": True, "slots": slots})(1)
    with pytest.raises(FrozenInstanceError, match="cannot assign to field 'x'"):
        one.x = 2
    with pytest.raises(FrozenInstanceError, match="cannot delete field 'x'"):
        del one.x
    assert one.x == 1


@BOTH
def test_equal_ones_have_equal_hashes(decorate: Decorator) -> None:
    @decorate(frozen=True, slots=True)
    class Pair:
        a: int
        b: str

    @decorate(frozen=True, slots=True)
    class Lone:
        a: float

    @decorate(frozen=True, slots=True)
    class Empty:
        pass

    assert len({Pair(1, "x"), Pair(1, "x"), Pair(2, "x")}) == 2
    assert hash(Pair(1, "x")) == hash((1, "x"))
    assert hash(Lone(1.5)) == hash((1.5,))
    assert hash(Empty()) == hash(())
    by_place = sys.version_info < (3, 13)  # as tuples are: what is the same is equal
    assert (Lone(nan := float("nan")) == Lone(nan)) is by_place
    assert Empty() == Empty()
    assert Pair(1, "x").__eq__((1, "x")) is NotImplemented


@BOTH
def test_methods_of_the_class_itself_stay(decorate: Decorator) -> None:
    @decorate(frozen=True, slots=True)
    class Own:
        a: int

        def __repr__(self) -> str:
            return "own"

        def __eq__(self, other: object) -> bool:
            return True

        def __hash__(self) -> int:
            return 7

    @decorate(frozen=True)
    class Alike:
        a: int

        def __eq__(self, other: object) -> bool:
            return isinstance(other, Alike)

    @decorate
    class Unmade:
        a: int = 0

        def __init__(self) -> None:
            self.a = 9

    assert (repr(Own(1)), hash(Own(1)), Own(1) == Own(2)) == ("own", 7, True)
    assert hash(Alike(1)) == hash((1,))
    assert Alike(1) == Alike(2)
    assert Unmade().a == 9


@BOTH
def test_a_heir_has_the_fields_of_both(decorate: Decorator) -> None:
    @decorate(slots=True)
    class Base:
        a: int
        b: int = 2

    @decorate(slots=True)
    class Heir(Base):
        c: int = 3

        def sum(self) -> int:
            return self.a + self.b + self.c

    class Plain(Heir):
        def __init__(self) -> None:
            super().__init__(5)  # pyright: ignore[reportUnknownMemberType] - it has none that is written down

    assert Heir(1).sum() == 6
    assert Heir(1, 1, 1).sum() == 3
    assert repr(Heir(1)).endswith("Heir(a=1, b=2, c=3)")
    assert Heir(1) != Base(1)
    assert Plain().sum() == 10
    assert Base(1).b == 2


@ours.dataclass(frozen=True, slots=True)
class Parcel:
    """At the top of a module, so that it can be pickled."""

    a: int
    rest: tuple[Parcel, ...] = ()


def test_frozen_slots_are_copied_and_pickled() -> None:
    one = Parcel(1, (Parcel(2),))
    assert pickle.loads(pickle.dumps(one)) == copy.deepcopy(one) == copy.copy(one) == one


def test_a_value_that_holds_itself_has_an_end() -> None:
    @ours.dataclass(slots=True)
    class Ring:
        next: Any = None

    ring = Ring()
    ring.next = ring
    assert repr(ring).endswith("Ring(next=...)")


def test_nothing_is_compiled_before_the_first_instance() -> None:
    @ours.dataclass(slots=True)
    class Later:
        a: int

    waiting = Later.__dict__["__init__"]
    assert Later(1).a == 1
    assert Later.__dict__["__init__"] is not waiting
    assert Later(a=2).a == 2
