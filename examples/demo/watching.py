"""Progress bars on the screen, and the same numbers over time for the plots."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

import penstock


@dataclass
class History:
    """Counts over time; `times` in seconds since the demo's first message."""

    times: list[float] = field(default_factory=list[float])
    counts: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    killed: float | None = None
    back: float | None = None

    def add(self, at: float, counts: dict[str, int]) -> None:
        """One look."""
        self.times.append(at)
        for name, count in counts.items():
            self.counts.setdefault(name, []).append(count)


class Eyes:
    """Asks the server for the counts of its queues; while it is away, the last answer stays."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._client: penstock.Client | None = None
        self.queues = dict[str, dict[str, Any]]()
        self.fresh = False

    def look(self) -> dict[str, dict[str, Any]]:
        """Counts by queue; `fresh` says whether they are of now."""
        try:
            if self._client is None:
                self._client = penstock.connect(self._url, timeout="1s")
            self.queues = {one["queue"]: one for one in self._client.queues()}
            self.fresh = True
        except penstock.Unavailable:
            self.close()
            self.fresh = False
        return self.queues

    def count(self, queue: str, *states: str) -> int:
        """Messages of a queue in these states at the last look."""
        return sum(int(self.queues.get(queue, {}).get(state, 0)) for state in states)

    def close(self) -> None:
        """Let the connection go."""
        client, self._client = self._client, None
        if client is not None:
            try:
                client.close()
            except penstock.PenstockError:
                pass  # it was broken


class Screen:
    """One bar for each stream of work."""

    def __init__(self, console: Console, bars: dict[str, tuple[str, int]]) -> None:
        """`bars`: name -> (what it says, total)."""
        self.history = History()
        self.began = time.monotonic()
        self._console = console
        self._progress = Progress(
            TextColumn("{task.description}", justify="left"),
            BarColumn(bar_width=32),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]:>10}"),
            TimeElapsedColumn(),
            console=console,
            refresh_per_second=4,
        )
        self._bars = {name: self._progress.add_task(text, total=total, rate="") for name, (text, total) in bars.items()}
        self._since = dict.fromkeys(bars, self.began)

    @property
    def now(self) -> float:
        """Seconds since it began."""
        return time.monotonic() - self.began

    def show(self, counts: dict[str, int]) -> None:
        """Move the bars and remember."""
        self.history.add(self.now, counts)
        for name, bar in self._bars.items():
            count, task = counts[name], self._progress.tasks[bar]
            if not count:
                self._since[name] = time.monotonic()
            elif not task.finished:
                rate = count / max(time.monotonic() - self._since[name], 0.2)
                self._progress.update(bar, completed=count, rate=f"{rate:,.0f}/s")

    def say(self, text: str) -> None:
        """A line above the bars."""
        self._console.print(f"[dim]{self.now:5.1f} s[/dim]  {text}", highlight=False)

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()
