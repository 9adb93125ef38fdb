"""What the grammar cannot say: functions and their arity, literal patterns, property names, and the cost of a filter.

Filters come from strangers.  Depth and length are bounded by the parser; here every node has a cost, and their sum a
limit.  Together with `meter`, which bounds what arrays in a message add, one message can only take so long.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from penstock.errors import ExpressionError, known_name
from penstock.expr.batches import PROPERTIES
from penstock.expr.context import ASKED, OF_THE_CONTEXT, Group
from penstock.expr.functions import AGGREGATES, FUNCTIONS, Function
from penstock.expr.text_patterns import PatternError, searcher, us_of
from penstock.expr.tree import Call, Field, Like, Literal, Node, walk_tree
from penstock.records.dataclass import dataclass

COST_LIMIT = 2_000
"""A thousand comparisons, or some two hundred functions.  Literals are free: the length of the text bounds them."""

UNMETERED_COST = 40
"""Some ten predicates: they cannot take longer than the meter would allow them, so nothing is counted."""

PATH_COST = 5
"""A field of several steps may have to look into every element of an array."""

CALL_COST = 10
"""A function, or a regular expression."""

REPLACE_COST = 100
"""REGEXP_REPLACE, a search for each match; CRC64, a step for each byte."""

_DEAR = frozenset(("REGEXP_REPLACE", "CRC64"))


@dataclass(frozen=True, slots=True)
class Checked:
    """A tree that may be compiled, and what is known of it."""

    tree: Node
    changing: Call | None
    """The first function whose answer changes with time, if there is one: a queue's filter must have none."""
    cost: int
    """The sum of the costs of its nodes, at most COST_LIMIT."""
    us_a_byte: float = 0.0
    """Microseconds that its patterns may take for each byte of a text."""

    @property
    def deterministic(self) -> bool:
        """The answer for a message never changes."""
        return self.changing is None

    def refuse_changing(self, text: str, where: str) -> None:
        """ExpressionError where the answer changes with time, `where` ("a barrier") it has to stay the same."""
        if self.changing is not None:
            raise ExpressionError(
                f"{self.changing.name} cannot be used in {where}: its answer changes with time",
                text=text,
                place=self.changing.place,
            )

    @property
    def metered(self) -> bool:
        """Is it dear enough that its work on arrays must be counted?"""
        return self.cost > UNMETERED_COST


def check(tree: Node, text: str, known: frozenset[Group] = frozenset()) -> Checked:
    """Judge a tree.  Raises ExpressionError with the place of the first node that cannot be used.

    `known`: what else than the message can be asked about, see `context`.
    """
    cost, us_a_byte = 0, 0.0
    changing: Call | None = None
    for node in walk_tree(tree):
        steps, patterns = _price(node, text, known)
        cost += steps
        us_a_byte += sum(us_of(str(pattern.value)) for pattern in patterns)
        if changing is None and isinstance(node, Call) and not FUNCTIONS[node.name].deterministic:
            changing = node
        if cost > COST_LIMIT:
            raise ExpressionError(
                f"the expression is too large, it costs over {COST_LIMIT} (1 a field or operator, "
                f"{PATH_COST} a field of several steps, {CALL_COST} a function or regular expression, "
                f"{REPLACE_COST} REGEXP_REPLACE or CRC64)",
                text=text,
                place=node.place,
            )
    return Checked(tree, changing, cost, us_a_byte)


def _price(node: Node, text: str, known: frozenset[Group]) -> tuple[int, Sequence[Literal]]:
    """What one node costs, and the patterns that it searches for.  Raises ExpressionError where it cannot be used."""
    match node:
        case Literal():
            return 0, ()
        case Call():
            patterns = [cast("Literal", node.arguments[at]) for at in _function(node, text, known).patterns]
            return REPLACE_COST if node.name in _DEAR else CALL_COST, patterns
        case Like():
            _pattern(node.pattern, text)
            return CALL_COST, (node.pattern,)
        case Field():
            if node.source == "properties" and node.steps[0] not in PROPERTIES:
                names = ", ".join(PROPERTIES)
                raise ExpressionError(f"no property {node.steps[0]!r}: there are {names}", text=text, place=node.place)
            return 1 if len(node.steps) == 1 else PATH_COST, ()
        case _:
            return 1, ()


def _function(call: Call, text: str, known: frozenset[Group]) -> Function:
    function = FUNCTIONS.get(call.name)
    if function is None:
        raise ExpressionError(_unknown(call.name), text=text, place=call.place)
    _, group = OF_THE_CONTEXT.get(call.name, ("", None))
    if group is not None and group not in known:
        raise ExpressionError(
            f"{call.name} cannot be used here: it asks for more than the message ({ASKED[group]})",
            text=text,
            place=call.place,
        )
    given = len(call.arguments)
    if given < function.least or (function.most is not None and given > function.most):
        raise ExpressionError(
            f"{call.name} takes {_arity(function)}, {given} {'was' if given == 1 else 'were'} given",
            text=text,
            place=call.place,
        )
    for position in function.patterns:
        argument = call.arguments[position]
        if not isinstance(argument, Literal) or not isinstance(argument.value, str):
            raise ExpressionError(
                f"the pattern of {call.name} must be a literal string", text=text, place=argument.place
            )
        _pattern(argument, text)
    return function


def _arity(function: Function) -> str:
    least, most = function.least, function.most
    if most is None:
        return f"{least} or more arguments"
    if least == most:
        return "no argument" if most == 0 else "1 argument" if most == 1 else f"{most} arguments"
    return f"{least} to {most} arguments"


def _unknown(name: str) -> str:
    if name in AGGREGATES:
        return f"{name} cannot be used here: it is about many messages, and an expression sees one"
    return f"no function {name if len(name) <= 40 else name[:37] + '...'}{known_name(name, FUNCTIONS)}"


def _pattern(pattern: Literal, text: str) -> None:
    assert isinstance(pattern.value, str)
    try:
        searcher(pattern.value)
    except PatternError as problem:
        place = pattern.place
        if pattern.raw and problem.place and pattern.value.isascii():
            place += 2 + problem.place
        hint = "" if pattern.raw else "; a backslash in a plain string is an escape, write r'...' to keep it"
        shown = hint if "\\" in text[pattern.place : pattern.place + 200] else ""
        raise ExpressionError(f"{problem}{shown}", text=text, place=place) from None
