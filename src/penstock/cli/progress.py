"""A bar for a person who waits; nothing at all when standard error is no terminal."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

Progress = Callable[[int, int], None]
"""(done, in all)."""


@contextmanager
def bar(what: str, progress: Progress | None = None) -> Generator[Progress]:
    """A function that moves a bar; `progress` instead, if given."""
    if progress is not None or not sys.stderr.isatty():
        yield progress or nobody
        return
    from rich.console import Console
    from rich.progress import Progress as Bar

    with Bar(console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            shown.update(task, completed=done, total=total)

        yield show


def nobody(done: int, total: int) -> None:
    """No one looks on."""
