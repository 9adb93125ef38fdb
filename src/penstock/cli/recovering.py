"""What the command line does for a start of the server: a collector that keeps still, and a line for who waits.

On anything but a terminal the server's own lines do.
"""

from __future__ import annotations

import gc
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress as Bar
    from rich.progress import TaskID

    from penstock.server.opening.progress import Progress, Show

PATIENCE_S = 0.3
"""A start that is over by then shows nothing, and loads nothing to show it with."""

_PARTS = 1000


class Line:
    """Called with each step of a start, and once at its end."""

    def __init__(self, console: Console | None = None) -> None:
        """`console`: where it is drawn, standard error without one."""
        self._console = console
        self._bar: Bar | None = None
        self._task: TaskID | None = None

    def __call__(self, progress: Progress) -> None:
        """Draw it anew, or take it away when the start has ended."""
        if progress.over:
            self.close()
            return
        if self._bar is None:
            if progress.seconds < PATIENCE_S:
                return
            self._open()
        if self._bar is not None and self._task is not None:
            done = round(_PARTS * progress.share)
            self._bar.update(self._task, completed=done, description=describe(progress), refresh=True)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def _open(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TextColumn
        from rich.progress import Progress as Bar
        from rich.table import Column

        self._bar = Bar(
            TextColumn("recovering {task.percentage:>3.0f} %", table_column=Column(no_wrap=True, min_width=16)),
            BarColumn(12, table_column=Column(min_width=12)),
            TextColumn("{task.description}", markup=False, table_column=Column(no_wrap=True)),
            console=self._console or Console(stderr=True),
            transient=True,
            auto_refresh=False,
        )
        self._bar.start()
        self._task = self._bar.add_task("", total=_PARTS)


def describe(progress: Progress) -> str:
    """What is done now, without what the bar says already."""
    words = [progress.doing]
    if progress.stage == "checking" and progress.segments_total:
        words.append(f"{progress.segments}/{progress.segments_total}")
    if progress.records_total:
        words.append(f"{progress.records:,}/{progress.records_total:,} records")
    if rate := progress.rate:
        words.append(f"{rate:,.0f}/s")
    if (left := progress.seconds_left) is not None:
        words.append(f"about {left:.0f} s left")
    return "  ".join(words)


def relax_collector() -> None:
    """Have the collector of cycles look rarely while modules are loaded and the log is folded: nearly all stays.

    At its defaults it costs 4 % of a start.  The server sets it for good when it is ready.
    """
    gc.set_threshold(100_000, 50, 1_000)


def line() -> Show | None:
    """A line on the terminal; None where there is none."""
    return Line() if sys.stderr.isatty() else None
