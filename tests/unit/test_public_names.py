"""What users import: each public name is there by every way that Python has to ask for it."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from importlib import import_module

import pytest

import penstock


def test_every_public_name_is_there() -> None:
    assert {name: getattr(penstock, name) for name in penstock.__all__}.keys() == set(dir(penstock))


WAYS = (
    "import penstock.aio; penstock.aio.connect",
    "from penstock import aio; aio.connect",
    "from penstock.aio import Client, connect",
    "import penstock.aio as a, penstock.client.aio as b; assert a is b and a.Message is b.Message",
    "import penstock; penstock.aio.connect",
    "from penstock.testing import Broker, evaluate",
    "from penstock import App, Message, connect",
    "from penstock.client import Batch, Consumer, Receipt, Replay, Result, TableReceipt, Task, Transaction",
)

EACH_FIRST = """
import asyncio, json, os, sys, traceback
import lark, numpy, orjson, pyarrow.compute, pyarrow.flight, pydantic
assert not [name for name in sys.modules if name.startswith("penstock")]
codes = {}
for statement in sys.argv[1:]:
    if not (pid := os.fork()):
        code = 1
        try:
            exec(statement, {})
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    codes[statement] = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
print(json.dumps(codes))
"""


@cache
def said() -> tuple[dict[str, int], str]:
    """Exit codes of processes that begin with one statement each, and what they say: they have loaded none of ours."""
    done = subprocess.run([sys.executable, "-c", EACH_FIRST, *WAYS], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


@pytest.mark.parametrize("statement", WAYS)
def test_each_way_to_import_it_works_first_in_a_process(statement: str) -> None:
    codes, errors = said()
    assert codes[statement] == 0, errors


def test_submodules_that_are_public_can_be_imported() -> None:
    for name in ("aio", "errors", "testing", "worker"):
        import_module(f"penstock.{name}")
