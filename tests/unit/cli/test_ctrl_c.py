"""Ctrl-C at any moment ends a command without a traceback."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

INTERRUPTED = """
import os, runpy, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts in the background what ignores it
moment = sys.argv.pop(1)
class AtMoment:
    def find_spec(self, name, path=None, target=None):
        if name == moment:
            sys.meta_path.remove(self)
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, AtMoment())
runpy.run_module("penstock", run_name="__main__", alter_sys=True)
"""
"""The command, to which Ctrl-C comes as it begins to load some file."""

PATIENCE_S = 60


@pytest.mark.parametrize(
    ("moment", "command"),
    [
        ("penstock.cli.main", "version"),
        ("typer", "queue list"),
        ("penstock.cli.queues", "queue list"),
        ("penstock.cli.serving", "serve"),
        ("penstock.config.load", "serve"),
        ("penstock.config.load", "check --json nowhere.toml"),
        ("pyarrow", "queue list --json"),
    ],
)
def test_ctrl_c_while_a_command_is_loaded(moment: str, command: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, moment, *command.split()],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
    )
    assert ended.returncode in (130, -signal.SIGINT), ended
    assert "Traceback" not in ended.stderr
