"""What commands are made of: tables for a person, and the tree, for programs that run many command lines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from typer.main import get_command

from penstock.cli import main as tree
from penstock.cli.main import main
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


def names(command: object) -> list[str]:
    found = getattr(command, "commands", {})
    return [name for key, one in found.items() for name in (key, *names(one))]


def test_it_is_the_same_however_often_it_is_asked_for() -> None:
    first = tree.whole()
    families = {group.name: len(group.typer_instance.registered_commands) for group in first.registered_groups}
    again = tree.whole()
    assert {group.name: len(group.typer_instance.registered_commands) for group in again.registered_groups} == families
    assert {"queue", "message", "log", "policy", "serve", "pause", "redrive"} <= set(names(get_command(again)))


def test_a_command_that_a_family_has_is_told_with_the_family(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["peek", "orders"])
    assert caught.value.code == 2
    assert "No such command 'peek'; there is penstock queue peek." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["peak", "orders"])
    assert "No such command 'peak'." in capsys.readouterr().err


@pytest.mark.parametrize("buffering", [-1, 1])  # told by what ends the command, and by what writes
@pytest.mark.parametrize("words", [("version",), ("version", "--json"), ("--help",), ("expr", "1 + 1")])
def test_output_for_which_there_is_no_room_is_told(
    words: tuple[str, ...], buffering: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with Path("/dev/full").open("w", buffering) as full:
        monkeypatch.setattr(sys, "stdout", full)
        with pytest.raises(SystemExit) as caught:
            main(words)
    assert caught.value.code == 2
    assert "the output cannot be written: No space left on device" in capsys.readouterr().err
