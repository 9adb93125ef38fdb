"""The operators + - * / % and the signs: promotion, overflow, division.

NULL if any operand is, else NaN if any is, else a double if any is, else an integer; an integer result outside 64 bits
becomes a double.  Strings count as the number they spell, others as NaN.
"""

from __future__ import annotations

import math

from penstock.expr.values import NAN, Value, fit, number


def add(left: Value, right: Value) -> int | float | None:
    """`left + right`."""
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    found = a + b
    return fit(found) if isinstance(found, int) else found


def subtract(left: Value, right: Value) -> int | float | None:
    """`left - right`."""
    a, b = number(left), number(right)
    if a is None or b is None:
        return None
    found = a - b
    return fit(found) if isinstance(found, int) else found


def multiply(left: Value, right: Value) -> int | float | None:
    """`left * right`."""
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
    """`-value`."""
    found = number(value)
    if found is None:
        return None
    return fit(-found) if isinstance(found, int) else -found
