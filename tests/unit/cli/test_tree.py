"""The tree of commands, for programs that run many command lines in one process."""

from __future__ import annotations

from typer.main import get_command

from penstock.cli import tree


def names(command: object) -> list[str]:
    found = getattr(command, "commands", {})
    return [name for key, one in found.items() for name in (key, *names(one))]


def test_it_is_the_same_however_often_it_is_asked_for() -> None:
    first = tree.whole()
    families = {group.name: len(group.typer_instance.registered_commands) for group in first.registered_groups}
    again = tree.whole()
    assert {group.name: len(group.typer_instance.registered_commands) for group in again.registered_groups} == families
    assert {"queue", "message", "log", "policy", "serve", "pause", "redrive"} <= set(names(get_command(again)))
