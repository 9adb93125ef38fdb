"""What users import: each public name is there by every way that Python has to ask for it."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module

import pytest

import penstock


def test_every_public_name_is_there() -> None:
    assert {name: getattr(penstock, name) for name in penstock.__all__}.keys() == set(dir(penstock))


@pytest.mark.parametrize(
    "statement",
    [
        "import penstock.aio; penstock.aio.connect",
        "from penstock import aio; aio.connect",
        "from penstock.aio import Client, connect",
        "import penstock.aio as a, penstock.client.aio as b; assert a is b and a.Message is b.Message",
        "import penstock; penstock.aio.connect",
        "from penstock.testing import Broker, evaluate",
        "from penstock import App, Message, connect",
        "from penstock.client import Batch, Consumer, Receipt, Replay, Result, TableReceipt, Task, Transaction",
    ],
)
def test_each_way_to_import_it_works_first_in_a_process(statement: str) -> None:
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_submodules_that_are_public_can_be_imported() -> None:
    for name in ("aio", "errors", "testing", "worker"):
        import_module(f"penstock.{name}")
