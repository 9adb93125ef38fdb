"""Functions that ask who asks: their answers are written into the text before it is compiled.

CLIENT_NAME, USER and CLIENT_VERSION are about the client whose command is carried out, AMPS_INSTANCE_NAME about the
server.  They stay the same as long as the command lasts, so a filter with them is another filter for each client, and
whoever evaluates it, in this process or another, needs to know nothing of clients.
"""

from __future__ import annotations

import re

from penstock.expr.context import OF_THE_CONTEXT, Context
from penstock.expr.filter import parse
from penstock.expr.tree import Call, walk_tree

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
