"""`penstock.faststream`: publish, subscribe, batches, requests, middlewares, its test broker, AsyncAPI; first steps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from choices import WITH_PACKAGES
from flight_house import FlightHouse
from page_lab import blocks, page

HERE = Path(__file__).resolve()
ROOT = HERE.parents[2]
PYTHON = ROOT / ".venv-frameworks" / "bin" / "python"
"""Made by `make conformance`."""

pytestmark = [pytest.mark.conformance, WITH_PACKAGES]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    python = os.environ.get("PENSTOCK_FRAMEWORKS_PYTHON", str(PYTHON))
    environ = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.run([python, *arguments], capture_output=True, text=True, timeout=90, env=environ, check=False)


def test_an_application(house: FlightHouse) -> None:
    ended = run(str(HERE.with_name("penstock_faststream_app.py")), house.url)
    assert ended.returncode == 0, ended.stderr[-4000:]
    told = json.loads(ended.stdout.splitlines()[-1])
    asked = told.pop("asked")
    assert (
        asked
        == told.pop("asked of the double")
        == [
            "publish: topic is None, not text: that is of type NoneType",
            "publish: priority is 999, not in 0..255",
            "publish: priority is -1, not in 0..255",
            "publish: priority is 'high', not a whole number or None: that is of type str",
            "publish: correlation_id has 300 bytes, 255 are allowed",
            f"publish: field name '{'x' * 40}' has 300 bytes, 255 are allowed",
            "publish: mandatory is 'no', not True or False or None: that is of type str",
            "publish: a body has 17825792 bytes; at most 16777216 are taken",
            "a body does not become JSON: nan at /load is none of its numbers; None becomes null",
            "a body does not become JSON: -inf at /load is none of its numbers; None becomes null",
            "body is '\\ud800', which is no text in UTF-8",
        ]
    )
    assert told.pop("declared") == [
        "subscriber: queue is None, not text or a PenstockQueue: that is of type NoneType",
        "subscriber: queue is 5, not text or a PenstockQueue: that is of type int",
        "subscriber: batch is 'yes', not True or False: that is of type str",
        "subscriber: backlog is 'x', not a whole number or None: that is of type str",
        "subscriber: max_workers is 'x', not a whole number: that is of type str",
        "subscriber: filter is 5, not text or None: that is of type int",
        "subscriber: ack_policy is 'x', not one of FastStream's AckPolicy",
    ]
    assert told.pop("queues") == [
        "PenstockQueue: name is None, not text: that is of type NoneType",
        "PenstockQueue: name is empty, and must be a text of one character at least",
        "PenstockQueue 'q': settings is 5, not names with their values or None",
    ]
    assert told.pop("filter")
    assert told.pop("told") == [
        "queue 'fs-asked' in vhost '/' is there with max_deliveries = 2, not 5; alter it, or ask for what is there"
    ]
    assert told == {
        "tested": {"orders": [1], "bills": [1], "batch": [[1, 2]], "filtered": [9], "matched": ["one"], "answer": 10,
                   "refused": True},
        "as held": [2, [1], "x", "ack", "delay"],
        "left": [],
        "dead": "x",
        "priorities": [7, 7],
        "option": True,
        "orders": list(range(20)),
        "bills": list(range(20)),
        "running": [0, 1, 2, 3],
        "answers": [42, 8],
        "unanswered": "no answer to the request to 'fs-double' within 0.2 s",
        "late": {"late": True},
        "got": {
            "headers": ["bill", "middleware"],
            "batch": list(range(10)),
            "tries": [1, 2],
            "filtered": [9],
        },
        "middleware": [21, True],
        "asyncapi": {
            "protocol": "penstock",
            "channels": [
                "^fs-late-[0-9]$", "fs-again", "fs-batch", "fs-bills", "fs-bills", "fs-double", "fs-filtered",
                "fs-late", "fs-late", "fs-orders", "fs-work",
            ],
        },
    }  # fmt: skip


def test_the_first_steps_and_the_page(house: FlightHouse, tmp_path: Path) -> None:
    shown, tests = blocks(page("faststream.md"), "python")
    assert shown == f"# serve.py\n{(ROOT / 'examples' / 'faststream' / 'serve.py').read_text()}"
    program = shown.replace("penstock://localhost", house.url)
    (tmp_path / "serve.py").write_text(program.replace("print(text, flush=True)", "print(text)\n    app.exit()"))
    (tmp_path / "main.py").write_text("import asyncio\nimport serve\nasyncio.run(serve.app.run())\n")
    ended = run(str(tmp_path / "main.py"))
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert "Hi John, you are number 1" in ended.stdout.splitlines()
    assert "John came with " in ended.stdout
    (tmp_path / "test_it.py").write_text(f"{tests}\n\nif True:\n    import asyncio\n    asyncio.run(test_greeting())\n")
    ended = run(str(tmp_path / "test_it.py"))
    assert ended.returncode == 0, ended.stderr[-4000:]


def test_without_faststream_it_says_what_to_install() -> None:
    code = "import sys; sys.modules['faststream'] = None; import penstock.faststream"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "pip install 'penstock[faststream]'" in done.stderr
