"""The table of cases on the backends that need no Spark, and the filters of its texts."""

from __future__ import annotations

import pytest

from choices import EFFORT
from expr_cases import (
    BODIES,
    CASES,
    CONTEXT,
    HEADER,
    LSNS,
    ORIGIN,
    PAIRS,
    SINGLES,
    TIMES,
    TOPICS,
    answer,
    comparable,
    unused,
)
from penstock import expr
from penstock.expr.batches import batch_of

TOGETHER = 50
"""Cases of one test: a test of its own costs as much as its case."""


@pytest.mark.parametrize("part", range(0, len(CASES), TOGETHER))
def test_case(part: int) -> None:
    for text, row, expected in CASES[part : part + TOGETHER]:
        found = answer(text)
        assert comparable(found[row]) == comparable(expected), text
        if "UNIX_TIMESTAMP" not in text or expected is True:
            assert list(map(comparable, answer(text, "arrow"))) == list(map(comparable, found)), text


@pytest.mark.parametrize("texts", [PAIRS[:: 3 if EFFORT == 1 else 1], SINGLES], ids=["pairs", "singles"])
def test_arrow_agrees_with_python_on_operands_of_every_kind(texts: list[str]) -> None:
    """Of pairs a usual run has each third, so that each operand stands beside a third of them."""
    for text in texts:
        assert list(map(comparable, answer(text, "arrow"))) == list(map(comparable, answer(text))), text


def test_filters_are_true_where_values_are() -> None:
    batch = batch_of(BODIES, HEADER, TOPICS, LSNS, TIMES)
    for text in (*(text for text, _, _ in CASES), *SINGLES[:: 3 if EFFORT == 1 else 1]):
        values = answer(text)
        for wanted, form in ((True, "{}"), (False, "NOT ({})")):
            chosen = expr.compile_filter(form.format(text), expr.EVERYTHING)
            expected = [isinstance(one, bool | int | float) and one == one and (one != 0) is wanted for one in values]
            found = chosen.on_batch(batch, origin=ORIGIN, context=CONTEXT)
            assert found.to_pylist() == expected, text
            assert (
                chosen.matches(
                    BODIES,
                    HEADER,
                    TOPICS,
                    lsns=LSNS,
                    times=TIMES,
                    origin=ORIGIN,
                    context=CONTEXT,  # type: ignore[arg-type]
                )
                == expected
            ), text


def test_every_function_has_a_case() -> None:
    assert unused() == []
