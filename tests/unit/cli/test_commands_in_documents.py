"""The commands that documents name are commands, with options that they have and what they cannot be without."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from penstock.cli import main as tree
from penstock.errors import PenstockError

Run = Callable[..., tuple[int, str, str]]

ROOT = Path(__file__).resolve().parents[3]
DOCUMENTS = [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md"]
WHOLE = typer.main.get_command(tree.whole())


def written(text: str) -> Iterator[list[str]]:
    """The words of each command in a page, in lines of code and between words; `a|b` stands for two commands."""
    code = re.findall(r"^```(?:sh|console)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.removeprefix("$ ") for block in code for line in block.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"`(penstock [^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL))
    for line in [*lines, *inline]:
        for part in re.split(r" \| | && |; ", line.replace("\\|", "|").replace("...", "")):
            if part.strip().startswith("penstock "):
                words = shlex.split(part.strip().replace(" &", " "), comments=True)[1:]
                several = next(
                    (at for at, word in enumerate(words) if re.fullmatch(r"[a-z-]+(\|[a-z-]+)+", word)), None
                )
                for one in words[several].split("|") if several is not None else [""]:
                    yield words if several is None else [*words[:several], one, *words[several + 1 :]]


def test_the_page_has_every_exit_status() -> None:
    said = re.findall(r"^(\d)  (.+)$", tree.__doc__ or "", re.MULTILINE)
    table = re.findall(r"^\| (\d) \| (.+?)(?:: \[.*\))? \|$", (ROOT / "docs/cli.md").read_text(), re.MULTILINE)
    assert said == table
    assert {str(one.exit_status) for one in errors_of(PenstockError)} <= {status for status, _ in said}


def errors_of(kind: type[PenstockError]) -> Iterator[type[PenstockError]]:
    """It, and all below it."""
    yield kind
    for one in kind.__subclasses__():
        yield from errors_of(one)


def mistake(words: list[str]) -> str:
    """What is wrong with a command; empty: nothing."""
    command: Any = WHOLE
    rest = list(words)
    while rest and hasattr(command, "commands"):
        if rest[0].startswith("-"):
            return ""
        if rest[0] not in command.commands:
            return f"{rest[0]} is no command"
        command = command.commands[rest.pop(0)]
    options = {name: one for one in command.params for name in (*one.opts, *one.secondary_opts) if name.startswith("-")}
    given, places = set[str](), 0
    while rest:
        word = rest.pop(0).strip("[]")
        if word.startswith("-") and len(word) > 1:
            name, _, value = word.partition("=")
            if name not in options and name not in ("--help", "-h"):
                return f"{name} is no option"
            one = options.get(name)
            given.add(one.name if one is not None else "")
            if one is not None and not one.is_flag and not value and rest:
                rest.pop(0)
        elif word not in ("<", ">"):
            places += 1
    missing = [
        one.opts[0] for one in command.params if one.required and one.opts[0].startswith("-") and one.name not in given
    ]
    return f"{', '.join(missing)} is missing" if missing and places else ""


@pytest.mark.parametrize("page", DOCUMENTS, ids=lambda page: page.name)
def test_the_commands_of_a_document_are_commands(page: Path) -> None:
    wrong = {" ".join(words): why for words in written(page.read_text()) if (why := mistake(words))}
    assert not wrong


SHOWN = [
    found
    for page in DOCUMENTS
    for found in re.findall(r"^penstock expr (.*?) +# ([A-Z]+|-?\d+)$", page.read_text(), re.MULTILINE)
]


@pytest.mark.parametrize(("words", "value"), SHOWN)
def test_an_expression_of_a_document_gives_what_is_written_behind_it(words: str, value: str, run: Run) -> None:
    assert run("expr", *shlex.split(words)) == (0, f"{value}\n", "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("penstock peek failed", "peek is no command"),
        ("penstock queue move failed other", "--to is missing"),
        ("penstock policy list cap --yes", "--yes is no option"),
        ("penstock queue pause|halt jobs", "halt is no command"),
        ("penstock queue move failed --to other", ""),
    ],
)
def test_mistakes_are_found(line: str, why: str) -> None:
    assert [mistake(words) for words in written(f"`{line}`")][-1] == why
