"""One expression language for filters, priorities and projections: text to tree to a Python function over batches.

    text --grammar--> tree --check--> tree that may run --compiler--> Program, held by a Filter or a Value

Semantics (NULL logic, arrays, strings as bytes) live in `values`, `texts` and `functions`; a further backend compiles
the same checked tree and is judged by the same tests.  Pure: no disk, no socket; the clock is handed in.
"""

from penstock.errors import ExpressionError
from penstock.expr.backends import evaluate
from penstock.expr.context import EVERYTHING, Context
from penstock.expr.filter import Filter, Value, compile_filter, compile_value, parse
from penstock.expr.patterns import PatternError, TopicPattern
from penstock.expr.together import FilterSet, Matcher

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
