"""A plugin of mypy: nobody outside of `core/queue` names a part of a queue.

It goes by types and not by names of variables: whatever expression has the type of a queue, its parts are the queue's.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from pathlib import Path

from mypy.plugin import AttributeContext, Plugin
from mypy.types import Type

OWNER = "penstock.core.queue.parts.QueueParts."
HOME = "penstock/core/queue/"
OPEN = frozenset({
    "arrived", "declared", "draining", "figures", "id", "leased", "name", "outstanding", "paused_until",
    "redelivered_below", "ruling", "settings", "used_at",
})  # fmt: skip
"""What a queue tells of itself: names, settings and counts."""


def _slots() -> frozenset[str]:
    """Where a queue keeps its parts."""
    tree = ast.parse((Path(__file__).parents[1] / "src" / HOME / "parts.py").read_text())
    found = [
        ast.literal_eval(node.value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__slots__"
    ]
    return frozenset(name for names in found for name in names) - OPEN


HIDDEN = _slots()


class Parts(Plugin):
    """Tells of each access to a part."""

    def get_attribute_hook(self, fullname: str) -> Callable[[AttributeContext], Type] | None:
        name = fullname.removeprefix(OWNER)
        return _complain(name) if fullname.startswith(OWNER) and name in HIDDEN else None


def _complain(name: str) -> Callable[[AttributeContext], Type]:
    def look(context: AttributeContext) -> Type:
        path = getattr(context.api, "path", "").replace("\\", "/")
        if HOME not in path:
            context.api.fail(
                f"'{name}' is a part of a queue, which nobody outside of core/queue names", context.context
            )
        return context.default_attr_type

    return look


def plugin(version: str) -> type[Plugin]:
    """Called by mypy."""
    return Parts
