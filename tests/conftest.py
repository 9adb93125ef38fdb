"""What every test shares: how much effort random tests make, and hypothesis settings that do not depend on luck."""

from __future__ import annotations

import ast
import gc
import os
from collections.abc import Generator, Iterator
from traceback import walk_tb
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

from choices import EFFORT, examples, is_left_out
from collected import Collected
from costs import Costs
from forked import with_loaded_children
from penstock.core.commands.containing import Containing
from penstock.core.commands.life import Life
from penstock.core.state.durable import Reign
from penstock.records.chunks import Now
from sharing import Shares, in_order, is_aside, note_of, step_aside

PHASES = [phase for phase in Phase if phase is not Phase.shrink or "PENSTOCK_UNSHRUNK" not in os.environ]
"""Who only asks whether a test fails does not wait for the smallest example."""

settings.register_profile(
    "penstock",
    deadline=None,  # a shared machine pauses; a slow example is no failure
    max_examples=examples(100),
    derandomize=EFFORT == 1,  # as all choices: a usual run makes those of every usual run, a hunt makes new ones
    phases=PHASES,
    suppress_health_check=[HealthCheck.too_slow],
    print_blob=True,
)
settings.load_profile("penstock")


os.environ.setdefault("PENSTOCK_SERVER__DOORS", "0")  # by default a server has as many doors as its machine has cores


def pytest_configure(config: pytest.Config) -> None:
    """What files cost is counted in each process that runs them; what servers start is forked.

    What is loaded stays: a seventh of what collecting took was looking again and again for garbage in it.
    """
    gc.disable()
    with_loaded_children()
    config.pluginmanager.register(Costs())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Collected())


def pytest_sessionstart(session: pytest.Session) -> None:
    """What `caplog` catches stays text: pytest gives its handlers to each logger that does not propagate, and those of
    PySpark make a handler that they are given write JSON, without the lines of a traceback, from then on.
    """
    caught: Any = session.config.pluginmanager.get_plugin("logging-plugin")
    if caught is not None:
        caught.caplog_handler.setFormatter = caught.report_handler.setFormatter = lambda formatter: None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Shares | None:
    """As `make test` has it; who asks for something else gets that."""
    return Shares(config, log) if config.getoption("dist") == "loadscope" else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Without what is left to a hunt, and where several processes share the work, in the order in which they do."""
    left_out = {one for one in items if is_left_out(one.get_closest_marker("bulk") is not None, config.args)}
    if left_out:
        config.hook.pytest_deselected(items=list(left_out))
        items[:] = [one for one in items if one not in left_out]
    if hasattr(config, "workerinput"):
        in_order(items)


@pytest.fixture(scope="session")
def effort() -> int:
    """By how much random and crash tests multiply their work: 1, or what `PENSTOCK_EFFORT` says."""
    return EFFORT


@pytest.fixture(autouse=True, scope="session")
def parsed_in_one_piece() -> Iterator[None]:
    """No garbage is collected while `ast` parses: Python 3.11 takes a finalizer that parses, as any does that logs a
    traceback, for a mistake of whoever it came between (`SystemError: AST constructor recursion depth mismatch`).
    """
    parse = ast.parse

    def parsed(*args: Any, **named: Any) -> ast.AST:
        collects = gc.isenabled()
        gc.disable()
        try:
            return parse(*args, **named)
        finally:
            if collects:
                gc.enable()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ast, "parse", parsed)
        yield


@pytest.fixture(autouse=True, scope="session")
def faults_surface() -> Iterator[None]:
    """A fault of the core that no test has planted is no queue that stops: it fails the test that met it."""
    due, command = Containing.contain, Containing.contain_command

    def planted(error: Exception) -> bool:
        place = [frame.f_code.co_filename for frame, _ in walk_tb(error.__traceback__)][-1]
        return f"{os.sep}tests{os.sep}" in place

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Containing, "contain", lambda core, error, of: planted(error) and due(core, error, of))
        patch.setattr(Containing, "contain_command", lambda core, error: planted(error) and command(core, error))
        yield


@pytest.fixture(autouse=True, scope="session")
def quiet_restores() -> Iterator[None]:
    """A core that is restored has written nothing before its boot record: an LSN would be given twice after a crash."""
    boot = Life.boot

    def checked(core: Life, now: Now, *, clean: bool, next_lsn: int, leads: Reign | None = None) -> None:
        written = core.take_journal()
        assert not written, f"restoring wrote {written}"
        boot(core, now, clean=clean, next_lsn=next_lsn, leads=leads)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Life, "boot", checked)
        yield


def pytest_collection_finish() -> None:
    """Thousands of tests and their modules stay to the end: no collection of cycles walks them again.

    What tests make is looked through less often than by default, too: a twentieth of all they took was that.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(10_000, 10, 10)
    gc.enable()


@pytest.hookimpl(wrapper=True)
def pytest_runtestloop(session: pytest.Session) -> Generator[None, object, object]:
    """All processes wait until each knows its tests, so those aside step back after that alone."""
    given = getattr(session.config, "workerinput", None)
    if given and is_aside(given["workerid"], given["workercount"]):
        step_aside(note_of(given))
    return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failure of a test that makes random choices says how they are repeated, whatever it is that failed."""
    report = yield
    module: Any = getattr(item, "module", None)
    seed = getattr(module, "SEED", None)
    if report.failed and isinstance(seed, int):
        report.sections.append(("choices", f"repeat them with PENSTOCK_SEED={seed} PENSTOCK_EFFORT={EFFORT}"))
    return report


@pytest.fixture(scope="module")
def as_the_files_say() -> Iterator[None]:
    """The environment, which tells other tests' servers how many doors they have, says nothing here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PENSTOCK_SERVER__DOORS", raising=False)
        yield
