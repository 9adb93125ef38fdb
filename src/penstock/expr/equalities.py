"""Filters that ask whether a field equals something, found by one look at the field instead of one evaluation each.

A thousand consumers that want a customer each are a thousand filters `/customer = '...'`.  Their literals stand in one
table per field, and a message's value is looked up once.  What a lookup says equals the evaluation, kind for kind:
numbers also equal the texts that spell them, an array equals whatever one of its elements does.  Owns the tables;
refuses to know messages beyond the values of fields.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from penstock.expr.tree import And, Compare, Field, In, Literal, Node, Scalar
from penstock.expr.values import Value, flatten, parse_number
from penstock.records.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class Equality:
    """A condition that is TRUE exactly when the field equals one of the values."""

    field: Field
    values: tuple[str | int | float, ...]  # at least one; no NULL, no NaN


def equality_of(node: Node) -> Equality | None:
    """The node as an equality, if it is one."""
    found: Iterable[Scalar]
    if isinstance(node, Compare) and node.operator == "=":
        field, literal = node.left, node.right
        if isinstance(field, Literal):
            field, literal = literal, field
        if not isinstance(field, Field) or not isinstance(literal, Literal):
            return None
        found = (literal.value,)
    elif isinstance(node, In) and isinstance(node.operand, Field):
        field = node.operand
        literals = [item for item in node.items if isinstance(item, Literal)]
        if len(literals) < len(node.items):
            return None
        found = [literal.value for literal in literals]
    else:
        return None
    values = tuple(value for value in found if value is not None and value != "" and value == value)
    return Equality(field, values) if values else None


def access_of(tree: Node) -> tuple[Equality, bool] | None:
    """An equality that must hold wherever the tree is TRUE, and whether it is all that the tree asks; or None."""
    whole = equality_of(tree)
    if whole is not None:
        return whole, True
    if isinstance(tree, And):
        for item in tree.items:
            part = equality_of(item)
            if part is not None:
                return part, False
    return None


class Equalities:
    """The literals that one field is compared with, and the numbers (slots) of the filters that do."""

    __slots__ = ("_numbers", "_spelled", "_words")

    def __init__(self) -> None:
        self._words: dict[str, list[int]] = {}  # texts
        self._numbers: dict[int | float, list[int]] = {}
        self._spelled: dict[int | float, list[int]] = {}  # texts that spell numbers, by those

    def __bool__(self) -> bool:
        return bool(self._words or self._numbers)

    def add(self, equality: Equality, slot: int) -> None:
        """A filter wants these values."""
        for table, value in self._places(equality):
            slots = table.setdefault(value, [])
            if slot not in slots:
                slots.append(slot)

    def remove(self, equality: Equality, slot: int) -> None:
        """A filter is gone."""
        for table, value in self._places(equality):
            slots = table.get(value)
            if slots is not None and slot in slots:
                slots.remove(slot)
                if not slots:
                    del table[value]

    def _places(self, equality: Equality) -> Iterator[tuple[dict[str | int | float, list[int]], str | int | float]]:
        for value in equality.values:
            if isinstance(value, str):
                yield self._words, value  # type: ignore[misc]
                spelled = parse_number(value)
                if spelled is not None:
                    yield self._spelled, spelled  # type: ignore[misc]
            else:
                yield self._numbers, value  # type: ignore[misc]

    def find(self, value: Value) -> Iterable[int]:
        """The filters that want this value, each once."""
        if isinstance(value, str):
            hits = self._words.get(value, ())
            if self._numbers and value:
                spelled = parse_number(value)
                if spelled is not None and spelled in self._numbers:
                    return {*hits, *self._numbers[spelled]}
            return hits
        if isinstance(value, int | float):
            hits = self._numbers.get(value, ())
            return {*hits, *self._spelled[value]} if self._spelled and value in self._spelled else hits
        if value.__class__ is list:
            return {slot for item in flatten(value) for slot in self.find(item)}
        return ()
