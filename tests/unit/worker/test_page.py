"""The code of docs/workers.md runs as it stands there."""

from __future__ import annotations

import asyncio
import re
import runpy
import threading
from pathlib import Path
from typing import Any

import pytest

import penstock
import penstock.testing as testing

PAGE = Path(__file__).resolve().parents[3] / "docs" / "workers.md"


def test_the_example_and_its_test_run(tmp_path: Path) -> None:
    module, *_, test = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "shop.py").write_text(module)
    names: dict[str, Any] = runpy.run_path(str(tmp_path / "shop.py"), {"testing": testing}, "shop")
    app: penstock.App = names["app"]
    assert [worker.queue for worker in app.workers] == ["to-ship", "to-bill"]
    exec(test, names)
    names["test_orders_are_billed"]()


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
