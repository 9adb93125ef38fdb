"""The house keeps its shape: imports point down, importing the package stays cheap, and no test is in a hurry."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import settings

from choices import EFFORT

SOURCE = Path(__file__).resolve().parents[2] / "src"

PLAIN = {"records", "ports", "config", "errors", "units", "version"}
BELOW_SERVER = PLAIN | {"expr", "core", "log", "memory", "replication", "wire", "history"}

SERVER_ROOMS: dict[str, set[str]] = {"people": set(), "base": set(), "sockets": {"base"}, "asking": {"base"}}
"""Rooms of the server that the others rest on -> the rooms of it that they may import; operations: people alone."""

MAY_IMPORT: dict[str, set[str]] = {
    "records": PLAIN,
    "ports": PLAIN,
    "config": PLAIN,
    "errors": PLAIN,
    "units": PLAIN,
    "version": set(),
    "expr": PLAIN,
    "core": {"records", "expr", "errors", "units", "version"},
    "log": {"records", "ports", "errors", "units"},
    "memory": {"records", "ports", "errors", "units"},
    "replication": {"records", "ports", "wire", "errors", "units"},
    "wire": {"records", "errors", "units"},
    "history": {"records", "ports", "expr", "log", "wire", "errors", "units"},
    "operations": BELOW_SERVER | {"server"},  # of which only its people
    "server": BELOW_SERVER | {"operations"},
    "client": {"records", "expr", "wire", "errors", "units"},
    "aio": {"client"},
    "worker": {"client", "records", "errors", "units"},
    "otel": {"client", "errors", "version"},
    "faststream": {"client", "expr", "records", "wire", "errors", "units"},
    "spark": {"client", "core", "history", "log", "wire", "expr", "records", "errors", "units"},
    "testing": BELOW_SERVER | {"operations", "server", "client", "spark"},
    "cli": BELOW_SERVER | {"operations", "server", "client", "worker", "spark", "testing", "dashboard", "penstock"},
    "dashboard": BELOW_SERVER | {"server", "client", "spark"},
    "__main__": {"cli"},
    "penstock": {"errors", "client", "aio", "worker", "version"},  # the package itself: its public names
}
"""Floor -> the floors it may import; its own is always allowed."""

MAY_IMPORT_BESIDE = {"pyspark_penstock": {"penstock.spark"}}
"""Top-level packages next to `penstock` -> the modules of ours they may import."""

HEAVY_BELOW = {"asyncio", "socket", "threading", "time", "random.SystemRandom", "subprocess", "selectors"}
"""What the pure floors never import: they are handed time, chance and the world's answers."""

PURE = {"records", "core", "errors", "units"}


def statements(node: ast.AST) -> Iterator[ast.AST]:
    """Every statement below, whatever it is in; expressions, nine nodes in ten, are passed over."""
    left = [node]
    while left:
        node = left.pop()
        below = [
            one for field in ("body", "handlers", "orelse", "finalbody", "cases") for one in getattr(node, field, ())
        ]
        yield from below
        left += below


@cache
def imports(file: Path, package: str) -> list[tuple[int, str]]:
    """Line and absolute dotted name of every import in a file, those under TYPE_CHECKING and in functions included."""
    found = list[tuple[int, str]]()
    for node in statements(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found += ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) - node.level + 1], *([base] if base else [])])
            found += ((node.lineno, f"{base}.{alias.name}") for alias in node.names)
    return found


def package_of(file: Path, source: Path) -> str:
    return ".".join(file.relative_to(source).parent.parts)


def floor_of(module: str) -> str:
    """`penstock.log.writer` is `log`; `penstock` and its own names are `penstock`."""
    parts = module.split(".")
    if len(parts) > 1 and parts[1] in MAY_IMPORT:
        return parts[1]
    return "penstock"


def violations(source: Path) -> list[str]:
    found: list[str] = []
    for file in sorted(source.rglob("*.py")):
        place = file.relative_to(source)
        parts = place.with_suffix("").parts
        lines = file.read_text(encoding="utf-8").splitlines()
        for line, name in imports(file, package_of(file, source)):
            top = name.split(".")[0]
            shown = f"{place}:{line}: {lines[line - 1].strip()}"
            if parts[0] != "penstock":
                allowed = MAY_IMPORT_BESIDE.get(parts[0], set())
                if top == "penstock" and not any(f"{name}.".startswith(f"{one}.") for one in allowed):
                    found.append(f"{shown}  ({parts[0]} may import {sorted(allowed)})")
                continue
            floor = floor_of(".".join(parts))
            if len(parts) > 1 and parts[1] not in MAY_IMPORT and parts[1:] != ("__init__",):
                found.append(f"{place}: the table of floors has no line for {parts[1]!r}")
                break
            if top != "penstock":
                if floor in PURE and name.split(".")[0] in HEAVY_BELOW:
                    found.append(f"{shown}  ({floor} is pure)")
                continue
            other = floor_of(name)
            if other == floor == "wire" and wire_of(name) not in {wire_of(".".join(parts)), ""}:
                found.append(f"{shown}  (one wire does not know another)")
            if other == "server" and (known := rooms_for(parts)) is not None and name.split(".")[2] not in known:
                found.append(f"{shown}  ({'/'.join(parts[1:-1])} knows of the server {', '.join(sorted(known))})")
            if other != floor and other not in MAY_IMPORT[floor]:
                allowed_here = "anything" if floor == "cli" else ", ".join(sorted(MAY_IMPORT[floor]))
                found.append(f"{shown}  ({floor} may import {allowed_here})")
    return found


def circles(source: Path) -> list[str]:
    """Files that import each other, by way of others too, and what lies between such; type-only imports count."""
    files = {
        ".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__"): file
        for file in source.rglob("*.py")
    }
    needs = {
        module: {
            one
            for _, name in imports(file, package_of(file, source))
            for one in ([name] if name in files else [name.rpartition(".")[0]])
            if one in files and one != module
        }
        for module, file in files.items()
    }
    while True:
        needed = set[str]().union(*needs.values())
        kept = {module: names & needs.keys() for module, names in needs.items() if names and module in needed}
        if kept == needs:
            return sorted(kept)
        needs = kept


def rooms_for(parts: Sequence[str]) -> set[str] | None:
    """The rooms of the server that a file may import; None: all."""
    if parts[1] == "operations":
        return {"people"}
    if parts[1] == "server" and parts[2] in SERVER_ROOMS:
        return SERVER_ROOMS[parts[2]] | {parts[2]}
    return None


def wire_of(module: str) -> str:
    """`penstock.wire.amqp.frames` is `amqp`; files of the wire floor itself are ``."""
    parts = module.split(".")
    return parts[2] if len(parts) > 2 and parts[2] in {"amqp", "flight", "http"} else ""


def test_no_files_import_each_other() -> None:
    assert circles(SOURCE) == []


def test_a_circle_of_imports_is_named(tmp_path: Path) -> None:
    package = tmp_path / "penstock" / "core"
    package.mkdir(parents=True)
    for name, text in {
        "one": "from penstock.core.two import a",
        "two": "from penstock.core import three",
        "three": "if TYPE_CHECKING:\n    from penstock.core.one import b",
        "four": "from penstock.core.one import b",
        "five": "",
    }.items():
        (package / f"{name}.py").write_text(text)
    assert circles(tmp_path) == ["penstock.core.one", "penstock.core.three", "penstock.core.two"]


def test_every_import_points_down() -> None:
    found = violations(SOURCE)
    assert not found, "imports that point up:\n" + "\n".join(found)


@pytest.mark.parametrize(
    ("file", "text", "expected"),
    [
        ("penstock/core/broker.py", "from penstock.log import Log", "core/broker.py:1: from penstock.log import Log"),
        ("penstock/core/broker.py", "import asyncio", "core is pure"),
        ("penstock/wire/amqp/frames.py", "def f():\n    from penstock import server", "frames.py:2:"),
        ("penstock/wire/amqp/frames.py", "from penstock.wire.http import app", "one wire does not know another"),
        (
            "penstock/expr/parse.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from penstock.core.broker import Core",
            "parse.py:3:",
        ),
        ("penstock/log/writer.py", "from ..server import app", "writer.py:1:"),
        (
            "penstock/operations/acts.py",
            "from penstock.server.http import door",
            "operations knows of the server people",
        ),
        ("penstock/server/people/users.py", "from penstock.server import app", "people knows of the server people"),
        ("penstock/wire/http/routes.py", "from penstock.operations import table", "routes.py:1:"),
        ("penstock/utils/misc.py", "import os", "no line for 'utils'"),
        ("pyspark_penstock/__init__.py", "import penstock.server", "may import ['penstock.spark']"),
    ],
)
def test_an_import_that_points_up_is_named(tmp_path: Path, file: str, text: str, expected: str) -> None:
    place = tmp_path / file
    place.parent.mkdir(parents=True)
    place.write_text(text)
    [found] = violations(tmp_path)
    assert expected in found


def fresh_python(code: str) -> str:
    """What `code` prints in a new interpreter that sees the source folder."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(SOURCE)!r}); {code}"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout


HEAVY = ("pyarrow", "pyspark", "duckdb", "pydantic", "numpy", "starlette", "typer", "asyncio", "lark")


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = set(fresh_python("import penstock; print(*sorted(sys.modules))").split())
    assert not loaded.intersection(HEAVY)
    ours = sorted(name for name in loaded if name.startswith("penstock"))
    assert ours == ["penstock", "penstock.client", "penstock.errors", "penstock.version"]


def test_reading_queue_arguments_loads_no_pydantic() -> None:
    loaded = set(fresh_python("import penstock.config.queue_arguments; print(*sorted(sys.modules))").split())
    assert not loaded.intersection(HEAVY)


def test_the_package_says_what_it_has() -> None:
    import penstock

    assert set(penstock.__all__) <= set(dir(penstock))
    assert issubclass(penstock.Refused, penstock.PenstockError)
    with pytest.raises(AttributeError, match="no attribute 'conect'"):
        _ = penstock.conect  # type: ignore[attr-defined]


TESTS = Path(__file__).resolve().parents[1]

HASTY = {
    r"\beventually\(.*(seconds=|, )1?\d(\.\d+)?\)$": "what a test waits for has 20 s or more",
    r"assert time\.monotonic\(\) - \w+ < 1?\d(\.\d+)?$": "a busy machine takes longer than 10 s at times",
    r"\burlopen\(.*timeout=1?\d(\.\d+)?\)": "an answer has 20 s or more",
    r"\[.*\.getsockname\(\)\[1\] for ": "a port that was let go is a caller's a moment later: ports.free_ports",
    r"\.wrap_socket\((?!socket\.socket\(\))": "who is reset at once leaves a socket behind: tls_lab.over_tls",
}
"""What lines of tests do not have: the expression, and why."""


def test_no_test_is_in_a_hurry() -> None:
    """One of ten thousand that fails now and then makes all of them worth nothing."""
    found = [
        f"{file.relative_to(TESTS)}:{text.count(chr(10), 0, one.start()) + 1}: {why}"
        for file in TESTS.rglob("*.py")
        for text in [file.read_text()]
        for what, why in HASTY.items()
        for one in re.finditer(what, text, re.MULTILINE)
    ]
    assert found == []


CHANCE = {r"^import random$": r"(?<![.\w])random\.(?!Random\b)\w+\(", r"\bRandom\(": r"\bRandom\(\)"}
"""What makes a choice that no seed repeats, in files that have something."""


def test_usual_runs_choose_what_every_usual_run_chooses() -> None:
    """All chance of tests begins with `choices.SEED`, or a number: a failure is that of a change, and comes again."""
    found = [
        f"{file.relative_to(TESTS)}:{text.count(chr(10), 0, choice.start()) + 1}: {choice[0]}"
        for file in TESTS.rglob("*.py")
        if file.relative_to(TESTS).parts[0] not in ("choices.py", "ports.py", "soak")
        for text in [file.read_text()]
        for has, what in CHANCE.items()
        if re.search(has, text, re.MULTILINE)
        for choice in re.finditer(what, text)
    ]
    assert found == []
    assert settings.default is not None
    assert settings.default.derandomize == (EFFORT == 1)
