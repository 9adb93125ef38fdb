"""One expression language for filters, priorities and projections: text to tree to a Python function over batches.

    text --grammar--> tree --check--> tree that may run --compiler--> Program, held by a Filter or a Value

Semantics (NULL logic, arrays, strings as bytes) live in `values`, `text_patterns` and `functions`; a further backend
compiles the same checked tree and is judged by the same tests.  Pure: no disk, no socket; the clock is handed in.

What is named here is loaded when it is first used: whoever needs a pattern alone does without the compiler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from penstock.errors import ExpressionError

if TYPE_CHECKING:
    from penstock.expr.context import EVERYTHING, Context
    from penstock.expr.filter import Filter, Value, compile_filter, compile_value, evaluate, parse
    from penstock.expr.filter_set import FilterSet, Matcher
    from penstock.expr.text_patterns import PatternError, TopicPattern

_PLACES = {
    "EVERYTHING": "context",
    "Context": "context",
    "Filter": "filter",
    "FilterSet": "filter_set",
    "Matcher": "filter_set",
    "PatternError": "text_patterns",
    "TopicPattern": "text_patterns",
    "Value": "filter",
    "compile_filter": "filter",
    "compile_value": "filter",
    "evaluate": "filter",
    "parse": "filter",
}

__all__ = [
    "EVERYTHING",
    "Context",
    "ExpressionError",
    "Filter",
    "FilterSet",
    "Matcher",
    "PatternError",
    "TopicPattern",
    "Value",
    "compile_filter",
    "compile_value",
    "evaluate",
    "parse",
]


if not TYPE_CHECKING:  # else a checker takes every misspelt name for one that is there

    def __getattr__(name: str) -> object:
        place = _PLACES.get(name)
        if place is None:
            raise AttributeError(f"module 'penstock.expr' has no attribute {name!r}")
        value: object = getattr(import_module(f"penstock.expr.{place}"), name)
        globals()[name] = value  # the next access does not come here
        return value
