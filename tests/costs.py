"""What files of tests cost: CPU seconds of the process that runs them and of all that it started.

A machine that is shared tells nothing by the clock: a file that waits is not dear.  Where several processes share the
work, the dearest files are told at the end; nothing fails by it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

TOLD = 10
TICK_S = 1 / os.sysconf("SC_CLK_TCK")
TESTS = Path(__file__).parent


def spent() -> float:
    """CPU seconds of this process, of those it started, and of those that they waited for."""
    ticks, left = 0, [os.getpid()]
    while left:
        place = f"/proc/{left.pop()}"
        try:
            with open(f"{place}/stat", "rb", buffering=0) as file:
                ticks += sum(map(int, file.read(4096).rpartition(b")")[2].split()[11:15]))
            for thread in os.listdir(f"{place}/task"):
                with open(f"{place}/task/{thread}/children", "rb") as file:
                    left += map(int, file.read().split())
        except OSError:
            continue  # it has just ended
    return ticks * TICK_S


class Costs:
    """A plugin: counts where tests are run, and tells where their results come together."""

    def __init__(self) -> None:
        self.files = Counter[str]()
        self.before = 0.0
        self.process = os.getpid()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        """What loading the tests costs is nobody's alone, and nothing to a copy of who has done so."""
        self.before = spent()
        self.files["(loading and collecting)"] = self.before if self.process == os.getpid() else 0.0  # type: ignore[assignment]
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> Generator[None, object, object]:
        """The end of a file, with all that was kept for it."""
        result = yield
        if nextitem is None or nextitem.path != item.path:
            now = spent()
            self.files[str(item.path.relative_to(TESTS.parent))] += max(0.0, now - self.before)  # type: ignore[assignment]
            self.before = now
        return result

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """One of several processes hands over what it has counted."""
        output: dict[str, Any] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["costs"] = dict(self.files)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """What one of several processes has counted; one that died tells nothing."""
        self.files.update(getattr(node, "workeroutput", {}).get("costs", {}))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """The dearest files."""
        if terminalreporter.config.getoption("numprocesses", None) and self.files:
            terminalreporter.section(f"{self.files.total():.0f} CPU seconds, the dearest files")
            for file, seconds in self.files.most_common(int(os.environ.get("PENSTOCK_COSTS", TOLD))):
                terminalreporter.line(f"{seconds:6.1f} {file}")
