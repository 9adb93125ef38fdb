"""Functions of numbers.  A text that is no number counts as NaN; NaN gives NaN; a result without value is NaN too.

Arithmetic and the checksums of texts (CRC-32 of zlib; CRC-64/XZ: ECMA-182, reflected) are here too.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal
from functools import cache
from typing import TypeAlias

from penstock.expr.values import INT_MAX, INT_MIN, NAN, Value, fit, number, text, to_bytes

Number: TypeAlias = "int | float | None"

EARTH_RADIUS_M = 6_371_008.8
"""Mean radius of the Earth (IUGG), metres."""


def _whole(value: int | float) -> int | float:
    """An integer when it fits 64 bits, else the double as it is."""
    if isinstance(value, float):
        if math.isfinite(value) and INT_MIN <= value <= INT_MAX:
            whole = int(value)
            return whole if whole <= INT_MAX else value
        return value
    return fit(value)


def absolute(value: Value) -> Number:
    found = number(value)
    return None if found is None else fit(abs(found)) if isinstance(found, int) else abs(found)


def floor(value: Value) -> Number:
    """The greatest integer not above."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return found
    return _whole(math.floor(found))


def ceiling(value: Value) -> Number:
    """The least integer not below."""
    found = number(value)
    if found is None or not math.isfinite(found):
        return found
    return _whole(math.ceil(found))


def sign(value: Value) -> Number:
    found = number(value)
    if found is None or found != found:
        return found
    return (found > 0) - (found < 0)


def round_half_away(value: Value, digits: Value = 0) -> Number:
    """To so many decimal digits (0), halves away from zero; a double stays one, an integer too."""
    found, places = number(value), number(digits)
    if found is None or places is None:
        return None
    if places != places or not math.isfinite(found):
        return NAN if places != places else found
    count = int(max(-20, min(20, places)))
    if isinstance(found, int) and count >= 0:
        return found
    exact = Decimal(repr(found))
    exponent = exact.as_tuple().exponent
    if isinstance(exponent, int) and exponent >= -count:
        return found
    if exact.adjusted() + count < -1:
        return 0 if isinstance(found, int) else 0.0
    rounded = exact.quantize(Decimal(1).scaleb(-count), ROUND_HALF_UP)
    return fit(int(rounded)) if isinstance(found, int) else float(rounded)


def _real(run: Callable[[float], float]) -> Callable[[Value], Number]:
    def apply(value: Value) -> Number:
        found = number(value)
        if found is None or found != found:
            return found
        try:
            return run(float(found))
        except OverflowError:
            return math.inf
        except ValueError:  # outside the function's domain
            return NAN

    return apply


def power(base: Value, exponent: Value) -> Number:
    """`base` to the `exponent`, a double."""
    a, b = number(base), number(exponent)
    if a is None or b is None:
        return None
    if a != a or b != b:
        return NAN
    try:
        return math.pow(a, b)
    except OverflowError:
        return -math.inf if a < 0 and b % 2 == 1 else math.inf
    except ValueError:
        return NAN


def atan2(y: Value, x: Value) -> Number:
    """The angle of the point (x, y), in radians."""
    a, b = number(y), number(x)
    return None if a is None or b is None else math.atan2(a, b)


def width_bucket(value: Value, low: Value, high: Value, count: Value) -> Number:
    """Which of `count` equal parts of [low, high) the value falls in, from 1; 0 below, count + 1 above (SQL)."""
    numbers = [number(item) for item in (value, low, high, count)]
    a, b, c, n = numbers
    if a is None or b is None or c is None or n is None:
        return None
    if (
        any(item != item for item in numbers)
        or not (math.isfinite(b) and math.isfinite(c))
        or b >= c
        or not 1 <= n < 2**31
    ):
        return NAN
    if a < b:
        return 0
    if a >= c:
        return int(n) + 1
    return min(int((a - b) / (c - b) * int(n)), int(n) - 1) + 1


def geo_distance(latitude: Value, longitude: Value, other_latitude: Value, other_longitude: Value) -> Number:
    """Metres along the great circle between two points given in degrees (haversine on a sphere)."""
    found = [number(item) for item in (latitude, longitude, other_latitude, other_longitude)]
    a, b, c, d = found
    if a is None or b is None or c is None or d is None:
        return None
    if not all(math.isfinite(item) for item in (a, b, c, d)):
        return NAN
    one, two = math.radians(a), math.radians(c)
    across = math.radians(d - b)
    half = math.sin((two - one) / 2) ** 2 + math.cos(one) * math.cos(two) * math.sin(across / 2) ** 2
    return 2 * EARTH_RADIUS_M * math.asin(math.sqrt(min(1.0, max(0.0, half))))


OF_ONE: list[tuple[str, Callable[[Value], Number]]] = [
    ("ABS", absolute),
    ("FLOOR", floor),
    ("CEILING", ceiling),
    ("SIGN", sign),
    ("SQRT", _real(math.sqrt)),
    ("EXP", _real(math.exp)),
    ("LOG2", _real(math.log2)),
    ("SIN", _real(math.sin)),
    ("COS", _real(math.cos)),
    ("TAN", _real(math.tan)),
    ("ASIN", _real(math.asin)),
    ("ACOS", _real(math.acos)),
    ("ATAN", _real(math.atan)),
]
"""Functions of one number, by name.  Angles are radians."""


def add(left: Value, right: Value) -> int | float | None:
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    found = a + b
    return fit(found) if isinstance(found, int) else found


def subtract(left: Value, right: Value) -> int | float | None:
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    found = a - b
    return fit(found) if isinstance(found, int) else found


def multiply(left: Value, right: Value) -> int | float | None:
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    found = a * b
    return fit(found) if isinstance(found, int) else found


def divide(left: Value, right: Value) -> int | float | None:
    """`left / right`: integers give an integer, cut toward zero; NaN by zero."""
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    if b == 0:
        return NAN
    if isinstance(a, int) and isinstance(b, int):
        whole = abs(a) // abs(b)
        return fit(whole if (a < 0) == (b < 0) else -whole)
    return a / b


def modulo(left: Value, right: Value) -> int | float | None:
    """`left % right`: the sign is that of the left side; NaN by zero."""
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    if b == 0:
        return NAN
    if isinstance(a, int) and isinstance(b, int):
        rest = abs(a) % abs(b)
        return -rest if a < 0 else rest
    return NAN if math.isinf(a) else math.fmod(a, b)


def negate(value: Value) -> int | float | None:
    found = number(value)
    if found is None:
        return None
    return fit(-found) if isinstance(found, int) else -found


CRC64_TEXT_LIMIT = 1 << 16
"""Bytes of a text beyond which CRC64 is NULL: it goes byte by byte, 4 ms for as many."""

_POLYNOMIAL = 0xC96C5795D7870F42  # 0x42F0E1EBA9EA3693 with its bits reversed
_ONES = (1 << 64) - 1


@cache
def _table() -> tuple[int, ...]:
    out: list[int] = []
    for byte in range(256):
        value = byte
        for _ in range(8):
            value = (value >> 1) ^ (_POLYNOMIAL if value & 1 else 0)
        out.append(value)
    return tuple(out)


def crc32(value: Value) -> int | None:
    """CRC-32 (zlib) of the text's bytes, unsigned."""
    found = text(value)
    return None if found is None else zlib.crc32(to_bytes(found))


def crc64(value: Value) -> int | None:
    """CRC-64/XZ of the text's bytes, unsigned; NULL for a text over 64 KiB."""
    found = text(value)
    if found is None:
        return None
    data = to_bytes(found)
    if len(data) > CRC64_TEXT_LIMIT:
        return None
    table = _table()
    state = _ONES
    for byte in data:
        state = table[(state ^ byte) & 255] ^ (state >> 8)
    return state ^ _ONES
