"""How big and how tangled the code is, beside what it should be.

    make house [HOUSE_ARGS="--json"] [HOUSE_ARGS="--long"]

code lines      without blank lines, comments and docstrings
complexity      of a function: 1 and its branches (if, for, while, except, assert, and/or, comprehensions, cases)
circles         files that import each other, imports for type checkers and within functions included
one importer    files that a single other file imports
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import statistics
import sys
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SOURCE = Path(__file__).parents[1] / "src" / "penstock"

TARGETS: Mapping[str, int] = {
    "code lines": 72_000, "files": 450, "lines of the largest file": 500, "files below 60 lines": 60,
    "files with one importer": 60, "names borne by several files": 60, "functions of complexity 15 and more": 60,
    "highest complexity": 25, "files in circles of more than two": 0, "docstrings of four words or less": 200,
}  # fmt: skip

_NO_CODE = {
    tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER,
}  # fmt: skip
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_BRANCHES = (
    ast.If, ast.IfExp, ast.For, ast.AsyncFor, ast.While, ast.ExceptHandler, ast.match_case, ast.Assert,
)  # fmt: skip


class Function(NamedTuple):
    """One function, the most complex first."""

    complexity: int
    lines: int
    where: str


class House(NamedTuple):
    """What was counted."""

    figures: dict[str, int]
    rooms: dict[str, int]  # code lines by folder
    functions: list[Function]
    circles: list[list[str]]


def count(source: Path = SOURCE) -> House:
    """Count the package at `source`."""
    paths = {_module(source, path): path for path in sorted(source.rglob("*.py"))}
    imports: dict[str, set[str]] = defaultdict(set)
    functions, sizes, rooms, short = list[Function](), list[int](), Counter[str](), 0
    for name, path in paths.items():
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        sizes.append(text.count("\n"))
        rooms[(name.split(".")[1:] or [name])[0]] += _code_lines(text, tree)
        imports[name] = {one for one in _imports(tree, paths) if one != name}
        for node in ast.walk(tree):
            if isinstance(node, _FUNCTIONS):
                where = f"{path.relative_to(source)}:{node.lineno} {node.name}"
                functions.append(Function(_complexity(node), (node.end_lineno or 0) - node.lineno + 1, where))
                short += len((ast.get_docstring(node) or "five words that stand here").split()) < 5
    functions.sort(reverse=True)
    circles = _circles(imports)
    importers = Counter(one for some in imports.values() for one in some)
    names = Counter(name.rsplit(".", 1)[-1] for name in paths)
    figures = {
        "code lines": sum(rooms.values()),
        "files": len(paths),
        "lines of a file (median)": int(statistics.median(sizes)),
        "lines of the largest file": max(sizes),
        "files below 60 lines": sum(size < 60 for size in sizes),
        "files with one importer": sum(importers[name] == 1 for name in paths),
        "names borne by several files": sum(times > 1 for times in names.values()),
        "functions": len(functions),
        "functions of complexity 15 and more": sum(one.complexity >= 15 for one in functions),
        "highest complexity": functions[0].complexity,
        "circles": len(circles),
        "files in circles of more than two": sum(len(circle) for circle in circles if len(circle) > 2),
        "docstrings of four words or less": short,
    }
    return House(figures, dict(rooms.most_common()), functions, circles)


def _module(source: Path, path: Path) -> str:
    return ".".join((source.name, *path.relative_to(source).with_suffix("").parts)).removesuffix(".__init__")


def _code_lines(text: str, tree: ast.Module) -> int:
    code = set[int]()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        for child in getattr(node, "body", ()) if isinstance(getattr(node, "body", None), list) else ():
            said = child.value if isinstance(child, ast.Expr) else None
            if isinstance(said, ast.Constant) and isinstance(said.value, str):
                code.difference_update(range(child.lineno, (child.end_lineno or child.lineno) + 1))
    return len(code)


def _complexity(function: ast.AST) -> int:
    total, todo = 1, [*ast.iter_child_nodes(function)]
    while todo:
        node = todo.pop()
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(node, _BRANCHES):
            total += 1
        elif isinstance(node, ast.BoolOp):
            total += len(node.values) - 1
        elif isinstance(node, ast.comprehension):
            total += 1 + len(node.ifs)
        todo += ast.iter_child_nodes(node)
    return total


def _imports(tree: ast.Module, known: Mapping[str, Path]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module:
            for one in node.names:
                inner = f"{node.module}.{one.name}"
                if inner in known or node.module in known:
                    yield inner if inner in known else node.module


def _circles(imports: Mapping[str, set[str]]) -> list[list[str]]:
    """Groups of files each of which reaches all others of its group, the largest first."""
    back: dict[str, set[str]] = defaultdict(set)
    for name, some in imports.items():
        for one in some:
            back[one].add(name)
    order, seen = list[str](), set[str]()
    for name in imports:  # by when the walk has left them
        todo = [(name, iter(sorted(imports[name])))] if name not in seen else []
        seen.add(name)
        while todo:
            at, rest = todo[-1]
            further = next((one for one in rest if one not in seen), None)
            if further is None:
                order.append(at)
                todo.pop()
            else:
                seen.add(further)
                todo.append((further, iter(sorted(imports.get(further, ())))))
    found, left = list[list[str]](), set(order)
    for name in reversed(order):
        group, walk = list[str](), [name] if name in left else []
        left.discard(name)
        while walk:
            group.append(at := walk.pop())
            further_on = back[at] & left
            left -= further_on
            walk += further_on
        if len(group) > 1:
            found.append(sorted(group))
    return sorted(found, key=len, reverse=True)


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description="How big and how tangled the code is.")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--long", action="store_true", help="the most complex functions, and the circles")
    given = parser.parse_args()
    house = count()
    if given.json:
        sys.stdout.write(json.dumps({"figures": house.figures, "targets": TARGETS, "rooms": house.rooms}) + "\n")
        return
    lines = [f"{'':40}{'now':>8}{'target':>9}"]
    for name, value in house.figures.items():
        lines.append(f"{name:40}{value:>8,}{f'{TARGETS[name]:,}' if name in TARGETS else '':>9}")
    lines += ["", "code lines by room: " + ", ".join(f"{room} {size:,}" for room, size in house.rooms.items())]
    if given.long:
        lines += ["", "most complex:"]
        lines += [f"  {one.complexity:3} {one.lines:4} lines  {one.where}" for one in house.functions[:40]]
        lines += ["", "circles:", *(f"  {len(circle)}: {', '.join(circle[:8])}" for circle in house.circles)]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
