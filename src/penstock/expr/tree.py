"""The tree of an expression: what every backend compiles from.

Nodes are frozen values.  Two trees are equal when they mean the same text modulo blanks and spelling: `place`, the
offset of the node's first character (or of its operator), and `depth`, the number of levels in it, do not take part.

The tree knows the grammar and nothing of its execution: no function table, no message, no Python code.
`x NOT IN (...)` is `Not(In(...))`.  BETWEEN and IN stay nodes of their own because a backend may have something better
than their definition.  AND and OR hold all their operands, so that a long list of alternatives is not a deep tree.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import field
from typing import Literal as OneOf
from typing import TypeAlias

from penstock.records.dataclass import dataclass
from penstock.records.message_types import JSON, MessageType

Scalar: TypeAlias = "bool | int | float | str | None"
"""A value of the language: NULL, Boolean, integer, double, byte string.

A byte string is a `str`: its bytes decoded as UTF-8, where each byte that is no UTF-8 becomes U+DC80..U+DCFF
(PEP 383's `surrogateescape`), so that every byte string has exactly one form.  The empty string is NULL.
"""

Source = OneOf["body", "headers", "properties"]
Step: TypeAlias = "str | int"
CompareOperator = OneOf["=", "!=", "<", "<=", ">", ">="]
ArithmeticOperator = OneOf["+", "-", "*", "/", "%"]


@dataclass(frozen=True, slots=True)
class Placed:
    """What every node has: its place in the text, and the levels in it."""

    place: int = field(default=0, compare=False, kw_only=True)
    depth: int = field(default=1, compare=False, kw_only=True)


@dataclass(frozen=True, slots=True)
class Literal(Placed):
    """A number, a string, NULL, TRUE or FALSE."""

    value: Scalar
    raw: bool = field(default=False, compare=False)  # a raw string: offsets in the value are offsets in the text


@dataclass(frozen=True, slots=True)
class Field(Placed):
    """A place in the message.  Steps: a str is a name, an int a subscript counted from 0; at least one step."""

    source: Source
    steps: tuple[Step, ...]
    message_type: MessageType = JSON  # what the body is read as


@dataclass(frozen=True, slots=True)
class Sign(Placed):
    """`-x` or `+x`."""

    operator: OneOf["-", "+"]
    operand: Node


@dataclass(frozen=True, slots=True)
class Arithmetic(Placed):
    """`left operator right`; MOD is written `%` here."""

    operator: ArithmeticOperator
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Compare(Placed):
    """`left operator right`; `==` is written `=` here, and `<>` is `!=`."""

    operator: CompareOperator
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class And(Placed):
    """All of two or more."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Or(Placed):
    """Any of two or more."""

    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Not(Placed):
    """Kleene's negation: NOT NULL is NULL."""

    operand: Node


@dataclass(frozen=True, slots=True)
class Between(Placed):
    """`operand >= low AND operand <= high`."""

    operand: Node
    low: Node
    high: Node


@dataclass(frozen=True, slots=True)
class In(Placed):
    """`operand = items[0] OR operand = items[1] ...`; at least one item."""

    operand: Node
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Like(Placed):
    """Does the regular expression match anywhere in the operand's text?"""

    operand: Node
    pattern: Literal


@dataclass(frozen=True, slots=True)
class Affix(Placed):
    """`BEGINS WITH (...)` or `ENDS WITH (...)`: any of the items may be the beginning or end."""

    end: OneOf["BEGINS", "ENDS"]
    operand: Node
    items: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Is(Placed):
    """`IS NULL` or `IS NAN`; never NULL itself."""

    what: OneOf["NULL", "NAN"]
    operand: Node


@dataclass(frozen=True, slots=True)
class Call(Placed):
    """`name(arguments)`; the name is in upper case."""

    name: str
    arguments: tuple[Node, ...]


Condition: TypeAlias = Compare | And | Or | Not | Between | In | Like | Affix | Is
Node: TypeAlias = Literal | Field | Sign | Arithmetic | Call | Condition


def children(node: Node) -> tuple[Node, ...]:
    """The operands of a node, from left to right."""
    match node:
        case Literal() | Field():
            return ()
        case Sign() | Not() | Is():
            return (node.operand,)
        case Arithmetic() | Compare():
            return (node.left, node.right)
        case And() | Or():
            return node.items
        case Between():
            return (node.operand, node.low, node.high)
        case In() | Affix():
            return (node.operand, *node.items)
        case Like():
            return (node.operand, node.pattern)
        case Call():
            return node.arguments


def walk_tree(node: Node) -> Iterator[Node]:
    """The node and all below it, parents first, from left to right."""
    waiting = [node]
    while waiting:
        here = waiting.pop()
        yield here
        waiting.extend(reversed(children(here)))


def message_type_of(tree: Node) -> MessageType:
    """What a tree reads bodies as: all its fields do so alike."""
    found = (node.message_type for node in walk_tree(tree) if isinstance(node, Field) and node.source == "body")
    return next(found, JSON)
