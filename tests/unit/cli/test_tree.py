"""The tree of commands, for programs that run many command lines in one process."""

from __future__ import annotations

import pytest
from typer.main import get_command

from penstock.cli import main as tree
from penstock.cli.main import main


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
