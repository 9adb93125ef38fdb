"""docs/expressions.md: every function is in its table, and every example prints what the page says."""

from __future__ import annotations

import pytest

from expr_page import MESSAGE, PAGE, examples, tables
from penstock.cli.tools import as_text
from penstock.expr.functions import AGGREGATES, FUNCTIONS
from penstock.records.entries import Topic
from penstock.testing import evaluate


@pytest.mark.parametrize("backend", ["python", "arrow"])
def test_examples_print_what_the_page_says(backend: str) -> None:
    found = examples()
    assert len(found) > 150
    for expression, printed in found:
        [value] = evaluate(expression, [MESSAGE], backend, topics=Topic("/", "", "orders"))
        assert as_text(value) == printed, expression


def test_each_function_is_in_the_table_and_each_row_is_a_function() -> None:
    [rows] = [rows for _, (header, *rows) in tables() if header[0] == "function"]
    named = [row[0].strip("`").split("(")[0] for row in rows]
    assert sorted(named) == sorted(FUNCTIONS)
    for row, name in zip(rows, named, strict=True):
        arguments = row[0].strip("`").removeprefix(f"{name}(").removesuffix(")")
        required = arguments.split("[")[0].replace(", ...", "")
        assert len([one for one in required.split(",") if one.strip()]) == FUNCTIONS[name].least, name
        optional = arguments.partition("[")[2].count(",")
        most = None if "..." in arguments else FUNCTIONS[name].least + optional
        assert most == FUNCTIONS[name].most, name
        assert ("Changes" in row[1]) is not FUNCTIONS[name].deterministic, name
    assert all(f"`{name}`" in PAGE for name in AGGREGATES)
