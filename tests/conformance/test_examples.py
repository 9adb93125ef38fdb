"""What newcomers run first, as in `examples`: RabbitMQ's six tutorials, the first steps of three others."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from choices import WITH_PACKAGES
from live_server import LiveServer
from waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples"
SUITES = ROOT / ".venv-suites/bin"
FRAMEWORKS = ROOT / ".venv-frameworks/bin"
"""Made by `make conformance`."""

WAIT_S = 60.0

pytestmark = [pytest.mark.conformance, WITH_PACKAGES]


class Terminals:
    """Programs in one folder, each with what it has printed."""

    def __init__(self, folder: Path, server: LiveServer) -> None:
        self._folder, self._url = folder, f"amqp://guest:guest@127.0.0.1:{server.port}/"
        self._open: list[tuple[subprocess.Popen[bytes], Path]] = []

    def start(self, *command: str) -> Callable[[], list[str]]:
        """The lines that it has printed so far are what is returned."""
        output = self._folder / f"output-{len(self._open)}"
        with output.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self._folder, stdout=file, stderr=subprocess.STDOUT,
                env={**os.environ, "AMQP_URL": self._url, "PYTHONDONTWRITEBYTECODE": "1"},
            )  # fmt: skip
        self._open.append((process, output))
        return lambda: output.read_text().splitlines()

    def run(self, *command: str) -> list[str]:
        """It ends well, and this is what it printed."""
        said = self.start(*command)
        assert self._open[-1][0].wait(WAIT_S) == 0, said()
        return said()

    def waiting(self, *command: str) -> Callable[[], list[str]]:
        """Started, and ready for what comes."""
        said = self.start(*command)
        eventually(lambda: "waiting" in said(), lambda: str(said()), WAIT_S)
        return lambda: said()[1:]

    def end(self) -> None:
        for process, _ in self._open:
            process.terminate()
        for process, _ in self._open:
            process.wait(WAIT_S)


@pytest.fixture
def terminals(request: pytest.FixtureRequest, server: LiveServer, tmp_path: Path) -> Iterator[Terminals]:
    folder = tmp_path / "example"
    shutil.copytree(EXAMPLES / request.param, folder)
    some = Terminals(folder, server)
    yield some
    some.end()


def in_folder(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("terminals", [name], indirect=True)


@in_folder("rabbitmq")
def test_hello_world(terminals: Terminals) -> None:
    got = terminals.waiting(sys.executable, "hello_world.py", "receive")
    assert terminals.run(sys.executable, "hello_world.py", "send") == ["sent 'Hello World!'"]
    eventually(lambda: got() == ["received Hello World!"], lambda: str(got()))


@in_folder("rabbitmq")
def test_work_queues(terminals: Terminals) -> None:
    """Two workers share them: while one is busy the other has the rest."""
    first, second = (terminals.waiting(sys.executable, "work_queues.py", "work") for _ in range(2))
    for text in ("long" + 6000 * ".", "a", "b"):  # longer than the others may take on a machine that has much to do
        terminals.run(sys.executable, "work_queues.py", "task", text)
    eventually(lambda: len(first()) + len(second()) == 2, lambda: str((first(), second())))
    assert ["done a", "done b"] in (first(), second())


@in_folder("rabbitmq")
def test_publish_subscribe(terminals: Terminals) -> None:
    some = [terminals.waiting(sys.executable, "publish_subscribe.py", "listen") for _ in range(2)]
    terminals.run(sys.executable, "publish_subscribe.py", "say", "news")
    eventually(lambda: [got() for got in some] == [["news"], ["news"]], lambda: str([got() for got in some]))


@in_folder("rabbitmq")
def test_routing(terminals: Terminals) -> None:
    got = terminals.waiting(sys.executable, "routing.py", "listen", "warning", "error")
    for severity in ("info", "error", "warning"):
        terminals.run(sys.executable, "routing.py", "say", severity, "text")
    eventually(lambda: got() == ["error text", "warning text"], lambda: str(got()))


@in_folder("rabbitmq")
def test_topics(terminals: Terminals) -> None:
    got = terminals.waiting(sys.executable, "topics.py", "listen", "kern.*", "*.critical")
    for key in ("cron.info", "kern.info", "cron.critical", "kern.critical"):
        terminals.run(sys.executable, "topics.py", "say", key, "text")
    eventually(lambda: got() == ["kern.info text", "cron.critical text", "kern.critical text"], lambda: str(got()))


@in_folder("rabbitmq")
def test_rpc(terminals: Terminals) -> None:
    terminals.waiting(sys.executable, "rpc.py", "serve")
    assert terminals.run(sys.executable, "rpc.py", "call", "30") == ["832040"]


@in_folder("celery")
def test_celery(terminals: Terminals) -> None:
    terminals.start(str(SUITES / "celery"), "-A", "tasks", "worker", "--concurrency", "2")
    assert terminals.run(str(SUITES / "python"), "ask.py") == [
        "8 True", "2", "16", "[0, 2, 4, 6, 8]", "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    ]  # fmt: skip


@in_folder("celery")
def test_celery_canvas(terminals: Terminals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains, groups and chords, with results in files."""
    results = tmp_path / "results"
    results.mkdir()
    monkeypatch.setenv("RESULTS", f"file://{results}")
    terminals.start(str(SUITES / "celery"), "-A", "tasks", "worker", "--concurrency", "2")
    assert terminals.run(str(SUITES / "python"), "canvas.py") == [
        "chain 16", "group [0, 2, 4, 6, 8]", "chord 20", "chord of chains 9", "group, then one 10",
        "TypeError: unsupported operand type(s) for +: 'int' and 'str'",
    ]  # fmt: skip


@in_folder("dramatiq")
def test_dramatiq(terminals: Terminals) -> None:
    alone = "--processes", "1", "--threads", "1"  # several print into each other's lines
    got = terminals.start(str(SUITES / "dramatiq"), "count_words", *alone)
    terminals.run(str(SUITES / "python"), "count_words.py", "some words to count")
    wanted = {"There are 4 words in 'some words to count'.", "There are 3 words in 'and these later'."}
    eventually(lambda: wanted <= set(got()), lambda: str(got()), WAIT_S)


@in_folder("faststream")
def test_faststream(terminals: Terminals) -> None:
    got = terminals.start(str(FRAMEWORKS / "faststream"), "run", "rabbit:app")
    eventually(lambda: "user='John' user_id=1" in "\n".join(got()), lambda: str(got()), WAIT_S)
