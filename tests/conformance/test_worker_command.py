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
        nonlocal published
        broker.publish("q", b'{"id": %d}' % published)
        published += 1
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
    command = [sys.executable, "-m", "penstock", "worker", "nothing:app"]
    done = subprocess.run(
        command, cwd=shop, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "no module 'nothing'" in done.stderr


@pytest.mark.parametrize(
    ("text", "status", "first", "last"),
    [
        (
            "def app(:\n",
            2,
            "penstock: {folder}/broken.py:1: invalid syntax",
            "  PS105. Use a value the message allows.",
        ),
        ("import nothing_there\n", 1, "Traceback (most recent call last):", "No module named 'nothing_there'"),
        ("1 / 0\n", 1, "Traceback (most recent call last):", "ZeroDivisionError: division by zero"),
    ],
)
def test_a_module_that_cannot_be_loaded_is_told_by_its_own_lines(
    tmp_path: Path, text: str, status: int, first: str, last: str
) -> None:
    (tmp_path / "broken.py").write_text(text)
    command = [sys.executable, "-m", "penstock", "worker", "broken:app"]
    done = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(SOURCE)}, capture_output=True, text=True
    )
    told = done.stderr.splitlines()
    assert (done.returncode, done.stdout) == (status, "")
    assert told[0].startswith(first.format(folder=tmp_path))
    assert told[-1].endswith(last)
    assert len(told) <= 5, "nothing of typer, importlib or this command"


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
