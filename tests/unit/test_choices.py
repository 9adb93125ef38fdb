"""A hunt asks every case of every test; a usual run a sample, and what it leaves out names the test that has one."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import choices
from choices import is_left_out, spread

TESTS = Path(__file__).parents[1]


def test_a_usual_run_asks_an_even_share_of_the_cases_with_both_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "EFFORT", 1)
    assert spread(range(10), 4) == [0, 3, 6, 9]
    assert spread("abc", 2) == ["a", "c"]
    assert spread(range(3), 5) == [0, 1, 2]
    assert all(len(set(spread(range(many), usual))) == usual for many in range(2, 40) for usual in range(2, many))


def test_a_hunt_asks_all_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "EFFORT", 2)
    assert spread(range(10), 4) == list(range(10))
    assert not is_left_out(bulk=True, chosen=["tests"])


def test_who_names_a_test_gets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choices, "EFFORT", 1)
    assert is_left_out(bulk=True, chosen=["tests", "tests/sim/test_lives.py"])
    assert not is_left_out(bulk=True, chosen=["tests/sim/test_lives.py::test_lives"])
    assert not is_left_out(bulk=False, chosen=["tests"])


def samples_named_in(text: str) -> dict[str, str]:
    """By the test or class that is left out, the test that its mark names."""
    found = dict[str, str]()
    for node in ast.walk(ast.parse(text)):
        for mark in getattr(node, "decorator_list", ()):
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.bulk":
                [sample] = mark.args
                assert isinstance(sample, ast.Constant)
                found[getattr(node, "name", "")] = str(sample.value)
    return found


def test_what_is_left_out_names_the_test_that_asks_a_sample_of_it() -> None:
    texts = {str(one.relative_to(TESTS)): one.read_text() for one in TESTS.rglob("test_*.py")}
    left_out = {file: samples_named_in(text) for file, text in texts.items() if "mark.bulk(" in text}
    for file, named in left_out.items():
        for test, sample in named.items():
            there, found, name = sample.rpartition("::")
            there = there if found else file
            assert f"def {name}(" in texts[there], f"{file}: {test} names {sample}"
            assert name not in left_out.get(there, {}), f"{file}: {test} and {sample} are both left out"
