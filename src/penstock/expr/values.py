"""Scalars of the language and how they convert and compare; arrays compare by "any pair of elements".

Nothing here knows the tree or the message.  Scalars are those of `tree.Scalar`; an array is a Python list as the JSON
parser made it: elements may be scalars, lists (they flatten) or objects (no scalar: NULL).  Numbers are signed 64-bit
integers, unsigned ones above the signed maximum, and doubles.

Comparisons answer True, False or None (NULL).  Strings compare as bytes: code point order of `str` is byte order of
UTF-8, so only strings with escaped bytes (U+DC80..U+DCFF) need to be encoded for it, and never when one side is ASCII.
NaN compared with anything is NULL, as are NULL, the empty string and an object.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import TypeAlias, cast

from penstock.expr.context import meter
from penstock.records.regular_expressions import from_bytes as from_bytes
from penstock.records.regular_expressions import to_bytes as to_bytes

Value: TypeAlias = object
"""What a field may hold before it is judged: a scalar, a list, a dict."""

INT_MIN = -(1 << 63)
INT_MAX = (1 << 64) - 1
NAN = float("nan")
TEXT_LIMIT = 1 << 20
"""Bytes of a string that a function may make; a longer one is NULL, so nested REPLACEs cannot eat the memory."""

_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?")
_INTEGER = re.compile(r"[+-]?[0-9]+")
_NUMBER_TEXT_LIMIT = 320


def first(value: Value) -> Value:
    """The scalar that arithmetic and functions see: of an array its first element, of an object or '' NULL."""
    if value.__class__ is list:
        items = flatten(value)
        value = items[0] if items else None
    if value == "" or value.__class__ is dict:
        return None
    return value


def flatten(value: Value) -> list[Value]:
    """The elements of an array, lists in it replaced by their elements, in order; of anything else itself.

    All work on arrays goes through here, and so does its meter.
    """
    if not isinstance(value, list):
        return [value]
    held = cast("list[Value]", value)
    meter.spend(len(held))
    if not any(item.__class__ is list for item in held):
        return held
    out: list[Value] = []
    waiting: list[Iterable[object]] = [iter(held)]
    while waiting:
        for item in waiting[-1]:
            if isinstance(item, list):
                inner = cast("list[Value]", item)
                meter.spend(len(inner))
                waiting.append(iter(inner))
                break
            out.append(item)
        else:
            waiting.pop()
    return out


def fit(value: int) -> int | float:
    """An integer result, or the double it becomes outside 64 bits."""
    return value if INT_MIN <= value <= INT_MAX else float(value)


def parse_number(text: str) -> int | float | None:
    """The number a text spells, or None: decimal digits, fraction and exponent, no blanks, no names."""
    if len(text) > _NUMBER_TEXT_LIMIT or _NUMBER.fullmatch(text) is None:
        return None
    if len(text) <= 24 and _INTEGER.fullmatch(text):
        return fit(int(text))
    return float(text)


def number(value: Value) -> int | float | None:
    """A scalar as arithmetic takes it: NULL stays None, a string that is no number becomes NaN."""
    if isinstance(value, int | float):
        return value if value.__class__ is not bool else int(value)
    if isinstance(value, str):
        if not value:
            return None
        found = parse_number(value)
        return NAN if found is None else found
    return None


def text(value: Value) -> str | None:
    """A scalar as string functions take it.  Doubles in their shortest exact form, Booleans `true` and `false`."""
    if isinstance(value, str):
        return value or None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    return None


def is_true(value: Value) -> bool:
    """Does it count as TRUE: TRUE itself, or a number other than zero."""
    value = first(value)
    return isinstance(value, bool | int | float) and value != 0 and value == value


def is_false(value: Value) -> bool:
    """Does it count as FALSE: FALSE itself, or zero."""
    value = first(value)
    return isinstance(value, bool | int | float) and value == 0


def logic(value: Value) -> bool | None:
    """TRUE, FALSE or NULL: what AND, OR and NOT make of a value.  NaN and strings are NULL."""
    value = first(value)
    if isinstance(value, bool | int | float) and value == value:
        return value != 0
    return None


def conjunction(*values: Value) -> bool | None:
    """AND of three values: FALSE wins over NULL."""
    judged = [logic(value) for value in values]
    return False if False in judged else None if None in judged else True


def disjunction(*values: Value) -> bool | None:
    """OR of three values: TRUE wins over NULL."""
    judged = [logic(value) for value in values]
    return True if True in judged else None if None in judged else False


def negation(value: Value) -> bool | None:
    """NOT of three values: NULL stays NULL."""
    judged = logic(value)
    return None if judged is None else not judged


def order(left: Value, right: Value) -> int | None:
    """-1, 0 or 1 as one scalar is below, equal to or above the other; None when NULL or NaN is among them."""
    if isinstance(left, str) and isinstance(right, str):
        if not left or not right:
            return None
        if left.isascii() or right.isascii() or left == right:
            return (left > right) - (left < right)
        return -1 if to_bytes(left) < to_bytes(right) else 1
    if isinstance(left, int | float) and isinstance(right, int | float):
        return -1 if left < right else 1 if left > right else 0 if left == right else None
    return _order_of_unlike(left, right)


def _order_of_unlike(left: Value, right: Value) -> int | None:
    """A text beside a number is compared as the number that it spells."""
    a, b = _comparable(left), _comparable(right)
    if a is None or b is None:
        return None
    if isinstance(a, str) or isinstance(b, str):  # an unconvertible string is above every number
        return 1 if isinstance(a, str) else -1
    return (a > b) - (a < b)


def _comparable(value: Value) -> int | float | str | None:
    """A scalar beside one of the other kind: numbers and what spells one, else the string; None for NULL and NaN."""
    if isinstance(value, str):
        if not value:
            return None
        found = parse_number(value)
        return value if found is None else found
    if isinstance(value, int | float):
        return value if value == value else None
    return None


def eq(left: Value, right: Value) -> bool | None:
    if left.__class__ is list or right.__class__ is list:
        return _any_pair(left, right, _any_equal, eq)
    found = order(left, right)
    return None if found is None else found == 0


def ne(left: Value, right: Value) -> bool | None:
    """`left != right`; on arrays: does some pair differ."""
    if left.__class__ is list or right.__class__ is list:
        return _any_pair(left, right, _any_different, ne)
    found = order(left, right)
    return None if found is None else found != 0


def lt(left: Value, right: Value) -> bool | None:
    if left.__class__ is list or right.__class__ is list:
        return _any_pair(left, right, _any_less, lt)
    found = order(left, right)
    return None if found is None else found < 0


def le(left: Value, right: Value) -> bool | None:
    if left.__class__ is list or right.__class__ is list:
        return _any_pair(left, right, _any_at_most, le)
    found = order(left, right)
    return None if found is None else found <= 0


def gt(left: Value, right: Value) -> bool | None:
    return lt(right, left)


def ge(left: Value, right: Value) -> bool | None:
    return le(right, left)


def one_of(left: Value, items: Elements | list[Value]) -> bool | None:
    """`left IN (items)`: one comparison of arrays, the items and their elements together."""
    if isinstance(items, list):  # an item that is an empty array is NULL
        items = [item if item.__class__ is not list else flatten(item) or None for item in items]
    return _by_kind(left, items, _any_equal)


class Elements:
    """The elements of one side of a comparison by kind, so that "any pair" costs one pass instead of a product."""

    __slots__ = ("numbers", "spelled", "strings", "unknown", "words")

    def __init__(self, value: Value) -> None:
        self.numbers = set[int | float]()
        self.strings = set[str]()
        self.spelled = set[int | float]()  # what strings spell as numbers
        self.words = False  # some string spells no number
        self.unknown = False  # NULL, NaN or an object among them, or no element at all
        for item in flatten(value):
            if isinstance(item, str) and item:
                self.strings.add(item)
            elif isinstance(item, bool | int | float) and item == item:
                self.numbers.add(item)
            else:
                self.unknown = True
        if not self.strings and not self.numbers:
            self.unknown = True

    def spell(self) -> None:
        """Fill `spelled` and `words`: only needed when the other side has numbers."""
        if self.words or self.spelled:
            return
        for item in self.strings:
            found = parse_number(item)
            if found is None:
                self.words = True
            else:
                self.spelled.add(found)


def _any_pair(
    left: Value,
    right: Value,
    of_all: Callable[[Elements, Elements], bool],
    of_two: Callable[[Value, Value], bool | None],
) -> bool | None:
    """A comparison with an array on one side or both.  A scalar beside an array needs one loop only."""
    if right.__class__ is not list:
        pairs = [(item, right) for item in flatten(left)]
    elif left.__class__ is not list:
        pairs = [(left, item) for item in flatten(right)]
    else:
        return _by_kind(left, right, of_all)
    unknown = not pairs
    for a, b in pairs:
        found = of_two(a, b)
        if found:
            return True
        if found is None:
            unknown = True
    return None if unknown else False


def _by_kind(left: Value, right: Value, of_all: Callable[[Elements, Elements], bool]) -> bool | None:
    a = Elements(left)
    b = right if isinstance(right, Elements) else Elements(right)
    if b.numbers:
        a.spell()
    if a.numbers:
        b.spell()
    return True if of_all(a, b) else None if a.unknown or b.unknown else False


def _any_equal(a: Elements, b: Elements) -> bool:
    return not (
        a.strings.isdisjoint(b.strings)
        and a.numbers.isdisjoint(b.numbers)
        and a.numbers.isdisjoint(b.spelled)
        and a.spelled.isdisjoint(b.numbers)
    )


def _any_different(a: Elements, b: Elements) -> bool:
    if a.strings and b.strings and len(a.strings | b.strings) > 1:
        return True
    if a.numbers and b.numbers and len(a.numbers | b.numbers) > 1:
        return True
    if a.numbers and b.strings and (b.words or len(a.numbers | b.spelled) > 1):
        return True
    return bool(a.strings and b.numbers and (a.words or len(a.spelled | b.numbers) > 1))


def _any_less(a: Elements, b: Elements) -> bool:
    if a.strings and b.strings and min(map(to_bytes, a.strings)) < max(map(to_bytes, b.strings)):
        return True
    if a.numbers:
        lowest = min(a.numbers)
        if b.words or any(lowest < other for other in b.numbers) or any(lowest < other for other in b.spelled):
            return True
    return bool(a.spelled and b.numbers and min(a.spelled) < max(b.numbers))


def _any_at_most(a: Elements, b: Elements) -> bool:
    return _any_less(a, b) or _any_equal(a, b)


def is_null(value: Value) -> bool:
    """`IS NULL`: nothing there, or an array without a value in it."""
    if value.__class__ is list:
        return all(item is None or item == "" or isinstance(item, dict) for item in flatten(value))
    return value is None or value == "" or isinstance(value, dict)


def is_nan(value: Value) -> bool:
    """`IS NAN`: a NaN, or an array with one in it."""
    return any(isinstance(item, float) and item != item for item in flatten(value))
