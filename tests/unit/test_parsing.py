"""Source that tests parse while garbage waits whose finalizer parses, too, as one does that logs a traceback."""

from __future__ import annotations

import ast
import gc


class Late:
    """Parses when it is collected."""

    def __init__(self) -> None:
        self.itself = self

    def __del__(self) -> None:
        ast.parse("1 + 1")


def test_what_is_collected_does_not_come_between() -> None:
    source = f"[{', '.join(f'f({n})' for n in range(300))}]"
    before = gc.get_threshold()
    gc.set_threshold(50, 1, 1)
    try:
        for _ in range(5):
            Late()
            ast.parse(source)
    finally:
        gc.set_threshold(*before)
