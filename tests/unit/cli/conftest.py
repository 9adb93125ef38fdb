"""The command line, run in this process."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock.cli.main import main

Run = Callable[..., tuple[int, str, str]]
"""Words of a command line; its exit status, standard output and standard error."""


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Run:
    """Tables are 200 columns wide."""
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        out, err = capsys.readouterr()
        return int(caught.value.code or 0), out, err

    return run
