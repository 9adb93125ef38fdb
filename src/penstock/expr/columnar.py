"""The Arrow backend: the value of an expression for all rows of a batch at once, with Arrow's own functions.

A sub-tree whose operands are columns of one type is computed by Arrow where Arrow's function and the language agree on
every value of these types; any other is computed by the Python function compiled from it, and its result is a column
again.  Fields of the body are taken out of it once.  What stays with Python, because Arrow differs or the types mix:
comparison of texts with numbers, of integers beyond 2**53 with doubles, results beyond 64 bits, integers divided by
zero, `%`, arrays, and the functions in none of the tables at the end of this file.

A dear expression, whose work the meter counts for each message, is Python's as a whole, so that both give up alike.
"""

# pyarrow's stubs leave the element types of arrays open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from typing import Any, cast

import pyarrow as pa

from penstock.expr.batches import NO_VALUES, Objects, Typed, View, typed
from penstock.expr.compiler import RunParsed, compile_parsed, needs_of
from penstock.expr.context import meter
from penstock.expr.text_patterns import Affixes
from penstock.expr.tree import (
    Affix,
    And,
    Arithmetic,
    Between,
    Call,
    Compare,
    Condition,
    Field,
    In,
    Is,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Sign,
)
from penstock.expr.values import TEXT_LIMIT, Value, to_bytes
from penstock.records.compute import compute

EXACT = 1 << 53
"""Integers up to here are doubles too."""

ITEMS_MOST = 64
"""More items of IN than these are looked up by Python, in a set."""

_SIGNS = {"=": "equal", "!=": "not_equal", "<": "less", "<=": "less_equal", ">": "greater", ">=": "greater_equal"}
_CHECKED = {"+": "add_checked", "-": "subtract_checked", "*": "multiply_checked", "/": "divide_checked"}
_FLOATING = {"+": "add", "-": "subtract", "*": "multiply", "/": "divide"}
_NULL_TRUTH: Typed = pa.scalar(None, pa.bool_())
_BOOL, _INT, _FLOAT, _TEXT, _NONE = pa.bool_(), pa.int64(), pa.float64(), pa.binary(), pa.null()


class _Unfit(Exception):
    """Arrow would not give the language's answer; never leaves `Columnar`."""


class Columnar:
    """A tree and the Python functions of those parts of it that Arrow cannot do, compiled as they are needed."""

    def __init__(self, tree: Node, metered: bool) -> None:
        self.tree = tree
        self._metered = metered
        self._programs = dict[int, tuple[RunParsed, frozenset[str]]]()  # by the identity of a node of the tree

    def values(self, view: View) -> Typed | Objects:
        """The value for each row; an Arrow scalar when it is the same for all."""
        if self._metered:
            return self._python(self.tree, view, raw=False)
        found = self._column(self.tree, view)
        if isinstance(found, Objects) and isinstance(self.tree, Field):
            return self._python(self.tree, view, raw=False)
        return found

    def truth(self, view: View) -> Typed:
        """Is it TRUE: a bool array or scalar without nulls."""
        found = self.values(view)
        if isinstance(found, Objects):
            return pa.array([isinstance(one, bool | int | float) and one == one and one != 0 for one in found])
        return compute.fill_null(_logic(found), False)

    # one node

    def _column(self, node: Node, view: View) -> Typed | Objects:
        """What a node is; of a field what it holds."""
        try:
            return self._native(node, view)
        except (_Unfit, pa.ArrowInvalid):  # the second: an overflow or a division by zero that Arrow refuses
            return self._python(node, view, raw=isinstance(node, Field))

    def _python(self, node: Node, view: View, *, raw: bool) -> Typed | Objects:
        key = id(node) * 2 + raw
        if key not in self._programs:
            needs = frozenset[str](needs_of(node))
            self._programs[key] = (compile_parsed(node, self._metered, "raw" if raw else "value"), needs)
        run, needs = self._programs[key]
        try:
            found = run(*view.arguments(needs), view.origin, view.seconds, view.context)
        finally:
            meter.stop()
        return typed(found)

    def _operand(self, node: Node, view: View) -> Typed:
        """A column of one type.  _Unfit when it is of several."""
        found = self._column(node, view)
        if isinstance(found, Objects):
            raise _Unfit
        return found

    def _native(self, node: Node, view: View) -> Typed:
        match node:
            case Literal():
                return _constant(node.value)
            case Field():
                if node not in view.columns:
                    view.columns[node] = self._python(node, view, raw=True)
                return view.columns[node]
            case Sign():
                operand = _number(self._operand(node.operand, view))
                return operand if node.operator == "+" or operand.type == _NONE else compute.negate_checked(operand)
            case Arithmetic():
                return _arithmetic(node.operator, self._operand(node.left, view), self._operand(node.right, view))
            case Call():
                return self._call(node, view)
            case _:
                return self._condition(node, view)

    def _condition(self, node: Condition, view: View) -> Typed:
        """What is TRUE, FALSE or NULL."""
        match node:
            case Compare():
                return _compare(node.operator, self._operand(node.left, view), self._operand(node.right, view))
            case Between():
                operand = self._operand(node.operand, view)
                low, high = self._operand(node.low, view), self._operand(node.high, view)
                return compute.and_kleene(_compare(">=", operand, low), _compare("<=", operand, high))
            case In():
                if len(node.items) > ITEMS_MOST:
                    raise _Unfit
                operand = self._operand(node.operand, view)
                found = (_compare("=", operand, self._operand(item, view)) for item in node.items)
                return reduce(compute.or_kleene, found)
            case Like():
                return _like(self._operand(node.operand, view), cast("str", node.pattern.value))
            case Affix():
                return _affix(node, self._operand(node.operand, view))
            case Is():
                return _is(node.what, self._operand(node.operand, view))
            case Not():
                return compute.invert(_logic(self._operand(node.operand, view)))
            case And() | Or():
                join = compute.and_kleene if isinstance(node, And) else compute.or_kleene
                return reduce(join, (_logic(self._operand(item, view)) for item in node.items))

    def _call(self, node: Call, view: View) -> Typed:
        if node.name in _OF_VIEW:
            return _OF_VIEW[node.name](view)
        if node.name in _OF_LITERALS:
            return _OF_LITERALS[node.name](self._operand(node.arguments[0], view), node.arguments[1])
        if node.name in _OF_COLUMNS:
            return _OF_COLUMNS[node.name]([self._operand(argument, view) for argument in node.arguments])
        raise _Unfit


def _constant(value: Value) -> Typed:
    if value is None or value == "":
        return NO_VALUES
    if isinstance(value, str):
        return pa.scalar(to_bytes(value), _TEXT)
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1 << 63:
        raise _Unfit
    return pa.scalar(cast("bool | int | float", value))


def _logic(column: Typed) -> Typed:
    """TRUE, FALSE or NULL of a column: what AND, OR and NOT make of it."""
    if column.type == _BOOL:
        return column
    if column.type == _INT:
        return compute.not_equal(column, 0)
    if column.type == _FLOAT:
        return _known(compute.not_equal(column, 0.0), column)
    if isinstance(column, pa.Scalar):
        return _NULL_TRUTH
    return pa.nulls(len(column), _BOOL)


def _known(answers: Typed, *columns: Typed) -> Typed:
    """Answers, NULL where one of the columns is NaN."""
    for column in columns:
        if column.type == _FLOAT:
            answers = compute.if_else(compute.is_nan(column), _NULL_TRUTH, answers)
    return answers


def _number(column: Typed) -> Typed:
    """A column of numbers.  _Unfit for texts, each of which may be a number or NaN."""
    if column.type == _BOOL:
        return column.cast(_INT)
    if column.type == _TEXT:
        raise _Unfit
    return column


def _text(column: Typed) -> Typed:
    if column.type not in (_TEXT, _NONE):
        raise _Unfit
    return column if column.type == _TEXT else column.cast(_TEXT)


def _exact(column: Typed) -> None:
    """_Unfit for integers that are no doubles."""
    if column.type == _INT:
        found = column if not isinstance(column, pa.Scalar) else pa.array([cast("Any", column).as_py()], _INT)
        ends = compute.min_max(found).as_py()
        if ends["min"] is not None and (ends["min"] < -EXACT or ends["max"] > EXACT):
            raise _Unfit


def _compare(operator: str, left: Typed, right: Typed) -> Typed:
    if _NONE in (left.type, right.type):
        return _NULL_TRUTH
    if left.type != right.type:
        left, right = _number(left), _number(right)
    if left.type != right.type:  # an integer beside a double
        _exact(left)
        _exact(right)
    return _known(getattr(compute, _SIGNS[operator])(left, right), left, right)


def _arithmetic(operator: str, left: Typed, right: Typed) -> Typed:
    if _NONE in (left.type, right.type):
        return NO_VALUES
    left, right = _number(left), _number(right)
    if operator == "%":
        raise _Unfit
    if left.type == right.type == _INT:
        return getattr(compute, _CHECKED[operator])(left, right)
    left, right = left.cast(_FLOAT, safe=False), right.cast(_FLOAT, safe=False)
    found = getattr(compute, _FLOATING[operator])(left, right)
    if operator == "/":
        zero = compute.and_(compute.equal(right, 0.0), compute.is_valid(left))
        found = compute.if_else(zero, float("nan"), found)
    return found


def _is(what: str, column: Typed) -> Typed:
    if what == "NULL":
        return compute.is_null(column)
    if column.type != _FLOAT:
        return pa.scalar(False)
    return compute.fill_null(compute.is_nan(column), False)


def _like(column: Typed, pattern: str) -> Typed:
    if column.type == _NONE or not pattern:
        return _NULL_TRUTH
    return compute.match_substring_regex(_text(column), pattern=to_bytes(pattern))


def _affix(node: Affix, column: Typed) -> Typed:
    if column.type == _NONE:
        return _NULL_TRUTH
    values = [item.value for item in node.items if isinstance(item, Literal)]
    if len(values) < len(node.items) or len(values) > ITEMS_MOST:
        raise _Unfit
    wanted = Affixes(values)
    test = compute.starts_with if node.end == "BEGINS" else compute.ends_with
    found = [test(_text(column), pattern=to_bytes(one)) for one in wanted.texts]
    return reduce(compute.or_kleene, [*found, _NULL_TRUTH] if wanted.unknown else found)


def _alike(columns: list[Typed]) -> list[Typed]:
    """Columns of one type, those without a value in it too.  _Unfit when the types differ."""
    kinds = {column.type for column in columns} - {_NONE}
    if len(kinds) != 1:
        raise _Unfit
    (kind,) = kinds
    return [column if column.type == kind else column.cast(kind) for column in columns]


def _instr(column: Typed, part: Node) -> Typed:
    if not isinstance(part, Literal) or not isinstance(part.value, str) or not part.value:
        raise _Unfit
    found = compute.find_substring(_text(column), pattern=to_bytes(part.value))
    return compute.add(found.cast(_INT), 1)


def _if(columns: list[Typed]) -> Typed:
    one, other = _alike(columns[1:])
    return compute.if_else(compute.fill_null(_logic(columns[0]), False), one, other)


def _abs(columns: list[Typed]) -> Typed:
    column = _number(columns[0])
    return column if column.type == _NONE else compute.abs_checked(column)


def _updated(view: View) -> Typed:
    if view.time is None:
        return NO_VALUES
    _exact(view.time)
    return compute.divide(view.time.cast(_FLOAT), 1e6)


def _concat(columns: list[Typed]) -> Typed:
    columns = [_text(column) for column in columns]
    if all(isinstance(column, pa.Scalar) for column in columns):
        raise _Unfit
    sizes = (compute.fill_null(compute.binary_length(column), 0).cast(_INT) for column in columns)
    if (compute.max(reduce(compute.add, sizes)).as_py() or 0) > TEXT_LIMIT:
        raise _Unfit
    joined = compute.binary_join_element_wise(
        *columns, pa.scalar(b"", _TEXT), null_handling="replace", null_replacement=b""
    )
    return compute.if_else(compute.equal(joined, b""), pa.scalar(None, _TEXT), joined)


_OF_VIEW: dict[str, Callable[[View], Typed]] = {
    "TRUE_VALUE": lambda view: pa.scalar(True),
    "FALSE_VALUE": lambda view: pa.scalar(False),
    "NAN_VALUE": lambda view: pa.scalar(float("nan")),
    "MESSAGE_SIZE": lambda view: compute.binary_length(view.body).cast(_INT),
    "TOPIC_NAME": lambda view: view.topic,
    "LAST_UPDATED": _updated,
    "UNIX_TIMESTAMP": lambda view: _constant(view.seconds),
}
"""Functions without arguments."""

_OF_LITERALS: dict[str, Callable[[Typed, Node], Typed]] = {
    "REGEXP_MATCH": lambda column, pattern: _like(column, cast("str", cast("Literal", pattern).value)),
    "INSTR": _instr,
}
"""Functions of a column and of a literal."""

_OF_COLUMNS: dict[str, Callable[[list[Typed]], Typed]] = {
    "IF": _if,
    "COALESCE": lambda columns: compute.coalesce(*_alike(columns)),
    "ABS": _abs,
    "REVERSE": lambda columns: compute.binary_reverse(_text(columns[0])),
    "CONCAT": _concat,
}
"""Functions of columns; of no other does Arrow do what the language says."""
