"""Tests that documents name and that notice no change, each with the reason why that is right.

Such a test is right as it is when it runs no line of the product (it reads documents, or a table), or when what it
proves does not hang on the lines that the check can change.  A row is kept honest: `wrong_rows` names each one whose
test is gone, is named by no document any more, or can fail after all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from claims.rows import TESTS, Claim


@dataclass(frozen=True)
class Known:
    """A test that need not notice."""

    node: str
    """`unit/core/test_limits.py::test_this`, below tests."""
    reason: str


_TABLE = "it compares a table of the product, no function's line, with a document; a row more in the table fails it"

KNOWN: tuple[Known, ...] = (
    Known(
        "scenarios/amps/test_whole_files.py::test_every_element_of_the_tables_is_in_the_example",
        "it compares two documents; what the server makes of the example is test_an_example_converts_to_its_settings",
    ),
    Known("scenarios/amps/test_whole_files.py::test_every_module_that_is_run_is_in_the_example", _TABLE),
    Known(
        "scenarios/letters/test_dead_letters.py::test_purging_deleting_and_expiring_a_queue_dead_letters_nothing",
        "it promises that nothing comes, and no change of one place makes it come; `drop_all` or `delete` fail it "
        "when what they drop has to give way (`evict`) first",
    ),
    Known("unit/expr/test_cases.py::test_every_function_has_a_case", _TABLE),
    Known("unit/expr/test_page.py::test_each_function_is_in_the_table_and_each_row_is_a_function", _TABLE),
)


def node_of(claim: Claim) -> str:
    """As a row names a test."""
    file = PurePath(claim.file)
    return f"{file.relative_to(TESTS) if file.is_relative_to(TESTS) else file}::{claim.test}"


def wrong_rows(known: Sequence[Known], named: Iterable[Claim], can_fail: Iterable[Claim]) -> list[str]:
    """What is wrong with rows.  named: all tests that documents name; can_fail: those that have just shown it."""
    there, lively = {node_of(claim) for claim in named}, {node_of(claim) for claim in can_fail}
    nodes = [row.node for row in known]
    gone = [f"{node}: no document names such a test" for node in nodes if node not in there]
    after_all = [f"{node}: it can fail, so there is nothing to explain" for node in nodes if node in lively]
    return gone + after_all + [f"{node}: it has two rows" for node in sorted({*nodes}) if nodes.count(node) > 1]
