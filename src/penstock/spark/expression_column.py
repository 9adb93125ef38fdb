"""The expression language as a Spark column: the third backend.

    frame.where(penstock.spark.column("MESSAGE_SIZE() > 1000 AND /total > 5"))

A sub-tree becomes Spark's own expression where both say the same of every row: logic, comparisons of size and topic
with literals of their kind, whole-number arithmetic that cannot overflow, plain text tests.  All that looks into a body
or a header becomes one Arrow UDF around the Python function that the server runs; Spark's readers of JSON and Java's
regular expressions differ from it.  AND, OR and NOT join the two kinds, so Spark can push down what it judges itself.
"""

# pyarrow's stubs leave the element types of arrays and fields open
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import reduce
from operator import add, eq, ge, gt, itemgetter, le, lt, mul, ne, or_, sub
from typing import Any, Literal, TypeAlias

import pyarrow as pa

from penstock.errors import InvalidArgument
from penstock.expr.check import check
from penstock.expr.compiler import compile_tree
from penstock.expr.context import OF_THE_CONTEXT, Group
from penstock.expr.filter import parse
from penstock.expr.text_patterns import Affixes
from penstock.expr.tree import Affix, And, Arithmetic, Between, Call, Compare, In, Is, Like, Node, Not, Or, Scalar, Sign
from penstock.expr.tree import Literal as Constant
from penstock.expr.values import to_bytes
from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON, typed
from penstock.spark.expression_udf import COLUMNS, function, untagged

Kind = Literal["boolean", "bigint", "double", "string"]
Column: TypeAlias = Any
"""pyspark.sql.Column."""

Columns: TypeAlias = "Mapping[str, str | Column]"

EXACT = 1 << 53
SIZE_MOST = 1 << 31
TYPES = ("boolean", "bigint", "double", "string", "binary")

_COMPARE: Mapping[str, Callable[[Any, Any], Any]] = {"=": eq, "!=": ne, "<": lt, "<=": le, ">": gt, ">=": ge}

_PLAIN = re.compile(r"(\^?)([^\\.^$*+?()\[\]{}|]+)(\$?)", re.DOTALL)
# fmt: off
_RESULTS: Mapping[Kind, frozenset[str]] = {
    "boolean": frozenset(("REGEXP_MATCH", "TRUE_VALUE", "FALSE_VALUE")),
    "string": frozenset((
        "UPPER", "LOWER", "REVERSE", "TRIM", "LTRIM", "RTRIM", "CHAR_VALUE", "LEFT", "RIGHT", "STRFTIME",
        "CONCAT", "REPLACE", "REGEXP_REPLACE", "SUBSTR", "ARRAY_TO_STRING", "CORRELATION_ID", "BOOKMARK",
        "TOPIC_NAME", "CLIENT_NAME", "CLIENT_VERSION", "USER", "AMPS_INSTANCE_NAME", "SOW_KEY",
    )),
    "bigint": frozenset(("INSTR", "INSTR_I", "STREQUAL_I", "CRC32", "MESSAGE_SIZE", "ARRAY_COUNT")),
    "double": frozenset((
        "SQRT", "EXP", "LOG2", "SIN", "COS", "TAN", "ASIN", "ACOS", "ATAN", "ATAN2", "POWER", "GEO_DISTANCE",
        "STRPTIME", "UNIX_TIMESTAMP", "LAST_UPDATED", "ARRAY_AVG", "NAN_VALUE",
    )),
}
"""What functions give, where they give one type alone."""
# fmt: on


@dataclass(frozen=True, slots=True)
class _Spark:
    """A sub-tree as Spark's own expression; the bounds are those of a bigint.

    Its column is many questions to Java, and so is made for what Spark judges as a whole, and not to find that out.
    """

    make: Callable[[], Column]
    kind: Kind | None  # None: NULL
    low: int = 0
    high: int = 0

    @property
    def column(self) -> Column:
        return self.make()


def _known(given: Collection[str]) -> frozenset[Group]:
    """The groups of functions beyond the message that some column answers."""
    return frozenset(group for name, group in OF_THE_CONTEXT.values() if name in given)


def column(
    expression: str,
    *,
    type: str | None = None,
    columns: Columns | None = None,
    origin: int | None = None,
    message_type: str = JSON,
) -> Column:
    """An expression of the language as a Spark Column.

    `type`     boolean, bigint, double, string or binary; when not given boolean for conditions, the type that all
               results have when the expression tells it (`UPPER(/a)` is a string), else string.  What has no value
               of the type is NULL, as 'x' is as a bigint
    `columns`  where body, properties, topic, lsn and time are, and what the functions beyond the message ask for
               (`lease_count`, `user`, ...): a name or a Column.  The first five are called so when not given
    `origin`   makes BOOKMARK() known
    `message_type`  what the bodies are, where the expression does not say it itself

    Raises ExpressionError with the place of what cannot stand, InvalidArgument for a type or column that is none.
    """
    text = expression if message_type == JSON else typed(expression, message_type)
    if type is not None and type not in TYPES:
        raise InvalidArgument(f"no type {type!r}: there are {', '.join(TYPES)}")
    given = dict(columns or {})
    context = dict(OF_THE_CONTEXT.values())
    if unknown := [name for name in given if name not in COLUMNS and name not in context]:
        raise InvalidArgument(f"no column {unknown[0]!r}: there are {', '.join([*COLUMNS, *sorted(context)])}")
    checked = check(parse(text), text, _known(given))
    result = type or kind_of(checked.tree) or "string"
    builder = _Builder({**COLUMNS, **given}, origin, checked.metered)
    if result == "boolean" and not checked.metered:
        return builder.condition(checked.tree).alias(expression)
    return builder.by_python(checked.tree, result).alias(expression)


def kind_of(node: Node) -> Kind | None:
    """The type that every value of a node has; None when they may differ."""
    match node:
        case Compare() | And() | Or() | Not() | Between() | In() | Like() | Affix() | Is():
            return "boolean"
        case Constant():
            return _kind_of_value(node.value)
        case Call():
            return _kind_of_call(node)
        case _:
            return None


def _kind_of_value(value: Scalar) -> Kind | None:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "bigint" if value < 1 << 63 else None
    return "double" if isinstance(value, float) else "string" if value else None


def _kind_of_call(node: Call) -> Kind | None:
    if node.name in ("IF", "COALESCE"):
        branches = node.arguments[1:] if node.name == "IF" else node.arguments
        kinds: set[Kind | None] = {
            kind_of(one) for one in branches if not (isinstance(one, Constant) and one.value is None)
        }
        return kinds.pop() if len(kinds) == 1 else None
    for kind, names in _RESULTS.items():
        if node.name in names:
            return kind
    return None


class _Builder:
    """Makes the columns of one expression."""

    def __init__(self, columns: dict[str, Any], origin: int | None, metered: bool) -> None:
        from pyspark.sql import functions, types

        self.functions: Any = functions
        self.types: Mapping[str, Any] = {  # by a name Spark would ask Java
            "boolean": types.BooleanType, "bigint": types.LongType, "double": types.DoubleType,
            "string": types.StringType, "binary": types.BinaryType, "tagged": types.BinaryType,
        }  # fmt: skip
        self.columns = columns
        self.origin = origin
        self.metered = metered
        self._makers: Mapping[type[Node], Callable[[Any], _Spark | None]] = {
            Constant: lambda node: self._constant(node.value),
            Call: lambda node: self._call(node.name),
            Sign: self._sign,
            Arithmetic: self._arithmetic,
            Compare: lambda node: self._compare(node.operator, self.native(node.left), self.native(node.right)),
            Between: self._between,
            In: self._in,
            And: self._and_or,
            Or: self._and_or,
            Not: self._not,
            Is: self._is,
            Like: self._like,
            Affix: self._affix,
        }

    def at(self, name: str) -> Column:
        """One of the frame's columns."""
        held = self.columns[name]
        return self.functions.col(held) if isinstance(held, str) else held

    def condition(self, node: Node) -> Column:
        """TRUE, FALSE or NULL of a node."""
        own = self.native(node)
        if own is not None and own.kind in ("boolean", None):
            return own.column.cast("boolean")
        match node:
            case And() | Or():
                join: Callable[[Column, Column], Column] = (
                    (lambda a, b: a & b) if isinstance(node, And) else (lambda a, b: a | b)
                )
                columns, rest = list[Column](), list[Node]()
                for item in node.items:
                    part = self.native(item)
                    if part is not None and part.kind in ("boolean", None):
                        columns.append(part.column.cast("boolean"))
                    else:
                        rest.append(item)
                if columns and rest:
                    left = rest[0] if len(rest) == 1 else And(tuple(rest)) if isinstance(node, And) else Or(tuple(rest))
                    return reduce(join, [*columns, self.by_python(left, "boolean")])
            case Not():
                return ~self.condition(node.operand)
            case _:
                pass
        return self.by_python(node, "boolean")

    def by_python(self, node: Node, result: str) -> Column:
        """An Arrow UDF around the Python function of a node."""
        functions = self.functions
        needs = compile_tree(node, "value", self.metered).needs
        wanted = ["body"]
        wanted += [name for name in ("properties", "topic", "lsn", "time") if name in needs]
        arguments = [self.at(name) for name in wanted]
        if "time" in needs:
            arguments[wanted.index("time")] = functions.unix_micros(self.at("time"))
        if "now" in needs:
            wanted.append("now")
            arguments.append(functions.unix_micros(functions.current_timestamp()))
        if "context" in needs:
            names = [name for name in self.columns if name not in COLUMNS]
            wanted += names
            arguments += [self.at(name) for name in names]
        run = function(node, self.metered, tuple(wanted), result, self.origin)
        return functions.arrow_udf(run, self.types[result]())(*arguments)

    # Spark's own

    def native(self, node: Node) -> _Spark | None:
        """A node as Spark's own expression, or None where the two might differ."""
        make = self._makers.get(type(node))
        return None if make is None else make(node)

    def _between(self, node: Between) -> _Spark | None:
        operand = self.native(node.operand)
        ends = ((">=", node.low), ("<=", node.high))
        return self._joined("AND", [self._compare(sign, operand, self.native(end)) for sign, end in ends])

    def _in(self, node: In) -> _Spark | None:
        operand = self.native(node.operand)
        return self._joined("OR", [self._compare("=", operand, self.native(item)) for item in node.items])

    def _and_or(self, node: And | Or) -> _Spark | None:
        parts = [self._logic(self.native(item)) for item in node.items]
        return self._joined("AND" if isinstance(node, And) else "OR", parts)

    def _not(self, node: Not) -> _Spark | None:
        one = self._logic(self.native(node.operand))
        return None if one is None else _Spark(lambda: ~one.column, "boolean")

    def _is(self, node: Is) -> _Spark | None:
        tested = self.native(node.operand) if node.what == "NULL" else None
        return None if tested is None else _Spark(lambda: tested.column.isNull(), "boolean")

    def _call(self, name: str) -> _Spark | None:
        functions = self.functions
        if name == "MESSAGE_SIZE":
            return _Spark(
                lambda: functions.coalesce(functions.octet_length(self.at("body")), functions.lit(0)).cast("bigint"),
                "bigint", 0, SIZE_MOST,
            )  # fmt: skip
        if name == "TOPIC_NAME":
            return _Spark(lambda: functions.when(self.at("topic") != "", self.at("topic")), "string")
        if name in ("TRUE_VALUE", "FALSE_VALUE"):
            return _Spark(lambda: functions.lit(name == "TRUE_VALUE"), "boolean")
        return None

    def _joined(self, how: Literal["AND", "OR"], parts: Sequence[_Spark | None]) -> _Spark | None:
        """All of these conditions, or None where one is not Spark's own."""
        own = [part for part in parts if part is not None]
        if len(own) < len(parts):
            return None
        join: Callable[[Column, Column], Column] = (lambda a, b: a & b) if how == "AND" else (lambda a, b: a | b)
        return _Spark(lambda: reduce(join, [part.column for part in own]), "boolean")

    def _constant(self, value: Scalar) -> _Spark | None:
        lit = self.functions.lit
        if value is None or value == "":
            return _Spark(lambda: lit(None).cast("boolean"), None)
        if isinstance(value, bool):
            return _Spark(lambda: lit(value), "boolean")
        if isinstance(value, int):
            whole = _Spark(lambda: lit(value).cast("bigint"), "bigint", value, value)
            return whole if abs(value) <= EXACT else None
        if isinstance(value, float):
            return _Spark(lambda: lit(value), "double") if abs(value) < float("inf") else None
        return _Spark(lambda: lit(value), "string") if to_bytes(value).decode("utf-8", "replace") == value else None

    def _logic(self, found: _Spark | None) -> _Spark | None:
        """A condition: numbers are TRUE unless they are 0."""
        if found is None or found.kind in ("string", "double"):
            return None
        return found if found.kind != "bigint" else _Spark(lambda: found.column != 0, "boolean")

    def _sign(self, node: Sign) -> _Spark | None:
        one = self.native(node.operand)
        if one is None or one.kind != "bigint":
            return None
        return one if node.operator == "+" else _Spark(lambda: -one.column, "bigint", -one.high, -one.low)

    def _arithmetic(self, node: Arithmetic) -> _Spark | None:
        left, right = self.native(node.left), self.native(node.right)
        if left is None or right is None or not left.kind == right.kind == "bigint":
            return None
        compute: Callable[[Any, Any], Column]
        match node.operator:
            case "+":
                compute, ends = add, (left.low + right.low, left.high + right.high)
            case "-":
                compute, ends = sub, (left.low - right.high, left.high - right.low)
            case "*":
                corners = [x * y for x in (left.low, left.high) for y in (right.low, right.high)]
                compute, ends = mul, (min(corners), max(corners))
            case _:
                return None
        found = _Spark(lambda: compute(left.column, right.column), "bigint", *ends)
        return found if max(map(abs, ends)) <= EXACT else None

    def _compare(self, operator: str, left: _Spark | None, right: _Spark | None) -> _Spark | None:
        if left is None or right is None:
            return None
        if left.kind is None or right.kind is None:
            return self._constant(None)
        if (left.kind == "string") != (right.kind == "string"):
            return None
        return _Spark(lambda: self._compared(operator, left, right), "boolean")

    def _compared(self, operator: str, left: _Spark, right: _Spark) -> Column:
        a, b = left.column, right.column
        if left.kind != right.kind:  # numbers: Booleans count as 0 and 1, and all integers here are doubles
            a = a.cast("bigint") if left.kind == "boolean" else a
            b = b.cast("bigint") if right.kind == "boolean" else b
        return _COMPARE[operator](a, b)

    def _text(self, node: Node) -> _Spark | None:
        found = self.native(node)
        return None if found is None or found.kind != "string" else found

    def _like(self, node: Like) -> _Spark | None:
        operand, plain = self._text(node.operand), _PLAIN.fullmatch(str(node.pattern.value or ""))
        if operand is None or plain is None or not plain[2].isascii() or plain[3]:
            return None
        text, at_start = plain[2], bool(plain[1])
        return _Spark(
            lambda: operand.column.startswith(text) if at_start else operand.column.contains(text), "boolean"
        )  # fmt: skip

    def _affix(self, node: Affix) -> _Spark | None:
        operand = self._text(node.operand)
        values = [item.value for item in node.items if isinstance(item, Constant)]
        wanted = Affixes(values)
        if operand is None or len(values) < len(node.items) or not wanted.plain or not wanted.texts:
            return None

        def tested() -> Column:
            column = operand.column
            test = column.startswith if node.end == "BEGINS" else column.endswith
            found = [test(one) for one in wanted.texts]
            if wanted.unknown:
                found.append(self.functions.lit(None).cast("boolean"))
            return reduce(or_, found)

        return _Spark(tested, "boolean")


_UNKNOWN: dict[str, Any] = {
    "properties": pa.binary(), "topic": pa.string(), "lsn": pa.int64(), "time": pa.timestamp("us", "UTC"),
}  # fmt: skip
"""What may not be known of a message."""


def evaluate(
    expressions: Sequence[str],
    batch: pa.RecordBatch,
    *,
    spark: Any = None,
    origin: int | None = None,
    columns: Columns | None = None,
) -> list[list[Scalar]]:
    """For each expression its value for each row, by one job of Spark.

    `batch` has the columns of `column`, of those of the message at least `body`: what else it lacks is NULL.
    Conditions go through Spark's own expressions where there are any.
    `spark`: the session, else the active one, else a local one that is started.
    """
    from pyspark.sql import SparkSession
    from pyspark.sql.functions import col

    if spark is None:
        from penstock.spark.sessions import session

        spark = SparkSession.getActiveSession() or session()
    # Each name becomes a column once: that is several questions to Java.
    named: dict[str, Column] = {**COLUMNS, **(columns or {})}
    given = {name: col(held) if isinstance(held, str) else held for name, held in named.items()}
    wanted = [_answer(one, given, origin).alias(f"e{place}") for place, one in enumerate(expressions)]
    table = pa.Table.from_batches([batch]).append_column("row", pa.array(range(batch.num_rows), pa.int64()))
    for name, kind in _UNKNOWN.items():
        if named[name] == name and name not in table.column_names:
            table = table.append_column(name, pa.nulls(batch.num_rows, kind))
    rows = spark.createDataFrame(table).select("row", *wanted).collect()
    rows.sort(key=itemgetter(0))
    return [
        [one if isinstance(one, bool) else untagged(one) for one in (row[place + 1] for row in rows)]
        for place in range(len(expressions))
    ]


def _answer(expression: str, given: Mapping[str, Column], origin: int | None) -> Column:
    """A condition as `column` has it; of another expression the value with its kind (`untagged`)."""
    tree = parse(expression)
    if kind_of(tree) == "boolean":
        return column(expression, columns=given, origin=origin)
    checked = check(tree, expression, _known(given))
    return _Builder(dict(given), origin, checked.metered).by_python(checked.tree, "tagged")
