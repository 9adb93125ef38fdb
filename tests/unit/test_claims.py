"""The check of tests that documents name finds those that cannot fail: `make soak-claims`."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from choices import spread
from claims.claims import noticed
from claims.known import KNOWN, Known, node_of, wrong_rows
from claims.mutants import SOURCE, mutated, sites
from claims.rows import Claim, claims
from penstock.units import parse_duration

TESTS = Path(__file__).resolve().parents[1]

PLANTED = """
from penstock.units import format_duration


def test_that_looks():
    assert [format_duration(micros) for micros in (0, 1_500_000, 60_000_000)] == ["0s", "1500ms", "1m"]


def test_that_does_not_look():
    for micros in (0, 1_500_000, 60_000_000):
        assert format_duration(micros)


def test_that_runs_nothing():
    assert 1 + 1 == 2
"""


def test_who_cannot_fail_is_listed(tmp_path: Path) -> None:
    file = tmp_path / "test_planted.py"
    file.write_text(PLANTED)
    out = tmp_path / "claims.jsonl"
    command = [sys.executable, "-m", "claims.claims", "--file", str(file), "--out", str(out)]
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS)])}
    done = subprocess.run(command, env=paths, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "1 of 3 tests that documents name can fail. Of the others 0 have a reason and 2 have none." in done.stdout
    found = {one["test"]: one for one in map(json.loads, out.read_text().splitlines())}
    assert found["test_that_looks"]["noticed"]
    assert not found["test_that_does_not_look"]["noticed"]
    assert found["test_that_does_not_look"]["passed_by"]
    assert found["test_that_runs_nothing"]["trouble"] == "it runs no line of the product that could be changed"


CHANGED = """
import forked
from claims.servers import fork_from_here
from penstock import version

version.__version__ = "changed"
fork_from_here()
print(forked.penstock("version").stdout)
"""


def test_servers_and_commands_of_a_test_have_the_change_in_them() -> None:
    paths = {**os.environ, "PYTHONPATH": os.pathsep.join([str(SOURCE), str(TESTS)])}
    done = subprocess.run([sys.executable, "-c", CHANGED], env=paths, capture_output=True, text=True, check=False)
    assert "changed" in done.stdout, done.stderr


def test_each_mutant_of_a_file_is_another_program() -> None:
    path = "penstock/units.py"
    source = (SOURCE / path).read_text()
    original = ast.dump(ast.parse(source))
    found = sites(path)
    assert len(found) > 5
    assert all(ast.dump(mutated(source, site.number)) != original for site in spread(found, 25))


def test_a_rule_in_a_table_is_changed_too() -> None:
    tree = ast.parse("RULES = {'few': lambda count: count < 3}")
    [turned, moved] = [ast.unparse(mutated(ast.unparse(tree), number)) for number in range(2)]
    assert (turned, moved) == ("RULES = {'few': lambda count: count >= 3}", "RULES = {'few': lambda count: count <= 3}")


def test_what_else_can_be_turned_round() -> None:
    tree = "def nearest(ones, most): return [min(one, most) if most else one for one in ones if one]"
    changed = {ast.unparse(mutated(tree, number)).partition("return ")[2] for number in range(3)}
    assert changed == {
        "[one if most else min(one, most) for one in ones if one]",
        "[max(one, most) if most else one for one in ones if one]",
        "[min(one, most) if most else one for one in ones if not one]",
    }


def failure(work: Callable[[], object]) -> BaseException:
    with pytest.raises((Exception, pytest.fail.Exception)) as caught:
        work()
    return caught.value


def test_what_counts_as_a_look() -> None:
    def compares() -> None:
        assert [].count(1) == 1

    def unpacks() -> None:
        [_] = list[int]()

    here = Path(__file__)
    assert noticed(failure(compares), here)
    assert noticed(failure(unpacks), here)
    assert noticed(failure(lambda: pytest.fail("no")), here)
    assert not noticed(failure(lambda: parse_duration("three")), here)  # the product's own words
    assert noticed(ExceptionGroup("several", [failure(compares), ValueError()]), here)


def test_an_assertion_of_the_products_own_is_no_look() -> None:
    """Nor is that a server did not start: whatever is wrong with it, every test would say so."""
    of_the_product = compile("def work():\n    assert 1 == 2\nwork()", str(SOURCE / "penstock/units.py"), "exec")
    of_a_check = compile("def check():\n    assert 1 == 2\ncheck()", str(SOURCE / "penstock/units.py"), "exec")
    of_the_start = compile("def start():\n    assert 1 == 2\nstart()", str(TESTS / "live_server.py"), "exec")
    looks = [
        noticed(failure(partial(exec, code, {})), Path(__file__)) for code in (of_the_product, of_a_check, of_the_start)
    ]
    assert looks == [False, True, False]


def test_reasons_are_of_tests_that_documents_name_and_that_cannot_fail() -> None:
    one, other = (Claim(name, TESTS / "unit" / "test_x.py", "page.md", "so") for name in ("test_one", "test_other"))
    rows = [
        Known(node_of(one), "it compares documents"),
        Known("unit/test_x.py::test_gone", "why"),
        Known(node_of(one), "twice"),
    ]
    assert wrong_rows(rows[:1], [one, other], [other]) == []
    assert wrong_rows(rows[:1], [one, other], [one]) == [
        "unit/test_x.py::test_one: it can fail, so there is nothing to explain"
    ]
    assert wrong_rows(rows[:2], [one], []) == ["unit/test_x.py::test_gone: no document names such a test"]
    assert wrong_rows([rows[0], rows[2]], [one], []) == ["unit/test_x.py::test_one: it has two rows"]


def test_no_reason_is_left_over() -> None:
    assert wrong_rows(KNOWN, claims(), []) == []
    assert all(row.reason for row in KNOWN)
