"""Those that run tests beside each other are forked from who has collected them, and are to xdist as its own."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from sharing import TESTS

CONFTEST = """
from collected import Collected
def pytest_configure(config):
    if not hasattr(config, "workerinput") and FORKS:
        config.pluginmanager.register(Collected())
"""
TEST = """
import logging, os, random, warnings, pytest
collected_by = os.getpid()
warnings.warn("while it is collected")
def test_what_it_is_told(tmp_path, capfd):
    assert os.read(0, 9) == b""
    os.write(2, b"heard")
    assert capfd.readouterr().err == "heard"
    told = collected_by != os.getpid(), os.environ["PYTEST_XDIST_WORKER"], tmp_path.parts[-2:]
    with open("told", "w") as file:
        print(*told, file=file)
@pytest.fixture
def around():
    yield
    print("taken down")
def test_fails(around):
    os.system("echo from below")
    logging.getLogger("any").warning("logged")
    warnings.warn("while it runs")
    assert 1 == 2
def test_crashes():
    os._exit(3)
def test_after_it():
    pass
"""
SKIPPED = """
import pytest
pytest.importorskip("no_such_module")
"""


def told(folder: Path, *options: str, forks: bool = True) -> tuple[int, str]:
    """The status, and what was said."""
    (folder / "conftest.py").write_text(CONFTEST.replace("FORKS", str(forks)))
    plain = ("-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "--disable-plugin-autoload")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *plain, "-p", "xdist.plugin", "-q", "-ra", *options],
        cwd=folder, capture_output=True, text=True, timeout=60, check=False,
        env={**{name: value for name, value in os.environ.items() if "PYTEST" not in name}, "PYTHONPATH": str(TESTS)},
    )  # fmt: skip
    return done.returncode, re.sub(r"in [0-9.]+s", "in some time", done.stdout + done.stderr)


def test_reports_are_those_of_processes_that_xdist_starts(tmp_path: Path) -> None:
    (tmp_path / "test_any.py").write_text(TEST)
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    status, said = told(tmp_path, "-n", "1")
    assert "2 failed, 2 passed, 1 skipped" in said
    for one in ("crashed while running 'test_any.py::test_crashes'", "from below", "logged", "while it is collected",
                "while it runs", "taken down", "no_such_module"):  # fmt: skip
        assert one in said, said
    forked = (tmp_path / "told").read_text()
    assert told(tmp_path, "-n", "1", forks=False) == (status, said)
    assert forked == (tmp_path / "told").read_text().replace("False", "True")


def test_what_cannot_be_collected_is_told_by_those_that_xdist_starts(tmp_path: Path) -> None:
    (tmp_path / "test_wrong.py").write_text("import no_such_module\n")
    status, said = told(tmp_path, "-n", "1", "-W", "error")
    assert status == 1
    assert "1 error in some time" in said
    assert "ResourceWarning" not in said, "what nobody forked for is closed"
    assert "No module named 'no_such_module'" in said
