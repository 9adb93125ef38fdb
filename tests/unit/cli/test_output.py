"""Tables for a person."""

from __future__ import annotations

import pytest

from penstock.cli.output import write_table


def test_into_a_pipe_a_row_is_one_line_however_long(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    write_table(("name", "text"), [("one", "x" * 500), ("two", "a b " * 200)])
    lines = [line for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 4  # names of the columns, a rule, two rows
    assert "x" * 500 in lines[2]


def test_a_terminal_cuts_the_last_column_where_that_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    write_table(("lsn", "body"), [(1, "short"), (2, "long " * 40)], whole=("lsn",), cut_last=True)
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert len(lines) == 4
    assert max(map(len, lines)) <= 60
    assert lines[2].endswith("short")
    assert lines[3].endswith("...")
    assert lines[3].count("long") >= 9


def test_a_narrow_terminal_folds_what_is_not_cut(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    write_table(("name", "text"), [("one", "word " * 30)])
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= 40
    assert out.count("word") == 30
