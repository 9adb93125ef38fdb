"""Those that run tests beside each other, forked from one process that has collected them: each would take as long to
load them all.

They are to xdist what those are that it starts itself; where tests cannot be collected it starts those, as ever.
"""

from __future__ import annotations

import json
import marshal
import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import _pytest.config
import pytest
from execnet import gateway_base, gateway_io

from forked import NO_ALGEBRA, OURS, PLAIN, Forked, of_the_start
from forking import of_a_visitor, of_the_owner, serve, to_its_end

BEGIN = f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import collected; collected.main()"
OF_A_TEST = ("logstart", "testreport", "logfinish")
TOGETHER = "several"
PLAIN_IO = gateway_io.create_io


class Forks(gateway_base.Popen2IO):
    """To execnet: the streams of a process that it has started.  OSError, AssertionError: nobody forks."""

    def __init__(self, command: Sequence[str], execmodel: Any, address: str) -> None:
        (theirs_in, ours_in), (ours_out, theirs_out) = os.pipe(), os.pipe()
        try:
            self.popen = Forked(
                command, stdin=theirs_in, stdout=theirs_out, stderr=2, env=os.environ, address=address
            )  # fmt: skip
        except (OSError, AssertionError):
            os.close(ours_in)
            os.close(ours_out)
            raise
        finally:
            os.close(theirs_in)
            os.close(theirs_out)
        super().__init__(os.fdopen(ours_in, "wb"), os.fdopen(ours_out, "rb"), execmodel)

    def wait(self) -> int | None:
        with suppress(OSError, AssertionError):
            return self.popen.wait()
        return None

    def kill(self) -> None:
        self.popen.kill()


class Collected:
    """A plugin of who shares the tests out: it has the process that collects them."""

    def __init__(self) -> None:
        self.process: subprocess.Popen[Any] | None = None
        self.ours: socket.socket | None = None

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Begin to collect; the first of those that run tests waits for it, and then each is a fork."""
        from xdist.plugin import _sys_path

        given = {"args": [str(one) for one in config.invocation_params.args], "path": _sys_path, "count": len(specs)}
        address = f"\0penstock-collected-{os.getpid()}-{os.urandom(6).hex()}"
        self.ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
            listener.bind(address)
            listener.listen(128)
            fds = theirs.fileno(), listener.fileno()
            self.process = PLAIN(
                [sys.executable, "-u", "-c", BEGIN, *map(str, fds), json.dumps(given)], pass_fds=fds,
                stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, env={**os.environ, **NO_ALGEBRA},
            )  # fmt: skip

        def create_io(spec: Any, execmodel: Any) -> Any:
            """As execnet's own, from the process that has collected the tests, if it has."""
            if spec.popen and not (spec.python or spec.chdir or spec.via):
                with suppress(OSError, AssertionError):
                    return Forks(gateway_io.popen_args(spec), execmodel, address)
            return PLAIN_IO(spec, execmodel)

        gateway_io.create_io = create_io

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """What is told together is heard as if it were told one by one."""
        hear = node.process_from_remote

        def heard(told: Any) -> None:
            for one in marshal.loads(told[1]["what"]) if isinstance(told, tuple) and told[0] == TOGETHER else (told,):
                hear(one)

        node.process_from_remote = heard

    def pytest_unconfigure(self) -> None:
        """Nobody asks any more."""
        gateway_io.create_io = PLAIN_IO
        if self.process is not None and self.ours is not None:
            self.ours.close()
            self.process.wait()


class Forking:
    """A plugin of the process that collects the tests, and of its copies, which run them."""

    def __init__(self, control: socket.socket, listener: socket.socket) -> None:
        self._control, self._listener = control, listener
        self._session: pytest.Session | None = None
        self._dist = ""
        self._skipped = list[pytest.CollectReport]()

    def begin(self, config: pytest.Config) -> None:
        """Up to where the first test would begin."""
        from xdist.remote import setup_config

        self._dist = config.getoption("dist")
        setup_config(config, None)
        config.pluginmanager.register(self)
        config.hook.pytest_cmdline_main(config=config)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if not report.passed:
            self._skipped.append(report)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        """Fork when asked; each copy goes on as a process that xdist has started.  What failed is for xdist to find."""
        if self._session is not None:
            return None
        if session.testsfailed:
            os._exit(1)
        capture: Any = session.config.pluginmanager.getplugin("capturemanager")
        capture.stop_global_capturing()
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        if serve({self._control: of_the_owner, self._listener: of_a_visitor}) is None:
            os._exit(0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        self._session = session
        OURS.clear()
        OURS.update(of_the_start(os.environ))  # as if it had begun with these

        def found(*_: object) -> pytest.Config:
            session.config.option.dist = self._dist
            return session.config

        _pytest.config._prepareconfig = found
        try:
            to_its_end(as_execnet_begins)
        except BaseException:  # noqa: BLE001  nothing of who was copied goes on here
            traceback.print_exc()
        os._exit(1)

    @pytest.hookimpl(tryfirst=True)
    def pytest_cmdline_main(self, config: pytest.Config) -> int | pytest.ExitCode | None:
        """All that follows once tests are collected, as pytest has it."""
        session, plugins = self._session, config.pluginmanager
        if session is None:
            return None
        capture, folders = plugins.getplugin("capturemanager"), plugins.getplugin("tmpdir")
        capture.start_global_capturing()
        capture.suspend_global_capture()
        folders.pytest_configure(config)
        [teller] = [one for one in plugins.get_plugins() if type(one).__name__ == "WorkerInteractor"]
        if config.get_verbosity() <= 0:  # else it is shown which test has begun
            durations, junit = config.getoption("durations"), config.getoption("xmlpath", None)
            teller.sendevent = told_together(teller.sendevent, whole=durations is not None or junit is not None)
        terminal = plugins.unregister(name="terminalreporter")
        plugins.register(Unheard(terminal), "terminalreporter")
        teller.pytest_sessionstart(session)
        teller.pytest_collection()
        teller.pytest_collection_modifyitems(config, session.items)
        for report in self._skipped:
            teller.pytest_collectreport(report)
        teller.pytest_collection_finish(session)
        session.exitstatus = pytest.ExitCode.OK
        try:
            config.hook.pytest_runtestloop(session=session)
        except (KeyboardInterrupt, pytest.exit.Exception):
            session.exitstatus = pytest.ExitCode.INTERRUPTED
            config.hook.pytest_keyboard_interrupt(excinfo=pytest.ExceptionInfo.from_current())
        except BaseException:  # noqa: BLE001  as pytest itself
            session.exitstatus = pytest.ExitCode.INTERNAL_ERROR
            config.notify_exception(pytest.ExceptionInfo.from_current(), config.option)
        os.chdir(session.startpath)
        config.hook.pytest_sessionfinish(session=session, exitstatus=session.exitstatus)
        config._ensure_unconfigure()
        return session.exitstatus


class Unheard:
    """In place of what writes to a terminal: who runs tests beside others has none."""

    def __init__(self, terminal: Any) -> None:
        self._tw = terminal._tw  # its width and colours are asked for


def told_together(tell: Callable[..., None], whole: bool) -> Callable[..., None]:
    """What is told of a test that passes is told at its end: each telling wakes who hears it, and there are six.

    whole: also what nothing is shown of, that it has begun, and that it was set up and taken down without a word.
    """
    kept = list[tuple[str, dict[str, Any]]]()

    def tell_later(name: str, **what: Any) -> None:
        if not whole and (name == "logstart" or (name == "testreport" and is_silent(what["data"]))):
            return
        kept.append((name, what))
        if name in OF_A_TEST and what.get("data", {}).get("outcome") != "failed":
            return
        if len(kept) > 1:
            tell(TOGETHER, what=marshal.dumps(kept))
        else:
            tell(name, **what)
        kept.clear()

    return tell_later


def is_silent(report: Mapping[str, Any]) -> bool:
    """Whether it says that what stands around a test went well, and no more."""
    return report["when"] != "call" and report["outcome"] == "passed" and not report["sections"]


def as_execnet_begins() -> None:
    """What it has `python -c` do: the rest comes as a line of the input."""
    sys.stdin = os.fdopen(0, closefd=False)
    exec(eval(sys.stdin.readline()), {"__name__": "__main__"})


def main() -> None:
    """The process that collects.  Arguments: the sockets of who began it, and what xdist tells who runs tests."""
    control, listener = (socket.socket(fileno=int(number)) for number in sys.argv[1:3])
    given = json.loads(sys.argv[3])
    sys.argv[1:] = []
    sys.path[:] = given["path"]
    config: Any = _pytest.config._prepareconfig(given["args"], None)
    config.workerinput = {"workerid": "", "workercount": given["count"], "testrunuid": "", "mainargv": sys.argv}
    config.workeroutput = {}
    try:
        Forking(control, listener).begin(config)
    except BaseException:  # noqa: BLE001  whoever xdist starts instead will tell it
        os._exit(1)
