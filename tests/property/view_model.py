"""Views as nobody doubts them: every aggregate computed anew from a list of records, by its definition."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

from penstock.expr.values import parse_number, text, to_bytes

SELECT = (
    "/g AS /group, COUNT(/v) AS /count, SUM(/v) AS /sum, AVG(/v) AS /avg, MIN(/v) AS /min, MAX(/v) AS /max, "
    "STDDEV_POP(/v) AS /deviation, COUNT_DISTINCT(/v) AS /distinct, GROUP_CONCAT(/v, ';') AS /all, UNIQUE(/v) AS /one, "
    "ANY(/v) AS /any, /v AS /last, SUM(IF(/w > 1, /w, NULL)) * 2 + COUNT(/w) AS /made/deep"
)
GROUPING = ("/g",)

NAN = float("nan")


def numbers(values: Sequence[Any]) -> list[int | float]:
    out: list[int | float] = []
    for value in values:
        if isinstance(value, bool):
            out.append(int(value))
        elif isinstance(value, str):
            spelled = parse_number(value)
            out.append(NAN if spelled is None else spelled)
        else:
            out.append(value)
    return out


def rounded(exact: Fraction) -> float:
    try:
        return exact.numerator / exact.denominator
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def total(values: Sequence[int | float]) -> int | float | None:
    if not values:
        return None
    if any(value != value for value in values):
        return NAN
    exact = sum(map(Fraction, values), Fraction(0))
    if all(isinstance(value, int) for value in values):
        whole = int(exact)
        return whole if -(2**63) <= whole < 2**64 else float(whole)
    return rounded(exact)


def order(value: Any) -> Any:
    if isinstance(value, str):
        return (1, to_bytes(value), 0)
    return (0, value, 2 if isinstance(value, bool) else 1 if isinstance(value, float) else 0)


def same_group(value: Any) -> Any:
    return ("bool", value) if isinstance(value, bool) else value or (0 if value == 0 and value != "" else None)


def row(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """One row, of the records of one group in order of their positions."""
    held = [one.get("v") for one in records]
    values = [None if value == "" else value for value in held]
    there = [value for value in values if value is not None]
    told = numbers(there)
    sorted_ones = sorted(there, key=order)
    distinct = {
        value if (spelled := parse_number(value) if isinstance(value, str) else value) is None else spelled
        for value in there
    }
    out: dict[str, Any] = {"count": len(there), "sum": total(told), "distinct": len(distinct)}
    out["avg"] = None
    out["deviation"] = None
    if told:
        if any(value != value for value in told):
            out["avg"] = out["deviation"] = NAN
        else:
            exact = [Fraction(value) for value in told]
            mean = sum(exact, Fraction(0)) / len(exact)
            out["avg"] = rounded(mean)
            out["deviation"] = math.sqrt(rounded(sum(((x - mean) ** 2 for x in exact), Fraction(0)) / len(exact)))
    out["min"] = sorted_ones[0] if there else None
    out["max"] = sorted_ones[-1] if there else None
    out["all"] = ";".join(dict.fromkeys(str(text(value)) for value in sorted_ones)) or None
    out["one"] = sorted_ones[0] if len(distinct) == 1 else None
    out["any"] = there[0] if there else None
    out["last"] = values[-1]
    weights = [one["w"] for one in records if one.get("w") is not None]
    some = total([weight for weight in weights if weight > 1])
    out["made"] = {"deep": None if some is None else some * 2 + len(weights)}
    group = records[0].get("g")
    out["group"] = None if group == "" else int(group) if isinstance(group, float) and group.is_integer() else group
    return out


def rows(records: Sequence[dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    """All rows by their group, of records in order of their positions."""
    groups: dict[Any, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(same_group(record.get("g")), []).append(record)
    return {key: row(some) for key, some in groups.items()}


def shown(value: Any) -> Any:
    """What can be told apart: NaN is null in JSON, 1 and 1.0 and true are three."""
    if isinstance(value, dict):
        return {key: shown(one) for key, one in sorted(value.items())}
    if isinstance(value, float) and not math.isfinite(value):
        value = None
    return (type(value).__name__, value)
