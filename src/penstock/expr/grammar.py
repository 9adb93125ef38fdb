"""Text to tree: the grammar, its lexer rule for `/`, and errors that show the place.

LALR with a contextual lexer: in each state only the terminals that the parser could take are tried.  That alone settles
what `/` means.  Where an operand may stand the lexer knows FIELD and not SLASH, so `/a/b` is one name; where an
operator may stand it knows SLASH and not FIELD, so `10/5` divides and `/a / /b` is a quotient of two fields.

`-` belongs to a name when another name character follows it: `/a-b` is one name, `/a -b` and `/a- b` subtract.

The builder makes frozen nodes while the parser reduces, so no step here recurses and text of any shape is safe to read;
budgets for length and depth are enforced here, the rest of the checks live in `check`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from threading import local
from typing import Literal as OneOf
from typing import NoReturn, TypedDict, cast

from lark import Lark, Token, Transformer
from lark.exceptions import UnexpectedCharacters, UnexpectedInput, UnexpectedToken

from penstock.errors import ExpressionError
from penstock.expr import numbers, values
from penstock.expr.tree import (
    Affix,
    And,
    Arithmetic,
    ArithmeticOperator,
    Between,
    Call,
    Compare,
    CompareOperator,
    Field,
    In,
    Is,
    Like,
    Literal,
    Node,
    Not,
    Or,
    Scalar,
    Sign,
    Source,
    Step,
)
from penstock.records.message_types import JSON, MessageType, untyped

TEXT_LIMIT = 32_768
"""Characters of one expression: a page of IN values fits, and the parser never holds the loop for long."""

DEPTH_LIMIT = 50
"""Levels of a tree.  CPython refuses source nested 200 deep; a level never costs more than three parentheses."""

_GRAMMAR = r"""
start: or_expr
?or_expr: and_expr (OR and_expr)*
?and_expr: not_expr (AND not_expr)*
?not_expr: NOT predicate -> negation
    | predicate
?predicate: sum
    | sum compare_sign sum -> comparison
    | sum NOT? BETWEEN sum AND sum -> between
    | sum NOT? IN "(" operands ")" -> membership
    | sum NOT? LIKE STRING -> like
    | sum NOT? (BEGINS | ENDS) WITH "(" operands ")" -> affix
    | sum IS NOT? (NULL | NAN) -> is_test
!compare_sign: "==" | "=" | "!=" | "<>" | "<=" | ">=" | "<" | ">"
?sum: term | sum (PLUS | MINUS) term -> arithmetic
?term: unary | term (STAR | SLASH | PERCENT | MOD) unary -> arithmetic
?unary: primary | (PLUS | MINUS) primary -> sign
?primary: NUMBER -> number
    | STRING -> string
    | (NULL | TRUE | FALSE) -> constant
    | NAME "(" [operands] ")" -> call
    | FIELD -> field
    | BRACKETED -> bracketed
    | "(" or_expr ")"
operands: or_expr ("," or_expr)*

OR.2: /OR\b/i
AND.2: /AND\b/i
NOT.2: /NOT\b/i
BETWEEN.2: /BETWEEN\b/i
IN.2: /IN\b/i
LIKE.2: /LIKE\b/i
BEGINS.2: /BEGINS\b/i
ENDS.2: /ENDS\b/i
WITH.2: /WITH\b/i
IS.2: /IS\b/i
NULL.2: /NULL\b/i
NAN.2: /NAN\b/i
TRUE.2: /TRUE\b(?!\s*\()/i
FALSE.2: /FALSE\b(?!\s*\()/i
MOD.2: /MOD\b/i
PLUS: "+"
MINUS: "-"
STAR: "*"
SLASH: "/"
PERCENT: "%"
NUMBER: /[0-9]+(\.[0-9]+)?([eE][+-]?[0-9]+)?/
STRING.3: /[rR]?('([^'\\]|\\[\s\S])*'|"([^"\\]|\\[\s\S])*")/
NAME.1: /[A-Za-z_][A-Za-z0-9_]*/
FIELD: /(\/@?([\w.:]|-+(?=[\w.:]))+(\[[0-9]+\])?)+/
BRACKETED: /\[\/[^\]]*\]/
%ignore /[ \t\r\n\f]+/
"""

_STEP = re.compile(r"([^/\[]+)(?:\[([0-9]+)\])?")
_ESCAPE = re.compile(r"\\(x[0-9A-Fa-f]{2}|[0-3][0-7]{2}|[\s\S])")
_CONTROL = {"a": "\a", "b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r"}
_SAME_OPERATOR = {"==": "=", "<>": "!="}
_COMPARISONS = frozenset(("==", "=", "!=", "<>", "<=", ">=", "<", ">"))
_OPERANDS = ("a field such as /a", "a number", "a string", "a function", "'('")


class _Failed(Exception):
    """A budget or literal that the builder refuses; becomes an ExpressionError where the text is known."""

    def __init__(self, message: str, place: int) -> None:
        super().__init__(message)
        self.place = place


def parse(text: str) -> Node:
    """The tree of an expression.  Raises ExpressionError with the offset of the first character that cannot stand."""
    kind, asked = untyped(text)
    size = len(asked) if kind == JSON else len(asked.lstrip())
    if size > TEXT_LIMIT:
        raise ExpressionError(
            f"the expression has {size} characters, at most {TEXT_LIMIT} are allowed", text=text, place=TEXT_LIMIT
        )
    if not asked.strip(" \t\r\n\f"):
        raise ExpressionError("the expression is empty", text=text, place=0)
    try:
        # The transformer runs inside the parser, so what comes out is what `start` returned, not lark's own tree.
        builder, read = _parser()
        builder.of.kind = kind
        return read(asked)
    except _Failed as failed:
        raise ExpressionError(str(failed), text=text, place=failed.place) from None
    except UnexpectedInput as unexpected:
        message, place = _explain(unexpected, asked)
        raise ExpressionError(message, text=text, place=place) from None


@cache
def _parser() -> tuple[_Builder, Callable[[str], Node]]:
    """What builds the nodes, and what reads an expression with it: one for all types, for its tables take 60 ms."""
    builder = _Builder()
    lark = Lark(_GRAMMAR, parser="lalr", lexer="contextual", transformer=builder, maybe_placeholders=False)
    return builder, cast("Callable[[str], Node]", lark.parse)  # type: ignore[reportUnknownMemberType, unused-ignore]


def _explain(unexpected: UnexpectedInput, text: str) -> tuple[str, int]:
    """What stood there and what could have, in the words of the language; and the offset."""
    if isinstance(unexpected, UnexpectedToken):
        token = cast("Token", getattr(unexpected, "token"))  # noqa: B009  # lark leaves its type out
        return _explain_token(token, set(unexpected.expected), text)
    assert isinstance(unexpected, UnexpectedCharacters)
    return _explain_characters(unexpected, text)


def _explain_token(token: Token, expected: set[str], text: str) -> tuple[str, int]:
    if expected == {"LPAR"}:
        word, place = _word_before(text, len(text) if token.type == "$END" else token.start_pos or 0)
        if word.upper() not in ("IN", "WITH"):
            return f"{_shown(word)} is no function call, and a field begins with '/'", place
    if token.type == "$END":
        return f"the expression ends where {_wanted(expected)} should follow", len(text.rstrip(" \t\r\n\f"))
    place = token.start_pos or 0
    if token.type == "SLASH" and "FIELD" in expected:
        return "a field name must follow '/' without a blank", place
    if str(token) in _COMPARISONS and "AND" in expected:
        return f"{_shown(str(token))} cannot stand here: comparisons do not chain, join two with AND", place
    return f"{_shown(str(token))} cannot stand here: expected {_wanted(expected)}", place


def _explain_characters(unexpected: UnexpectedCharacters, text: str) -> tuple[str, int]:
    place = cast("int", getattr(unexpected, "pos_in_stream"))  # noqa: B009  # the same
    allowed = unexpected.allowed
    here = text[place]
    operand = "FIELD" in allowed
    if operand and (here in "'\"" or text[place : place + 2].lower() in ("r'", 'r"')):
        return "the string that starts here has no end", place
    if operand and here == "/":
        return "a field name must follow '/' without a blank", place
    if operand and here == "[":
        return "expected a field such as [/any name] here", place
    found = re.compile(r"\w+").match(text, place)
    return f"{_shown(found[0] if found else here)} cannot stand here: expected {_wanted(allowed)}", place


def _word_before(text: str, place: int) -> tuple[str, int]:
    """The word that ends before the place, and where it starts."""
    end = len(text[:place].rstrip(" \t\r\n\f"))
    start = end
    while start and (text[start - 1].isalnum() or text[start - 1] == "_"):
        start -= 1
    return text[start:end], start


def _shown(word: str) -> str:
    return repr(word if len(word) <= 24 else word[:21] + "...")


def _wanted(expected: set[str]) -> str:
    """Human words for a set of terminals."""
    if "FIELD" in expected:
        return ", ".join(_OPERANDS[:-1]) + " or " + _OPERANDS[-1]
    if "OR" in expected or "SLASH" in expected:
        closing = [
            words for name, words in (("COMMA", "','"), ("RPAR", "')'"), ("$END", "the end")) if name in expected
        ]
        return " or ".join(["an operator", *closing])
    plain = {"STRING": "a string", "LPAR": "'('", "RPAR": "')'", "COMMA": "','", "PLUS": "'+'", "MINUS": "'-'"}
    plain |= {"STAR": "'*'", "SLASH": "'/'", "PERCENT": "'%'"}
    words = sorted(plain.get(name, name) for name in expected if name != "$END" and not name.startswith("__"))
    if "$END" in expected:
        words.append("the end")
    return " or ".join(words) if words else "something else"


def _unescape(token: Token) -> tuple[str, bool]:
    """The value of a string token, and whether it was raw."""
    raw = token[0] in "rR"
    inner = token[2:-1] if raw else token[1:-1]
    if raw or "\\" not in inner:
        return values.from_bytes(inner.encode("utf-8", "surrogatepass")), raw

    def one(found: re.Match[str]) -> bytes:
        what = found[1]
        if what[0] == "x" and len(what) == 3:
            return bytes([int(what[1:], 16)])
        if len(what) == 3:
            return bytes([int(what, 8)])
        return _CONTROL.get(what, what).encode("utf-8", "surrogatepass")

    out: list[bytes] = []
    done = 0
    for found in _ESCAPE.finditer(inner):
        out += (inner[done : found.start()].encode("utf-8", "surrogatepass"), one(found))
        done = found.end()
    out.append(inner[done:].encode("utf-8", "surrogatepass"))
    return values.from_bytes(b"".join(out)), False


class _Standing(TypedDict):
    place: int
    depth: int


class _Reading(local):
    """What is read, in each thread."""

    kind: MessageType


class _Builder(Transformer[Token, Node]):
    """One method a rule; each gets what the rule's parts became, tokens included."""

    def __init__(self) -> None:
        super().__init__()
        self.of = _Reading()

    def _at(self, place: int, *below: Node) -> _Standing:
        depth = 1 + max((node.depth for node in below), default=0)
        if depth > DEPTH_LIMIT:
            raise _Failed(
                f"the expression is nested more than {DEPTH_LIMIT} levels deep (each + or * of a chain is one)", place
            )
        return {"place": place, "depth": depth}

    def _negated(self, node: Node, parts: Sequence[object]) -> Node:
        """`node`, or its negation when a NOT stands among the parts of its rule."""
        word = next((part for part in parts if isinstance(part, Token) and part.type == "NOT"), None)
        if word is None:
            return node
        where = self._at(node.place, node)
        where["place"] = _place(word)
        return Not(node, **where)

    def start(self, parts: list[Node]) -> Node:
        return parts[0]

    def or_expr(self, parts: list[Node | Token]) -> Node:
        items = tuple(part for part in parts if not isinstance(part, Token))
        return Or(items, **self._at(items[0].place, *items))

    def and_expr(self, parts: list[Node | Token]) -> Node:
        items = tuple(part for part in parts if not isinstance(part, Token))
        return And(items, **self._at(items[0].place, *items))

    def negation(self, parts: tuple[Token, Node]) -> Node:
        word, operand = parts
        return Not(operand, **self._at(_place(word), operand))

    def compare_sign(self, parts: list[Token]) -> Token:
        return parts[0]

    def comparison(self, parts: tuple[Node, Token, Node]) -> Node:
        left, sign, right = parts
        operator = cast("CompareOperator", _SAME_OPERATOR.get(str(sign), str(sign)))
        return Compare(operator, left, right, **self._at(_place(sign), left, right))

    def between(self, parts: list[Node | Token]) -> Node:
        operand, low, high = (part for part in parts if not isinstance(part, Token))
        return self._negated(Between(operand, low, high, **self._at(operand.place, operand, low, high)), parts)

    def operands(self, parts: list[Node]) -> tuple[Node, ...]:
        return tuple(parts)

    def membership(self, parts: list[object]) -> Node:
        operand, items = cast("Node", parts[0]), cast("tuple[Node, ...]", parts[-1])
        return self._negated(In(operand, items, **self._at(operand.place, operand, *items)), parts)

    def like(self, parts: list[object]) -> Node:
        operand, token = cast("Node", parts[0]), cast("Token", parts[-1])
        value, raw = _unescape(token)
        pattern = Literal(value, raw, place=_place(token))
        return self._negated(Like(operand, pattern, **self._at(operand.place, operand, pattern)), parts)

    def affix(self, parts: list[object]) -> Node:
        operand, items = cast("Node", parts[0]), cast("tuple[Node, ...]", parts[-1])
        word = cast("Token", parts[-3])
        end: OneOf["BEGINS", "ENDS"] = "BEGINS" if word.type == "BEGINS" else "ENDS"
        return self._negated(Affix(end, operand, items, **self._at(operand.place, operand, *items)), parts)

    def is_test(self, parts: list[object]) -> Node:
        operand, word = cast("Node", parts[0]), cast("Token", parts[-1])
        what: OneOf["NULL", "NAN"] = "NULL" if word.type == "NULL" else "NAN"
        return self._negated(Is(what, operand, **self._at(operand.place, operand)), parts)

    def arithmetic(self, parts: tuple[Node, Token, Node]) -> Node:
        left, sign, right = parts
        operator = cast("ArithmeticOperator", "%" if sign.type == "MOD" else str(sign))
        return Arithmetic(operator, left, right, **self._at(_place(sign), left, right))

    def sign(self, parts: tuple[Token, Node]) -> Node:
        sign, operand = parts
        if isinstance(operand, Literal) and isinstance(operand.value, int | float):
            value = numbers.negate(operand.value) if sign.type == "MINUS" else operand.value
            return Literal(value, place=_place(sign))
        return Sign("-" if sign.type == "MINUS" else "+", operand, **self._at(_place(sign), operand))

    def number(self, parts: list[Token]) -> Node:
        value = values.parse_number(str(parts[0]))
        if value is None or value == float("inf"):
            raise _Failed(f"the number {_shown(str(parts[0]))} is too large", _place(parts[0]))
        return Literal(value, place=_place(parts[0]))

    def string(self, parts: list[Token]) -> Node:
        value, raw = _unescape(parts[0])
        return Literal(value, raw, place=_place(parts[0]))

    def constant(self, parts: list[Token]) -> Node:
        known: dict[str, Scalar] = {"NULL": None, "TRUE": True, "FALSE": False}
        return Literal(known[parts[0].type], place=_place(parts[0]))

    def call(self, parts: list[object]) -> Node:
        name = cast("Token", parts[0])
        arguments = cast("tuple[Node, ...]", parts[1]) if len(parts) > 1 else ()
        return Call(name.upper(), arguments, **self._at(_place(name), *arguments))

    def field(self, parts: list[Token]) -> Node:
        token = parts[0]
        steps: list[Step] = []
        for found in _STEP.finditer(token):
            steps.append(found[1])
            if found[2] is not None:
                if len(found[2]) > 9:
                    _refuse("a subscript has at most 9 digits", _place(token) + found.start(2))
                steps.append(int(found[2]))
        return _field(steps, _place(token), self.of.kind)

    def bracketed(self, parts: list[Token]) -> Node:
        token = parts[0]
        steps = token[2:-1].split("/")
        if not all(steps):
            _refuse("a field name between slashes is empty", _place(token))
        return _field(cast("list[Step]", steps), _place(token), self.of.kind)


def _field(steps: list[Step], place: int, kind: MessageType) -> Field:
    """A field of the body, or with a first step of `@headers` or `@properties` one of the AMQP header."""
    first = steps[0]
    if first in ("@headers", "@properties"):
        if len(steps) < 2 or not isinstance(steps[1], str):
            _refuse(f"a name must follow /{first}/", place)
        source: Source = "headers" if first == "@headers" else "properties"
        return Field(source, tuple(steps[1:]), place=place)
    return Field("body", tuple(steps), kind, place=place)


def _refuse(message: str, place: int) -> NoReturn:
    raise _Failed(message, place)


def _place(token: Token | None) -> int:
    return (token.start_pos or 0) if token is not None else 0
