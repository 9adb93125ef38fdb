"""Compiled expressions as others use them: filters and values.

Equal texts share one compiled object; the cache is bounded, so strangers' filters cannot fill the memory.

Functions that ask who asks (CLIENT_NAME, USER, CLIENT_VERSION, AMPS_INSTANCE_NAME) are answered in the text before it
is compiled (`bound`): the answers stay the same as long as a command lasts, so a filter with them is another filter for
each client, and whoever evaluates it, in this process or another, needs to know nothing of clients.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, TypeVar, cast

from penstock.errors import InvalidArgument
from penstock.expr.batches import Batch, Table, View, batch_of, scalars, settled
from penstock.expr.bodies import body_type
from penstock.expr.check import Checked, check
from penstock.expr.compiler import Program, RunParsed, compile_parsed, compile_tree
from penstock.expr.context import EVERYTHING, OF_THE_CONTEXT, Context, Group, meter
from penstock.expr.tree import Call, Node, Scalar, message_type_of, walk_tree
from penstock.records.entries import Messages, Topic
from penstock.records.message_types import MessageType, typed
from penstock.records.properties import EMPTY

if TYPE_CHECKING:
    import pyarrow as pa

    from penstock.expr.columnar import Columnar
    from penstock.expr.row_selection import Selector


CACHED = 1024
"""Compiled filters, and compiled values, that are kept for the next who sends the same text."""

Properties = bytes | Sequence[bytes]
Topics = Topic | Sequence[Topic] | None
Answer = TypeVar("Answer", bool, Scalar)
_FOR_ALL = (bytes, Topic, int)  # what is one value for all rows of a batch


def parse(text: str) -> Node:
    """The tree of an expression.  ExpressionError says where it cannot be read."""
    from penstock.expr.grammar import parse as read  # lark takes 40 ms to load; a server without filters needs none

    return read(text)


def _each(given: object) -> Iterable[Any]:
    """What every row has for each of them, and one a row as it is."""
    return repeat(given) if given is None or isinstance(given, _FOR_ALL) else cast("Iterable[Any]", given)


class _Compiled(Generic[Answer]):
    """What filters and values have in common.  Made by `compile_filter` and `compile_value` only."""

    _mode: ClassVar[Literal["filter", "value"]]
    __slots__ = (
        "__weakref__",
        "_checked",
        "_metered",
        "_program",
        "_run_parsed",
        "_same",
        "cost",
        "deterministic",
        "message_type",
        "needs",
        "text",
        "tree",
        "us_a_byte",
    )  # fmt: skip

    def __init__(self, text: str, checked: Checked, program: Program) -> None:
        self.text = text
        self.tree: Node = checked.tree
        self.message_type: MessageType = message_type_of(checked.tree)  # what it reads bodies as
        self.deterministic = checked.deterministic
        self._checked = checked
        self._metered = checked.metered
        self.cost = checked.cost
        self.us_a_byte = checked.us_a_byte
        self._program = program
        self._run_parsed: RunParsed | None = None
        self.needs = program.needs
        self._same = program.needs.isdisjoint(("body", "size", "lsn", "time", "context"))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.text!r})"

    @property
    def source(self) -> str:
        """The Python function that runs, for curiosity and bug reports."""
        return self._program.source

    def require_deterministic(self, where: str) -> None:
        """Refuse an expression whose answer changes with time, `where` ("a barrier") it has to stay the same.

        Raises ExpressionError with the place of the function.
        """
        self._checked.refuse_changing(self.text, where)

    @property
    def needs_body(self) -> bool:
        """Does the result depend on what is in the body?  If not, bodies may be given as empty bytes."""
        return "body" in self.needs or "size" in self.needs

    def _evaluate(
        self,
        bodies: Sequence[bytes],
        properties: Properties = EMPTY,
        topics: Topics = None,
        lsns: Sequence[int] | None = None,
        times: Sequence[int] | int | None = None,
        *,
        origin: int | None = None,
        now: int | None = None,
        context: Context | None = None,
    ) -> list[Answer]:
        """The answer for each body: of a filter whether it is TRUE (not FALSE, not NULL), of a value what it is.

        A value is None (NULL), bool, int, float or str, of an array its first element; bytes of a string that are no
        UTF-8 come as `surrogateescape` has it.  `properties` (encoded AMQP header) and `topics` are one for all rows or
        one a row.  `times` and `now` are wall clock microseconds; `now` is the system's when it is not given and asked
        for.  `origin` makes BOOKMARK() known.  Never raises for what is in a message: a body that is no JSON has no
        fields, and one whose arrays would take more work than `meter` allows is NULL.
        """
        needs, rows = self.needs, bodies
        headers, names = _each(properties), _each(topics)
        same = (
            self._same
            and (isinstance(headers, repeat) or "properties" not in needs)
            and (isinstance(names, repeat) or "topic" not in needs)
        )
        if same and len(bodies) > 1:  # every row has the same answer
            rows = bodies[:1]
        try:
            found = self._program.run(
                rows, headers, names, _each(lsns), _each(times), origin, self._seconds(now), context
            )
        finally:
            meter.stop()
        return cast("list[Answer]", found if rows is bodies else found * len(bodies))

    def _evaluate_parsed(self, tables: Sequence[Table], rows: Messages) -> list[Answer]:
        """The same for bodies that were read before (`readings`): `tables` has the fields of each."""
        if self._run_parsed is None:
            self._run_parsed = compile_parsed(self.tree, self._metered, self._mode)
        try:
            found = self._run_parsed(
                rows.bodies, tables, _each(rows.properties), _each(rows.topics), _each(rows.lsns), _each(rows.times),
                None, self._seconds(None), None,
            )  # fmt: skip
        finally:
            meter.stop()
        return cast("list[Answer]", found)

    def _seconds(self, now: int | None) -> float | None:
        """What UNIX_TIMESTAMP() is, where it is asked for."""
        if "now" not in self.needs:
            return None
        return time.time() if now is None else now / 1_000_000

    def _view(self, batch: Batch, origin: int | None, now: int | None, context: Context | None) -> View:
        return View(batch, origin, self._seconds(now), context, body_type(self.message_type))


class Filter(_Compiled[bool]):
    """A condition on messages, compiled once and asked about many messages at a time."""

    _mode = "filter"
    __slots__ = ("_selector",)

    def __init__(self, text: str, checked: Checked, program: Program) -> None:
        super().__init__(text, checked, program)
        self._selector: Selector | None = None

    def reading(self, kind: MessageType) -> Filter:
        """The same condition on bodies of a type.  InvalidArgument when it says itself that it reads another."""
        text = typed(self.text, kind)
        return self if text == self.text else compile_filter(text, EVERYTHING)

    matches_parsed = _Compiled[bool]._evaluate_parsed
    matches = _Compiled[bool]._evaluate

    def on_batch(
        self, batch: Batch, *, origin: int | None = None, now: int | None = None, context: Context | None = None
    ) -> pa.BooleanArray:
        """As `matches`, for an Arrow batch (`batches` names the columns): one bool for each row, no nulls.

        InvalidArgument when the batch has no body and the filter asks for one, or a column has another type.
        """
        from penstock.expr.row_selection import Selector

        if self._selector is None:
            self._selector = Selector(self.tree, self._metered)
        return self._selector.run(self.judge, self._view(batch, origin, now, context))

    def judge(self, view: View) -> list[bool]:
        """`matches` for a view of a batch, by the Python function alone."""
        bodies, _, headers, topics, lsns, times = view.arguments(self.needs - {"body"})
        if "body" in self.needs:
            bodies = view.bodies
        try:
            found = self._program.run(bodies, headers, topics, lsns, times, view.origin, view.seconds, view.context)
        finally:
            meter.stop()
        return cast("list[bool]", found)


class Value(_Compiled[Scalar]):
    """An expression for its value: priorities, group keys, projections."""

    _mode = "value"
    __slots__ = ("_columnar",)

    def __init__(self, text: str, checked: Checked, program: Program) -> None:
        super().__init__(text, checked, program)
        self._columnar: Columnar | None = None

    def on_batch(
        self, batch: Batch, *, origin: int | None = None, now: int | None = None, context: Context | None = None
    ) -> pa.Array[Any]:
        """As `values`, for an Arrow batch (`batches` names the columns).

        The array is of the one type that all values have: bool, int64, uint64, double, string (binary when some text
        is no UTF-8) or null; a dense union of these when they have several.  Errors as in `Filter.on_batch`.
        """
        from penstock.expr.columnar import Columnar

        if self._columnar is None:
            self._columnar = Columnar(self.tree, self._metered)
        return settled(self._columnar.values(self._view(batch, origin, now, context)), batch.num_rows)

    values = _Compiled[Scalar]._evaluate
    values_parsed = _Compiled[Scalar]._evaluate_parsed


@lru_cache(maxsize=CACHED)
def compile_filter(text: str, known: frozenset[Group] = frozenset()) -> Filter:
    """The filter that a text spells.  Raises ExpressionError with the place of what cannot stand.

    `known`: the groups of `Context` that the caller will answer; functions of the others are refused.
    """
    checked = check(parse(text), text, known)
    return Filter(text, checked, compile_tree(checked.tree, "filter", checked.metered))


@lru_cache(maxsize=CACHED)
def compile_value(text: str, known: frozenset[Group] = frozenset()) -> Value:
    """The value that a text spells.  Raises ExpressionError with the place of what cannot stand; `known` as above."""
    checked = check(parse(text), text, known)
    return Value(text, checked, compile_tree(checked.tree, "value", checked.metered))


_ASKS = re.compile(r"CLIENT_NAME|CLIENT_VERSION|USER|AMPS_INSTANCE_NAME", re.IGNORECASE)
_EMPTY = re.compile(r"\w+\s*\(\s*\)")


def bound(text: str, context: Context) -> str:
    """The text with the answers that the context has, as literals; what it has no answer to stays.

    ExpressionError for a text with such names that cannot be read.
    """
    if _ASKS.search(text) is None:
        return text
    calls = list[tuple[int, int, str]]()
    for node in walk_tree(parse(text)):
        if isinstance(node, Call) and not node.arguments and node.name in OF_THE_CONTEXT:
            answer = getattr(context, OF_THE_CONTEXT[node.name][0])
            found = _EMPTY.match(text, node.place)
            if isinstance(answer, str) and found is not None:
                calls.append((found.start(), found.end(), literal(answer)))
    for start, end, answer in sorted(calls, reverse=True):
        text = text[:start] + answer + text[end:]
    return text


def literal(value: str) -> str:
    """A string as an expression spells it."""
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n").replace("\r", "\\r") + "'"


BACKENDS = ("python", "arrow")
"""Names that `evaluate` accepts; `penstock.testing.evaluate` also knows "spark"."""


def evaluate(
    text: str,
    bodies: Sequence[bytes],
    backend: str = "python",
    *,
    properties: Properties = EMPTY,
    topics: Topics = None,
    lsns: Sequence[int] | None = None,
    times: Sequence[int] | int | None = None,
    origin: int | None = None,
    now: int | None = None,
    context: Context | None = None,
) -> list[Scalar]:
    """The value of an expression for each body: True, False, None (NULL), a number or a str.

    What is asked of a context that is not given is NULL.  Raises ExpressionError for the text and InvalidArgument for a
    backend that does not exist.
    """
    if backend not in BACKENDS:
        raise InvalidArgument(f"no expression backend {backend!r}: there is {', '.join(map(repr, BACKENDS))}")
    chosen = compile_value(text, EVERYTHING)
    if backend == "python":
        return chosen.values(
            bodies, properties, topics, lsns=lsns, times=times, origin=origin, now=now, context=context
        )
    batch = batch_of(bodies, properties, topics, lsns, times)
    return scalars(chosen.on_batch(batch, origin=origin, now=now, context=context))
