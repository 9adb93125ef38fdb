"""`penstock worker`: an app of a user's own, in one process and in several, that is stopped and that has mistakes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from penstock.errors import InvalidArgument
from penstock.testing import Broker
from penstock.worker.app import App, load
from waiting import eventually

SOURCE = Path(__file__).resolve().parents[2] / "src"
PATIENCE_S = 60

MODULE = """
import os
from dataclasses import dataclass

import penstock

app = penstock.App()


@dataclass
class Order:
    id: int


@app.worker("q", concurrency=2, publish="out")
async def ship(order: Order) -> dict[str, int]:
    return {"shipped": order.id, "by": os.getpid()}
"""


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    (tmp_path / "shop.py").write_text(MODULE)
    return tmp_path


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker({"queue": [{"name": "q"}, {"name": "out"}]}) as broker:
        yield broker


def start(shop: Path, broker: Broker, *options: str, target: str = "shop:app") -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "penstock", "worker", target, "--url", broker.flight_url, *options]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.Popen(
        command, cwd=shop, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )  # fmt: skip


def ran(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, until it ends by itself."""
    command = [sys.executable, "-m", "penstock", "worker", *words]
    environ = {**os.environ, "PYTHONPATH": str(SOURCE)}
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=PATIENCE_S)


def test_a_burst_works_on_what_is_there_and_tells_what_became_of_it(shop: Path, broker: Broker) -> None:
    for number in range(20):
        broker.publish("q", b'{"id": %d}' % number)
    broker.publish("q", b"no order")
    out, err = start(shop, broker, "--burst", "--json").communicate(timeout=PATIENCE_S)
    counts = json.loads(out)["ship"]
    assert (counts["done"], counts["rejected"], counts["running"]) == (20, 1, 0)
    assert "the body is no Order" in err
    assert broker.stats("out")["ready"] == 20


def test_several_processes_share_the_queue_and_stop_together(shop: Path, broker: Broker) -> None:
    process = start(shop, broker, "--processes", "2")
    published = 0

    def both_have_worked() -> bool:
        """Two of one commit: one alone would go each time to whom subscribed first, for both have all their room."""
        nonlocal published
        with broker.transaction() as together:
            for number in range(published, published + 2):
                together.publish("q", b'{"id": %d}' % number)
        published += 2
        assert process.poll() is None
        return len({json.loads(record.body)["by"] for record in broker.sow("out")}) == 2

    try:
        eventually(both_have_worked, "one process has not worked")
    finally:
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0, err
    assert out.count("ship") == 2  # a table of each
    eventually(lambda: broker.stats("q")["leased"] == 0 == broker.stats("q")["consumers"], "consumers stayed behind")
    assert len(list(broker.sow("out"))) + len(list(broker.sow("q"))) == published


def test_an_app_that_is_not_there_is_told_with_what_is(shop: Path, broker: Broker) -> None:
    for target, said in (
        ("shop:ap", "shop has no 'ap'; it has app"),
        ("shop:ship", "shop:ship is a function, not a penstock.App; it has app"),
        ("shopp:app", "no module 'shopp'"),
        ("shop.py:app", "is a file: name the module, 'shop'"),
        ("shop", "is no MODULE:APP"),
    ):
        with pytest.raises(InvalidArgument, match=said):
            load(target, shop)
    assert isinstance(load("shop:app", shop), App)
    process = start(shop, broker)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    done = ran(shop, "nothing:app")
    assert (done.returncode, done.stdout) == (2, "")
    assert "no module 'nothing'" in done.stderr


BROKEN = ('  File "{folder}/broken.py", line 1', "    def app(:", "SyntaxError: invalid syntax")
OUTER = ("Traceback (most recent call last):", '  File "{folder}/outer.py", line 1, in <module>')


@pytest.mark.parametrize(
    ("module", "text", "told"),
    [
        ("broken", "def app(:\n", BROKEN),
        ("outer", "import broken\n", (*OUTER, "    import broken", *BROKEN)),
        (
            "outer",
            "import nothing_there\n",
            (*OUTER, "    import nothing_there", "ModuleNotFoundError: No module named 'nothing_there'"),
        ),
        ("outer", "1 / 0\n", (*OUTER, "    1 / 0", "ZeroDivisionError: division by zero")),
    ],
)
def test_a_module_that_cannot_be_loaded_is_told_by_python_with_its_own_lines_alone(
    tmp_path: Path, module: str, text: str, told: tuple[str, ...]
) -> None:
    (tmp_path / "broken.py").write_text("def app(:\n")
    (tmp_path / f"{module}.py").write_text(text)
    done = ran(tmp_path, f"{module}:app")
    lines = [line for line in done.stderr.splitlines() if line.strip(" ~^")]  # which marks there are is Python's
    assert (done.returncode, done.stdout, lines) == (1, "", [line.format(folder=tmp_path) for line in told])


def test_processes_whose_module_is_no_python_are_not_started_again(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def app(:\n")
    done = ran(tmp_path, "broken:app", "--processes", "2")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("SyntaxError: invalid syntax") == 2
    assert "ended with 1\n" in done.stderr
    assert "started again" not in done.stderr


def test_a_change_of_the_program_starts_it_again(shop: Path, broker: Broker) -> None:
    (shop / ".venv").mkdir()
    process = start(shop, broker, "--reload")
    try:
        broker.publish("q", b'{"id": 1}')
        eventually(lambda: len(broker.sow("out")) == 1, seconds=PATIENCE_S)
        (shop / "shop.py").write_text("mistaken(\n")
        eventually(lambda: b"worker process 1 ended" in told(process), seconds=PATIENCE_S)
        (shop / ".venv" / "other.py").write_text("")
        (shop / "shop.py").write_text(MODULE.replace('"shipped": order.id', '"sent": order.id'))
        broker.publish("q", b'{"id": 2}')
        eventually(lambda: len(broker.sow("out")) == 2, seconds=PATIENCE_S)
        assert sorted(key for one in broker.sow("out") for key in json.loads(one.body) if key != "by") == [
            "sent", "shipped",
        ]  # fmt: skip
    finally:
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 0
    said = heard.pop(process.pid, b"").decode() + rest
    assert "other.py" not in said
    assert "worker: shop.py changed" in said


heard: dict[int, bytes] = {}


def told(process: subprocess.Popen[str]) -> bytes:
    """What it has said so far on its standard error."""
    assert process.stderr is not None
    os.set_blocking(process.stderr.fileno(), False)
    try:
        heard[process.pid] = heard.get(process.pid, b"") + os.read(process.stderr.fileno(), 65_536)
    except BlockingIOError:
        pass
    return heard.get(process.pid, b"")


def test_reload_and_burst_do_not_go_together(shop: Path, broker: Broker) -> None:
    process = start(shop, broker, "--reload", "--burst")
    _, error = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 2
    assert "choose one" in error
