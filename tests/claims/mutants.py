"""Small wrong versions of a module: one place changed, so that a test which promises what stands there must fail.

A mutant is named `PATH#NUMBER`: the file below `src`, and which of its sites is changed.  Sites are counted in the
order of the syntax tree, so the name means the same in every process that reads the same file.
"""

from __future__ import annotations

import ast
import gc
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from types import CodeType, FunctionType

SOURCE = Path(__file__).resolve().parents[2] / "src"
_OTHER_WAY: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip
_NEXT_TO: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt,
}  # fmt: skip
_SIGNS: dict[type[ast.operator], type[ast.operator]] = {ast.Add: ast.Sub, ast.Sub: ast.Add}


@dataclass(frozen=True)
class Site:
    """A place that can be changed."""

    path: str
    """Below `src`."""
    number: int
    line: int
    what: str
    """The change, for a person."""

    def __str__(self) -> str:
        return f"{self.path}#{self.number}"


@dataclass
class _Found:
    node: ast.AST
    what: str
    change: ast.AST | None
    """What stands there instead; None: the statement goes."""


def _changes(node: ast.AST) -> Iterator[_Found]:
    match node:
        case ast.Compare(ops=[operator]):
            for table, word in ((_OTHER_WAY, "the other way"), (_NEXT_TO, "with its border")):
                if type(operator) in table:
                    changed = ast.Compare(node.left, [table[type(operator)]()], node.comparators)
                    yield _Found(node, f"`{ast.unparse(node)}` {word}: `{ast.unparse(changed)}`", changed)
        case ast.BoolOp():
            other = ast.And() if isinstance(node.op, ast.Or) else ast.Or()
            changed_all = ast.BoolOp(other, node.values)
            yield _Found(node, f"`{ast.unparse(node)}` becomes `{ast.unparse(changed_all)}`", changed_all)
        case ast.If(test=ast.Name() | ast.Attribute() | ast.Call() as test):
            turned = ast.UnaryOp(ast.Not(), test)
            yield _Found(test, f"`if {ast.unparse(test)}` turned round", turned)
        case ast.UnaryOp(op=ast.Not()):
            yield _Found(node, f"`{ast.unparse(node)}` without `not`", node.operand)
        case ast.BinOp() if type(node.op) in _SIGNS:
            signed = ast.BinOp(node.left, _SIGNS[type(node.op)](), node.right)
            yield _Found(node, f"`{ast.unparse(node)}` becomes `{ast.unparse(signed)}`", signed)
        case ast.IfExp():
            turned_round = ast.IfExp(node.test, node.orelse, node.body)
            yield _Found(node, f"`{ast.unparse(node)}` turned round", turned_round)
        case ast.comprehension(ifs=[test, *_]):
            yield _Found(
                test, f"`if {ast.unparse(test)}` of a comprehension turned round", ast.UnaryOp(ast.Not(), test)
            )
        case ast.Call(func=ast.Name(id="min" | "max" as name)):
            other_end = ast.Call(ast.Name("max" if name == "min" else "min", ast.Load()), node.args, node.keywords)
            yield _Found(node, f"`{ast.unparse(node)}` becomes `{ast.unparse(other_end)}`", other_end)
        case ast.Constant(value=bool()):
            yield _Found(node, f"`{node.value}` becomes `{not node.value}`", ast.Constant(not node.value))
        case ast.Constant(value=int() as number):
            yield _Found(node, f"`{number}` becomes `{number + 1}`", ast.Constant(number + 1))
        case ast.Raise(exc=ast.expr()):
            yield _Found(node, f"without `{ast.unparse(node)}`", None)
        case ast.AugAssign() | ast.Expr(value=ast.Call()) | ast.Delete():
            yield _Found(node, f"without `{ast.unparse(node)}`", None)
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield _Found(node, f"without `{ast.unparse(node)}`", None)


def _inside_functions(tree: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a function does, annotations and defaults left out, each once and in a fixed order."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for statement in node.body:
                yield from _own_nodes(statement)
    for row in _in_tables(tree):
        yield from _own_nodes(row.body)


def _in_tables(tree: ast.AST) -> Iterator[ast.Lambda]:
    """Functions without a name that stand in no other function: rows of a table of rules."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Lambda):
            yield node
        elif not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _in_tables(node)


def _own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return
    yield node
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.AST):
                yield from _own_nodes(child)


def _found(tree: ast.Module) -> list[_Found]:
    return [found for node in _inside_functions(tree) for found in _changes(node)]


def sites(path: str) -> list[Site]:
    """All places of a file that can be changed.  path: below `src`."""
    tree = ast.parse((SOURCE / path).read_text(encoding="utf-8"))
    return [
        Site(path, number, getattr(found.node, "lineno", 0), " ".join(found.what.split()))
        for number, found in enumerate(_found(tree))
    ]


class _Replace(ast.NodeTransformer):
    def __init__(self, wanted: _Found) -> None:
        self.wanted = wanted

    def visit(self, node: ast.AST) -> ast.AST:
        if node is not self.wanted.node:
            return self.generic_visit(node)
        new = ast.Pass() if self.wanted.change is None else self.wanted.change
        return ast.fix_missing_locations(ast.copy_location(new, node))


def mutated(source: str, number: int) -> ast.Module:
    """The syntax tree of a file with one site changed."""
    tree = ast.parse(source)
    changed = _Replace(_found(tree)[number]).visit(tree)
    assert isinstance(changed, ast.Module)
    return changed


def _codes(code: CodeType, inside: str = "") -> Iterator[tuple[tuple[str, int], CodeType]]:
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            name = f"{inside}.{constant.co_name}"
            yield (name, constant.co_firstlineno), constant
            yield from _codes(constant, name)


class Functions:
    """The functions of the product in this process, to exchange their code.

    Modules are loaded and others hold their functions, so a function stays what it is and gets another code.
    """

    def __init__(self) -> None:
        gc.unfreeze()
        self._caches = [one for one in gc.get_objects() if isinstance(one, _lru_cache_wrapper)]
        self._by_place: dict[tuple[str, str, int], list[FunctionType]] = defaultdict(list)
        for function in gc.get_objects():
            if isinstance(function, FunctionType):
                code = function.__code__
                self._by_place[code.co_filename, code.co_name, code.co_firstlineno].append(function)

    def put_in(self, site: Site) -> None:
        """Change this process as the mutant says; it remembers no answer of before."""
        for cache in self._caches:
            cache.cache_clear()
        file = str(SOURCE / site.path)
        source = Path(file).read_text(encoding="utf-8")
        before = dict(_codes(compile(source, file, "exec")))
        after = dict(_codes(compile(mutated(source, site.number), file, "exec")))
        for place, code in before.items():
            new = after.get(place)
            if new is None or new == code:
                continue
            for function in self._by_place[file, code.co_name, code.co_firstlineno]:
                if len(new.co_freevars) == len(function.__code__.co_freevars):
                    function.__code__ = new
