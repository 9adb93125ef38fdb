"""The check of tests that documents name finds those that cannot fail: `make soak-claims`."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

from claims.mutants import SOURCE, mutated, sites

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
    assert "1 of 3 tests that documents name can fail." in done.stdout
    found = {one["test"]: one for one in map(json.loads, out.read_text().splitlines())}
    assert found["test_that_looks"]["noticed"]
    assert not found["test_that_does_not_look"]["noticed"]
    assert found["test_that_does_not_look"]["passed_by"]
    assert found["test_that_runs_nothing"]["trouble"] == "it runs no line of the product that could be changed"


def test_each_mutant_of_a_file_is_another_program() -> None:
    path = "penstock/units.py"
    source = (SOURCE / path).read_text()
    original = ast.dump(ast.parse(source))
    found = sites(path)
    assert len(found) > 5
    assert all(ast.dump(mutated(source, site.number)) != original for site in found)


def test_a_rule_in_a_table_is_changed_too() -> None:
    tree = ast.parse("RULES = {'few': lambda count: count < 3}")
    [turned, moved] = [ast.unparse(mutated(ast.unparse(tree), number)) for number in range(2)]
    assert (turned, moved) == ("RULES = {'few': lambda count: count >= 3}", "RULES = {'few': lambda count: count <= 3}")
