"""The code of docs/workers.md runs as it stands there."""

from __future__ import annotations

import asyncio
import re
import runpy
import threading
from pathlib import Path

import pytest

import penstock
import penstock.testing as testing
from forked import ran

PAGE = Path(__file__).resolve().parents[3] / "docs" / "workers.md"


def test_the_example_and_its_test_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module, around, *_, test = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "shop.py").write_text(module + around)
    (tmp_path / "test_shop.py").write_text(test)
    monkeypatch.chdir(tmp_path)
    program = str(Path(pytest.__file__).with_name("__main__.py"))
    made = ran(program, "-q", "-p", "no:cacheprovider", "test_shop.py", seconds=120)
    assert made.returncode == 0, made.stdout + made.stderr


def test_its_queues_are_those_of_the_first_page(tmp_path: Path) -> None:
    """Whoever read the pages before has them, with the same settings."""
    declared = re.findall(r"^penstock queue declare (\S+)((?: --set \S+)*)", PAGE.read_text(), re.MULTILINE)
    first, *_ = re.findall(r"```python\n(.*?)```", PAGE.with_name("queues.md").read_text(), re.DOTALL)
    with testing.Broker({}) as broker, penstock.connect(broker.flight_url) as client:
        exec(first.replace("penstock://localhost", broker.flight_url), {})
        for name, settings in declared:
            client.declare(name, **dict(one.split("=", 1) for one in settings.split() if "=" in one))
        assert {name for name, _ in declared} == {"to-ship", "to-bill", "bills", "to-note", "to-sum"}


def test_what_surrounds_the_work_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, around, *_ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "shop.py").write_text(module + around)
    app: penstock.App = runpy.run_path(str(tmp_path / "shop.py"), {}, "shop")["app"]
    with testing.Broker({"queue": [{"name": name} for name in ("to-ship", "to-bill", "to-note")]}) as broker:
        broker.publish("to-note", b'{"id": 7, "total": 1}')
        app.run(url=broker.flight_url, burst=True)
    assert "noted 7 True" in capsys.readouterr().out


def test_results_are_waited_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    module, _, results, asking, _ = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "shop.py").write_text(module + results)
    app: penstock.App = runpy.run_path(str(tmp_path / "shop.py"), {}, "shop")["sums"]
    with testing.Broker({"queue": [{"name": "to-sum"}]}) as broker, penstock.connect(broker.flight_url) as client:
        client.submit("to-sum", [1])
        working = threading.Thread(target=lambda: asyncio.run(app.serve(url=broker.flight_url)))
        working.start()
        exec(asking.replace("penstock://localhost", broker.flight_url), {"penstock": penstock})
        app.stop()
        working.join(30)
    first, second = capsys.readouterr().out.splitlines()
    assert first.endswith(" 6.5")
    assert "'state': 'done', 'value': 6.5}" in second
